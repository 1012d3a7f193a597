"""Readers of training files, one format each."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcpcse.data.labels import label_kind, misplaced_label, normalize_label
from dcpcse.utils.errors import UserError
from dcpcse.utils.json_schema import NUL_OR_SURROGATE
from dcpcse.utils.text_lines import decode_line

ROLES = ("anchor", "positive", "negative")

DROPPED_SHOWN = 5

FileRow = tuple[int, list[str]]  # number of the line on which it starts, cells; a blank line has no cells


@dataclass
class DataSource:
    """A file while it is read: says where an error is, and keeps account of the dropped rows.

    A reader hands every fault to `refuse`, which raises it; where it returns instead (`dcpcse.doctor`), the reader
    leaves the row out and goes on.
    """

    path: Path
    unit: str = "line"
    dropped: int = 0
    dropped_lines: list[int] = field(default_factory=list)

    def error(self, number: int, problem: str) -> UserError:
        return UserError(f"{self.path}, {self.unit} {number}: {problem}")

    def refuse(self, number: int, error: UserError) -> None:
        """What becomes of a fault in a row."""
        raise error

    def drop(self, number: int) -> None:
        self.dropped += 1
        if len(self.dropped_lines) < DROPPED_SHOWN:
            self.dropped_lines.append(number)

    def summary(self, columns: list[str]) -> dict[str, Any]:
        return {"columns": columns, "dropped": self.dropped, "dropped_lines": self.dropped_lines, "unit": self.unit}


Reader = Callable[[DataSource], Iterator[FileRow]]


def reader_of(path: Path) -> Reader:
    """The reader for the extension; raises UserError if that is unknown or the file is not there."""
    # os.path, since Path.exists raises for a name that is too long or lies in a closed folder
    if not os.path.exists(path):
        raise UserError(f"training file {path} does not exist; check the path")
    if not os.path.isfile(path):
        raise UserError(f"training file {path} is not a file but a folder or a device; name a file in it")
    if path.suffix.lower() not in READERS:
        found = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        raise UserError(f"training file {path} has {found}; rename it to one of {', '.join(READERS)}")
    return READERS[path.suffix.lower()]


def read_table(source: DataSource) -> tuple[list[str], Iterator[FileRow]]:
    """The names of a file's columns, and its rows: the stripped cells of each that has no blank one."""
    rows = reader_of(source.path)(source)
    columns = take_columns(source, rows)
    return columns, complete_rows(source, columns, rows)


def take_columns(source: DataSource, rows: Iterator[FileRow]) -> list[str]:
    """The names in the first row that is not a blank line, 1 to 3 of them and none empty."""
    for number, cells in rows:
        if not cells:
            source.drop(number)
            continue
        columns = [_clean(name) for name in cells]
        _check_columns(source, number, columns)
        return columns
    found = "nothing but blank lines" if source.dropped else "nothing"
    raise UserError(f"training file {source.path} is empty: it holds {found}; give at least one sentence")


def _check_columns(source: DataSource, number: int, columns: list[str]) -> None:
    if not all(columns):
        raise source.error(number, f"the header {columns} has an empty name; name every column")
    if len(columns) > len(ROLES):
        raise source.error(
            number,
            f"found {len(columns)} columns {columns}; leave 1 (sentence), 2 (anchor, positive) or "
            "3 (anchor, positive, negative; or two sentences and a column label or score)",
        )
    if name := misplaced_label(columns):
        raise source.error(
            number,
            f"the column {name!r} of {columns} does not stand third; a label or a score stands behind its two "
            "sentences; give a column of sentences another name",
        )
    if len(columns) == 1 and "\t" in columns[0]:
        problem = f"the only column name, {columns[0]!r}, holds a tab"
        raise source.error(number, f"{problem}; if tabs separate the columns, name the file .tsv")
    if len(columns) == 1 and ";" in columns[0]:
        problem = f"the only column name, {columns[0]!r}, holds a semicolon"
        raise source.error(number, f"{problem}; columns are separated by commas (csv) or tabs (tsv)")


def complete_rows(source: DataSource, columns: list[str], rows: Iterable[FileRow]) -> Iterator[FileRow]:
    """Yield the stripped cells of each row that has no blank one; a ragged row, or a wrong label, is refused."""
    kind = label_kind(columns)
    for number, cells in rows:
        sentences = [_clean(cell) for cell in cells]
        if any(sentences) and len(sentences) != len(columns):
            problem = (
                f"expected {len(columns)} cells, one for each of {columns}, but found {len(sentences)}; "
                'give every row all of them, and put one that holds the delimiter in double quotes ("...")'
            )
            source.refuse(number, source.error(number, problem))
        elif not sentences or not all(sentences):
            source.drop(number)
        elif kind is None:
            yield number, sentences
        else:
            yield from _labelled(source, number, sentences, kind)


def _labelled(source: DataSource, number: int, cells: list[str], kind: str) -> Iterator[FileRow]:
    """The row with its label as it is kept; none where that is refused."""
    try:
        yield number, [*cells[:-1], normalize_label(kind, cells[-1])]
    except ValueError as error:
        source.refuse(number, source.error(number, str(error)))


def _clean(cell: str) -> str:
    r"""The cell without outer white space; a \n, \r\n or \r in it becomes a blank: a sentence is one line."""
    if "\n" in cell or "\r" in cell:
        cell = re.sub(r"\r\n?|\n", " ", cell)
    return cell.strip()


def _numbered_lines(source: DataSource) -> Iterator[tuple[int, str]]:
    r"""Yield (number from 1, text) of each line; only \n and \r\n end one.

    A line that is not UTF-8, or holds a NUL, is refused. Raises UserError where the file cannot be read.
    """
    try:
        # As bytes: text mode also ends lines at a lone \r, and str.splitlines at U+2028 and its like.
        with open(source.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = decode_line(source.path, number, line)
                except UserError as error:
                    source.refuse(number, error)
                    continue
                yield number, text
    except OSError as error:
        raise UserError(f"cannot read training file {source.path}: {error.strerror}") from error


def _read_text(source: DataSource) -> Iterator[FileRow]:
    named = False
    for number, line in _numbered_lines(source):
        if not named:
            yield number, ["text"]  # as the loader of `datasets` names it
            named = True
        yield number, [line]


def _read_delimited(source: DataSource) -> Iterator[FileRow]:
    """Rows of a csv or tsv file, quoted as in RFC 4180; a row is numbered by the line on which it starts."""
    delimiter = "\t" if "tsv" in source.path.name.lower() else ","  # the published rule
    # A lone \r is white space here; the csv module would take it for the end of a row.
    lines = _Replayed((number, line.replace("\r", " ") + "\n") for number, line in _numbered_lines(source))
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.mark()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            start = lines.start
            problem = (
                'a quote (") opened in the row that starts here is not closed, or text follows the closing one '
                f'({error}); close it, and write a quote inside a quoted cell twice ("")'
            )
            source.refuse(start, source.error(start, problem))
            # The row ends with its first line: what an open quote has swallowed is read again.
            lines.rewind()
            records = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        yield lines.start, [] if len(cells) == 1 and cells[0].isspace() else cells


class _Replayed:
    """Lines one by one, which can go back to the second of those since a mark."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self._lines = lines
        self._since: list[tuple[int, str]] = []
        self._again: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._lines)
        self._since.append(line)
        return line[1]

    @property
    def start(self) -> int:
        """Number of the first line since the mark."""
        return self._since[0][0]

    def mark(self) -> None:
        """A row begins here."""
        self._since = []

    def rewind(self) -> None:
        """Give all lines since the mark but the first once more."""
        self._again += reversed(self._since[1:])


def _read_json(source: DataSource) -> Iterator[FileRow]:
    """Rows of a json file: an array if it opens with `[`, else JSON lines."""
    first = next((line for _, line in _numbered_lines(source) if line.strip()), "")
    return (_read_json_array if first.lstrip().startswith("[") else _read_json_lines)(source)


def _read_json_array(source: DataSource) -> Iterator[FileRow]:
    """Rows of an array of objects, numbered as its items; the only format that is held in memory whole."""
    try:
        items = _parse_json("\n".join(line for _, line in _numbered_lines(source)))
    except _RowError as error:
        source.refuse(error.number, source.error(error.number, str(error)))
        return iter(())
    source.unit = "item"
    return _object_rows(source, enumerate(items, start=1))


def _read_json_lines(source: DataSource) -> Iterator[FileRow]:
    def values() -> Iterator[tuple[int, Any]]:
        for number, line in _numbered_lines(source):
            try:
                value = _parse_json(line, number) if line.strip() else None
            except _RowError as error:
                source.refuse(error.number, source.error(error.number, str(error)))
                continue
            yield number, value

    return _object_rows(source, values())


class _RowError(ValueError):
    """A fault in the row of this number."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


# An object becomes a tuple of pairs, not a dict, in which a key that occurs twice would be lost unseen.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def _parse_json(text: str, first_line: int = 1) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise _RowError(line, f"broken JSON: {error.msg} (column {error.colno}); mend it") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise _RowError(first_line, f"unreadable JSON: {error}; give objects that hold strings") from error


def _object_rows(source: DataSource, values: Iterable[tuple[int, Any]]) -> Iterator[FileRow]:
    """Yield the keys of the first object, then each object's cells in that order; None is a blank line."""
    keys: list[str] = []
    for number, value in values:
        if value is None:
            yield number, []
            continue
        try:
            cells = _as_object(number, value)
            texts = _in_order(number, cells, keys or list(cells))
        except _RowError as error:
            source.refuse(number, source.error(number, str(error)))
            continue
        if not keys:
            keys = list(cells)
            yield number, keys
        yield number, texts


def _as_object(number: int, value: Any) -> dict[str, Any]:
    example = 'give an object such as {"anchor": "...", "positive": "..."}'
    if not isinstance(value, tuple):
        raise _RowError(number, f"expected an object but found {_describe(value)}; {example}")
    cells = dict(value)
    if not cells:
        raise _RowError(number, f"found an object without keys; {example}")
    if len(cells) != len(value):
        raise _RowError(number, f"a key occurs twice in {[key for key, _ in value]}; keep one of them")
    return cells


def _in_order(number: int, cells: dict[str, Any], keys: list[str]) -> list[str]:
    if cells.keys() != set(keys):
        problem = f"expected the keys {keys}, as in the first row, but found {list(cells)}"
        raise _RowError(number, f"{problem}; give every row the same keys")
    # A score is a number in JSON; a label that is one is refused as such, not as a number.
    numeric = keys[-1] if label_kind(keys) else None
    return [_as_text(number, key, cells[key], numeric=key == numeric) for key in keys]


def _as_text(number: int, key: str, value: Any, *, numeric: bool = False) -> str:
    if value is None:
        return ""
    if numeric and type(value) in (int, float):
        return repr(value)
    if not isinstance(value, str):
        raise _RowError(number, f"key {key!r}: expected a string but found {_describe(value)}; quote it")
    if found := NUL_OR_SURROGATE.search(value):
        escape = f"\\u{ord(found[0]):04x}"
        raise _RowError(number, f"key {key!r}: found {escape}, which is no character; remove it")
    return value


_JSON_KINDS = {bool: "the boolean", int: "the number", float: "the number", str: "the string"}


def _describe(value: Any) -> str:
    if type(value) in _JSON_KINDS:
        return f"{_JSON_KINDS[type(value)]} {json.dumps(value)[:40]}"
    return "an object" if isinstance(value, tuple) else "a list"


READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
}
