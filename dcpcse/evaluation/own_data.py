"""Read the user's own evaluation data, scored pairs or labelled texts, from files and from Python objects."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from senteval import labelled
from senteval.data import collect, make_pair
from senteval.errors import shown
from senteval.labels import LabelsTask
from senteval.lines import Content, Line, is_number, single_blanks
from senteval.names import LABELS_METRICS
from senteval.pairs import PairsTask

from dcpcse.data.checks import ColumnContents
from dcpcse.data.column_choice import Choice, Chosen, chosen_columns, select_columns
from dcpcse.data.columns import CLASS, ROLES, SCHEMES, SCORE, Header, Words, binary_score, class_words, words_of
from dcpcse.data.objects import open_table
from dcpcse.data.readers import READERS, delimiter_of, format_of, plain_columns, table_of
from dcpcse.data.tables import Row, Table, is_missing
from dcpcse.utils.arguments import path
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, no_effect, spell


@dataclass(frozen=True)
class _Kind:
    """A kind of user data: the number of texts per row, the names of its target column, and advice for messages."""

    texts: int
    names: tuple[str, ...]
    file_remedy: str
    object_remedy: str

    @property
    def width(self) -> int:
        return self.texts + 1

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that the user can give to columns of such data."""
        return (*ROLES[: self.texts], *self.names)

    def target(self, columns: Sequence[str]) -> int | None:
        """Return the index of the column that is named like scores or labels; None unless there is exactly one."""
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


def own_tasks(
    data: Mapping[str, Any], columns: Choice, option: str, metric: str = LABELS_METRICS[0]
) -> list[PairsTask | LabelsTask]:
    """Return the evaluation tasks with the user's pairs and labelled texts.

    Args:
        data: Name of an option, such as `pairs` or `labels` → its data: a file, a Python object, or None.
        columns: The columns to read, by role. Each file or object uses only the roles that exist for its kind of data.
        option: Name of the option with the value `columns`, for messages.
        metric: The score of labelled texts, see `senteval.labels.LabelsTask`.

    Raises:
        UserError: If data are invalid, or if a chosen role occurs in none of the data.
    """
    chosen, tasks = chosen_columns(columns, option), []
    kinds = {name: LABELS if name.endswith("labels") else PAIRS for name in data}
    for role in chosen:
        names = [name for name, kind in kinds.items() if role in kind.roles]
        if all(data[name] is None for name in names):
            without = f" without {' or '.join(map(spell, names))}" if names else " in evaluation"
            raise no_effect(option, f"for the role {role}{without}")
    for name, kind in kinds.items():
        if data[name] is not None:
            columns = {role: column for role, column in chosen.items() if role in kind.roles}
            arguments = data[name], name, columns
            tasks.append(own_labels(*arguments, metric) if kind is LABELS else own_pairs(*arguments))
    return tasks


def own_pairs(data: Any, name: str = "pairs", columns: Chosen = None) -> PairsTask:
    """Return an evaluation task with the user's sentence pairs.

    Raises UserError or senteval.DataError if a row has a wrong number of columns, a sentence is blank, a score is not
    a finite number, all scores are equal, or there are fewer than two pairs. The message names the file and line, or
    the row.

    Args:
        data: A file or a Python object (see `dcpcse.data.objects.open_table`) with two sentences and a score per row.
            The score is in the column named score or label; without such a column, in the third column. If all scores
            are 0 or 1, or two binary labels such as yes and no, the pairs are evaluated by average precision.
            Otherwise they are evaluated by Spearman correlation, and scores may have any scale. Files may be .csv,
            .json or .jsonl; any other file has tab-separated columns. A header is optional.
        name: The name of the data in messages and results, if `data` is a Python object.
        columns: Role → name of the column to read. None: all columns.
    """
    table, target, rows = _open(data, name, PAIRS, columns)
    pairs, unit, words = [], "", None
    for line, (first, second), cell, text in rows:
        if not pairs:
            words = None if is_number(text) else words_of(text)
        pairs.append(make_pair(line, first, second, _score(line, cell, text, words)))
        unit = line.unit
    _warn_of_columns(table, PAIRS, target, [(pair.first, pair.second) for pair in pairs])
    source = Path(table.name)
    scored = collect("pairs", pairs, source, source, _remedy(table, PAIRS), unit)
    content = _content(table, zip(scored.first, scored.second, scored.gold.tolist(), strict=True))
    return PairsTask(source.name, scored, content)


def describe_object(data: Any) -> str:
    """Return a description of a Python object with user data, for the records of a run."""
    return f"Python object: {type(data).__name__}"


def own_labels(data: Any, name: str = "labels", columns: Chosen = None, metric: str = LABELS_METRICS[0]) -> LabelsTask:
    """Return an evaluation task with the user's labelled texts.

    Raises UserError or senteval.DataError if a row has a wrong number of columns, a text or a class is blank, there
    are fewer than two classes, or a class has fewer texts than cross-validation has folds. The message names the file
    and line, or the row.

    Args:
        data: A file or a Python object with a text and its class per row, in the formats of `own_pairs`. The class is
            a word or a whole number. It is in the column named label or class; without such a column, in the second
            column. The first line of a file is a header if one of its cells is label or class. A text with several
            classes has a list of them.
        name, columns: As in `own_pairs`.
        metric: See `senteval.labels.LabelsTask`.
    """
    table, target, located = _open(data, name, LABELS, columns)
    rows = [(line, text, _classes(line, cell, label)) for line, (text,), cell, label in located]
    if not rows:
        raise UserError(f"{table.name}: there are no texts; {_remedy(table, LABELS)}")
    _warn_of_columns(table, LABELS, target, [(text,) for _, text, _ in rows])
    classes = sorted({name for *_, names in rows for name in names})
    if all(len(names) == 1 for *_, names in rows):
        content = _content(table, ((text, name) for _, text, (name,) in rows))
        index = {name: number for number, name in enumerate(classes)}
        targets = [index[name] for *_, (name,) in rows]
    else:
        content = _content(table, ((text, names) for _, text, names in rows))
        targets = [[int(name in names) for name in classes] for *_, names in rows]
    texts = ((line, labelled.require_texts(line, text)) for line, text, _ in rows)
    examples = labelled.collect((*text, target) for text, target in zip(texts, targets, strict=True))
    return LabelsTask(Path(table.name).name, examples, tuple(classes), Path(table.name), content, metric)


LocatedRow = tuple[Line, list[str], Any, str]
"""The line of a row (for messages), its texts, the cell of its score or class, and the text of this cell."""


def _open(data: Any, name: str, kind: _Kind, columns: Chosen) -> tuple[Table, int, Iterator[LocatedRow]]:
    """Return the table of user data, the index of its column of scores or classes, and its rows."""
    if isinstance(data, (str, os.PathLike)):
        table = _open_file(Path(path(name, data)), name, kind, columns)
    else:
        table = open_table(data, name, columns)
        if table.columns is not None and len(table.columns) != kind.width:
            raise UserError(
                f"{name}: expected {kind.width} columns but found {len(table.columns)} {list(table.columns)}; "
                f"{kind.object_remedy}{_selection(table, kind)}"
            )
    named = None if table.columns is None else kind.target(table.role_names)
    target = kind.texts if named is None else named

    def located() -> Iterator[LocatedRow]:
        for number, cells in table.rows:
            line = _line(table, kind, number)
            if len(cells) != kind.width:
                hint = _hint(name, kind) if len(cells) > kind.width and not columns else ""
                raise line.error(f"{_uneven(table, kind, cells)}{hint}")
            texts = [table.text(number, i, cell) for i, cell in enumerate(cells) if i != target]
            text = table.text(number, target, cells[target], numeric=True, several=kind is LABELS)
            yield line, texts, cells[target], text

    return table, target, located()


def _line(table: Table, kind: _Kind, number: int) -> Line:
    unit = "" if table.unit == "line" else table.unit
    return Line(Path(table.name), number, "", _remedy(table, kind), unit)


def _content(table: Table, rows: Iterable[Any]) -> Content:
    """Return the content that identifies user data: the content of their file or, without a file, of their rows."""
    return content_of(rows) if table.sha256 is None else Content(table.sha256, table.bytes)


def _selection(table: Table, kind: _Kind) -> str:
    """Return advice: select columns if a table has too many columns, use the other kind of data if it has too few."""
    if len(table.columns) < kind.width:
        return "; texts with their classes are labels, not pairs" if len(table.columns) == LABELS.width else ""
    target = kind.target(table.columns)
    last = kind.texts if target is None else target
    texts = [column for i, column in enumerate(table.columns) if i != last]
    return f", such as {table.pick([*texts[: kind.texts], table.columns[last]])}"


def _open_file(path: Path, name: str, kind: _Kind, columns: Chosen) -> Table:
    if not os.path.exists(path):  # Path.exists raises errors for names that are too long
        raise UserError(f"{path} does not exist; check the path")
    table, extension = table_of(path), format_of(path)
    rows = _without_blank_end(
        READERS[extension](table) if _is_csv(path) or extension in NAMED else plain_columns(table)
    )
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: the file is empty; {kind.file_remedy}")
    second = next(rows, None)
    below = [] if second is None else [second]
    if not (columns or extension in NAMED or _is_header(first[1], second[1] if second else [], kind)):
        table.rows = chain([first], below, rows)
        return table
    table.columns, table.rows = tuple(first[1]), chain(below, rows)
    if columns:
        select_columns(table, columns)
    if len(table.columns) != kind.width:
        problem = f"expected {kind.width} {_separated(path)}columns but found {list(table.columns)}"
        raise _line(table, kind, first[0]).error(f"{problem}{_hint(name, kind)}")
    return table


def _hint(name: str, kind: _Kind) -> str:
    """Return the remedy for files with other columns: the option that chooses columns, beside the option `name`."""
    option = "eval_columns" if name.startswith("eval_") else "columns"
    chosen = [f"{role}=NAME" for role in kind.roles[: kind.width]]
    return f"; if its first line names the columns, choose them by {spell(option, chosen)}"


NAMED = (".json", ".jsonl", ".parquet")
"""Extensions of files whose columns have names; in other files a header is optional."""


def _is_csv(path: Path) -> bool:
    return format_of(path) == ".csv"


def _separated(path: Path | None) -> str:
    """Return the way in which columns of a file are separated, as an adjective; empty for data with names."""
    if path is None or format_of(path) in NAMED:
        return ""
    return "comma-separated " if _is_csv(path) and delimiter_of(path) == "," else "tab-separated "


def _without_blank_end(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows without blank lines at the end."""
    blank: list[Row] = []
    for row in rows:
        blank.append(row)
        if row[1]:
            yield from blank
            blank = []


def _is_header(cells: Sequence[str], second: Sequence[str], kind: _Kind) -> bool:
    """Return whether the first row of a file is a header: it names the target column, or a word replaces the score.

    Args:
        second: The cells of the second row. If the first row is not a header but has a binary label, the second row
            has a label of the same scheme.
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


def _uneven(table: Table, kind: _Kind, cells: Sequence[Any]) -> str:
    """Return the problem of a row with a wrong number of columns."""
    actual, separated = str(len(cells) or "an empty line"), _separated(table.path)
    if separated and len(cells) == 1 and cells[0].count(";") >= kind.texts:
        actual += " (separate columns by commas or tabs, not by semicolons)"
    elif separated.startswith("comma") and any("\t" in cell for cell in cells):
        actual += ", and the line contains tabs; if tabs separate the columns, name the file .tsv"
    return f"expected {kind.width} {separated}columns but found {actual}"


def _score(line: Line, cell: Any, text: str, words: Words | None) -> float:
    """Return the score of a pair.

    Args:
        cell, text: The cell of the score, and its text.
        words: The two words of binary labels if the first pair has one; None if it has a number.

    Raises:
        DataError: If the text is not one of these words or, without words, not a finite number.
    """
    if words:
        score = binary_score(text, words)
        if score is None:
            raise line.error(f"expected the label {words[0]} or {words[1]} as in the row before, found {shown(cell)}")
        return score
    if not is_number(text):
        schemes = ", ".join("/".join(words) for words in SCHEMES)
        labels = f" or a binary label ({schemes})" if isinstance(cell, str) else ""
        raise line.error(f"expected a number{labels} as gold score, found {shown(cell)}")
    return float(text)


def _classes(line: Line, cell: Any, text: str) -> list[str]:
    """Return the classes of a text as words. Raises DataError unless they are words or whole numbers."""
    if not text and not isinstance(cell, str) and not is_missing(cell):  # an empty list: none of the classes
        return []
    with contextlib.suppress(ValueError):
        if all(words := [*map(single_blanks, class_words(text))]):
            return words
    raise line.error(f"expected a word or a whole number as class, found {shown(cell)}")


def _warn_of_columns(table: Table, kind: _Kind, target: int, rows: Sequence[tuple[str, ...]]) -> None:
    """Log a warning for each column of texts that probably contains something else.

    Args:
        rows: The texts of each row.
    """
    names = table.columns or [str(index + 1) for index in range(kind.width)]
    texts = [name for index, name in enumerate(names) if index != target]
    roles = (*ROLES[: kind.texts], SCORE if kind is PAIRS else CLASS)
    contents = ColumnContents(Header((*texts, names[target]), roles))
    contents.add([*enumerate(rows)])
    for problem in contents.problems(lambda others: kind.object_remedy):
        warn(f"{table.name}: {problem.text}")


def _remedy(table: Table, kind: _Kind) -> str:
    return kind.object_remedy if table.path is None else kind.file_remedy


def content_of(rows: Iterable[Any]) -> Content:
    """Return digest and size of rows that do not come from a file, computed from the rows as JSON lines."""
    return Content.of("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
