"""Find columns that are not what they are taken for: a first row that is no header, and numbers as sentences."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.data.columns import SCORE, Header, negatives_in
from dcpcse.utils.option_fields import finite_number


class NumericColumns:
    """The columns of sentences in which every cell so far is a number, filled while rows are read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        sentences = len(header.names) - (header.target is not None)
        self._places = list(range(sentences)) if len(header.names) > 1 else []
        self._rows = 0

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows, each given by the number of its first line and its cells."""
        self._rows += len(rows)
        self._places = [i for i in self._places if all(_is_number(cells[i]) for _, cells in rows)]

    def found(self) -> list[str]:
        """Return the names of these columns."""
        return [self.header.names[i] for i in self._places] if self._rows else []

    def problem(self) -> str | None:
        """Return the problem, with a remedy, if such a column would be one of hard negatives."""
        first = len(self.header.roles) - len(negatives_in(self.header.roles))
        name = next((self.header.names[i] for i in self._places if i >= first and self._rows), None)
        if name is None:
            return None
        remedy = "remove it"
        if len(self.header.names) == 3:
            remedy = f"name it {SCORE} if it contains the similarity of each pair, or {remedy}"
        return f"every cell of the column {name!r} is a number, which is no hard negative; {remedy}"


def describe_numbers(names: Sequence[str]) -> str:
    """Return the problem of columns of anchors or positives with these names that contain only numbers."""
    return f"every cell of the column {names[0]!r} is a number, but its place is that of sentences"


def header_problem(path: str | Path, names: Sequence[str]) -> str | None:
    """Return the problem of a csv or tsv file in which the name of a column is probably a sentence; else None."""
    if Path(path).suffix.lower() not in (".csv", ".tsv"):
        return None
    said = next((name for name in names if len(name.split()) > 3 or name.endswith((".", "!", "?"))), None)
    if said is None:
        return None
    return f"looks like a sentence ({said[:40]!r}), but the first row names the columns and is not trained on"


def _is_number(cell: str) -> bool:
    try:
        finite_number(cell)
    except ValueError:
        return False
    return True
