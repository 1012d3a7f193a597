"""Rows that occur twice, and pairs that teach nothing: what makes false negatives of a training file.

Rows are known by 64 bits of a hash, 16 bytes each: a file of a million rows takes 16 MB, whatever its length.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LINES_SHOWN = 5
"""Line numbers that are kept of each kind."""


@dataclass(frozen=True)
class Occurrences:
    """How many rows there are of a kind, and where the first of them are."""

    count: int = 0
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class DuplicateCounts:
    """What repeats in a file.

    duplicates: rows that occurred before, in all their columns. identical: anchor and positive are the same.
    contradictory: anchor and negative are the same. relabelled: the pair of sentences occurred before, and had
    another label then. rows: of the file. pairs: pairs of rows whose anchors are the
    same, and pairs whose positives are: in one batch each is the other's false negative; none of labelled rows, which
    are not told from each other.
    """

    duplicates: Occurrences
    identical: Occurrences
    contradictory: Occurrences
    relabelled: Occurrences
    rows: int
    pairs: int

    def share(self, batch: int) -> float:
        """Expected share of random batches of so many rows in which there is such a pair.

        Pairs fall into a batch nearly independently of each other, so that their number is nearly Poisson's.
        """
        if self.rows < 2:
            return 0.0
        if batch >= self.rows:  # it is the file
            return float(self.pairs > 0)
        expected = self.pairs * batch * (batch - 1) / (self.rows * (self.rows - 1))
        return -math.expm1(-expected)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "DuplicateCounts":
        """From what `as_dict` gave."""
        kinds = ("duplicates", "identical", "contradictory", "relabelled")
        found = {kind: Occurrences(saved[kind]["count"], tuple(saved[kind]["lines"])) for kind in kinds}
        return cls(**found, rows=saved["rows"], pairs=saved["pairs"])


class Duplicates:
    """Counts while a file is read."""

    def __init__(self, columns: int, *, labelled: bool = False) -> None:
        """columns: 1 to 3, anchor, positive, negative. labelled: the third is a label, or a score."""
        self._numbers = array("q")
        self._rows = array("q")
        self._labelled = array("q") if labelled else None  # the pairs without their labels
        # The anchors' and the positives'; of a file of one column, rows are anchors.
        self._sides = [array("q"), array("q")] if columns > 1 and not labelled else []
        self._identical, self._contradictory = LineCounter(), LineCounter()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Take in rows: the number of the line on which each starts, and its cells."""
        self._numbers.extend([number for number, _ in rows])
        self._rows.extend([hash(tuple(cells)) for _, cells in rows])
        if self._labelled is not None:
            self._labelled.extend([hash(tuple(cells[:2])) for _, cells in rows])
        for place, side in enumerate(self._sides):
            side.extend([hash(cells[place]) for _, cells in rows])
        if self._sides:
            for number, cells in rows:
                if cells[0] == cells[1]:
                    self._identical.add(number)
                if cells[0] == cells[-1] and len(cells) == 3:
                    self._contradictory.add(number)

    def found(self) -> DuplicateCounts:
        """The counts of all rows so far."""
        return DuplicateCounts(
            duplicates=self._duplicates(),
            identical=self._identical.found(),
            contradictory=self._contradictory.found(),
            relabelled=self._relabelled(),
            rows=len(self._rows),
            pairs=0 if self._labelled is not None else sum(_pairs(side) for side in self._sides or [self._rows]),
        )

    def _relabelled(self) -> Occurrences:
        import numpy as np

        if not self._labelled:
            return Occurrences()
        pairs, rows = np.frombuffer(self._labelled, np.int64), np.frombuffer(self._rows, np.int64)
        _, first, group = np.unique(pairs, return_index=True, return_inverse=True)
        return _found_at(np.frombuffer(self._numbers, np.int64)[rows != rows[first][group]])

    def _duplicates(self) -> Occurrences:
        import numpy as np  # here: `dcpcse --help` does not need it

        if not self._rows:
            return Occurrences()
        hashes, numbers = np.frombuffer(self._rows, np.int64), np.frombuffer(self._numbers, np.int64)
        order = np.argsort(hashes, kind="stable")
        again = hashes[order][1:] == hashes[order][:-1]
        return _found_at(np.sort(numbers[order[1:][again]]))


class LineCounter:
    """Counts rows by the numbers of their lines, which never fall, and keeps the first of them."""

    def __init__(self) -> None:
        self._count, self._lines, self._last = 0, [], None

    def add(self, number: int) -> None:
        """Count a row; one that was counted last is not counted again."""
        if number == self._last:
            return
        self._count, self._last = self._count + 1, number
        if len(self._lines) < LINES_SHOWN:
            self._lines.append(number)

    def found(self) -> Occurrences:
        return Occurrences(self._count, tuple(self._lines))


def _found_at(lines: Sequence[int]) -> Occurrences:
    """Rows by the numbers of their lines, in order."""
    return Occurrences(len(lines), tuple(map(int, lines[:LINES_SHOWN])))


def _pairs(hashes: array) -> int:
    """Pairs of equal values."""
    import numpy as np

    if not hashes:
        return 0
    _, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    return int((counts * (counts - 1) // 2).sum())
