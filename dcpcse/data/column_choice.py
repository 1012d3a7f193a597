"""Choose the columns of training and evaluation data by their names, and give them roles."""

from collections.abc import Iterator, Mapping, Sequence

from dcpcse.data.columns import CLASS, LABEL, ROLES, SCORE, kind_of_role
from dcpcse.data.tables import Row, Table
from dcpcse.utils.arguments import named_texts, texts_by_name
from dcpcse.utils.errors import OptionError, UserError

CHOICES = (*ROLES, LABEL, SCORE, CLASS)
"""The roles that a column can be given, in their order. Positives and negatives may be numbered."""

Choice = Mapping[str, str] | Sequence[str] | None
"""The choice of the user: a dict from roles to names of columns, or a list of ROLE=NAME. None: all columns."""

Chosen = Mapping[str, str] | None
"""The name of the column of each role, as `chosen_columns` returns it, to leave out all other columns; {} for all
columns. None: the caller has no option `columns`."""


def chosen_columns(choice: Choice, option: str = "columns") -> dict[str, str]:
    """Return the name of the column of each role, in the order of the roles; {} if `choice` is None.

    Args:
        choice: The columns that the user wants to read (see `Choice`).
        option: Name of the option, for messages.

    Raises:
        UserError: If a role is unknown, or if there is no anchor.
    """
    items = [] if choice is None else named_texts(option, choice)
    columns = texts_by_name(items)
    if unknown := next((role for role in columns if kind_of_role(role) not in CHOICES), None):
        allowed = f"{', '.join(CHOICES)}, or a numbered role such as positive_1 and negative_2"
        raise OptionError(option, items, f"{unknown!r} is not a role", f"choose from {allowed}")
    if items and ROLES[0] not in columns:
        raise OptionError(option, items, "no column is the anchor", f"add {ROLES[0]}=NAME")
    return dict(sorted(columns.items(), key=lambda item: _position(item[0])))


def _position(role: str) -> tuple[int, int]:
    number = role.rpartition("_")[2]
    return CHOICES.index(kind_of_role(role)), int(number) if number.isdecimal() else 0


def select_columns(table: Table, columns: Mapping[str, str]) -> None:
    """Leave only the chosen columns in a table, in the order of their roles. Call this before rows are read.

    Args:
        table: The table, which is changed.
        columns: The name of the column of each role.

    Raises:
        UserError: If the columns of the table have no names, or if a chosen name does not occur exactly once.
    """
    names, rows = table.columns, table.rows
    if names is None:
        raise UserError(f"{table.name}: columns without names cannot be chosen; name the columns")
    if missing := next((name for name in columns.values() if names.count(name) != 1), None):
        problem = "has several columns" if missing in names else "has no column"
        raise UserError(f"{table.name} {problem} {missing!r}; choose from {', '.join(map(repr, names))}")
    indices = [names.index(name) for name in columns.values()]

    def selected() -> Iterator[Row]:
        for number, cells in rows:
            if cells and len(cells) != len(names):
                problem = f"expected {len(names)} cells, one for each of {list(names)}, but found {len(cells)}"
                table.refuse(number, table.error(number, f"{problem}; give each row as many cells"))
                continue
            yield number, [cells[index] for index in indices] if cells else cells

    table.columns, table.roles, table.rows = tuple(columns.values()), tuple(columns), selected()
