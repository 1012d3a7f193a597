"""Load training data from Python objects, by the rules of training files, into the same memory-mapped cache."""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from itertools import chain
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

from dcpcse.data.arrow_cache import cache_folder, write_rows
from dcpcse.data.columns import (
    ALLOWED,
    CLASS,
    LABEL,
    ROLES,
    SCORE,
    Header,
    header_of,
    is_positive_or_negative,
)
from dcpcse.data.label_words import is_relation, label_text
from dcpcse.data.readers import MOST_UNDECIDED, FileRow, RowSource, complete_rows, is_decided
from dcpcse.data.tables import Row, Table, describe, is_missing, open_table
from dcpcse.data.training_file import TrainingData, load_training_file
from dcpcse.utils.arguments import path
from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)

LARGE_BYTES = 100 * 10**6
"""Size of a cached file from which on the log names the file."""


def load_training_data(
    data: Any,
    cache_dir: str | Path | None = None,
    *,
    refresh: bool = False,
    name: str = "train_data",
    documents: bool = False,
) -> TrainingData:
    """Load training data from a path, or from an object that `open_table` reads.

    The columns of an object have the meaning of the columns of a file (`dcpcse.data.columns`). Rows of three cells
    without names have scores if the third cell of the first row is a number or a boolean, labels if it `is_relation`;
    rows of two have classes if the second cell of the first row is a number.
    None, NaN and blank cells are the same: their rows are dropped, and one warning reports them.

    Rows are written to the cache folder while they are read, so that memory is bounded, and the file is named by their
    digest: the same rows, from whatever object, are one file. cache_dir, refresh, documents: see `load_training_file`;
    an object is always read. name: the name of the object in messages. Raises UserError if the object is not valid
    training data (with row and column), or if the cache folder is not writable.
    """
    if isinstance(data, (str, PathLike)):
        return load_training_file(path(name, data), cache_dir, refresh=refresh, documents=documents)
    table = open_table(data, name)
    header, rows = _take_header(table)
    if table.taken_once:
        logger.info("%s: the %s is taken once; to train on its rows again, give a list of them", name, table.kind)
    source = _TableSource(table)
    complete = source.digested(header, complete_rows(source, header, _texts(table, header, rows)))
    cached, summary = write_rows(cache_folder(cache_dir), source, header, complete)
    if (size := cached.stat().st_size) > LARGE_BYTES:
        logger.info("%s: the rows take %s MB in %s", name, f"{size / 1e6:,.0f}", cached)
    of_object = {"places": source.places, "breaks": source.breaks, "documents": documents}
    return TrainingData.of(f"{name} ({table.kind})", cached, summary=summary, sha256=source.sha256, **of_object)


class _TableSource(RowSource):
    """A Python object that is being read; the digest is that of its complete rows."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name, unit="row")
        self.table = table
        self._dropped_rows = array("q")

    def error(self, number: int, problem: str) -> UserError:
        return self.table.error(number, problem)

    def leave_out(self, columns: Sequence[str]) -> str:
        return f"give {self.table.pick(columns)}"

    def drop(self, number: int) -> None:
        super().drop(number)
        self._dropped_rows.append(number)

    def digested(self, header: Header, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """Yield the rows; at their end, `sha256` is the digest of their roles and cells as JSON lines."""
        digest = hashlib.sha256(f"{json.dumps(header.roles)}\n".encode())
        for number, cells in rows:
            digest.update(f"{json.dumps(cells)}\n".encode())
            yield number, cells
        self.sha256 = digest.hexdigest()

    def places(self, rows: Set[int]) -> Mapping[int, Mapping[str, int]]:
        """Return the number, from 1, that each row of the dataset has in the object, whose dropped rows count."""
        import numpy as np

        kept_before = self._kept_before()
        return {row: {"given_row": row + 1 + int(np.searchsorted(kept_before, row, "right"))} for row in rows}

    def breaks(self) -> Sequence[int]:
        """Return the rows of the dataset before which rows were dropped."""
        return sorted(set(self._kept_before().tolist()))

    def _kept_before(self) -> Any:
        """Return the number of rows of the dataset before each dropped row, as an array."""
        import numpy as np

        dropped = np.array(self._dropped_rows)
        return dropped - 1 - np.arange(len(dropped))


def _take_header(table: Table) -> tuple[Header, Iterator[Row]]:
    """Return the columns, and the rows. Rows without names get those of their roles."""
    head: list[Row] = []
    for row in table.rows:
        head.append(row)
        if not 1 < len(row) <= len(ROLES) or _is_deciding(table, row) or len(head) >= MOST_UNDECIDED:
            break
    rows = chain(head, table.rows)
    first = next((row for row in reversed(head) if not _is_blank(row[-1])), head[-1])
    if table.columns is None and len(first) > len(ROLES):
        raise UserError(f"{table.name}: found {len(first)} columns; keep {ALLOWED}")
    names = _default_names(first) if table.columns is None else table.columns

    def error(problem: str) -> UserError:
        return UserError(f"{table.name}: {problem}")

    def example(columns: Sequence[str]) -> str:
        # If there is no such expression, the names of the others are enough.
        return f", for instance {table.pick(columns or _picked(table, names))}" if table.picked or not columns else ""

    header = header_of(names, error, _label_in(table, first), example=example)
    for name in names[:-1] if header.target else names:
        if name in table.class_names:
            words = ", ".join(map(repr, table.class_names[name][:3]))
            raise error(
                f"the column {name!r} has class labels ({words}), but its place is that of sentences; name it {LABEL} "
                f"and make it the last column, or leave it out{example([other for other in names if other != name])}"
            )
    return header, rows


def _is_deciding(table: Table, row: Row) -> bool:
    """Return whether the last cell of a row is not blank and tells what its column contains."""
    name = (table.columns or _default_names(row))[-1]
    return not _is_blank(row[-1]) and is_decided(name, row[-1])


def _label_in(table: Table, row: Row) -> Sequence[str]:
    """Return the cells of a row of three, of which only the last one is read, and only if it can be a label."""
    last = row[-1]
    # In a column without a name, numbers are scores on any scale.
    is_label = isinstance(last, (str, bool)) or (_is_number(last) and table.columns is not None)
    return ("", "", label_text(last) if is_label else "") if len(row) == len(ROLES) else ()


def _default_names(row: Row) -> Sequence[str]:
    """Return the names of the columns of rows without names, given the first row whose last cell is not blank."""
    last = row[-1]
    if len(row) == 1:
        return ("text",)
    if len(row) == 2:
        return ("text", CLASS) if _is_number(last) else ROLES[:2]
    if isinstance(last, str):
        return (*ROLES[:2], LABEL if is_relation(last) else ROLES[2])
    return (*ROLES[:2], SCORE if _is_number(last) else ROLES[2])


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (Real, Decimal)) and not is_missing(cell)


def _picked(table: Table, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns that a message suggests to pick of too many."""
    known = (*ROLES, LABEL, SCORE, CLASS)
    named = [column for column in columns if column.lower() in known or is_positive_or_negative(column)]
    texts = [column for column in table.texts if column not in named]
    if len(named) == 1 and named[0].lower() in (LABEL, CLASS) and texts:
        return [texts[0], *named]
    return named or (texts or list(columns))[:2]


def _is_blank(cell: Any) -> bool:
    return not cell.strip() if isinstance(cell, str) else is_missing(cell)


def _texts(table: Table, header: Header, rows: Iterator[Row]) -> Iterator[FileRow]:
    """Yield the number and the cells of each row as text, as the readers of files do."""
    try:
        for number, row in enumerate(rows, start=1):
            sentences = row[:-1] if header.target else row
            texts = [table.text(number, index, cell) for index, cell in enumerate(sentences)]
            if header.target:
                texts.append(_label_text(table, number, row, header))
            yield number, texts
    except OSError as error:
        raise UserError(f"{table.name}: its rows cannot be read: {error}") from error


def _label_text(table: Table, number: int, row: Row, header: Header) -> str:
    """Return the text of a label, score or class, which may be a number or a boolean."""
    index, cell = len(row) - 1, row[-1]
    if isinstance(cell, str) or is_missing(cell):
        return table.text(number, index, cell)
    if not isinstance(cell, (Real, Decimal)):
        problem = f"expected a string or a number but found {describe(cell)}"
        raise table.error(number, f"{problem}; give words to labels or classes, or numbers to scores", index)
    if header.target == CLASS and not float(cell).is_integer():
        problem = f"found {describe(cell)} as a class; give every class as a word or a whole number"
        raise table.error(number, problem, index)
    return label_text(cell)
