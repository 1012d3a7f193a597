"""Count duplicate rows and uninformative pairs, which cause false negatives in training.

Rows are represented by 64-bit hashes, which take 16 bytes per row: 16 MB for a file of a million rows.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LINES_SHOWN = 5
"""Number of line numbers to keep for each kind of row."""


@dataclass(frozen=True)
class Occurrences:
    """The number of rows of one kind, and the line numbers of the first few."""

    count: int = 0
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class DuplicateCounts:
    """Counts of repetitions in a file.

    duplicates: rows that equal an earlier row in all columns. identical: rows whose anchor equals their positive.
    contradictory: rows whose anchor equals their negative. relabelled: rows whose pair of sentences occurs earlier
    with a different label. rows: total number of rows. pairs: number of pairs of rows with the same anchor, plus
    number of pairs of rows with the same positive. If both rows of a pair are in one batch, each is a false negative
    of the other. For labelled rows, which are not contrasted with each other, pairs is 0.
    """

    duplicates: Occurrences
    identical: Occurrences
    contradictory: Occurrences
    relabelled: Occurrences
    rows: int
    pairs: int

    def share(self, batch: int) -> float:
        """Return the expected share of random batches of `batch` rows that contain at least one of the pairs.

        Pairs occur in a batch nearly independently of each other, so their number is close to Poisson-distributed.
        """
        if self.rows < 2:
            return 0.0
        if batch >= self.rows:  # the batch contains the complete file
            return float(self.pairs > 0)
        expected = self.pairs * batch * (batch - 1) / (self.rows * (self.rows - 1))
        return -math.expm1(-expected)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a dictionary that can be written to JSON."""
        return asdict(self)

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "DuplicateCounts":
        """Restore the counts from the output of `as_dict`."""
        kinds = ("duplicates", "identical", "contradictory", "relabelled")
        found = {kind: Occurrences(saved[kind]["count"], tuple(saved[kind]["lines"])) for kind in kinds}
        return cls(**found, rows=saved["rows"], pairs=saved["pairs"])


class Duplicates:
    """A counter of duplicate rows and uninformative pairs, filled while a file is read."""

    def __init__(self, columns: int, *, labelled: bool = False) -> None:
        """Create the counter.

        columns: the number of columns, 1 to 3 (anchor, positive, negative). labelled: whether the third column
        contains labels or scores.
        """
        self._numbers = array("q")
        self._rows = array("q")
        self._labelled = array("q") if labelled else None  # the pairs without their labels
        # Hashes of the anchors and of the positives; not needed for one column, where each row is an anchor.
        self._sides = [array("q"), array("q")] if columns > 1 and not labelled else []
        self._identical, self._contradictory = LineCounter(), LineCounter()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows, each given by the number of its first line and its cells."""
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
        """Return the counts of all rows added so far."""
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
        import numpy as np  # imported here because `dcpcse --help` does not need it

        if not self._rows:
            return Occurrences()
        hashes, numbers = np.frombuffer(self._rows, np.int64), np.frombuffer(self._numbers, np.int64)
        order = np.argsort(hashes, kind="stable")
        again = hashes[order][1:] == hashes[order][:-1]
        return _found_at(np.sort(numbers[order[1:][again]]))


class LineCounter:
    """A counter of rows that keeps the first few line numbers; rows must be added in the order of their lines."""

    def __init__(self) -> None:
        self._count, self._lines, self._last = 0, [], None

    def add(self, number: int) -> None:
        """Count the row at this line number, unless it is the row that was counted last."""
        if number == self._last:
            return
        self._count, self._last = self._count + 1, number
        if len(self._lines) < LINES_SHOWN:
            self._lines.append(number)

    def found(self) -> Occurrences:
        return Occurrences(self._count, tuple(self._lines))


def _found_at(lines: Sequence[int]) -> Occurrences:
    """Return the occurrences at the given line numbers, which are sorted."""
    return Occurrences(len(lines), tuple(map(int, lines[:LINES_SHOWN])))


def _pairs(hashes: array) -> int:
    """Return the number of pairs of equal values."""
    import numpy as np

    if not hashes:
        return 0
    _, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    return int((counts * (counts - 1) // 2).sum())
