"""Write training files (csv and tsv) that the readers read back without a change."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from dcpcse.data.readers import MAX_CELL, delimiter_of
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import atomic_file


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows of texts below a header, atomically. Raises UserError if a text is longer than readers accept."""
    with atomic_file(path) as binary, io.TextIOWrapper(binary, encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter_of(path), lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if long := next((cell for cell in row if len(cell) > MAX_CELL), None):
                raise UserError(
                    f"{path}: the text {long[:40]!r}... has {len(long):,} characters, but a cell has at most "
                    f"{MAX_CELL:,}; split the text, or remove it"
                )
            writer.writerow(row)
