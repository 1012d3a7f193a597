"""Find training data that are probably misread: wrong format, header, column of sentences or language."""

from __future__ import annotations

import csv
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.data.columns import BINARY, CLASS, LABEL, ROLES, SCORE, Header, are_labels, kind_of_role
from dcpcse.data.readers import delimiter_of, format_of, open_rows
from dcpcse.encoders.truncation import tokenize
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:  # imported lazily, since the imports take over a second
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


LEAST_ROWS = 10
MOST_VALUES = 1_000
MOST_VALUES_OF_ANCHORS = 20
ROWS_PER_VALUE = 5
MOST_WORDS, MOST_CHARACTERS = 3, 40
"""A column may contain labels if it has at least `LEAST_ROWS` rows and at most `MOST_VALUES` different values (in the
first column, where a name may be repeated for each of its positives, `MOST_VALUES_OF_ANCHORS`), each in
`ROWS_PER_VALUE` rows on average, and if no value is longer than a class name usually is, or ends like a sentence. Few
sentences are repeated so often; repeated sentences, such as the questions of an FAQ, have more words."""

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
"""What cells may contain instead of text → pattern of the whole cell; the first match counts."""

MOST_IN_WORD = 12
"""Maximum number of adjacent letters, without a space, in a name; a longer text has more words than a name. Only
letters of scripts without capitals count, such as Chinese and Thai, in which most languages have no spaces between
words."""

LeaveOut = Callable[[Sequence[str]], str]
"""A function that says how to leave out all columns except the given ones."""


@dataclass(frozen=True)
class ColumnProblem:
    """A probable fault of a column.

    Args:
        what: What is wrong: `header` (the name of the column), `column` (its text) or `scores`.
        text: The problem and the remedy.
        is_fatal: Whether training on the column would be useless.
    """

    what: str
    text: str
    is_fatal: bool = False


class ColumnContents:
    """Finds columns that contain labels or numbers instead of sentences, while rows are read.

    Columns with text need little memory.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        sentences = len(header.names) - (header.target is not None)
        self._columns = [_Contents(MOST_VALUES if index else MOST_VALUES_OF_ANCHORS) for index in range(sentences)]

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows. A row is given by the number of its first line and its cells."""
        for index, column in enumerate(self._columns):
            column.add([cells[index] for _, cells in rows if cells[index] is not None])

    def problems(self, leave_out: LeaveOut) -> list[ColumnProblem]:
        """Return the probable faults of the columns; `leave_out` writes the remedy for a superfluous column."""
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
        text = f"the column {names[index]!r} should contain sentences but has {contents}: {values}"
        return ColumnProblem("column", f"{text}; {', or '.join(remedies)}", column.are_numbers and role == ROLES[2])


class _Contents:
    """Collects what one column contains. `first` contains the first three different values of the column.

    Args:
        most_values: Maximum number of different values in a column of labels.
    """

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
        """Return what the column contains instead of text; None if it probably contains text."""
        number = len(self._values or ())
        is_repeated = self._rows >= max(LEAST_ROWS, ROWS_PER_VALUE * number) or are_labels(self._values or ())
        if number == 1 and self._rows > 1 and is_repeated:
            return f"the same value in all {self._rows:,} rows"
        if number > 1 and is_repeated:
            return f"{number:,} different values in {self._rows:,} rows"
        return max(self._forms, key=self._forms.get) if self._forms and self._rows else None


def score_problems(header: Header) -> list[ColumnProblem]:
    """Return a warning if a third column has the labels 1 and 0, true and false, or yes and no; otherwise [].

    Such labels do not say which of them means that a pair is similar.
    """
    name = header.names[-1]
    if header.words is None or name.lower() == SCORE or header.words not in (BINARY, ("true", "false"), ("yes", "no")):
        return []
    similar, other = header.words
    text = f"the column {name!r} has {other} and {similar}, which are read as scores: {similar} for a similar pair"
    return [ColumnProblem("scores", text)]


def _form(cell: str) -> str | None:
    return next((form for form, pattern in _FORMS.items() if pattern.fullmatch(cell)), None)


def header_problems(path: Path | None, names: Sequence[str]) -> list[ColumnProblem]:
    """Return a warning if a column name of a csv or tsv file is probably a sentence; otherwise []."""
    said = next(filter(_is_said, names), None)
    if path is None or format_of(path) not in (".csv", ".tsv") or said is None:
        return []
    text = f"the first row looks like a sentence ({said[:40]!r}), but it names the columns and is not trained on"
    return [ColumnProblem("header", f"{text}; give a row of names before it")]


def _is_said(name: str) -> bool:
    """Return whether a column name ends like a sentence, or is longer than column names usually are."""
    last = unicodedata.normalize("NFKC", name)[-1:]  # full-width marks become ASCII
    # The final marks of all scripts are in Unicode's category "other punctuation", which also contains some commas.
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


MOST_LINES, MOST_LINE_CHARACTERS = 200, 100_000
"""Maximum number of lines that are examined, and of characters of each line."""

LEAST_LINES = 5
"""Minimum number of lines for commas, semicolons or quotation marks to count; a few sentences can have equal
numbers."""

LEAST_LINE_SHARE = 0.9
"""Share of the lines that must have a format."""

_NAMES = {"\t": "tabs", "|": "vertical bars", ";": "semicolons", ",": "commas"}
_QUOTED = re.compile("'.+'|`.+`|“.+”|„.+[“”]|«.+»|\".+\"")


def format_problem(path: Path) -> list[str]:
    """Return a warning, as lines, if the content of a file probably differs from the format of its extension.

    The lines also say how the first line of the file is read. The result is [] if the format is right, or if the file
    cannot be read. The reader of the file reports a file that cannot be read.
    """
    suffix = format_of(path)
    lines = [] if suffix in (".json", ".jsonl", ".parquet") else _first_lines(path)
    if not lines:
        return []
    delimiter = delimiter_of(path) if suffix in (".csv", ".tsv") else None
    rows = [[line] for line in lines] if delimiter is None else _rows(lines, delimiter)
    rows = [[cell.strip() for cell in row] for row in rows]
    problem = _found(lines, delimiter, rows)
    if problem is None:
        return []
    read = f"the sentence {_short(rows[0][0])}" if delimiter is None else f"the columns {_listed(rows[0])}"
    return [problem, f"its first line is read as {read}"]


def warn_of_format(path: Path) -> None:
    """Log the lines of `format_problem` as warnings."""
    for problem in format_problem(path):
        warn(f"{path}: {problem}")


def _found(lines: Sequence[str], delimiter: str | None, rows: Sequence[Sequence[str]]) -> str | None:
    kind = "a text file with one sentence per line" if delimiter is None else f"a table with {_NAMES[delimiter]}"
    if _is_json(lines):
        return f"its lines are JSON, but it is read as {kind}; name it .jsonl, or .json if it is one array"
    widths = Counter(map(len, rows)).most_common(1)
    if widths[0][0] == 1 and (separator := _delimiter(lines)) not in (None, delimiter):
        suffix = {",": ".csv"}.get(separator, ".tsv")
        remedy = f"name it {suffix}" if separator in "\t," else f"separate them by tabs and name it {suffix}"
        return f"its lines have columns separated by {_NAMES[separator]}, but it is read as {kind}; {remedy}"
    for column, cells in enumerate(zip(*(row for row in rows[1:] if len(row) == widths[0][0]), strict=True), start=1):
        if len(cells) >= LEAST_LINES and _share(cells, lambda cell: bool(_QUOTED.fullmatch(cell))) >= LEAST_LINE_SHARE:
            where = "lines" if delimiter is None else f"cells of column {column}"
            return f"its {where} are in quotation marks, which are read as part of the sentences; remove them"
    return None


def _first_lines(path: Path) -> list[str]:
    try:
        with open_rows(path) as file:
            raw = list(islice(iter(lambda: file.readline(MOST_LINE_CHARACTERS), b""), MOST_LINES))
    except (OSError, UserError):
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
    return is_array or _share(lines, _is_json_line) >= LEAST_LINE_SHARE


def _is_json_line(line: str) -> bool:
    if line.strip()[:1] not in ("{", "["):
        return False
    try:
        return isinstance(json.loads(line.strip().removesuffix(",")), dict | list)
    except (ValueError, RecursionError):
        return False


def _delimiter(lines: Sequence[str]) -> str | None:
    """Return the delimiter of the columns of a table; None if the lines are sentences."""
    for delimiter in "\t|":  # sentences rarely contain tabs
        if _share(lines, lambda line, delimiter=delimiter: delimiter in line.strip()) >= LEAST_LINE_SHARE:
            return delimiter
    return next((delimiter for delimiter in ",;" if _is_table(lines, delimiter)), None)


def _is_table(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether lines have the same number of cells, with quotes or without a space before a cell."""
    rows = _rows(lines, delimiter, skips_space=False)
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width == 1 or len(rows) < LEAST_LINES or count < LEAST_LINE_SHARE * len(lines):
        return False
    below = lines[1:]  # the first line may be a header without quotes
    quoted = re.compile(rf'"\s*{delimiter}|{delimiter}\s*"')
    is_quoted = _share(below, lambda line: quoted.search(line) is not None) >= LEAST_LINE_SHARE
    # A comma in quotes is a part of its cell, as in most files that have quotes only where they are needed.
    return is_quoted or _share(rows, lambda row: not any(cell[:1].isspace() for cell in row[1:])) >= LEAST_LINE_SHARE


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def _listed(cells: Sequence[str]) -> str:
    return f"{', '.join(map(_short, cells[:4]))}{', …' if len(cells) > 4 else ''}"


MOST_UNKNOWN = 0.02
"""Share of unknown tokens above which the encoder is probably made for another language."""

ROWS = 1_000
"""Maximum number of rows, spread evenly over the data, whose tokens are counted before training."""

MOST_TOKENS = 512
"""Number of tokens of a sentence that are counted."""


def unknown_share(dataset: Dataset, columns: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the share of unknown tokens in the given columns, in at most 1,000 rows of the dataset.

    The result is 0 if the tokenizer has no unknown token.
    """
    if tokenizer.unk_token_id is None:
        return 0.0
    rows = dataset[:: math.ceil(len(dataset) / ROWS)]
    texts = [text for column in columns for text in rows[column] if text is not None]
    ids, _ = tokenize(tokenizer, texts, MOST_TOKENS, special=False)
    return sum(row.count(tokenizer.unk_token_id) for row in ids) / max(1, sum(map(len, ids)))


def describe_unknown(share: float, token: str) -> str:
    """Return a text that says which share of the tokens is unknown to the tokenizer.

    Args:
        token: The token that replaces unknown tokens.
    """
    percent = f"{100 * share:.1f}" if share >= 0.001 else "less than 0.1"
    return f"{percent} % of the tokens are unknown to the tokenizer, which reads all of them as {token}"


REMEDY = "choose an encoder for this language"
