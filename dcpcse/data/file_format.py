"""Recognise files whose contents are not what their names say, such as a table in a .txt file."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dcpcse.data.readers import delimiter_of
from dcpcse.utils.console import warn
from dcpcse.utils.parsing import open_input

MOST_LINES, MOST_CHARACTERS = 200, 100_000
"""Maximum number of lines that are looked at, and of characters of each."""

LEAST_LINES = 5
"""Minimum number of lines whose commas, semicolons or quotation marks count; a few sentences may have as many."""

LEAST_SHARE = 0.9
"""Share of the lines that must have a format."""

_NAMES = {"\t": "tabs", "|": "vertical bars", ";": "semicolons", ",": "commas"}
_QUOTED = re.compile("'.+'|`.+`|“.+”|„.+[“”]|«.+»|\".+\"")


def format_problem(path: Path, *, as_text: bool = False) -> list[str]:
    """Return the problem of a file that is probably not what its name says, and what its first line is read as.

    as_text: whether each line is read as a sentence whatever the name is. Returns [] if there is no such problem, or
    if the file cannot be read, which its reader reports.
    """
    suffix = ".txt" if as_text else path.suffix.lower()
    lines = _first_lines(path) if suffix in (".txt", ".csv", ".tsv") else []
    if not lines:
        return []
    delimiter = None if suffix == ".txt" else delimiter_of(path)
    rows = [[line] for line in lines] if delimiter is None else _rows(lines, delimiter)
    rows = [[cell.strip() for cell in row] for row in rows]
    problem = _found(lines, delimiter, rows)
    if problem is None:
        return []
    read = f"the sentence {_short(rows[0][0])}" if delimiter is None else f"the columns {_listed(rows[0])}"
    return [problem, f"its first line is read as {read}"]


def warn_of_format(path: Path, *, as_text: bool = False) -> None:
    """Log the lines of `format_problem` as warnings."""
    for problem in format_problem(path, as_text=as_text):
        warn(f"{path}: {problem}")


def _found(lines: Sequence[str], delimiter: str | None, rows: Sequence[Sequence[str]]) -> str | None:
    kind = "a text file with one sentence per line" if delimiter is None else f"a table with {_NAMES[delimiter]}"
    if _is_json(lines):
        return f"its lines are JSON, but it is read as {kind}; name it .jsonl, or .json if it is one array"
    widths = Counter(map(len, rows)).most_common(1)
    if widths[0][0] == 1 and (separator := _delimiter(lines)) not in (None, delimiter):
        remedy = {"\t": "name it .tsv", ",": "name it .csv"}.get(separator, "separate them by tabs and name it .tsv")
        return f"its lines have columns separated by {_NAMES[separator]}, but it is read as {kind}; {remedy}"
    for column, cells in enumerate(zip(*(row for row in rows[1:] if len(row) == widths[0][0]), strict=True), start=1):
        if len(cells) >= LEAST_LINES and _share(cells, lambda cell: bool(_QUOTED.fullmatch(cell))) >= LEAST_SHARE:
            where = "lines" if delimiter is None else f"cells of column {column}"
            return f"its {where} are in quotation marks, which are read as part of the sentences; remove them"
    return None


def _first_lines(path: Path) -> list[str]:
    try:
        with open_input(path) as file:
            raw = list(islice(iter(lambda: file.readline(MOST_CHARACTERS), b""), MOST_LINES))
    except OSError:
        return []
    lines = [line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n") for line in raw]
    return [line for line in lines if line.strip()]


def _rows(lines: Sequence[str], delimiter: str, skips_space: bool = True) -> list[list[str]]:
    records = csv.reader(lines, delimiter=delimiter, skipinitialspace=skips_space)
    try:
        return [row for row in records if row]
    except csv.Error:
        return [[line] for line in lines]


def _share(values: Sequence[Any], has: Callable[[Any], bool]) -> float:
    return sum(map(has, values)) / len(values)


def _is_json(lines: Sequence[str]) -> bool:
    # An array may be written on several lines, or on one line that is longer than is read here.
    is_array = lines[0].strip() in ("[", "{") or re.match(r'\s*\[\s*\{\s*("|$)', lines[0]) is not None
    return is_array or _share(lines, _is_json_line) >= LEAST_SHARE


def _is_json_line(line: str) -> bool:
    if line.strip()[:1] not in ("{", "["):
        return False
    try:
        return isinstance(json.loads(line.strip().removesuffix(",")), dict | list)
    except (ValueError, RecursionError):
        return False


def _delimiter(lines: Sequence[str]) -> str | None:
    """Return the delimiter of the columns of a table; None if the lines are sentences."""
    for delimiter in "\t|":  # which sentences hardly contain
        if _share(lines, lambda line, delimiter=delimiter: delimiter in line.strip()) >= LEAST_SHARE:
            return delimiter
    return next((delimiter for delimiter in ",;" if _is_table(lines, delimiter)), None)


def _is_table(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether lines have the same number of cells, with quotes or without a space before a cell."""
    rows = _rows(lines, delimiter, skips_space=False)
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width == 1 or len(rows) < LEAST_LINES or count < LEAST_SHARE * len(lines):
        return False
    below = lines[1:]  # the first line may be a header without quotes
    quoted = re.compile(rf'"\s*{delimiter}|{delimiter}\s*"')
    is_quoted = _share(below, lambda line: quoted.search(line) is not None) >= LEAST_SHARE
    # A comma in quotes is a part of its cell, as in most files that have quotes only where they are needed.
    return is_quoted or _share(rows, lambda row: not any(cell[:1].isspace() for cell in row[1:])) >= LEAST_SHARE


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def _listed(cells: Sequence[str]) -> str:
    return f"{', '.join(map(_short, cells[:4]))}{', …' if len(cells) > 4 else ''}"
