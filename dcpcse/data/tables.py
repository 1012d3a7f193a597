"""The class `Table`, to which files and Python objects are converted, and functions that read its columns and rows.

`dcpcse.data.readers` opens the table of a file, and `dcpcse.data.objects` the table of a Python object.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, islice
from numbers import Number, Real
from pathlib import Path
from typing import Any

from dcpcse.data.columns import (
    ALLOWED,
    CLASS,
    CLASS_SEPARATOR,
    LABEL,
    ROLES,
    SCORE,
    Header,
    header_of,
    is_positive_or_negative,
    is_relation,
    is_undecided,
    kind_of_role,
    label_text,
    normalize_label,
    numbered,
)
from dcpcse.utils.errors import UserError, plural, spell
from dcpcse.utils.files import temporary_file, temporary_space
from dcpcse.utils.text_lines import NUL_OR_SURROGATE

MOST_UNDECIDED = 10_000
"""Maximum number of rows that are read ahead to find the kind of the labels."""

DROPPED_SHOWN = 5

EXAMPLE = 'give an object such as {"anchor": "...", "positive": "..."}'

Row = tuple[int, Sequence[Any]]
"""The number of a row (in a file, of its first line) and its cells. A blank line has no cells."""

TextRow = tuple[int, list[str | None]]
"""The number of a complete row, and its cells as texts. A row with fewer positives or hard negatives than others has
None in place of the absent ones."""

_LINE_END = re.compile(r"\r\n?|\n")


def _raise(number: int, error: UserError) -> None:
    raise error


@dataclass
class Table:
    """The rows of a file or of a Python object. They can be read only once, in order.

    Args:
        name: The path of the file, or the name of the object in messages, such as `train_data`.
        columns: The names of the columns; None if they have no names.
        rows: Iterator over the rows. Cells are Python objects as given, except that a class number or a member of an
            Enum is replaced by its word.
        unit: What the row numbers count: `line`, `item` (of an array) or `row`.
        path: The file; None for an object.
        refuse: A function that is called with the number and the error of every invalid row. If the function returns
            instead of raising the error (as in `dcpcse doctor`), the row is skipped.
        kind: A description of the object, such as `list of 1,000 rows`.
        picked: The Python expression that selects columns of the object, as a format string for the names of the
            columns.
        class_names: The names of the classes of each column of type `datasets.ClassLabel`.
        taken_once: Whether the object cannot be read a second time.
        required: Number of first cells that must not be blank; otherwise the row is dropped. None: all cells.
        texts: The names of the columns whose first cell is a string.
        roles: The roles of the columns, if the user has chosen them.
        chooses: Whether the user can choose columns by the option `columns`.
        dropped: The numbers of the rows that were dropped because of a blank cell.
        header: The number of the row that contains the names of the columns.
        sha256, bytes: Digest and size of the bytes of a file; None until the complete file has been read.
    """

    name: str
    columns: tuple[str, ...] | None = None
    rows: Iterator[Row] = field(default_factory=lambda: iter(()))
    kind: str = ""
    picked: str = ""
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    taken_once: bool = False
    required: int | None = None
    texts: tuple[str, ...] = ()
    roles: tuple[str, ...] | None = None
    chooses: bool = False
    unit: str = "row"
    path: Path | None = None
    refuse: Callable[[int, UserError], None] = _raise
    dropped: array[int] = field(default_factory=lambda: array("q"))
    header: int | None = None
    sha256: str | None = None
    bytes: int | None = None

    @property
    def role_names(self) -> tuple[str, ...] | None:
        """The chosen roles. If the user chose none, the names of the columns, which determine their roles."""
        return self.roles or self.columns

    @property
    def described(self) -> str:
        """The name and the kind of the data, for messages."""
        return self.name if self.path is None else f"training file {self.path}"

    def error(self, row: int | None, problem: str, index: int | None = None) -> UserError:
        """Return the error for a row or a cell.

        Args:
            row: The number of the row; None for all rows.
            problem: What is wrong, and what to do.
            index: The index of the cell, from 0; None for the complete row.
        """
        if row is None:
            return UserError(f"{self.name}: {problem}")
        column = (
            "" if index is None else f", column {index + 1 if self.columns is None else repr(self.columns[index])}"
        )
        return UserError(f"{self.name}{': ' if self.path is None else ', '}{self.unit} {row}{column}: {problem}")

    def text(self, row: int, index: int, cell: Any, *, numeric: bool = False, several: bool = False) -> str:
        r"""Return the stripped text of a cell; a missing cell (None, NaN, pandas.NA) is an empty string.

        Line ends in a text (\n, \r\n or \r) become spaces: a sentence is one line.

        Args:
            row: The number of the row.
            index: The index of the column.
            numeric: Whether the cell may be a number or a boolean, as labels, scores and classes are.
            several: Whether the cell may be a list, whose items are then separated by line feeds.

        Raises:
            UserError: If the cell has another type, or if the text contains a NUL or a surrogate (half a character).
        """
        if isinstance(cell, str):
            if not cell.isprintable():
                if match := NUL_OR_SURROGATE.search(cell):
                    raise self.error(row, f"found \\u{ord(match[0]):04x}, which is not a character; remove it", index)
                cell = _LINE_END.sub(" ", cell)
            return cell.strip()
        if is_missing(cell):
            return ""
        if not numeric:
            raise self.error(row, f"expected a string but found {describe(cell)}; {self._remedy(index, cell)}", index)
        if several and (isinstance(cell, (list, tuple)) or type(cell).__name__ == "ndarray"):
            return CLASS_SEPARATOR.join(filter(None, (self.text(row, index, item, numeric=True) for item in cell)))
        if not isinstance(cell, (Real, Decimal)):
            problem = f"expected a string or a number but found {describe(cell)}"
            raise self.error(row, f"{problem}; write labels and classes as words, scores as numbers", index)
        return label_text(cell)

    def pick(self, columns: Sequence[str]) -> str:
        """Return an expression that picks these columns, such as `train_data[["anchor", "positive"]]`."""
        names = ", ".join(f'"{name}"' for name in columns)
        return self.picked.format(names, name=self.name) if self.picked else f"only {names}"

    def leave_out(self, columns: Sequence[str]) -> str:
        """Return the advice, for a message, to leave out all columns except the given ones."""
        if self.path is None:
            return f"give {self.pick(columns)}"
        return f"keep only the columns {', '.join(columns)} in the file"

    def _remedy(self, index: int, cell: Any) -> str:
        if isinstance(cell, (bytes, bytearray)):
            return "decode it by .decode()"
        if isinstance(cell, Iterable):
            return "give one string per cell; only positives and hard negatives can be lists"
        others = [name for name in self.texts if self.columns and name != self.columns[index]]
        remedy = "convert it by str()" if self.path is None else "quote it"
        return f"{remedy}{f', or leave the column out: {self.pick(others[:3])}' if others else ''}"

    def summary(self, header: Header) -> dict[str, Any]:
        """Return the names of the columns, and the number and first line numbers of dropped rows."""
        dropped = {"dropped": len(self.dropped), "dropped_lines": self.dropped[:DROPPED_SHOWN].tolist()}
        return {"columns": list(header.names), **dropped, "unit": self.unit}


def read_rows(table: Table) -> tuple[Header, Iterator[TextRow]]:
    """Return the columns of a table by their roles, and an iterator over its complete rows.

    If the columns have no names, they get the names of their roles. The items of a list are spread over several
    columns. The first complete row decides whether the last column contains sentences, labels or scores. If the label
    in this row is ambiguous, up to 10,000 further rows are read. Rows with blank cells are dropped. Other invalid rows
    are passed to `table.refuse`.
    """

    def error(problem: str) -> UserError:
        return table.error(table.header, problem)

    def example(columns: Sequence[str]) -> str:
        if table.chooses and table.columns and not table.roles and not table.picked:
            return f", or choose columns by {spell('columns', [f'{role}=NAME' for role in ROLES[:2]])}"
        # Without such an expression, the message only has the names of the other columns.
        if table.path is not None or (columns and not table.picked):
            return ""
        return f", for instance {table.pick(columns or _picked(table, names))}"

    names = table.role_names
    if table.path is not None:
        header_of(names, error, example=example)  # before rows are read, since errors in the names come first
    _spread_lists(table, error)
    rows, first = _deciding_row(table)
    names = table.role_names
    if names is None:
        if len(first) > len(ROLES):
            raise error(f"found {len(first)} columns; keep {ALLOWED}")
        names = _default_names(first)
    header = header_of(names, error, _label_in(table, first), example=example)
    header = replace(header, names=tuple(table.columns or names))
    for name in header.names[:-1] if header.target else header.names:
        if name in table.class_names:
            words = ", ".join(map(repr, table.class_names[name][:3]))
            raise error(
                f"the column {name!r} has class labels ({words}), but it stands where sentences are expected; name it "
                f"{LABEL} and make it the last column, or leave it out"
                f"{example([other for other in names if other != name])}"
            )
    return header, _complete_rows(table, header, rows)


def _spread_lists(table: Table, error: Callable[[str], UserError]) -> None:
    """Give each positive and each hard negative its own column if the first complete row has lists of them.

    The longest lists decide the number of columns, so all rows are first read into a temporary file. Blank items of
    lists are left out. None is an empty list.
    """
    head: list[Row] = []
    for number, row in islice(table.rows, MOST_UNDECIDED):
        head.append((number, row))
        if any(isinstance(cell, list) for cell in row) or (row and not any(map(_is_blank, row))):
            break
    table.rows = chain(head, table.rows)
    first = head[-1][1] if head else ()
    if not any(isinstance(cell, list) for cell in first) or (table.columns is None and len(first) > len(ROLES)):
        return
    header = header_of(table.role_names or _default_names(first), error)
    if header.target:
        return
    most = dict.fromkeys(ROLES, 1) | {ROLES[2]: 0}
    file = temporary_file(table)
    with temporary_space():
        for number, row in table.rows:
            try:
                texts = _texts_by_role(table, header, number, row)
            except UserError as problem:
                table.refuse(number, problem)
                continue
            if texts[ROLES[0]] and texts[ROLES[1]]:
                most = {role: max(most[role], len(items)) for role, items in texts.items()}
            file.write(json.dumps([number, texts]).encode() + b"\n")
    table.columns = (header.names[0], *(name for role in ROLES[1:] for name in numbered(role, most[role])))
    table.roles, table.required = None, len(ROLES[:2])
    file.seek(0)
    table.rows = (
        (number, [cell for role in ROLES for cell in [*texts[role], *[""] * most[role]][: most[role]]])
        for number, texts in map(json.loads, file)
    )


def _texts_by_role(table: Table, header: Header, number: int, row: Sequence[Any]) -> dict[str, list[str]]:
    """Return the anchor, the positives and the hard negatives of a row, without blank ones."""
    if row and len(row) != len(header.names):
        raise table.error(number, _uneven(table, header, row))
    texts: dict[str, list[str]] = {role: [] for role in ROLES}
    for index, (role, cell) in enumerate(zip(map(kind_of_role, header.roles), row, strict=False)):
        items = cell if isinstance(cell, list) and index else [cell]
        texts[role] += filter(None, (table.text(number, index, item) for item in items))
    return texts


def _deciding_row(table: Table) -> tuple[Iterator[Row], Sequence[Any]]:
    """Return all rows, and the cells of the complete row that decides what the last column contains.

    If there is no complete row, these are the cells of the last row that was read. A row is needed only if there are
    three columns. Otherwise the names of the columns decide.
    """
    if table.columns is not None and len(table.columns) != len(ROLES):
        return table.rows, ()
    head: list[Row] = []
    deciding: Sequence[Any] = ()
    for number, row in table.rows:
        head.append((number, row))
        if row and len(row) == len(table.columns or row) and not any(map(_is_blank, row)):
            deciding = row
            name = (table.role_names or _default_names(row))[-1].lower()
            if not (len(row) == len(ROLES) and name == LABEL and isinstance(row[-1], str) and is_undecided(row[-1])):
                break
        if len(head) >= MOST_UNDECIDED:
            break
    return chain(head, table.rows), deciding or (head[-1][1] if head else ())


def _label_in(table: Table, row: Sequence[Any]) -> Sequence[str]:
    """Return the cells of a row of three. Only the last cell is converted to text, and only if it can be a label."""
    if len(row) != len(ROLES) or any(map(_is_blank, row)):
        return ()
    # In a column without a name, numbers are scores on any scale.
    is_label = isinstance(row[-1], (str, bool)) or (_is_number(row[-1]) and table.columns is not None)
    return ("", "", label_text(row[-1]) if is_label else "")


def _default_names(row: Sequence[Any]) -> Sequence[str]:
    """Return the names of the columns of rows without names, given a complete row."""
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


def _is_blank(cell: Any) -> bool:
    return not cell.strip() if isinstance(cell, str) else is_missing(cell)


def _picked(table: Table, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns that a message suggests if there are too many."""
    known = (*ROLES, LABEL, SCORE, CLASS)
    named = [column for column in columns if column.lower() in known or is_positive_or_negative(column)]
    texts = [column for column in table.texts if column not in named]
    if len(named) == 1 and named[0].lower() in (LABEL, CLASS) and texts:
        return [texts[0], *named]
    return named or (texts or list(columns))[:2]


def _complete_rows(table: Table, header: Header, rows: Iterable[Row]) -> Iterator[TextRow]:
    """Yield complete rows as texts, with normalised labels; drop rows with blank cells, refuse other invalid rows."""
    width = len(header.names)
    target = width - 1 if header.target else None
    classes = target if header.target == CLASS else None
    for number, row in rows:
        try:
            if len(row) != width and not all(map(_is_blank, row)):
                raise table.error(number, _uneven(table, header, row))
            # This is the innermost loop of reading, and most cells are strings that need nothing else.
            cells = [
                cell.strip()
                if type(cell) is str and cell.isprintable()
                else table.text(number, index, cell, numeric=index == target, several=index == classes)
                for index, cell in enumerate(row)
            ]
            if len(cells) != width or not all(cells[: table.required]):
                table.dropped.append(number)
                continue
            if table.required is not None:
                cells = [cell or None for cell in cells]
            if target is not None:
                try:
                    cells[target] = normalize_label(header, cells[target])
                except ValueError as error:
                    raise table.error(number, str(error)) from error
        except UserError as error:
            table.refuse(number, error)
            continue
        yield number, cells


def _uneven(table: Table, header: Header, row: Sequence[Any]) -> str:
    quotes = ', with cells that contain the delimiter in double quotes ("...")' if table.path else ""
    return (
        f"expected {plural(len(header.names), 'cell')}, one for each of {list(header.names)}, but found {len(row)}; "
        f"give each row as many{quotes}"
    )


def dict_rows(table: Table, values: Iterable[tuple[int, Any]]) -> Iterator[Row]:
    """Yield the keys of the first dict as column names, then the cells of each dict. None is a blank row."""
    keys: list[str] = []
    for number, value in values:
        if value is None:
            yield number, ()
            continue
        problem = None
        if isinstance(value, tuple):  # pairs of keys and values, since a dict would silently drop a repeated key
            problem = f"a key occurs twice in {[key for key, _ in value]}; keep one of them"
        elif not isinstance(value, Mapping):
            problem = f"expected an object with keys but found {describe(value)}; {EXAMPLE}"
        elif not value:
            problem = f"found an object without keys; {EXAMPLE}"
        elif keys and value.keys() != set(keys):
            problem = (
                f"expected the keys {keys}, as in the first row, but found {list(value)}; give every row the same keys"
            )
        if problem is not None:
            table.refuse(number, table.error(number, problem))
            continue
        if not keys:
            keys = list(value)
            yield number, keys
        yield number, [value[key] for key in keys]


def is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, pandas.NA or pandas.NaT."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, Number) and bool(cell != cell)


def describe(value: Any) -> str:
    """Return a short description of a Python object that is not what was expected, such as `the number 3`."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, (str, bytes, bytearray)):
        return (
            f"the string {value[:40]!r}" if isinstance(value, str) else f"{type(value).__name__} {bytes(value[:40])!r}"
        )
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Number):
        return f"the number {str(value)[:40]}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
