"""Training files: txt, csv, tsv, json and jsonl, checked cell by cell and memory-mapped.

The readers know one format each and yield rows; whatever holds for every format (how many columns, what is
blank, how many cells a row has) is checked in one place below them. The general loaders of `datasets` are not
used because they guess: `NA` and `null` become missing cells, `1.5` a number, and U+2028 the end of a line.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .errors import UserError, counted
from .labels import SCORE, Columns, Tally, checked, kind_of, misplaced
from .lines import decode_line
from .repeats import Repeats, RepeatsFound

if TYPE_CHECKING:  # importing these takes over a second, which `train.py --help` should not wait for
    import pyarrow as pa
    from datasets import Dataset

logger = logging.getLogger(__name__)

ROLES = ("anchor", "positive", "negative")
READER_VERSION = 3  # raise it when the same file would give other rows: it makes old cache files unused
BATCH_ROWS = 10_000
DROPPED_SHOWN = 5

Row = tuple[int, list[str]]  # number of the line on which it starts, cells; a blank line has no cells


@dataclass(frozen=True)
class TrainingData:
    """The sentences of one training file.

    dataset: string columns `anchor`; `anchor, positive`; or `anchor, positive, negative`; instead of the last one
    `label`, a string of `labels.CLASSES`, or `score`, a number.
    columns: the names that the file itself gives them (a txt file: `text`).
    dropped: number of rows left out for a blank cell; dropped_lines: where the first few of them start, as
    line numbers from 1 (in a JSON array: item numbers from 1).
    repeats: rows that are false negatives, or teach nothing (`dcpcse.repeats`).
    classes: number of rows by label, of the labels that occur; scores: the least and the largest.
    """

    dataset: Dataset
    columns: tuple[str, ...]
    dropped: int
    dropped_lines: tuple[int, ...]
    repeats: RepeatsFound
    classes: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, ...] = ()

    @property
    def roles(self) -> Columns:
        """The columns of the dataset, with what a method may want to know of labels."""
        return Columns(self.dataset.column_names, self.classes, self.scores)


def load_training_file(
    path: str | Path, cache_dir: str | Path | None = None, *, refresh: bool = False
) -> TrainingData:
    """Read a training file once, or find what an earlier call made of it in the cache folder.

    The cache folder is `cache_dir`, by default `dcpcse` in that of `datasets`; nothing is written elsewhere.
    refresh: read the file anew even if it was read before. Blank rows are dropped with one warning. Raises
    UserError, naming file and line, for all that cannot be trained on, and for a cache folder that cannot be
    written.
    """
    path = Path(path)
    reader_of(path)  # before anything else: is it there, and of a known kind?
    cached = _cache_folder(cache_dir) / f"{_fingerprint(path)}.arrow"
    summary = (None if refresh else _read_summary(cached)) or _write_cache(cached, Source(path))
    _warn_of_dropped(path, **summary)
    return TrainingData(
        dataset=_memory_map(cached),
        columns=tuple(summary["columns"]),
        dropped=summary["dropped"],
        dropped_lines=tuple(summary["dropped_lines"]),
        repeats=RepeatsFound.of(summary["repeats"]),
        classes=summary["classes"],
        scores=tuple(summary["scores"]),
    )


def located(path: str | Path, data: Dataset, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Where rows of a training file stand in it (`line` from 1, `item` of a JSON array), with number and sentences.

    data: what `load_training_file` made of the file, which is read again; the place is left out where it cannot be.
    """
    texts = data.select(list(rows)).to_list()
    places: dict[int, dict[str, int]] = {}
    with contextlib.suppress(UserError):
        source = Source(Path(path))
        lines = reader_of(source.path)(source)
        complete = _complete_rows(source, _take_columns(source, lines), lines)
        wanted = set(rows)
        numbered = enumerate(islice(complete, max(wanted, default=-1) + 1))
        places = {row: {source.unit: line} for row, (line, _) in numbered if row in wanted}
    return [{"row": row, **places.get(row, {}), **text} for row, text in zip(rows, texts, strict=True)]


def distinct_sentences(path: str | Path) -> tuple[str, ...]:
    """Every sentence of a training file once, of all columns that hold some; raises as `load_training_file`."""
    data = load_training_file(path)
    return tuple(dict.fromkeys(text for column in data.roles.sentences for text in data.dataset[column]))


def _warn_of_dropped(path: Path, *, dropped: int, dropped_lines: list[int], unit: str, **_: Any) -> None:
    if dropped:
        shown = ", ".join(map(str, dropped_lines)) + (", ..." if dropped > len(dropped_lines) else "")
        logger.warning("%s: dropped %s, blank or partly blank (%s %s)", path, counted(dropped, "row"), unit, shown)


# The checks that hold for every format


@dataclass
class Source:
    """A file while it is read: says where an error is, and keeps account of the dropped rows.

    A reader hands every fault to `refuse`, which raises it; where it returns instead (`dcpcse.doctor`), the reader
    leaves the row out and goes on.
    """

    path: Path
    unit: str = "line"
    dropped: int = 0
    dropped_lines: list[int] = field(default_factory=list)

    def error(self, number: int, problem: str) -> UserError:
        return UserError(f"{self.path}, {self.unit} {number}: {problem}")

    def refuse(self, number: int, error: UserError) -> None:
        """What becomes of a fault in a row."""
        raise error

    def drop(self, number: int) -> None:
        self.dropped += 1
        if len(self.dropped_lines) < DROPPED_SHOWN:
            self.dropped_lines.append(number)

    def summary(self, columns: list[str]) -> dict[str, Any]:
        return {
            "columns": columns,
            "dropped": self.dropped,
            "dropped_lines": self.dropped_lines,
            "unit": self.unit,
        }


Reader = Callable[[Source], Iterator[Row]]


def reader_of(path: Path) -> Reader:
    """The reader for the extension; raises UserError if that is unknown or the file is not there."""
    # os.path, since Path.exists raises for a name that is too long or lies in a closed folder
    if not os.path.exists(path):
        raise UserError(f"training file {path} does not exist; check the path")
    if not os.path.isfile(path):
        raise UserError(f"training file {path} is not a file but a folder or a device; name a file in it")
    if path.suffix.lower() not in READERS:
        found = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        raise UserError(f"training file {path} has {found}; rename it to one of {', '.join(READERS)}")
    return READERS[path.suffix.lower()]


def read_rows(source: Source) -> tuple[list[str], Iterator[Row]]:
    """The names of a file's columns, and its rows: the stripped cells of each that has no blank one."""
    rows = reader_of(source.path)(source)
    columns = _take_columns(source, rows)
    return columns, _complete_rows(source, columns, rows)


def _take_columns(source: Source, rows: Iterator[Row]) -> list[str]:
    """The names in the first row that is not a blank line, 1 to 3 of them and none empty."""
    for number, cells in rows:
        if not cells:
            source.drop(number)
            continue
        columns = [_clean(name) for name in cells]
        _check_columns(source, number, columns)
        return columns
    found = "nothing but blank lines" if source.dropped else "nothing"
    raise UserError(f"training file {source.path} is empty: it holds {found}; give at least one sentence")


def _check_columns(source: Source, number: int, columns: list[str]) -> None:
    if not all(columns):
        raise source.error(number, f"the header {columns} has an empty name; name every column")
    if len(columns) > len(ROLES):
        raise source.error(
            number,
            f"found {len(columns)} columns {columns}; leave 1 (sentence), 2 (anchor, positive) or "
            "3 (anchor, positive, negative; or two sentences and a column label or score)",
        )
    if name := misplaced(columns):
        raise source.error(
            number,
            f"the column {name!r} of {columns} does not stand third; a label or a score stands behind its two "
            "sentences; give a column of sentences another name",
        )
    if len(columns) == 1 and "\t" in columns[0]:
        problem = f"the only column name, {columns[0]!r}, holds a tab"
        raise source.error(number, f"{problem}; if tabs separate the columns, name the file .tsv")
    if len(columns) == 1 and ";" in columns[0]:
        problem = f"the only column name, {columns[0]!r}, holds a semicolon"
        raise source.error(number, f"{problem}; columns are separated by commas (csv) or tabs (tsv)")


def _complete_rows(source: Source, columns: list[str], rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the stripped cells of each row that has no blank one; a ragged row, or a wrong label, is refused."""
    kind = kind_of(columns)
    for number, cells in rows:
        sentences = [_clean(cell) for cell in cells]
        if any(sentences) and len(sentences) != len(columns):
            problem = (
                f"expected {len(columns)} cells, one for each of {columns}, but found {len(sentences)}; "
                'give every row all of them, and put one that holds the delimiter in double quotes ("...")'
            )
            source.refuse(number, source.error(number, problem))
        elif not sentences or not all(sentences):
            source.drop(number)
        elif kind is None:
            yield number, sentences
        else:
            yield from _labelled(source, number, sentences, kind)


def _labelled(source: Source, number: int, cells: list[str], kind: str) -> Iterator[Row]:
    """The row with its label as it is kept; none where that is refused."""
    try:
        yield number, [*cells[:-1], checked(kind, cells[-1])]
    except ValueError as error:
        source.refuse(number, source.error(number, str(error)))


def _clean(cell: str) -> str:
    r"""The cell without outer white space; a \n, \r\n or \r in it becomes a blank: a sentence is one line."""
    if "\n" in cell or "\r" in cell:
        cell = re.sub(r"\r\n?|\n", " ", cell)
    return cell.strip()


# The formats: a reader yields the column names as its first row that is not a blank line


def _numbered_lines(source: Source) -> Iterator[tuple[int, str]]:
    r"""Yield (number from 1, text) of each line; only \n and \r\n end one.

    A line that is not UTF-8, or holds a NUL, is refused. Raises UserError where the file cannot be read.
    """
    try:
        # As bytes: text mode also ends lines at a lone \r, and str.splitlines at U+2028 and its like.
        with open(source.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = decode_line(source.path, number, line)
                except UserError as error:
                    source.refuse(number, error)
                    continue
                yield number, text
    except OSError as error:
        raise UserError(f"cannot read training file {source.path}: {error.strerror}") from error


def _read_text(source: Source) -> Iterator[Row]:
    named = False
    for number, line in _numbered_lines(source):
        if not named:
            yield number, ["text"]  # as the loader of `datasets` names it
            named = True
        yield number, [line]


def _read_delimited(source: Source) -> Iterator[Row]:
    """Rows of a csv or tsv file, quoted as in RFC 4180; a row is numbered by the line on which it starts."""
    delimiter = "\t" if "tsv" in source.path.name.lower() else ","  # the published rule
    # A lone \r is white space here; the csv module would take it for the end of a row.
    lines = _Replayed((number, line.replace("\r", " ") + "\n") for number, line in _numbered_lines(source))
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.mark()
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            start = lines.start
            problem = (
                'a quote (") opened in the row that starts here is not closed, or text follows the closing one '
                f'({error}); close it, and write a quote inside a quoted cell twice ("")'
            )
            source.refuse(start, source.error(start, problem))
            # The row ends with its first line: what an open quote has swallowed is read again.
            lines.rewind()
            records = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        yield lines.start, [] if len(cells) == 1 and cells[0].isspace() else cells


class _Replayed:
    """Lines one by one, which can go back to the second of those since a mark."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self._lines = lines
        self._since: list[tuple[int, str]] = []
        self._again: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._lines)
        self._since.append(line)
        return line[1]

    @property
    def start(self) -> int:
        """Number of the first line since the mark."""
        return self._since[0][0]

    def mark(self) -> None:
        """A row begins here."""
        self._since = []

    def rewind(self) -> None:
        """Give all lines since the mark but the first once more."""
        self._again += reversed(self._since[1:])


def _read_json(source: Source) -> Iterator[Row]:
    """Rows of a json file: an array if it opens with `[`, else JSON lines."""
    first = next((line for _, line in _numbered_lines(source) if line.strip()), "")
    return (_read_json_array if first.lstrip().startswith("[") else _read_json_lines)(source)


def _read_json_array(source: Source) -> Iterator[Row]:
    """Rows of an array of objects, numbered as its items; the only format that is held in memory whole."""
    try:
        items = _parse_json("\n".join(line for _, line in _numbered_lines(source)))
    except _RowError as error:
        source.refuse(error.number, source.error(error.number, str(error)))
        return iter(())
    source.unit = "item"
    return _object_rows(source, enumerate(items, start=1))


def _read_json_lines(source: Source) -> Iterator[Row]:
    def values() -> Iterator[tuple[int, Any]]:
        for number, line in _numbered_lines(source):
            try:
                value = _parse_json(line, number) if line.strip() else None
            except _RowError as error:
                source.refuse(error.number, source.error(error.number, str(error)))
                continue
            yield number, value

    return _object_rows(source, values())


class _RowError(ValueError):
    """A fault in the row of this number."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


# An object becomes a tuple of pairs, not a dict, in which a key that occurs twice would be lost unseen.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def _parse_json(text: str, first_line: int = 1) -> Any:
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise _RowError(line, f"broken JSON: {error.msg} (column {error.colno}); mend it") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise _RowError(first_line, f"unreadable JSON: {error}; give objects that hold strings") from error


def _object_rows(source: Source, values: Iterable[tuple[int, Any]]) -> Iterator[Row]:
    """Yield the keys of the first object, then each object's cells in that order; None is a blank line."""
    keys: list[str] = []
    for number, value in values:
        if value is None:
            yield number, []
            continue
        try:
            cells = _as_object(number, value)
            texts = _in_order(number, cells, keys or list(cells))
        except _RowError as error:
            source.refuse(number, source.error(number, str(error)))
            continue
        if not keys:
            keys = list(cells)
            yield number, keys
        yield number, texts


def _as_object(number: int, value: Any) -> dict[str, Any]:
    example = 'give an object such as {"anchor": "...", "positive": "..."}'
    if not isinstance(value, tuple):
        raise _RowError(number, f"expected an object but found {_describe(value)}; {example}")
    cells = dict(value)
    if not cells:
        raise _RowError(number, f"found an object without keys; {example}")
    if len(cells) != len(value):
        raise _RowError(number, f"a key occurs twice in {[key for key, _ in value]}; keep one of them")
    return cells


def _in_order(number: int, cells: dict[str, Any], keys: list[str]) -> list[str]:
    if cells.keys() != set(keys):
        problem = f"expected the keys {keys}, as in the first row, but found {list(cells)}"
        raise _RowError(number, f"{problem}; give every row the same keys")
    # A score is a number in JSON; a label that is one is refused as such, not as a number.
    numeric = keys[-1] if kind_of(keys) else None
    return [_as_text(number, key, cells[key], numeric=key == numeric) for key in keys]


# What JSON can escape (\u0000, \ud800) but neither a tokenizer nor Arrow can take.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def _as_text(number: int, key: str, value: Any, *, numeric: bool = False) -> str:
    if value is None:
        return ""
    if numeric and type(value) in (int, float):
        return repr(value)
    if not isinstance(value, str):
        raise _RowError(number, f"key {key!r}: expected a string but found {_describe(value)}; quote it")
    if found := _NO_TEXT.search(value):
        escape = f"\\u{ord(found[0]):04x}"
        raise _RowError(number, f"key {key!r}: found {escape}, which is no character; remove it")
    return value


_JSON_KINDS = {bool: "the boolean", int: "the number", float: "the number", str: "the string"}


def _describe(value: Any) -> str:
    if type(value) in _JSON_KINDS:
        return f"{_JSON_KINDS[type(value)]} {json.dumps(value)[:40]}"
    return "an object" if isinstance(value, tuple) else "a list"


READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
}


# The cache: one Arrow stream a file, closed by an empty batch whose metadata is the summary


def _cache_folder(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "dcpcse"


def _fingerprint(path: Path) -> str:
    """A name for this state of the file, as far as its size and time tell."""
    # The name as given decides format and delimiter, and may differ from that of the file a link leads to.
    state = path.stat()
    identity = [str(path.resolve()), path.name, state.st_size, state.st_mtime_ns, READER_VERSION]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _write_cache(cached: Path, source: Source) -> dict[str, Any]:
    """Read the source into `cached`, which appears whole or not at all; gives the summary."""
    # A name of its own for each process: all ranks of torchrun may be here at once, and the last one wins.
    temporary = cached.with_name(f"{cached.name}.{uuid.uuid4().hex}.tmp")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            summary = _write_stream(file, source)
        os.replace(temporary, cached)
        return summary
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {cached.parent}: {error.strerror or error}; "
            "choose another folder with --cache_dir"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_stream(file: BinaryIO, source: Source) -> dict[str, Any]:
    import pyarrow as pa

    columns, complete = read_rows(source)
    kind = kind_of(columns)
    repeats, tally = Repeats(len(columns), labelled=kind is not None), Tally(kind)
    roles = (*ROLES[:2], kind) if kind else ROLES[: len(columns)]
    schema = pa.schema([(role, pa.float64() if role == SCORE else pa.string()) for role in roles])
    with pa.ipc.new_stream(file, schema) as writer:
        while batch := list(islice(complete, BATCH_ROWS)):
            repeats.add(batch)
            tally.add(batch)
            writer.write_batch(_record_batch(zip(*(cells for _, cells in batch), strict=True), schema))
        if not writer.stats.num_record_batches:
            raise _no_rows_error(source, columns)
        # Not in the schema's metadata: a stream opens with the schema, before the dropped rows are known.
        labels = {"classes": tally.classes, "scores": tally.scores}
        summary = {**source.summary(columns), **labels, "repeats": repeats.found().as_dict()}
        end = _record_batch([[] for _ in columns], schema)
        writer.write_batch(end, custom_metadata={"summary": json.dumps(summary)})
    return summary


def _record_batch(columns: Iterable[Sequence[str]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    of_types = zip(columns, schema.types, strict=True)
    cells = (cells if kind == pa.string() else [*map(float, cells)] for cells, kind in of_types)
    return pa.record_batch([*map(pa.array, cells, schema.types)], schema)


def _no_rows_error(source: Source, columns: list[str]) -> UserError:
    found = "no row follows the header"
    if source.dropped:
        found = f"all of its {source.dropped} rows are blank or partly blank"
    return UserError(f"training file {source.path} gives no sentence: {found} (columns {columns}); add some")


def _read_summary(cached: Path) -> dict[str, Any] | None:
    """The summary that closes the cache file; None if there is no complete cache file."""
    import pyarrow as pa

    summary = None
    # OSError and ArrowInvalid: not there, or cut off by a crash of the machine; it is then written anew.
    with contextlib.suppress(OSError, pa.ArrowInvalid), pa.memory_map(str(cached)) as file:
        for _, metadata in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
            summary = metadata and json.loads(metadata["summary"])
    return summary


def _memory_map(cached: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_file(str(cached))
