"""Read the user's own evaluation data, scored pairs or labelled texts, from files and from Python objects."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any

from senteval import labelled
from senteval.data import collect, make_pair
from senteval.errors import shown
from senteval.labels import LabelsTask
from senteval.lines import Content, Line, is_number, read_lines, recorded, single_blanks
from senteval.pairs import PairsTask

from dcpcse.data.checks import ColumnContents
from dcpcse.data.columns import CLASS, ROLES, SCHEMES, SCORE, Header, Words, binary_score, label_text, words_of
from dcpcse.data.readers import READERS, DataSource, NumberedLines, delimiter_of, format_of
from dcpcse.data.tables import Table, open_table
from dcpcse.utils.arguments import path
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, plural


@dataclass(frozen=True)
class _Kind:
    """A kind of own data: the number of its texts, the names that mark the column of its target, and its advice."""

    texts: int
    names: tuple[str, ...]
    file_remedy: str
    object_remedy: str

    @property
    def width(self) -> int:
        return self.texts + 1

    def target(self, columns: Sequence[str]) -> int | None:
        """Return the index of the column of scores or labels if exactly one column has a name that marks it."""
        indices = [i for i, column in enumerate(columns) if column.strip().lower() in self.names]
        return indices[0] if len(indices) == 1 else None


PAIRS = _Kind(
    2,
    ("score", "label"),
    "give sentence, sentence and score in each line, or a header with a column named score",
    "give two sentences and a score in each row, or a column named score",
)
LABELS = _Kind(
    1,
    ("label", "class"),
    "give text and class in each line, or a header with a column named label",
    "give a text and its class in each row, or a column named label",
)


@dataclass(frozen=True)
class _Table:
    """Rows of own data.

    source: the file, or the name of an object. columns: names of the columns; None if there are none. rows: the line
    (without text) and the cells of each row. text: reads a cell of text, called with the line, the column and the
    cell. separated: the way in which columns are separated, as an adjective.
    """

    source: Path
    columns: Sequence[str] | None
    rows: Iterator[tuple[Line, Sequence[Any]]]
    text: Callable[[Line, int, Any], str] = lambda line, place, cell: cell
    separated: str = ""


def own_pairs(data: Any, name: str = "pairs") -> PairsTask:
    """Return the evaluation task of your own sentence pairs.

    data: a file or a Python object (see `dcpcse.data.tables.open_table`) with two sentences and a number per row. The
    number is in the column named score or label, else in the third one. Pairs with the scores 0 and 1, or with two
    binary labels (`dcpcse.data.columns.SCHEMES`), are evaluated by average precision, others by Spearman
    correlation; scores may have any scale. A .csv, .json or .jsonl file is
    read as such, any other file as tab-separated columns; a header is optional. name: the name of an object in
    messages and results; a file has its own.

    Raises UserError or senteval.DataError, with the file and line or the row, if a row has other columns, a sentence
    is blank, a score is not a finite number, all scores are equal, or there are fewer than two pairs.
    """
    with recorded() as contents:
        table = _open(data, name, PAIRS)
        target = _target(table, PAIRS)
        pairs, unit, words = [], "", None
        for line, cells in table.rows:
            first, second = _texts(table, PAIRS, line, cells, target)
            words = words if pairs else _binary_words(cells[target])
            pairs.append(make_pair(line, first, second, _score(line, cells[target], words)))
            unit = line.unit
    _warn_of_columns(table, PAIRS, target, [(pair.first, pair.second) for pair in pairs])
    remedy = _remedy(data, PAIRS)
    scored = collect("pairs", pairs, table.source, table.source, remedy, unit)
    content = contents.get(table.source) or content_of(
        zip(scored.first, scored.second, scored.gold.tolist(), strict=True)
    )
    return PairsTask(table.source.name, scored, content)


def describe_object(data: Any) -> str:
    """Return the words by which the records of a run name own data that are a Python object."""
    return f"Python object: {type(data).__name__}"


def own_labels(data: Any, name: str = "labels") -> LabelsTask:
    """Return the evaluation task of your own labelled texts.

    data: a file or a Python object with a text and its class per row, as for `own_pairs`. The class, a word or a whole
    number, is in the column named label or class, else in the second one. A file has a header if one of its columns
    has such a name. name: the name of an object in messages and results; a file has its own.

    Raises UserError or senteval.DataError, with the file and line or the row, if a row has other columns, a text or a
    class is blank, there are fewer than two classes, or a class has fewer texts than cross-validation has folds.
    """
    with recorded() as contents:
        table = _open(data, name, LABELS)
        target = _target(table, LABELS)
        rows = [
            (line, *_texts(table, LABELS, line, cells, target), _class(table, line, target, cells[target]))
            for line, cells in table.rows
        ]
    if not rows:
        raise UserError(f"{table.source}: there are no texts; {_remedy(data, LABELS)}")
    _warn_of_columns(table, LABELS, target, [(text,) for _, text, _ in rows])
    classes = sorted({label for *_, label in rows})
    index = {label: i for i, label in enumerate(classes)}
    examples = labelled.collect((line, labelled.require_texts(line, text), index[label]) for line, text, label in rows)
    content = contents.get(table.source) or content_of((text, label) for _, text, label in rows)
    return LabelsTask(table.source.name, examples, tuple(classes), table.source, content)


def _open(data: Any, name: str, kind: _Kind) -> _Table:
    if isinstance(data, (str, os.PathLike)):
        return _open_file(Path(path(name, data)), kind)
    table = open_table(data, name)
    if table.columns is not None and len(table.columns) != kind.width:
        raise UserError(
            f"{name}: found {plural(len(table.columns), 'column')} {list(table.columns)}, but {kind.width} are "
            f"expected; {kind.object_remedy}{_selection(table, kind)}"
        )
    return _Table(
        Path(name),
        table.columns,
        ((Line(Path(name), i, "", kind.object_remedy, "row"), row) for i, row in enumerate(table.rows, start=1)),
        lambda line, column, cell: table.text(line.number, column, cell),
    )


def _selection(table: Table, kind: _Kind) -> str:
    """Return the advice to pick columns of a table that has too many, or to use the other kind for too few."""
    if len(table.columns) < kind.width:
        return "; texts with their classes are labels, not pairs" if len(table.columns) == LABELS.width else ""
    target = kind.target(table.columns)
    last = kind.texts if target is None else target
    texts = [column for i, column in enumerate(table.columns) if i != last]
    return f", such as {table.pick([*texts[: kind.texts], table.columns[last]])}"


def _open_file(path: Path, kind: _Kind) -> _Table:
    if not os.path.exists(path):  # Path.exists raises errors for names that are too long
        raise UserError(f"{path} does not exist; check the path")
    source = _OwnFile(path, kind)
    has_names = format_of(path) in (".json", ".jsonl", ".parquet")
    if has_names or format_of(path) == ".csv":
        rows = READERS[format_of(path)](source)
        separated = "" if has_names else "tab-separated " if delimiter_of(path) == "\t" else "comma-separated "
    else:
        # Quotation marks are plain text, as in the files of the STS tasks.
        rows = ((number, text.split("\t") if text else []) for number, text in source.lines())
        separated = "tab-separated "
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: the file is empty; {kind.file_remedy}")
    second = next(rows, None)
    is_header = has_names or _is_header(first[1], second[1] if second else [], kind)
    below = [] if second is None else [second]
    located = ((source.line(number), cells) for number, cells in chain(below if is_header else [first, *below], rows))
    if is_header and len(first[1]) != kind.width:
        raise source.line(first[0]).error(
            f"found the columns {first[1]}, but {kind.width} {separated}columns are expected"
        )
    return _Table(path, first[1] if is_header else None, located, separated=separated)


def _is_header(cells: Sequence[str], second: Sequence[str], kind: _Kind) -> bool:
    """Return whether the first row of a file has names: it names the target, or has a word in place of a score.

    second: the cells of the second row, whose label is of the same scheme if the first row has a label and no name.
    """
    if kind.target(cells) is not None:
        return True
    if kind is not PAIRS or len(cells) != kind.width or not cells[-1].strip() or _is_float(cells[-1]):
        return False
    words = words_of(cells[-1])
    return words is None or not second or words_of(second[-1]) != words


def _is_float(text: str) -> bool:
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


class _OwnFile(DataSource):
    """A file of own data: lines are read as those of senteval's files, whose contents are recorded."""

    def __init__(self, path: Path, kind: _Kind) -> None:
        super().__init__(path)
        self.kind = kind

    def line(self, number: int) -> Line:
        """Return the line, or the item of a JSON array, for messages about it."""
        return Line(self.path, number, "", self.kind.file_remedy, "" if self.unit == "line" else self.unit)

    def error(self, number: int, problem: str) -> UserError:
        return UserError(f"{self.line(number).place}: {problem}")

    def lines(self) -> NumberedLines:
        return ((line.number, line.text) for line in read_lines(self.path, remedy=self.kind.file_remedy))

    def numeric_key(self, keys: Sequence[str]) -> str | None:
        target = self.kind.target(keys)
        return keys[-1 if target is None else target]


def _target(table: _Table, kind: _Kind) -> int:
    """Return the index of the column of scores or labels: the one with such a name, else the last."""
    named = None if table.columns is None else kind.target(table.columns)
    return kind.texts if named is None else named


def _texts(table: _Table, kind: _Kind, line: Line, cells: Sequence[Any], target: int) -> list[str]:
    """Return the texts of a row. Raises DataError if it has another number of columns than its kind has."""
    if len(cells) != kind.width:
        actual = str(len(cells) or "an empty line")
        if table.separated and len(cells) == 1 and cells[0].count(";") >= kind.texts:
            actual += " (separate columns by commas or tabs, not by semicolons)"
        elif table.separated.startswith("comma") and any("\t" in cell for cell in cells):
            actual += ", and the line contains tabs; if tabs separate the columns, name the file .tsv"
        raise line.error(f"expected {kind.width} {table.separated}columns but found {actual}")
    return [table.text(line, index, cell) for index, cell in enumerate(cells) if index != target]


def _binary_words(cell: Any) -> Words | None:
    """Return the words of the binary labels that a cell belongs to; None if it is a number or not a label."""
    return words_of(cell) if isinstance(cell, (str, bool)) and not is_number(label_text(cell)) else None


def _score(line: Line, cell: Any, words: Words | None) -> float:
    """Return the score of a pair. words: see `_binary_words`, of the first row.

    Raises DataError unless the cell is one of these words or, without them, a finite number.
    """
    if words:
        score = binary_score(cell, words) if isinstance(cell, (str, bool)) else None
        if score is None:
            raise line.error(f"label {shown(cell)} found, {words[0]} or {words[1]} expected as in the row before")
        return score
    text = ""
    # Numbers of numpy, decimal and polars convert to float; bytes would too.
    if isinstance(cell, (str, Real, Decimal)):
        with contextlib.suppress(OverflowError):  # an integer beyond all floating-point numbers
            text = label_text(cell)
    if not is_number(text):
        schemes = ", ".join("/".join(words) for words in SCHEMES)
        labels = f" or a binary label ({schemes})" if isinstance(cell, str) else ""
        raise line.error(f"gold score {shown(cell)} found, a number{labels} expected")
    return float(text)


def _class(table: _Table, line: Line, target: int, cell: Any) -> str:
    """Return the class of a text as a word. Raises DataError unless it is a word or a whole number."""
    text = table.text(line, target, cell) if isinstance(cell, str) else ""
    if isinstance(cell, (Real, Decimal)) and float(cell).is_integer():
        text = cell  # a column of whole numbers is one of floats in pandas if a cell was missing
    if not (word := single_blanks(label_text(text))):
        raise line.error(f"class {shown(cell)} found, a word or a whole number expected")
    return word


def _warn_of_columns(table: _Table, kind: _Kind, target: int, rows: Sequence[tuple[str, ...]]) -> None:
    """Log a warning for each column of texts that probably has no texts. rows: the texts of each row."""
    names = table.columns or [str(index + 1) for index in range(kind.width)]
    texts = [name for index, name in enumerate(names) if index != target]
    roles = (*ROLES[: kind.texts], SCORE if kind is PAIRS else CLASS)
    contents = ColumnContents(Header((*texts, names[target]), roles))
    contents.add([*enumerate(rows)])
    for problem in contents.problems(lambda others: kind.object_remedy):
        warn(f"{table.source}: {problem.text}")


def _remedy(data: Any, kind: _Kind) -> str:
    return kind.file_remedy if isinstance(data, (str, os.PathLike)) else kind.object_remedy


def content_of(rows: Iterable[Any]) -> Content:
    """Return the content that identifies rows without a file: that of their JSON lines."""
    return Content.of("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
