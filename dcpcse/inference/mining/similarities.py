"""Cosines of anchors with their positives and with texts of a corpus, by one encoder."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dcpcse.encoders.encode_options import CosineOptions
from dcpcse.inference.mining.pairs import AnchorChunk
from dcpcse.inference.similarity import normalize_rows, pairwise_cosines

BLOCK = 8_192
"""Number of vectors that are in memory at once."""

Vectors = Callable[[Sequence[int]], np.ndarray]
"""A function from the numbers (n,) of texts to their unit vectors (n, H)."""


class Encoding:
    """An encoder that returns unit vectors. `model` is any object with `encode(sentences, batch_size=...)`."""

    def __init__(self, model: Any, options: CosineOptions) -> None:
        self._encode = options.encode_with(model)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the unit vectors (n, H) of texts."""
        return normalize_rows(self._encode(list(texts)))


class StoredVectors:
    """Vectors that are computed when they are first needed, and are then stored in a file.

    Only 8 bytes per text are in memory.

    Args:
        encode: A function that encodes texts.
        text: A function from the number of a text to the text.
        count: Number of texts.
        path: Path of the file, which must be new.
    """

    def __init__(self, encode: Encoding, text: Callable[[int], str], count: int, path: Path) -> None:
        self.encode, self.text, self.path = encode, text, path
        self._places = np.full(count, -1)
        self._stored = 0

    def __call__(self, numbers: Sequence[int]) -> np.ndarray:
        """Return the vectors (n, H) of the texts with the given numbers (at least one number)."""
        numbers = np.asarray(numbers)
        missing = np.unique(numbers[self._places[numbers] < 0])
        if len(missing):
            vectors = self.encode([self.text(number) for number in missing.tolist()])
            with open(self.path, "ab") as file:  # not memory-mapped, because a full disk would kill the process
                file.write(vectors.data)
            self._places[missing] = np.arange(self._stored, self._stored + len(missing))
            self._stored += len(missing)
        return np.memmap(self.path, np.float32, "r").reshape(self._stored, -1)[self._places[numbers]]


class Similarities:
    """Similarities of texts, computed by one encoder.

    Args:
        encode: The encoder.
        positives: The vectors (N, H) of the positives.
        corpus: The vectors (C, H) of the corpus.
    """

    def __init__(self, encode: Encoding, positives: Vectors, corpus: Vectors) -> None:
        self.encode, self.positives, self.corpus = encode, positives, corpus

    def of_pairs(self, chunk: AnchorChunk, vectors: np.ndarray) -> np.ndarray:
        """Return the cosines (M,) of the pairs of a chunk of anchors.

        Args:
            chunk: The anchors.
            vectors: The vectors of the anchors.
        """
        anchors = chunk.pairs.anchor_of[chunk.rows] - chunk.numbers.start
        return _cosines(vectors, anchors, self.positives, chunk.pairs.positive_of[chunk.rows])

    def of_candidates(self, vectors: np.ndarray, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the cosines of each anchor with its candidates, which are texts of the corpus.

        Args:
            vectors: The vectors of the anchors.
            rows: The numbers of the candidates of each anchor in the corpus.
        """
        counts = np.array([len(indices) for indices in rows])
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, counts.sum())
        cosines = _cosines(vectors, np.repeat(np.arange(len(rows)), counts), self.corpus, numbers)
        return np.split(cosines, np.cumsum(counts)[:-1])


def _cosines(vectors: np.ndarray, anchors: np.ndarray, others: Vectors, numbers: np.ndarray) -> np.ndarray:
    """Return the cosines (n,) of the vectors at the rows `anchors` (n,) and the texts with the `numbers` (n,)."""
    cosines = np.empty(len(numbers))
    for start in range(0, len(numbers), BLOCK):
        span = slice(start, start + BLOCK)
        cosines[span] = pairwise_cosines(others(numbers[span]), vectors[anchors[span]])
    return cosines
