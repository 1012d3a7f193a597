"""The vectors of all sentences of a run: each distinct sentence is encoded once, whatever tasks it occurs in."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from senteval.errors import DataError, quote
from senteval.lines import Line, Located

Encode = Callable[[list[str]], np.ndarray]
"""Gives embeddings (n, H) for n sentences, row i for sentence i; it batches as it likes."""

Finish = Callable[[np.ndarray], np.ndarray]
"""Gives other vectors (n, K) for the n distinct sentences of a task, whose embeddings (n, H) it gets."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

CHUNK = 2048
"""Sentences that are encoded, and checked, at once."""


class Inside(Protocol):
    """What can be asked of an encoder besides embeddings, where it is at hand."""

    def token_embeddings(self) -> np.ndarray:
        """The static embedding of every token, (V, H)."""
        ...

    def encode_without_frequent(self, sentences: list[str], count: int) -> np.ndarray:
        """Embeddings (n, H) of sentences without the tokens that are most frequent in them, so many of these."""
        ...


class Embeddings:
    """Vectors by sentence; call it with n sentences for their embeddings (n, H).

    inside: the encoder itself, for tasks that look into it.
    """

    def __init__(self, sentences: Sequence[str], vectors: np.ndarray, inside: Inside | None = None) -> None:
        self.vectors = vectors
        self.inside = inside
        self._row_of = {sentence: row for row, sentence in enumerate(sentences)}

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        return self.vectors[[self._row_of[sentence] for sentence in sentences]]

    def __len__(self) -> int:
        return len(self.vectors)

    def of(self, sentences: Sequence[str], finish: Callable[[np.ndarray], np.ndarray]) -> "Embeddings":
        """The embeddings of n of these sentences, with their vectors (n, H) as `finish` makes them, (n, K)."""
        finished = check_vectors(finish(self(sentences)), len(sentences), giver="finish")
        return Embeddings(sentences, finished, self.inside)


def encode_all(
    encode: Encode,
    located: Iterable[Located],
    progress: Progress = lambda *_: None,
    inside: Inside | None = None,
    chunk: int = CHUNK,
    giver: str = "encode",
) -> Embeddings:
    """Encode every distinct sentence once, longest first, so that what does not fit into memory shows at once.

    Raises DataError for anything but finite real vectors of one length, naming the sentence and its first place;
    giver is what the message calls the function.
    """
    places: dict[str, Line] = {}
    for sentence, line in located:
        places.setdefault(sentence, line)
    sentences = sorted(places, key=len, reverse=True)
    parts: list[np.ndarray] = []
    for start in range(0, len(sentences), chunk):
        progress("encode", start, len(sentences))
        part = sentences[start : start + chunk]
        vectors = check_vectors(encode(part), len(part), parts[0].shape[1] if parts else None, giver)
        check_finite(vectors, part, places)
        parts.append(vectors)
    progress("encode", len(sentences), len(sentences))
    check_different(parts, giver)
    return Embeddings(sentences, np.concatenate(parts), inside)


def check_vectors(vectors: np.ndarray, count: int, width: int | None = None, giver: str = "encode") -> np.ndarray:
    """Return what an encoder gave in float32 or better; DataError unless it is an array (count, H) of numbers."""
    if not isinstance(vectors, np.ndarray):
        found = f"a {type(vectors).__name__}"
    elif vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1] or width not in (None, vectors.shape[1]):
        found = f"an array of shape {vectors.shape}"
    elif vectors.dtype.kind not in "fiu":
        found = f"an array of {vectors.dtype}"
    else:
        # Products and differences of small types would run over. Always a copy: an encoder may use one buffer again.
        return np.array(vectors, dtype=np.result_type(vectors, np.float32))
    raise DataError(
        f"{giver} returned {found}; a numpy array of real numbers of shape ({count}, {width or 'H'}) is expected, "
        "row i being the embedding of sentence i"
    )


def check_different(parts: Sequence[np.ndarray], giver: str = "encode") -> None:
    """Raise DataError if all vectors, parts of (n, H) each, are the same but for rounding."""
    first, count = parts[0][:1], sum(map(len, parts))
    same = 1e-7 * np.abs(first).max()
    if count > 1 and all(np.abs(part - first).max() <= same for part in parts):
        raise DataError(
            f"{giver} gave all {count} sentences the same embedding, so no score is defined; check the encoder "
            "(did training collapse?)"
        )


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Features (N, 2H) of pairs of embeddings (N, H) each: |u − v| and u · v beside each other (SentEval)."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def check_finite(vectors: np.ndarray, sentences: Sequence[str], places: dict[str, Line]) -> None:
    """Raise DataError naming the first sentence with NaN or infinity in its vector, a row of (n, H)."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        sentence = sentences[int(np.argmin(finite))]
        line = places[sentence]
        raise DataError(
            f"{line.path}:{line.number}: the embedding of {quote(sentence)} is not finite (NaN or infinite); check "
            "the encoder (did training diverge, or half precision overflow?)"
        )
