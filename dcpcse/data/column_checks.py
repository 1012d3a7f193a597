"""Find columns that are not what they are taken for: no header in the first row, numbers or classes as sentences."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from dcpcse.data.columns import CLASS, SCORE, Header, negatives_in
from dcpcse.utils.option_fields import finite_number

LEAST_ROWS = 20
MOST_VALUES = 1_000
ROWS_PER_VALUE = 10
MOST_WORDS, MOST_CHARACTERS = 3, 40
"""A second column of positives may contain classes if it has at least `LEAST_ROWS` rows and at most `MOST_VALUES`
different values, each in `ROWS_PER_VALUE` rows on average, and if no value is longer than names of classes are. Few
positives are repeated so often; those that are, such as the questions of an FAQ, have more words."""


MOST_IN_WORD = 12
"""Number of letters without a blank between them above which a text has more words than a name. Only letters of
scripts without capitals count, such as Chinese and Thai, in which most languages have no blanks between words."""


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


class RepeatedValues:
    """The different values of the second of two columns, filled while rows are read; few of them are kept."""

    def __init__(self, header: Header) -> None:
        self._values: set[str] | None = set() if len(header.names) == 2 and header.target is None else None
        self._rows = 0

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows, each given by the number of its first line and its cells."""
        self._rows += len(rows)
        if self._values is None:
            return
        self._values.update(cells[1] for _, cells in rows)
        if len(self._values) > MOST_VALUES or not all(map(_is_short, self._values)):
            self._values = None

    def found(self) -> int:
        """Return the number of different values if they may be classes, else 0."""
        number = len(self._values or ())
        return number if self._rows >= max(LEAST_ROWS, ROWS_PER_VALUE * number) else 0


def describe_values(name: str, values: int, rows: int) -> str:
    """Return the problem of a column of positives with few different values, which may be classes."""
    if values == 1:
        return f"the column {name!r} has the same value in all {rows:,} rows, which teaches nothing; remove it"
    return (
        f"the column {name!r} has {values:,} different values in {rows:,} rows; if they are classes, name the column "
        f"{CLASS}"
    )


def describe_numbers(names: Sequence[str]) -> str:
    """Return the problem of columns of anchors or positives with these names that contain only numbers."""
    return f"every cell of the column {names[0]!r} is a number, but its place is that of sentences"


def header_problem(path: str | Path, names: Sequence[str]) -> str | None:
    """Return the problem of a csv or tsv file in which the name of a column is probably a sentence; else None."""
    if Path(path).suffix.lower() not in (".csv", ".tsv"):
        return None
    said = next((name for name in names if _is_said(name)), None)
    if said is None:
        return None
    return (
        f"the first row looks like a sentence ({said[:40]!r}), but it names the columns and is not trained on; give a "
        "row of names before it"
    )


def _is_said(name: str) -> bool:
    """Return whether a name ends as a sentence, or is longer than names of columns are."""
    last = unicodedata.normalize("NFKC", name)[-1:]  # full-width marks become ASCII
    # Every script has its own marks, which are in Unicode's category "other punctuation", with some commas.
    is_mark = not last.isascii() and unicodedata.category(last) == "Po" and last not in "、،؛"
    return last in tuple(".!?") or is_mark or not _has_few_words(name)


def _is_short(value: str) -> bool:
    return len(value) <= MOST_CHARACTERS and _has_few_words(value)


def _has_few_words(text: str) -> bool:
    words = text.split()
    return len(words) <= MOST_WORDS and (
        text.isascii() or max(map(_letters_without_case, words), default=0) <= MOST_IN_WORD
    )


def _letters_without_case(word: str) -> int:
    return sum(unicodedata.category(letter) == "Lo" for letter in word)


def _is_number(cell: str) -> bool:
    try:
        finite_number(cell)
    except ValueError:
        return False
    return True
