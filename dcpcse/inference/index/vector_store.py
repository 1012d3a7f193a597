"""The rows of an index, sentences and unit vectors: some in a folder, read as they are used, the others in memory."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

BLOCK = 8_192
"""Rows that are encoded, written, checked and searched at once."""


class StoreSegment(Protocol):
    """Some rows that follow each other."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[np.ndarray]:
        """All vectors in order, at most `BLOCK` rows (n, H) at a time."""

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of these rows."""

    def sentence(self, row: int) -> str:
        """The sentence of a row."""


class MemoryStore:
    """Rows in memory."""

    def __init__(self, dimension: int, capacity: int = 0) -> None:
        """capacity: rows that there is room for from the start."""
        self._buffer = np.empty((capacity, dimension), dtype=np.float32)
        self._sentences: list[str] = []

    def __len__(self) -> int:
        return len(self._sentences)

    def append(self, sentences: Sequence[str], vectors: np.ndarray) -> None:
        """Add rows, for each sentence its unit vector."""
        start, end = len(self), len(self) + len(sentences)
        if end > len(self._buffer):
            # By half: adding one by one copies each row a few times in all, not each time.
            grown = np.empty((max(end, len(self._buffer) * 3 // 2), self._buffer.shape[1]), dtype=np.float32)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = vectors
        self._sentences += sentences

    def blocks(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), BLOCK):
            yield self._buffer[start : min(start + BLOCK, len(self))]

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._buffer[rows]

    def sentence(self, row: int) -> str:
        return self._sentences[row]


class VectorStore:
    """The parts of an index as one sequence."""

    def __init__(self, dimension: int, segments: Sequence[StoreSegment] = ()) -> None:
        self.dimension = dimension
        self._segments = list(segments)

    def __len__(self) -> int:
        return sum(map(len, self._segments))

    def append(self, sentences: Sequence[str], vectors: np.ndarray) -> None:
        """Add rows in memory; those of a folder stay as they are."""
        if not self._segments or not isinstance(self._segments[-1], MemoryStore):
            self._segments.append(MemoryStore(self.dimension))
        self._segments[-1].append(sentences, vectors)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All vectors in order with the number of their first row, at most `BLOCK` rows at a time."""
        first = 0
        for segment in self._segments:
            for block in segment.blocks():
                yield first, block
                first += len(block)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The vectors (n, H) of these rows, float32."""
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        start = 0
        for segment in self._segments:
            inside = (rows >= start) & (rows < start + len(segment))
            if inside.any():
                vectors[inside] = segment.take(rows[inside] - start)
            start += len(segment)
        return vectors

    def sentence(self, row: int) -> str:
        """The sentence of a row."""
        for segment in self._segments:
            if row < len(segment):
                return segment.sentence(row)
            row -= len(segment)
        raise IndexError(row)

    def chunks(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """All rows in order, sentences with vectors, `BLOCK` at a time but for the last ones."""
        for start in range(0, len(self), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(self)))
            yield [self.sentence(row) for row in rows.tolist()], self.take(rows)
