"""Load training data from Python objects, by the rules of training files, into the same memory-mapped cache."""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from dcpcse.data.arrow_cache import cache_folder, roles_of, write_rows
from dcpcse.data.labels import CLASSES, LABEL, LABEL_INDEX, SCORE, label_kind
from dcpcse.data.readers import ROLES, FileRow, RowSource, complete_rows, require_columns
from dcpcse.data.tables import Row, Table, describe, is_missing, open_table
from dcpcse.data.training_file import TrainingData, load_training_file
from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)

LARGE_BYTES = 100 * 10**6
"""Size of a cached file from which on the log names the file."""


def load_training_data(
    data: Any, cache_dir: str | Path | None = None, *, refresh: bool = False, name: str = "train_data"
) -> TrainingData:
    """Load training data from a path, or from an object that `open_table` reads.

    The columns of an object have the meaning of the columns of a file, by position: one of sentences; anchor and
    positive; or these and a third, which has labels or scores if its name is `label` or `score`, else hard negatives.
    Rows without names have scores if the first third cell is a number, labels if it is one of `labels.CLASSES`.
    None, NaN and blank cells are the same: their rows are dropped, and one warning reports them.

    Rows are written to the cache folder while they are read, so that memory is bounded, and the file is named by their
    digest: the same rows, from whatever object, are one file. cache_dir, refresh: see `load_training_file`; an object
    is always read. name: the name of the object in messages. Raises UserError if the object is not valid training data
    (with row and column), or if the cache folder is not writable.
    """
    if isinstance(data, (str, PathLike)):
        return load_training_file(data, cache_dir, refresh=refresh)
    table = open_table(data, name)
    columns, rows = _with_names(table)
    _require_columns(table, columns)
    if table.taken_once:
        logger.info("%s: the %s is taken once; to train on its rows again, give a list of them", name, table.kind)
    source = _TableSource(table)
    complete = source.digested(columns, complete_rows(source, columns, _texts(table, columns, rows)))
    cached, summary = write_rows(cache_folder(cache_dir), source, columns, complete)
    if (size := cached.stat().st_size) > LARGE_BYTES:
        logger.info("%s: the rows take %s MB in %s", name, f"{size / 1e6:,.0f}", cached)
    places = source.places
    return TrainingData.of(f"{name} ({table.kind})", cached, summary=summary, sha256=source.sha256, places=places)


class _TableSource(RowSource):
    """A Python object that is being read; the digest is that of its complete rows."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name, unit="row")
        self.table = table
        self._dropped_rows = array("q")

    def error(self, number: int, problem: str) -> UserError:
        return self.table.error(number, problem)

    def drop(self, number: int) -> None:
        super().drop(number)
        self._dropped_rows.append(number)

    def digested(self, columns: list[str], rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """Yield the rows; at their end, `sha256` is the digest of their roles and cells as JSON lines."""
        digest = hashlib.sha256(f"{json.dumps(roles_of(columns))}\n".encode())
        for number, cells in rows:
            digest.update(f"{json.dumps(cells)}\n".encode())
            yield number, cells
        self.sha256 = digest.hexdigest()

    def places(self, rows: Set[int]) -> Mapping[int, Mapping[str, int]]:
        """Return the number, from 1, that each row of the dataset has in the object, whose dropped rows count."""
        import numpy as np

        dropped = np.array(self._dropped_rows)
        kept_before = dropped - 1 - np.arange(len(dropped))  # rows of the dataset before each dropped row
        return {row: {"given_row": row + 1 + int(np.searchsorted(kept_before, row, "right"))} for row in rows}


def _with_names(table: Table) -> tuple[list[str], Iterator[Row]]:
    """Return the names of the columns, and the rows. Rows without names get those of their roles."""
    if table.columns is not None:
        return list(table.columns), table.rows
    head: list[Row] = []
    for row in table.rows:
        head.append(row)
        if len(row) != len(ROLES) or not _is_blank(row[LABEL_INDEX]):
            break
    rows, last = chain(head, table.rows), head[-1]
    if len(last) < len(ROLES):
        return ["text"] if len(last) == 1 else list(ROLES[: len(last)]), rows
    if len(last) > len(ROLES):
        return [str(place) for place in range(1, len(last) + 1)], rows
    third = last[LABEL_INDEX]
    if isinstance(third, str):
        return [*ROLES[:2], LABEL if third.strip().lower() in CLASSES else ROLES[2]], rows
    return [*ROLES[:2], SCORE if isinstance(third, (Real, Decimal)) else ROLES[2]], rows


def _require_columns(table: Table, columns: list[str]) -> None:
    """Raise UserError unless there are 1 to 3 columns, and those that are named like roles have these roles."""
    if len(columns) > len(ROLES):
        named = [column for column in columns if column.lower() in (*ROLES, LABEL, SCORE)]
        chosen = named[:3] or (table.texts or columns)[:2]
        example = f", for instance {table.pick(chosen)}" if table.columns else ""
        raise UserError(
            f"{table.name}: found {len(columns)} columns{f' {columns}' if table.columns else ''}; pick 1 (sentence), "
            "2 (anchor, positive) or 3 (anchor, positive, negative; or two sentences and a column named label or "
            f"score){example}"
        )
    require_columns(columns, lambda problem: UserError(f"{table.name}: {problem}"))
    if len(columns) == 1:
        return
    for role, column in zip(ROLES, columns, strict=False):
        if column.lower() != role and column.lower() in ROLES:
            raise UserError(
                f"{table.name}: the column {column!r} of {columns} is in the place of the {role}, since columns are "
                f"known by their order; give them in the order {', '.join(ROLES)}, or rename them"
            )


def _is_blank(cell: Any) -> bool:
    return not cell.strip() if isinstance(cell, str) else is_missing(cell)


def _texts(table: Table, columns: list[str], rows: Iterator[Row]) -> Iterator[FileRow]:
    """Yield the number and the cells of each row as text, as the readers of files do."""
    kind = label_kind(columns)
    names = table.class_names.get(columns[-1], ()) if kind == LABEL else ()
    try:
        for number, row in enumerate(rows, start=1):
            texts = [table.text(number, place, cell) for place, cell in enumerate(row[: 2 if kind else None])]
            if kind:
                texts.append(_label_text(table, number, row[LABEL_INDEX], names))
            yield number, texts
    except OSError as error:
        raise UserError(f"{table.name}: its rows cannot be read: {error}") from error


def _label_text(table: Table, number: int, cell: Any, names: Sequence[str]) -> str:
    """Return the text of a label or score, which may be a number. names: of the classes that numbers stand for."""
    if isinstance(cell, str) or is_missing(cell):
        return table.text(number, LABEL_INDEX, cell)
    if isinstance(cell, bool) or not isinstance(cell, (Real, Decimal)):
        problem = f"expected a string or a number but found {describe(cell)}"
        remedy = "give words to the column label, or numbers to the column score"
        raise table.error(number, f"{problem}; {remedy}", LABEL_INDEX)
    if names:
        return names[int(cell)] if cell >= 0 else ""  # -1 stands for no label in datasets.ClassLabel
    return str(cell) if isinstance(cell, Integral) else repr(float(cell))
