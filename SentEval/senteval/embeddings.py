"""Embeddings of all sentences of an evaluation; each distinct sentence is encoded once for all tasks."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from senteval.errors import DataError, quote
from senteval.lines import Line, Located

Encode = Callable[[list[str]], np.ndarray]
"""A function that returns embeddings (n, H) of n sentences, row i for sentence i. It chooses the batch size itself."""

Finish = Callable[[np.ndarray], np.ndarray]
"""A function that maps the embeddings (n, H) of the n distinct sentences of a task to vectors (n, K)."""

Progress = Callable[[str, int, int], None]
"""A function that is called with the current activity, the amount done and the total amount."""

CHUNK = 2048
"""Number of sentences that are encoded and checked at once."""


class Inside(Protocol):
    """Access to the internals of an encoder, for tasks that need more than embeddings."""

    def token_embeddings(self) -> np.ndarray:
        """Return the static embeddings (V, H) of all tokens."""
        ...

    def encode_without_frequent(self, sentences: list[str], count: int, counted: list[str]) -> np.ndarray:
        """Return embeddings (n, H) of n sentences without the `count` most frequent tokens of the texts `counted`."""
        ...


class Embeddings:
    """A lookup table of embeddings. Call it with n sentences to get the embeddings (n, H) of these sentences.

    Args:
        sentences, vectors: The N distinct sentences and their embeddings (N, H).
        inside: Access to the encoder's internals, or None.
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
        """Return a table of the n sentences, with their embeddings (n, H) mapped by `finish` to (n, K)."""
        finished = check_vectors(finish(self(sentences)), len(sentences), source="finish")
        return Embeddings(sentences, finished, self.inside)


def encode_all(
    encode: Encode,
    located: Iterable[Located],
    progress: Progress = lambda *_: None,
    inside: Inside | None = None,
    chunk: int = CHUNK,
    source: str = "encode",
) -> Embeddings:
    """Encode every distinct sentence once, longest first: if memory does not suffice, the first chunk fails.

    Args:
        located: Sentences with the lines that contain them.
        chunk: Number of sentences per call of encode.
        source: The name of `encode` in messages.

    Raises:
        DataError: If a vector contains values other than finite real numbers, if vectors differ in dimension, or if
            all vectors are equal. For a faulty vector, the message names the sentence and the first line that contains
            it.
    """
    lines: dict[str, Line] = {}
    for sentence, line in located:
        lines.setdefault(sentence, line)
    sentences = sorted(lines, key=len, reverse=True)
    parts: list[np.ndarray] = []
    for start in range(0, len(sentences), chunk):
        progress("encode", start, len(sentences))
        part = sentences[start : start + chunk]
        vectors = check_vectors(encode(part), len(part), parts[0].shape[1] if parts else None, source)
        check_finite(vectors, part, lines)
        parts.append(vectors)
    progress("encode", len(sentences), len(sentences))
    check_different(parts, source)
    return Embeddings(sentences, np.concatenate(parts), inside)


def check_vectors(vectors: np.ndarray, count: int, width: int | None = None, source: str = "encode") -> np.ndarray:
    """Return a copy of vectors in float32 or float64. Raises DataError unless vectors are numbers (count, width).

    Args:
        width: The dimension of the vectors. None: any dimension.
        source: The name of the function that returned the vectors, for messages.
    """
    if not isinstance(vectors, np.ndarray):
        found = f"a {type(vectors).__name__}"
    elif vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1] or width not in (None, vectors.shape[1]):
        found = f"an array of shape {vectors.shape}"
    elif vectors.dtype.kind not in "fiu":
        found = f"an array of {vectors.dtype}"
    else:
        # Products of smaller types would overflow. The array is always copied, since an encoder may reuse its buffer.
        return np.array(vectors, dtype=np.result_type(vectors, np.float32))
    raise DataError(
        f"{source} returned {found}; expected a numpy array of real numbers of shape ({count}, {width or 'H'}), with "
        "the embedding of sentence i in row i"
    )


def check_different(parts: Sequence[np.ndarray], source: str = "encode") -> None:
    """Raise DataError if all vectors are equal up to rounding.

    Args:
        parts: Arrays (n, H) of vectors.
    """
    first, count = parts[0][:1], sum(map(len, parts))
    same = 1e-7 * np.abs(first).max()
    if count > 1 and all(np.abs(part - first).max() <= same for part in parts):
        raise DataError(
            f"{source} returned the same embedding for all {count} sentences, so no score is defined; check the "
            "encoder (did training collapse?)"
        )


def pair_features(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the features (N, 2H) of pairs of embeddings (N, H): |u − v| and u * v, concatenated (SentEval)."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def check_finite(vectors: np.ndarray, sentences: Sequence[str], lines: dict[str, Line]) -> None:
    """Raise DataError for the first sentence whose vector, a row of (n, H), has NaN or infinite values.

    Args:
        lines: Sentence → the first line that contains it.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        sentence = sentences[int(np.argmin(finite))]
        line = lines[sentence]
        raise DataError(
            f"{line.place}: the embedding of {quote(sentence)} is not finite (NaN or infinite); check "
            "the encoder (did training diverge, or half precision overflow?)"
        )
