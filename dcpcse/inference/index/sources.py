"""Where the sentences of an index come from: a list or a text file, with vectors that are made or were made before."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.tokenization import require_sentences
from dcpcse.inference.index.vector_store import BLOCK
from dcpcse.inference.similarity import normalize_rows
from dcpcse.utils.errors import UserError
from dcpcse.utils.npy import open_array
from dcpcse.utils.parsing import parse_json

EncodeFn = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class SentenceSource:
    """Sentences in chunks of `BLOCK`; sha256 of the text file, None for a list."""

    count: int
    chunk: Callable[[int], list[str]]
    sha256: str | None

    @classmethod
    def of(cls, sentences: Sequence[str] | str | Path) -> "SentenceSource":
        """A list of sentences, or the lines of a text file; UserError for what holds none, or cannot be encoded."""
        if isinstance(sentences, str | Path):
            file = TextFile.read(sentences, BLOCK)
            return cls(file.lines, file.chunk, file.sha256)
        require_sentences(sentences)
        if not len(sentences):
            raise UserError("there is no sentence to build an index of; give at least one")
        return cls(len(sentences), lambda i: list(sentences[i * BLOCK : (i + 1) * BLOCK]), None)

    def chunks(self, vectors: EncodeFn | np.ndarray, show_progress: bool) -> Iterator[tuple[list[str], np.ndarray]]:
        """Sentences with unit vectors, `BLOCK` at a time but for the last ones."""
        with tqdm(total=self.count, desc="index", unit=" sentences", mininterval=1, disable=not show_progress) as bar:
            for start in range(0, self.count, BLOCK):
                sentences = self.chunk(start // BLOCK)
                found = vectors(sentences) if callable(vectors) else vectors[start : start + len(sentences)]
                yield sentences, normalize_rows(found, start)
                bar.update(len(sentences))


@dataclass(frozen=True)
class EncodedVectors:
    """Vectors (N, H) that `dcpcse encode` wrote, mapped into memory, and the model and text that they are of."""

    array: np.ndarray
    model: Mapping[str, Any]
    sha256: str

    @classmethod
    def read(cls, path: str | Path) -> "EncodedVectors":
        """UserError unless it is a whole .npy file with the journal that says what it is made of beside it."""
        path = Path(path)
        if path.suffix != ".npy":
            raise UserError(f"vectors are read from a .npy file, as `dcpcse encode` writes it; {path} is another")
        journal = path.with_name(f"{path.name}.journal")
        try:
            array = open_array(path)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the vectors {path}: {error}") from error
        try:
            with journal.open("rb") as file:
                made_of = parse_json(file.readline())
            return cls(array, made_of["model"], made_of["text"]["sha256"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{journal}, which says what model and text {path.name} is of, is missing or damaged; copy it beside "
                "the vectors, or encode the text again"
            ) from error

    def require_same_text(self, source: SentenceSource) -> None:
        """UserError unless they are of this very text."""
        if source.sha256 != self.sha256:
            raise UserError("the vectors are of another text than the one that is given; give that one")
