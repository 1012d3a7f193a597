"""Count duplicate rows and uninformative pairs, which cause false negatives in training.

Rows are represented by 64-bit hashes in a temporary file, so memory does not grow with the number of rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dcpcse.data.columns import Columns
from dcpcse.utils.files import temporary_file, temporary_space

if TYPE_CHECKING:  # imported lazily, because `dcpcse --help` does not need it
    import numpy as np

LINES_SHOWN = 5
"""Number of line numbers to keep for each kind of row."""

PART_ROWS = 2**19
"""Number of rows, on average, whose hashes are compared at once."""

READ_ROWS = 2**12
"""Number of rows whose hashes are read at once."""


@dataclass(frozen=True)
class Occurrences:
    """The number of rows with a certain fault, and the line numbers of the first few."""

    count: int = 0
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class DuplicateCounts:
    """Counts of repetitions in a file.

    `pairs` counts pairs of rows that are false negatives of each other if they are in the same batch. With several
    positives per row, this happens only if the common positive is drawn. For labelled rows, `pairs` is 0, since a loss
    does not contrast them with each other.

    Args:
        duplicates: Rows that equal an earlier row in all columns.
        identical: Rows whose anchor equals one of their positives.
        contradictory: Rows whose anchor or a positive equals one of their negatives.
        relabelled: Rows whose sentence or pair of sentences occurs earlier with a different label.
        rows: Total number of rows.
        pairs: Number of pairs of rows with the same anchor, plus the number of pairs of rows with a common positive,
            summed over the positives.
    """

    duplicates: Occurrences
    identical: Occurrences
    contradictory: Occurrences
    relabelled: Occurrences
    rows: int
    pairs: int

    def share(self, batch: int) -> float:
        """Return the expected share of random batches of `batch` rows that contain at least one of `pairs`.

        The pairs are nearly independent, so the number of pairs in a batch is approximately Poisson-distributed.
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
    def of(cls, saved: Mapping[str, Any]) -> DuplicateCounts:
        """Restore the counts from the output of `as_dict`."""
        kinds = ("duplicates", "identical", "contradictory", "relabelled")
        counts = {kind: Occurrences(saved[kind]["count"], tuple(saved[kind]["lines"])) for kind in kinds}
        return cls(**counts, rows=saved["rows"], pairs=saved["pairs"])


class Duplicates:
    """Counts repeated rows, and pairs from which nothing can be learned, while a file is read."""

    def __init__(self, roles: Iterable[str]) -> None:
        """Create the counter.

        Args:
            roles: The roles of the columns.
        """
        columns = Columns.of(roles)
        self._labelled = columns.label is not None
        # Of each row: its number, the hash of its cells, and the hash of its sentences without the label or of each
        # side, which are the anchor and the positives.
        self._positives = 0 if self._labelled else len(columns.positives)
        self._width = 2 + self._labelled + (1 + self._positives if self._positives else 0)
        self._hashes = temporary_file(self)
        self._count = 0
        self._identical, self._contradictory = LineCounter(), LineCounter()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows. A row is given by the number of its first line and its cells.

        Raises UserError if the folder for temporary files is full.
        """
        import numpy as np

        hashes = np.empty((len(rows), self._width), np.int64)
        hashes[:, 0] = [number for number, _ in rows]
        hashes[:, 1] = [hash(tuple(cells)) for _, cells in rows]
        if self._labelled:
            hashes[:, 2] = [hash(tuple(cells[:-1])) for _, cells in rows]
        for index in range(2 if self._positives else 0):
            hashes[:, 2 + index] = [hash(cells[index]) for _, cells in rows]
        for index in range(2, 1 + self._positives):
            # A positive that a row has twice counts once, and an absent one not at all: they get different hashes.
            hashes[:, 2 + index] = [
                hash((number, index) if cells[index] in (None, *cells[1:index]) else cells[index])
                for number, cells in rows
            ]
        with temporary_space():
            self._hashes.seek(0, os.SEEK_END)
            self._hashes.write(hashes.tobytes())
        self._count += len(rows)
        if self._positives:
            first = 1 + self._positives
            for number, cells in rows:
                if cells[0] in cells[1:first]:
                    self._identical.add(number)
                for cell in cells[first:]:
                    if cell is not None and cell in cells[:first]:
                        self._contradictory.add(number)

    def found(self) -> DuplicateCounts:
        """Return the counts of all rows added so far."""
        # A single column is hashed as a row; labelled rows are not contrasted with each other.
        sides = (slice(2, 3), slice(3, None)) if self._positives else (slice(1, 2),)
        return DuplicateCounts(
            duplicates=_occurrences(map(_repeated, self._parts(1, slice(2)))),
            identical=Occurrences(self._identical.count, self._identical.lines),
            contradictory=Occurrences(self._contradictory.count, self._contradictory.lines),
            relabelled=_occurrences(map(_relabelled, self._parts(2, slice(3)) if self._labelled else ())),
            rows=self._count,
            pairs=0 if self._labelled else sum(map(self._pairs, sides)),
        )

    def _parts(self, column: int, columns: slice) -> Iterator[np.ndarray]:
        """Yield parts of the rows.

        A part contains all rows with some of the hashes in a column, in the order of the rows.

        Args:
            columns: The columns that the parts contain.
        """
        import numpy as np

        parts = self._number_of_parts
        for part in range(parts):
            yield np.concatenate([rows[rows[:, column] % parts == part, columns] for rows in self._chunks()])

    def _pairs(self, columns: slice) -> int:
        """Return the number of pairs of rows with the same hash in these columns, summed over the hashes."""
        import numpy as np

        parts, pairs = self._number_of_parts, 0
        for part in range(parts):
            hashes = (rows[:, columns] for rows in self._chunks())
            part_hashes = np.concatenate([chunk[chunk % parts == part] for chunk in hashes])
            counts = np.unique(part_hashes, return_counts=True)[1]
            pairs += int((counts * (counts - 1) // 2).sum())
        return pairs

    @property
    def _number_of_parts(self) -> int:
        return -(-self._count // PART_ROWS)

    def _chunks(self) -> Iterator[np.ndarray]:
        """Yield the numbers and hashes of all rows, in chunks."""
        import numpy as np

        self._hashes.seek(0)
        for chunk in iter(partial(self._hashes.read, 8 * self._width * READ_ROWS), b""):
            yield np.frombuffer(chunk, np.int64).reshape(-1, self._width)


def _repeated(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose cells have the hash of an earlier row."""
    import numpy as np

    order = np.argsort(rows[:, 1], kind="stable")
    hashes = rows[order, 1]
    return rows[order[1:][hashes[1:] == hashes[:-1]], 0]


def _relabelled(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows whose pair occurs earlier with a different label."""
    import numpy as np

    _, first, group = np.unique(rows[:, 2], return_index=True, return_inverse=True)
    return rows[rows[:, 1] != rows[first[group], 1], 0]


def _occurrences(numbers: Iterator[np.ndarray]) -> Occurrences:
    """Return the occurrences at the line numbers in all parts."""
    import numpy as np

    count, lines = 0, []
    for part in numbers:
        count, lines = count + len(part), sorted([*lines, *np.sort(part)[:LINES_SHOWN].tolist()])[:LINES_SHOWN]
    return Occurrences(count, tuple(lines))


class LineCounter:
    """A counter of rows that stores the first few line numbers. Rows must be added in the order of their lines."""

    def __init__(self) -> None:
        self.count, self.lines, self._last = 0, (), None

    def add(self, number: int) -> None:
        """Count the row at this line number, unless the last counted row has the same line number."""
        if number != self._last:
            self.count, self._last = self.count + 1, number
            self.lines = (*self.lines, number)[:LINES_SHOWN]
