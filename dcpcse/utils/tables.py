"""Tables of text for the terminal, for Markdown, for notebooks and for LaTeX."""

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
    """Return a table for a terminal, Markdown or a notebook. `str` of the table is its text.

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


def mean_and_deviation(mean: float, deviation: float | None, digits: int = 2) -> str:
    """Return a mean over runs with its standard deviation, such as 59.69 ± 0.29.

    Args:
        mean: The mean.
        deviation: The standard deviation. None: only the mean is returned.
        digits: Number of decimals.
    """
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def as_latex(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table for LaTeX, with the lines of the package booktabs. Special characters of the cells are escaped.

    Args:
        heads: Names of the columns. The first one is aligned to the left.
        rows: The cells of each row.
    """
    import pandas  # a requirement of datasets, imported here because it is slow

    table = pandas.DataFrame([list(row) for row in rows], columns=list(heads))
    text = table.to_latex(index=False, escape=True, column_format=f"l{'r' * (len(heads) - 1)}")
    return text.replace("±", r"$\pm$")
