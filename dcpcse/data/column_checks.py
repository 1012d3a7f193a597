"""Find columns that are not what they are taken for: no header in the first row, or no text in place of sentences."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcpcse.data.columns import CLASS, LABEL, ROLES, SCORE, Header, kind_of_role
from dcpcse.data.label_words import BINARY, are_labels

LEAST_ROWS = 10
MOST_VALUES = 1_000
MOST_VALUES_OF_ANCHORS = 20
ROWS_PER_VALUE = 5
MOST_WORDS, MOST_CHARACTERS = 3, 40
"""A column may contain labels if it has at least `LEAST_ROWS` rows and at most `MOST_VALUES` different values (in the
first column, where a name may be repeated for each of its positives, `MOST_VALUES_OF_ANCHORS`), each in
`ROWS_PER_VALUE` rows on average, and if no value is longer than names of classes are, or ends as a sentence. Few
sentences are repeated so often; those that are, such as the questions of an FAQ, have more words."""

LEAST_SHARE = 0.95
"""Share of the cells of a column that must have a form of `_FORMS`."""

_MONTH = r"(jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\.?"
_TIME = r"\d{1,2}:\d{2}(:\d{2}\S*)?( ?[ap]m)?"
_WEEKDAY = r"((mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?\.?,? )?"
_DAY = (
    rf"\d{{1,4}}([-/.])\d{{1,2}}\2\d{{1,4}}|{_WEEKDAY}(\d{{1,2}}\.? )?{_MONTH}( \d{{1,2}}(st|nd|rd|th)?)?,? \d{{4}}"
    r"|\d{4}[年년] ?\d{1,2}[月월]( ?\d{1,2}[日일])?"
)
_CURRENCY = "[$€£¥]|usd|eur|gbp|jpy|chf"
_FORMS = {
    "numbers": re.compile(
        rf"[-+]?({_CURRENCY})?\s?[-+]?(\d[\d,]*\.?\d*|\.\d+)(e[-+]?\d+)?\s?(%|{_CURRENCY})?", re.IGNORECASE
    ),
    "dates or times": re.compile(rf"({_DAY})([ T,]+{_TIME})?|{_TIME}", re.IGNORECASE),
    "identifiers": re.compile(r"(?=\S*\d)[\w.:/#@+-]+", re.ASCII),
    "addresses": re.compile(r"\w+://\S+|www\.\S+|[\w.+-]+@[\w-]+(\.[\w-]+)+"),
    "no letters": re.compile(r"[\W\d_]*"),
}
"""What the cells of a column may be in place of text → a pattern of the whole cell; the first match counts."""

MOST_IN_WORD = 12
"""Number of letters without a blank between them above which a text has more words than a name. Only letters of
scripts without capitals count, such as Chinese and Thai, in which most languages have no blanks between words."""

LeaveOut = Callable[[Sequence[str]], str]
"""A function that says how to leave out all columns but those with the given names."""


@dataclass(frozen=True)
class ColumnProblem:
    """A column of sentences that probably has no text. is_fatal: whether training on it would be useless."""

    text: str
    is_fatal: bool = False


class ColumnContents:
    """What the columns of sentences contain, filled while rows are read; of columns of text, little is kept."""

    def __init__(self, header: Header) -> None:
        self.header = header
        sentences = len(header.names) - (header.target is not None)
        self._columns = [_Contents(MOST_VALUES if index else MOST_VALUES_OF_ANCHORS) for index in range(sentences)]

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows, each given by the number of its first line and its cells."""
        for index, column in enumerate(self._columns):
            column.add([cells[index] for _, cells in rows])

    def problems(self, leave_out: LeaveOut) -> list[ColumnProblem]:
        """Return the problems of these columns, each with a remedy."""
        return [*filter(None, (self._problem(index, leave_out) for index in range(len(self._columns))))]

    def _problem(self, index: int, leave_out: LeaveOut) -> ColumnProblem | None:
        names, role, column = self.header.names, kind_of_role(self.header.roles[index]), self._columns[index]
        if not (contents := column.found()):
            return None
        others = [name for name in names if name != names[index]]
        remedies = [f"leave it out: {leave_out(others)}" if others else "give a column of sentences"]
        targets = {2: f"{CLASS} if it has classes", 3: f"{LABEL} or {SCORE} if it has labels or scores of the pairs"}
        if len(names) in targets and self.header.target is None and role in (ROLES[0], ROLES[len(names) - 1]):
            remedies.insert(0, f"name it {targets[len(names)]}{'' if index else ', and make it the last column'}")
        values = ", ".join(repr(value[:40]) for value in column.first)
        text = f"the column {names[index]!r} is in the place of sentences but has {contents}: {values}"
        return ColumnProblem(f"{text}; {', or '.join(remedies)}", column.are_numbers and role == ROLES[2])


class _Contents:
    """What one column contains. first: its first three different values. most_values: of a column of labels."""

    def __init__(self, most_values: int) -> None:
        self.first: list[str] = []
        self._rows = 0
        self._forms: dict[str, int] | None = dict.fromkeys(_FORMS, 0)
        self._values: set[str] | None = set()
        self._most_values = most_values

    def add(self, cells: Sequence[str]) -> None:
        self._rows += len(cells)
        if len(self.first) < 3:
            self.first = list(dict.fromkeys([*self.first, *cells]))[:3]
        if self._forms is not None:
            for cell in cells:
                if form := _form(cell):
                    self._forms[form] += 1
            if sum(self._forms.values()) < LEAST_SHARE * self._rows:
                self._forms = None
        if self._values is not None:
            self._values.update(cells)
            number = len(self._values)
            if number > self._most_values or (number > 1 and not all(map(_is_short, self._values))):
                self._values = None

    @property
    def are_numbers(self) -> bool:
        """Whether every cell is a number."""
        return self._forms is not None and self._forms["numbers"] == self._rows

    def found(self) -> str | None:
        """Return what the column has in place of text; None if it probably has text."""
        number = len(self._values or ())
        is_repeated = self._rows >= max(LEAST_ROWS, ROWS_PER_VALUE * number) or are_labels(self._values or ())
        if number == 1 and self._rows > 1 and is_repeated:
            return f"the same value in all {self._rows:,} rows"
        if number > 1 and is_repeated:
            return f"{number:,} different values in {self._rows:,} rows"
        return max(self._forms, key=self._forms.get) if self._forms and self._rows else None


def score_problem(header: Header) -> str | None:
    """Return the problem of a third column whose labels do not say which pairs are similar; None if they do."""
    name = header.names[-1]
    if header.words is None or name.lower() == SCORE or header.words not in (BINARY, ("true", "false"), ("yes", "no")):
        return None
    similar, other = header.words
    return f"the column {name!r} has {other} and {similar}, which are read as scores: {similar} for a similar pair"


def _form(cell: str) -> str | None:
    return next((form for form, pattern in _FORMS.items() if pattern.fullmatch(cell)), None)


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
    return len(value) <= MOST_CHARACTERS and not _is_said(value)


def _has_few_words(text: str) -> bool:
    words = text.split()
    return len(words) <= MOST_WORDS and (
        text.isascii() or max(map(_letters_without_case, words), default=0) <= MOST_IN_WORD
    )


def _letters_without_case(word: str) -> int:
    return sum(unicodedata.category(letter) == "Lo" for letter in word)
