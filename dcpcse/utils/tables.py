"""Tables of text for the terminal, for Markdown and for notebooks."""

from collections.abc import Iterable, Sequence
from typing import Any

import prettytable
from prettytable import PrettyTable

STYLES: Any = getattr(prettytable, "TableStyle", prettytable)
"""The forms of a table, such as `STYLES.MARKDOWN`; before prettytable 3.12, they are names of the module."""


def make_table(
    heads: Sequence[str],
    rows: Iterable[Iterable[Any]],
    align: str = "c",
    title: str | None = None,
    style: Any = STYLES.DEFAULT,
) -> PrettyTable:
    """Return a table. `str` of the table is its text.

    Args:
        heads: Names of the columns.
        rows: The cells of each row.
        align: `l`, `c` or `r` for each column; the last letter is repeated for further columns.
        title: The line above the table.
        style: The format of the text, one of `STYLES`.
    """
    shown = PrettyTable(list(heads), title=title)
    shown.set_style(style)
    for index, head in enumerate(heads):
        shown.align[head] = align[min(index, len(align) - 1)]
    shown.add_rows([list(row) for row in rows])
    return shown
