"""Readers of training files, one per format, and a function that writes files for these readers."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from dcpcse.data.column_choice import Chosen, select_columns
from dcpcse.data.objects import BATCH_ROWS, open_table
from dcpcse.data.tables import Row, Table, dict_rows
from dcpcse.utils.errors import UserError, doing, first_line
from dcpcse.utils.files import atomic_file
from dcpcse.utils.parsing import open_input
from dcpcse.utils.text_lines import decode_line, numbered_lines

PACKED = ".gz"
"""Extension of files that are unpacked while they are read."""

MAX_CELL = 2**20
"""Maximum number of characters of a csv cell. Without a limit, a quote that is not closed would read the whole
file."""


Reader = Callable[[Table], Iterator[Row]]
"""A function that yields the names of the columns of a file, then its rows; blank lines may precede the names."""


def format_of(path: Path) -> str:
    """Return the extension that names the format of a file, in lower case; .gz is ignored."""
    return (path.with_suffix("") if path.suffix.lower() == PACKED else path).suffix.lower()


@contextlib.contextmanager
def open_rows(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read the bytes of its rows; a .gz file is unpacked while it is read.

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
            raise UserError(
                f"{path} is not a complete gzip file ({first_line(error)}); copy the file again"
            ) from error


def rows_sha256(path: Path) -> str:
    """Return the sha256 of the unpacked bytes of a file. Packing the file with gzip does not change the result."""
    with open_rows(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reader_of(path: Path) -> Reader:
    """Return the reader for a file. Raises UserError if its extension is not supported or it does not exist."""
    # os.path.exists, since Path.exists raises errors for names that are too long and for unreadable folders
    if not os.path.exists(path):
        raise UserError(f"training file {path} does not exist; check the path")
    if not os.path.isfile(path):
        raise UserError(f"training file {path} is a folder or a device, not a file; give the path of a file")
    if format_of(path) not in READERS:
        problem = f"the extension {path.suffix!r} is not supported" if path.suffix else "the name has no extension"
        raise UserError(f"training file {path}: {problem}; use one of {', '.join(READERS)}")
    return READERS[format_of(path)]


def open_file(path: Path, refuse: Callable[[int, UserError], None] | None = None, columns: Chosen = None) -> Table:
    """Return the table of a training file. The file is read up to the first row that is not blank.

    Args:
        refuse: A function that handles invalid rows; see `Table`.
        columns: As in `open_table`.

    Raises:
        UserError: If the file has no rows, cannot be read, has an extension that is not supported, or lacks a chosen
            column.
    """
    table = table_of(path, refuse)
    rows = reader_of(path)(table)
    for number, cells in rows:
        if cells:
            table.header = number
            table.columns = tuple(table.text(number, index, name) for index, name in enumerate(cells))
            _require_right_delimiter(table)
            table.rows, table.chooses = rows, columns is not None
            if columns:
                select_columns(table, columns)
            return table
        table.dropped.append(number)
    problem = "contains only blank lines" if table.dropped else "is empty"
    raise UserError(f"{table.described} {problem}; give at least one sentence")


def table_of(path: Path, refuse: Callable[[int, UserError], None] | None = None) -> Table:
    """Return a table without rows for a file. The reader of the file's format adds columns and rows."""
    return Table(str(path), path=path, unit="line", **({"refuse": refuse} if refuse else {}))


def _require_right_delimiter(table: Table) -> None:
    (name, *others) = table.columns
    if "\t" in name and not others:
        problem = f"the only column name, {name!r}, contains a tab"
        raise table.error(table.header, f"{problem}; if tabs separate the columns, name the file .tsv")
    if ";" in name and not others:
        problem = f"the only column name, {name!r}, contains a semicolon"
        raise table.error(table.header, f"{problem}; separate columns by commas (.csv) or tabs (.tsv)")


NumberedLines = Iterator[tuple[int, str]]


def read_lines(table: Table) -> NumberedLines:
    r"""Yield the number (from 1) and the text of each line; only \n and \r\n end a line.

    A line that is not UTF-8 or contains a NUL is passed to `table.refuse`. At the end of the file, the digest of the
    bytes is stored in the table. A reader calls this function only once, so the rows and the digest come from the same
    bytes. Raises UserError if the file cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    try:
        # As bytes: text mode would also end lines at a lone \r, and str.splitlines at U+2028 and others.
        with doing(f"while {table.path} was read"), open_rows(table.path) as file:
            for number, line in numbered_lines(table.path, file):
                digest.update(line)
                size += len(line)
                try:
                    text = decode_line(table.path, number, line)
                except UserError as error:
                    table.refuse(number, error)
                    continue
                yield number, text
    except OSError as error:
        raise unreadable(table.path, error) from error
    table.sha256, table.bytes = digest.hexdigest(), size


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error for a file that the operating system cannot open or read."""
    return UserError(f"cannot read {path}: {error.strerror or first_line(error)}")


def _read_text(table: Table) -> Iterator[Row]:
    lines = read_lines(table)
    for number, line in islice(lines, 1):
        yield number, ["text"]  # the column name that the text loader of `datasets` uses
        yield number, [line]
    for number, line in lines:
        yield number, [line]


def _read_delimited(table: Table) -> Iterator[Row]:
    """Yield the rows of a csv or tsv file. The number of a row is the number of its first line.

    Quotation marks are interpreted as in RFC 4180, but there may also be spaces between a delimiter and a quotation
    mark.
    """
    delimiter = delimiter_of(table.path)
    # A lone \r counts as white space here; the csv module would read it as the end of a row.
    lines = ((number, line.replace("\r", " ") + "\n") for number, line in read_lines(table))
    row: list[tuple[int, str]] = []  # the lines of the row that is being read
    again: list[tuple[int, str]] = []  # lines to read again, in reverse order

    def texts() -> Iterator[str]:
        while (line := again.pop() if again else next(lines, None)) is not None:
            row.append(line)
            yield line[1]

    def records() -> Iterator[list[str]]:
        return csv.reader(texts(), delimiter=delimiter, strict=True, skipinitialspace=True)

    # The limit of the csv module, by default 131,072 characters, holds for the whole process; it is never lowered.
    csv.field_size_limit(max(MAX_CELL, csv.field_size_limit()))
    rows = records()
    while True:
        row.clear()
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            start = row[0][0]
            if "field larger than" in str(error):
                problem = (
                    f"the row that starts here has a cell of more than {MAX_CELL:,} characters; close the quote "
                    '(") if it is not closed, or split the cell'
                )
            else:
                problem = (
                    'a quote (") in the row that starts here is not closed, or text follows the closing quote '
                    f'({error}); close it, and write a quote inside a quoted cell twice ("")'
                )
            table.refuse(start, table.error(start, problem))
            # Only the first line of the row is skipped; the other lines that the open quote consumed are read again.
            again += reversed(row[1:])
            rows = records()
            continue
        yield row[0][0], cells if any(line.strip() for _, line in row) else []


def delimiter_of(path: Path) -> str:
    """Return the delimiter of a file: a tab if its name contains tsv, otherwise a comma, as in SimCSE's code."""
    return "\t" if "tsv" in path.name.lower() else ","


def _read_json(table: Table) -> Iterator[Row]:
    """Yield the rows of a json file: an array if it starts with `[`, otherwise JSON lines."""
    lines, start, first = read_lines(table), [], ""
    while not first.strip() and (numbered := next(lines, None)):
        start.append(numbered)
        first = numbered[1]
    lines = chain(start, lines)
    if not first.lstrip().startswith("["):
        return dict_rows(table, json_values(table, lines))
    items = _parse_json(table, 1, "\n".join(line for _, line in lines))  # the complete file is read into memory
    table.unit = "item" if items else table.unit
    return dict_rows(table, enumerate(chain.from_iterable(items), start=1))


def _read_json_lines(table: Table) -> Iterator[Row]:
    return dict_rows(table, json_values(table, read_lines(table)))


def json_values(table: Table, lines: NumberedLines) -> Iterator[tuple[int, Any]]:
    """Yield the number and the JSON value of each line.

    The value of a blank line is None. An object with a repeated key becomes a tuple.
    """
    for number, line in lines:
        if line.strip():
            yield from ((number, value) for value in _parse_json(table, number, line))
        else:
            yield number, None


def _parse_json(table: Table, first_line: int, text: str) -> list[Any]:
    """Return a list with the value of a JSON text. If the text is not valid JSON, refuse the line and return []."""
    try:
        return [_DECODER.decode(text)]
    except json.JSONDecodeError as error:
        line, problem = first_line + error.lineno - 1, f"invalid JSON: {error.msg} (column {error.colno}); correct it"
        table.refuse(line, table.error(line, problem))
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; thousands of brackets
        problem = f"unreadable JSON: {error}; give objects that contain strings"
        table.refuse(first_line, table.error(first_line, problem))
    return []


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """Return a JSON object as a dict. If a key occurs twice, return a tuple, since a dict would drop one value."""
    content = dict(pairs)
    return content if len(content) == len(pairs) else tuple(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _read_parquet(table: Table) -> Iterator[Row]:
    """Yield the rows of a Parquet file, numbered by row."""
    import pyarrow as pa
    from pyarrow import parquet

    table.unit = "row"
    try:
        with doing(f"while {table.path} was read"), open_rows(table.path) as file:
            content = parquet.ParquetFile(file)
            batches = content.iter_batches(BATCH_ROWS)
            reader = pa.RecordBatchReader.from_batches(content.schema_arrow, batches)
            rows = open_table(reader, table.name)  # with words instead of the numbers of class labels
            table.class_names = rows.class_names
            yield 1, rows.columns
            yield from rows.rows
    except pa.ArrowException as error:
        raise UserError(f"{table.path} is not a Parquet file ({first_line(error)}); copy the file again") from error
    except OSError as error:
        raise unreadable(table.path, error) from error
    table.sha256, table.bytes = rows_sha256(table.path), os.path.getsize(table.path)


def plain_columns(table: Table) -> Iterator[Row]:
    """Yield the cells of lines with columns separated by tabs, in which quotation marks are plain text."""
    return ((number, text.split("\t") if text.strip() else []) for number, text in read_lines(table))


READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows to a csv, tsv or jsonl file, atomically. In jsonl files, cells may be lists of texts.

    Raises UserError if a text is longer than readers of csv and tsv files accept.
    """
    with atomic_file(path) as binary, io.TextIOWrapper(binary, encoding="utf-8", newline="") as file:
        if format_of(path) == ".jsonl":
            objects = (dict(zip(columns, row, strict=True)) for row in rows)
            file.writelines(f"{json.dumps(content, ensure_ascii=False)}\n" for content in objects)
            return
        writer = csv.writer(file, delimiter=delimiter_of(path), lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if long := next((cell for cell in row if len(cell) > MAX_CELL), None):
                raise UserError(
                    f"{path}: the text {long[:40]!r}... has {len(long):,} characters, but a cell has at most "
                    f"{MAX_CELL:,}; split the text, or remove it"
                )
            writer.writerow(row)
