"""Readers of training files, one per format, and a writer of files that they read back without a change."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from dcpcse.data.columns import (
    BINARY,
    LABEL,
    ROLES,
    Header,
    header_of,
    is_undecided,
    label_text,
    normalize_label,
    target_of,
)
from dcpcse.data.tables import BATCH_ROWS, describe, is_missing, open_table
from dcpcse.utils.errors import UserError, doing, first_line
from dcpcse.utils.files import atomic_file
from dcpcse.utils.parsing import open_input
from dcpcse.utils.text_lines import NUL_OR_SURROGATE, decode_line, numbered_lines

DROPPED_SHOWN = 5

PACKED = ".gz"
"""Extension of files that are unpacked while they are read."""

MAX_CELL = 2**20
"""Maximum number of characters of a csv cell; without it, a quote that is not closed would read the whole file."""

MOST_UNDECIDED = 10_000
"""Maximum number of rows that are read ahead to find out what the labels are."""

FileRow = tuple[int, list[str]]
"""The number of a row's first line, and the row's cells. A blank line has no cells."""


@dataclass
class RowSource:
    """Training data that are being read: it formats errors with their row numbers, and counts dropped rows.

    For every invalid row, readers call `refuse`, which raises the error. A subclass may override `refuse` to return
    instead (as `dcpcse.doctor` does); the reader then skips the row and continues.

    name: the name of the data in messages. unit: what row numbers count. sha256: digest of what was read; None until
    the end is reached.
    """

    name: str
    unit: str = "line"
    dropped: int = 0
    dropped_lines: list[int] = field(default_factory=list)
    sha256: str | None = None

    @property
    def described(self) -> str:
        """The name of the data with what they are, as the subject of a message."""
        return self.name

    def error(self, number: int, problem: str) -> UserError:
        return UserError(f"{self.name}, {self.unit} {number}: {problem}")

    def refuse(self, number: int, error: UserError) -> None:
        """Handle an invalid row by raising its error."""
        raise error

    def lines(self) -> NumberedLines:
        """Yield the number (from 1) and the text of each line; see `_numbered_lines`."""
        return _numbered_lines(self)

    def numeric_key(self, keys: Sequence[str]) -> str | None:
        """Return the key whose values may be JSON numbers instead of strings; None if there is none."""
        # A numeric label is rejected later, with a message about labels.
        return keys[-1] if target_of(keys) else None

    def leave_out(self, columns: Sequence[str]) -> str:
        """Return how to leave out all columns except these."""
        return f"keep only the columns {', '.join(columns)} in the file"

    def drop(self, number: int) -> None:
        self.dropped += 1
        if len(self.dropped_lines) < DROPPED_SHOWN:
            self.dropped_lines.append(number)

    def summary(self, header: Header) -> dict[str, Any]:
        return {
            "columns": list(header.names),
            "dropped": self.dropped,
            "dropped_lines": self.dropped_lines,
            "unit": self.unit,
        }


class DataSource(RowSource):
    """A training file that is being read; the digest is that of its bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    @property
    def described(self) -> str:
        return f"training file {self.path}"


Reader = Callable[[DataSource], Iterator[FileRow]]


def format_of(path: Path) -> str:
    """Return the extension that names the format of a file, in lower case: without the .gz of a packed file."""
    return (path.with_suffix("") if path.suffix.lower() == PACKED else path).suffix.lower()


@contextlib.contextmanager
def open_rows(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read the bytes of its rows; those of a .gz file are unpacked while they are read.

    Raises OSError if the file cannot be opened, and UserError while a damaged .gz file is read.
    """
    with open_input(path) as file:
        if path.suffix.lower() != PACKED:
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path} is not a complete gzip file ({first_line(error)}); copy it again") from error


def rows_sha256(path: Path) -> str:
    """Return the sha256 of the bytes of `open_rows`, so that packing a file does not change it."""
    with open_rows(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reader_of(path: Path) -> Reader:
    """Return the reader for the file's extension; raise UserError if it is unsupported or the file does not exist."""
    # os.path.exists, since Path.exists raises errors for names that are too long and for unreadable folders
    if not os.path.exists(path):
        raise UserError(f"training file {path} does not exist; check the path")
    if not os.path.isfile(path):
        raise UserError(f"training file {path} is a folder or a device, not a file; give the path of a file")
    if format_of(path) not in READERS:
        problem = f"the extension {path.suffix!r} is not supported" if path.suffix else "the name has no extension"
        raise UserError(f"training file {path}: {problem}; use one of {', '.join(READERS)}")
    return READERS[format_of(path)]


def read_table(source: DataSource) -> tuple[Header, Iterator[FileRow]]:
    """Return the columns of a file, and an iterator over its complete rows with stripped cells."""
    rows = reader_of(source.path)(source)
    number, names = _take_names(source, rows)
    error = partial(source.error, number)
    header = header_of(names, error)  # before a row is read, whose errors are later ones
    if len(names) == len(ROLES):
        first, rows = _deciding_row(names, rows)
        header = header_of(names, error, first)
    return header, complete_rows(source, header, rows)


def _take_names(source: DataSource, rows: Iterator[FileRow]) -> tuple[int, list[str]]:
    """Return the names of the columns, which are in the first row that is not blank, and the number of this row."""
    for number, cells in rows:
        if not cells:
            source.drop(number)
            continue
        names = [_clean(name) for name in cells]
        _require_right_delimiter(source, number, names)
        return number, names
    problem = "contains only blank lines" if source.dropped else "is empty"
    raise UserError(f"training file {source.path} {problem}; give at least one sentence")


def _require_right_delimiter(source: DataSource, number: int, names: list[str]) -> None:
    if len(names) == 1 and "\t" in names[0]:
        problem = f"the only column name, {names[0]!r}, contains a tab"
        raise source.error(number, f"{problem}; if tabs separate the columns, name the file .tsv")
    if len(names) == 1 and ";" in names[0]:
        problem = f"the only column name, {names[0]!r}, contains a semicolon"
        raise source.error(number, f"{problem}; separate columns by commas (.csv) or tabs (.tsv)")


def _deciding_row(names: Sequence[str], rows: Iterator[FileRow]) -> tuple[list[str], Iterator[FileRow]]:
    """Return the stripped cells of the complete row that decides what a third column contains, and all rows.

    Without complete rows, the cells are [].
    """
    head: list[FileRow] = []
    deciding: list[str] = []
    for number, cells in rows:
        head.append((number, cells))
        if len(cells) == len(names) and all(stripped := [_clean(cell) for cell in cells]):
            deciding = stripped
            if is_decided(names[-1], stripped[-1]) or len(head) >= MOST_UNDECIDED:
                break
    return deciding, chain(head, rows)


def is_decided(name: str, label: Any) -> bool:
    """Return whether a label tells what a third column of this name contains; `entailment` does not."""
    return not (name.lower() == LABEL and isinstance(label, str) and is_undecided(label))


def complete_rows(source: RowSource, header: Header, rows: Iterable[FileRow]) -> Iterator[FileRow]:
    """Yield complete rows with stripped cells; drop rows with blank cells, pass other invalid rows to `refuse`."""
    for number, cells in rows:
        sentences = [_clean(cell) for cell in cells]
        if any(sentences) and len(sentences) != len(header.names):
            problem = (
                f"expected {len(header.names)} cells, one for each of {list(header.names)}, but found "
                f"{len(sentences)}; "
                'give each row as many, with cells that contain the delimiter in double quotes ("...")'
            )
            source.refuse(number, source.error(number, problem))
        elif not sentences or not all(sentences):
            source.drop(number)
        elif header.target is None:
            yield number, sentences
        else:
            yield from _labelled(source, number, sentences, header)


def _labelled(source: RowSource, number: int, cells: list[str], header: Header) -> Iterator[FileRow]:
    """Yield the row with its normalised label, unless the label is invalid."""
    try:
        yield number, [*cells[:-1], normalize_label(header, cells[-1])]
    except ValueError as error:
        source.refuse(number, source.error(number, str(error)))


def _clean(cell: str) -> str:
    r"""Strip a cell, and replace line ends in it (\n, \r\n or \r) by spaces: a sentence is one line."""
    if "\n" in cell or "\r" in cell:
        cell = re.sub(r"\r\n?|\n", " ", cell)
    return cell.strip()


NumberedLines = Iterator[tuple[int, str]]


def _numbered_lines(source: DataSource) -> NumberedLines:
    r"""Yield the number (from 1) and the text of each line; only \n and \r\n end a line.

    Lines that are not UTF-8 or contain a NUL are passed to `refuse`. A reader calls this function once, so that all
    rows, and the digest that `source` gets at the end, are of the same bytes. Raises UserError if the file cannot be
    read.
    """
    digest = hashlib.sha256()
    try:
        # As bytes: text mode would also end lines at a lone \r, and str.splitlines at U+2028 and others.
        with doing(f"while {source.path} was read"), open_rows(source.path) as file:
            for number, line in numbered_lines(source.path, file):
                digest.update(line)
                try:
                    text = decode_line(source.path, number, line)
                except UserError as error:
                    source.refuse(number, error)
                    continue
                yield number, text
    except OSError as error:
        raise unreadable(source.path, error) from error
    source.sha256 = digest.hexdigest()


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error for a training file that the system does not let us read."""
    return UserError(f"cannot read training file {path}: {error.strerror or first_line(error)}")


def _read_text(source: DataSource) -> Iterator[FileRow]:
    named = False
    for number, line in source.lines():
        if not named:
            yield number, ["text"]  # the column name that the text loader of `datasets` uses
            named = True
        yield number, [line]


def _read_delimited(source: DataSource) -> Iterator[FileRow]:
    """Yield the rows of a csv or tsv file, with quotes as in RFC 4180, but also after spaces that follow a delimiter.

    A row has the number of its first line.
    """
    delimiter = delimiter_of(source.path)
    # A lone \r counts as white space here; the csv module would read it as the end of a row.
    lines = _Replayed((number, line.replace("\r", " ") + "\n") for number, line in source.lines())
    # The limit of the csv module, by default 131,072 characters, holds for the whole process; it is never lowered.
    csv.field_size_limit(max(MAX_CELL, csv.field_size_limit()))
    records = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    while True:
        lines.mark()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            start = lines.start
            if "field larger than" in str(error):
                problem = f'the row that starts here has a cell of more than {MAX_CELL:,} characters: is a quote (")'
                problem += " not closed? Close it, or split the cell"
            else:
                problem = (
                    'a quote (") in the row that starts here is not closed, or text follows the closing quote '
                    f'({error}); close it, and write a quote inside a quoted cell twice ("")'
                )
            source.refuse(start, source.error(start, problem))
            # Only the first line of the row is skipped; the other lines that the open quote consumed are read again.
            lines.rewind()
            records = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
            continue
        yield lines.start, [] if lines.are_blank else cells


def delimiter_of(path: Path) -> str:
    """Return the delimiter of a csv or tsv file, by the rule of the published code."""
    return "\t" if "tsv" in path.name.lower() else ","


class _Replayed:
    """An iterator over lines that can return to the second line after a mark."""

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
        """Number of the first line after the mark."""
        return self._since[0][0]

    @property
    def are_blank(self) -> bool:
        """Whether the lines after the mark are white space."""
        return all(not line.strip() for _, line in self._since)

    def mark(self) -> None:
        """Mark the start of a row."""
        self._since = []

    def rewind(self) -> None:
        """Return to the second line after the mark."""
        self._again += reversed(self._since[1:])


def _read_json(source: DataSource) -> Iterator[FileRow]:
    """Yield the rows of a json file: an array if it starts with `[`, otherwise JSON lines."""
    lines, start, first = source.lines(), [], ""
    while not first.strip() and (numbered := next(lines, None)):
        start.append(numbered)
        first = numbered[1]
    read = _read_json_array if first.lstrip().startswith("[") else _read_json_lines
    return read(source, chain(start, lines))


def _read_json_array(source: DataSource, lines: NumberedLines) -> Iterator[FileRow]:
    """Yield the rows of an array of objects, numbered by item. The complete file is read into memory."""
    try:
        items = _parse_json("\n".join(line for _, line in lines))
    except _RowError as error:
        source.refuse(error.number, source.error(error.number, str(error)))
        return iter(())
    source.unit = "item"
    return _object_rows(source, enumerate(items, start=1))


def _read_json_lines(source: DataSource, lines: NumberedLines | None = None) -> Iterator[FileRow]:
    def values() -> Iterator[tuple[int, Any]]:
        for number, line in source.lines() if lines is None else lines:
            try:
                value = _parse_json(line, number) if line.strip() else None
            except _RowError as error:
                source.refuse(error.number, source.error(error.number, str(error)))
                continue
            yield number, value

    return _object_rows(source, values())


def _read_parquet(source: DataSource) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file, numbered by row, by the rules of JSON objects."""
    import pyarrow as pa
    from pyarrow import parquet

    source.unit = "row"
    try:
        with doing(f"while {source.path} was read"), open_rows(source.path) as file:
            content = parquet.ParquetFile(file)
            reader = pa.RecordBatchReader.from_batches(content.schema_arrow, content.iter_batches(BATCH_ROWS))
            table = open_table(reader, source.name)  # with words in place of the numbers of class labels
            rows = ([None if is_missing(cell) else cell for cell in row] for row in table.rows)
            objects = (tuple(zip(table.columns, row, strict=True)) for row in rows)
            yield from _object_rows(source, enumerate(objects, start=1))
    except pa.ArrowException as error:
        raise UserError(f"{source.path} is not a Parquet file ({first_line(error)}); copy it again") from error
    except OSError as error:
        raise unreadable(source.path, error) from error
    source.sha256 = rows_sha256(source.path)


class _RowError(ValueError):
    """An error in the row with the given number."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


# Objects are decoded as tuples of pairs, since a dict would silently drop duplicate keys.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def _parse_json(text: str, first_line: int = 1) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise _RowError(line, f"invalid JSON: {error.msg} (column {error.colno}); correct it") from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; thousands of brackets
        raise _RowError(first_line, f"unreadable JSON: {error}; give objects that contain strings") from error


def _object_rows(source: DataSource, values: Iterable[tuple[int, Any]]) -> Iterator[FileRow]:
    """Yield the keys of the first object, then the cells of every object in this order; None means a blank line."""
    keys: list[str] = []
    numeric: str | None = None
    for number, value in values:
        if value is None:
            yield number, []
            continue
        try:
            cells = _as_object(number, value)
            if not keys:
                numeric = source.numeric_key(list(cells)) or _binary_key(cells)
            texts = _in_order(number, cells, keys or list(cells), numeric)
        except _RowError as error:
            source.refuse(number, source.error(number, str(error)))
            continue
        if not keys:
            keys = list(cells)
            yield number, keys
        yield number, texts


def _binary_key(cells: dict[str, Any]) -> str | None:
    """Return the third key of three if its value is the number 0 or 1, which makes it one of scores."""
    key, value = list(cells.items())[-1]
    return key if len(cells) == len(ROLES) and type(value) in (int, float) and label_text(value) in BINARY else None


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


def _in_order(number: int, cells: dict[str, Any], keys: list[str], numeric: str | None) -> list[str]:
    if cells.keys() != set(keys):
        problem = f"expected the keys {keys}, as in the first row, but found {list(cells)}"
        raise _RowError(number, f"{problem}; give every row the same keys")
    return [_as_text(number, key, cells[key], numeric=key == numeric) for key in keys]


def _as_text(number: int, key: str, value: Any, *, numeric: bool = False) -> str:
    if value is None:
        return ""
    if numeric and type(value) in (bool, int, float):
        return label_text(value)
    if not isinstance(value, str):
        allowed, remedy = "a string", "quote it"
        if isinstance(value, list | tuple):
            remedy = "give every key one sentence; several negatives have the keys negative_1, negative_2, ..."
        if numeric:
            allowed, remedy = "a string or a number", "give words to labels or classes, or numbers to scores"
        raise _RowError(number, f"key {key!r}: expected {allowed} but found {_describe(value)}; {remedy}")
    if match := NUL_OR_SURROGATE.search(value):
        escape = f"\\u{ord(match[0]):04x}"
        raise _RowError(number, f"key {key!r}: found {escape}, which is not a character; remove it")
    return value


_JSON_KINDS = {bool: "the boolean", int: "the number", float: "the number", str: "the string"}


def _describe(value: Any) -> str:
    if type(value) in _JSON_KINDS:
        return f"{_JSON_KINDS[type(value)]} {json.dumps(value)[:40]}"
    return {tuple: "an object", list: "a list"}.get(type(value)) or describe(value)


READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}


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
