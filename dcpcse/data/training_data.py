"""Load training data from files and Python objects: check every cell, and cache the rows in memory-mapped Arrow files.

Each reader parses one format and yields rows. The rules for all formats (the number of columns, the number of cells
per row, and blank cells) are checked in one place, on the rows that a reader yields. The general loaders of `datasets`
are not used, because they guess types: they read `NA` and `null` as missing cells, `1.5` as a number, and U+2028 as
the end of a line.
"""

import contextlib
import hashlib
import json
import logging
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from huggingface_hub.dataclasses import strict

from dcpcse.data.checks import ColumnContents, score_problem, warn_of_format
from dcpcse.data.columns import (
    ALLOWED,
    CLASS,
    LABEL,
    ROLES,
    SCORE,
    Columns,
    Header,
    LabelCounter,
    header_of,
    is_positive_or_negative,
    is_relation,
    label_text,
)
from dcpcse.data.duplicates import DuplicateCounts, Duplicates
from dcpcse.data.readers import (
    MOST_UNDECIDED,
    DataSource,
    FileRow,
    RowSource,
    complete_rows,
    delimiter_of,
    format_of,
    is_decided,
    read_table,
    reader_of,
    rows_sha256,
    unreadable,
)
from dcpcse.data.tables import Row, Table, describe, is_missing, open_table
from dcpcse.utils import schema
from dcpcse.utils.arguments import path
from dcpcse.utils.errors import UserError, plural, spell
from dcpcse.utils.files import atomic_file, staging_folder
from dcpcse.utils.parsing import open_input
from dcpcse.utils.schema import parse

if TYPE_CHECKING:  # imported lazily, since the imports take over a second
    import pyarrow as pa
    from datasets import Dataset


@strict
@dataclass(kw_only=True)
class _Occurrences:
    count: int = schema.count()
    lines: list[int]


@strict
@dataclass(kw_only=True)
class _Repeats:
    duplicates: _Occurrences
    identical: _Occurrences
    contradictory: _Occurrences
    relabelled: _Occurrences
    rows: int = schema.count()
    pairs: int = schema.count()


@strict
@dataclass(kw_only=True)
class CacheSummary:
    """What is known about the rows of a training file besides the rows themselves."""

    columns: list[str]
    dropped: int = schema.count()
    dropped_lines: list[int]
    unit: str
    classes: dict[str, int]
    scores: list[int | float]
    problems: list[str]
    repeats: _Repeats


READER_VERSION = 8  # increase it if the readers return different rows for a file, so that old cache files are ignored

BATCH_ROWS = 10_000


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Return the cache folder: `cache_dir` if given, otherwise `dcpcse` in the cache folder of `datasets`."""
    if cache_dir is not None:
        return Path(cache_dir)
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "dcpcse"


def cache_key(path: Path, sha256: str) -> str:
    """Return the cache key of a file with this digest. Of its name, only the format and the delimiter count."""
    identity = [sha256, format_of(path), delimiter_of(path), READER_VERSION]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def write_cache(cached: Path, source: DataSource, sha256: str) -> dict[str, Any]:
    """Read a file, write its rows to `cached` atomically, and return a summary of them.

    Raises UserError, and writes nothing, unless the bytes that were read have the digest that `cached` is named by.
    """
    with _explained(cached.parent), atomic_file(cached) as file:
        summary = _write_stream(file, source, *read_table(source))
        if source.sha256 != sha256:
            raise UserError(f"training file {source.path} has changed while it was read; start again")
        return summary


def write_rows(folder: Path, source: RowSource, header: Header, rows: Iterator[FileRow]) -> tuple[Path, dict]:
    """Write rows to a file in the cache folder that is named by their digest; return its path and a summary.

    header: the columns. The digest is `source.sha256`, which is known only after the last row. A
    file of the same rows is replaced. If reading or writing fails, nothing is left.
    """
    with _explained(folder), staging_folder(folder / "rows") as part:
        with open(part / "rows.arrow", "wb") as file:
            summary = _write_stream(file, source, header, rows)
        identity = json.dumps(["rows", source.sha256, READER_VERSION])
        cached = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.arrow"
        os.replace(part / "rows.arrow", cached)
        return cached, summary


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raise UserError in place of the system's refusal to write to the cache folder."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; choose another folder with "
            f"{spell('cache_dir')}"
        ) from error


def _write_stream(file: BinaryIO, source: RowSource, header: Header, complete: Iterator[FileRow]) -> dict[str, Any]:
    import pyarrow as pa

    counts = RowCounts(header)
    schema = pa.schema([(role, pa.float64() if role == SCORE else pa.string()) for role in header.roles])
    with pa.ipc.new_stream(file, schema) as writer:
        while batch := list(islice(complete, BATCH_ROWS)):
            counts.add(batch)
            writer.write_batch(_record_batch(zip(*(cells for _, cells in batch), strict=True), schema))
        if not writer.stats.num_record_batches:
            raise _no_rows_error(source, list(header.names))
        column_problems = counts.contents.problems(source.leave_out)
        if fatal := next((problem.text for problem in column_problems if problem.is_fatal), None):
            raise UserError(f"{source.described}: {fatal}")
        problems = [*(problem.text for problem in column_problems), *filter(None, [score_problem(header)])]
        # The summary is not in the schema's metadata, which is written before the number of dropped rows is known.
        labels = {"classes": counts.labels.classes, "scores": counts.labels.scores}
        repeats = counts.repeats.found().as_dict()
        summary = {**source.summary(header), **labels, "problems": problems, "repeats": repeats}
        end = _record_batch([[] for _ in header.names], schema)
        writer.write_batch(end, custom_metadata={"summary": json.dumps(summary)})
    return summary


class RowCounts:
    """What is counted while rows are read: repeated rows, labels, and what the columns of sentences contain."""

    def __init__(self, header: Header) -> None:
        self.repeats, self.labels = Duplicates(header.roles), LabelCounter(header.target)
        self.contents = ColumnContents(header)

    def add(self, rows: Sequence[FileRow]) -> None:
        """Add complete rows."""
        for counter in (self.repeats, self.labels, self.contents):
            counter.add(rows)


def _record_batch(columns: Iterable[Sequence[str]], schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    of_types = zip(columns, schema.types, strict=True)
    cells = (cells if kind == pa.string() else [*map(float, cells)] for cells, kind in of_types)
    return pa.record_batch([*map(pa.array, cells, schema.types)], schema)


def _no_rows_error(source: RowSource, columns: list[str]) -> UserError:
    reason = "no rows follow the header"
    if source.dropped:
        reason = f"all of its {source.dropped} rows have blank cells"
    return UserError(f"{source.described} contains no sentences: {reason} (columns {columns}); add at least one row")


def read_summary(cached: Path) -> dict[str, Any] | None:
    """Return the summary at the end of a cache file, or None if the file is missing or incomplete."""
    import pyarrow as pa

    summary = None
    # The file does not exist, a crash truncated it, or another program changed it. It is then written again.
    with contextlib.suppress(OSError, pa.ArrowException, KeyError, ValueError):
        open_input(cached).close()  # raises OSError for a pipe, which would be waited for
        with pa.memory_map(str(cached)) as file:
            for _, metadata in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
                summary = metadata and parse(CacheSummary, metadata["summary"])
    return summary


def memory_map(cached: Path) -> "Dataset":
    """Open a cache file as a memory-mapped dataset."""
    from datasets import Dataset

    return Dataset.from_file(str(cached))


logger = logging.getLogger(__name__)

Breaks = Callable[[], Sequence[int]]
"""A function without arguments that returns the rows of a dataset before which a row with blank cells was dropped."""

Places = Callable[[Set[int]], Mapping[int, Mapping[str, int]]]
"""A function from rows of a dataset to their locations, such as {"line": 3}; rows of unknown location are left out."""


@dataclass(frozen=True)
class TrainingData:
    """The sentences of one training file, or of one Python object.

    dataset: a table whose columns are named by their roles (`dcpcse.data.columns`): `anchor`, positives and hard
    negatives, all strings; or with labels, `label` (a string of `columns.CLASSES`), `score` (a number) or `class` (a
    string) as the last column.
    name: the path, or the name and the kind of the object, for messages and for the record of a run.
    columns: the names of the columns in the file (`text` for a txt file).
    dropped: number of rows dropped because of a blank cell. dropped_lines: line numbers, from 1, of the first few
    dropped rows (in a JSON array, item numbers; in an object, row numbers). unit: `line`, `item` or `row`.
    repeats: counts of false negatives and uninformative rows (`dcpcse.data.duplicates`).
    classes: label → number of rows, for the labels that occur. scores: the smallest and the largest score. problems:
    descriptions of columns that are probably not what they are taken for (`dcpcse.data.checks`).
    sha256: digest of the bytes of the file from which these rows were read (the file may have changed since), or of
    the rows of an object.
    places: function from rows of the dataset to their locations in the file or object; see `locate`. breaks: function
    that returns the rows before which rows with blank cells were dropped, as between documents; a file is read again.
    """

    name: str
    dataset: "Dataset"
    sha256: str
    columns: tuple[str, ...]
    dropped: int
    dropped_lines: tuple[int, ...]
    unit: str
    repeats: DuplicateCounts
    places: Places = field(repr=False, compare=False)
    breaks: Breaks = field(repr=False, compare=False)
    classes: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        cached: Path,
        *,
        summary: Mapping[str, Any],
        sha256: str,
        places: Places,
        breaks: Breaks,
        documents: bool = False,
    ) -> "TrainingData":
        """Return the data in a cache file, with the summary of its rows; log a warning if rows were dropped.

        documents: whether blank rows separate documents; no warning reports them then.
        """
        data = cls(
            name=name,
            dataset=memory_map(cached),
            sha256=sha256,
            columns=tuple(summary["columns"]),
            dropped=summary["dropped"],
            dropped_lines=tuple(summary["dropped_lines"]),
            unit=summary["unit"],
            repeats=DuplicateCounts.of(summary["repeats"]),
            places=places,
            breaks=breaks,
            classes=summary["classes"],
            scores=tuple(summary["scores"]),
            problems=tuple(summary["problems"]),
        )
        if data.dropped and not documents:
            shown = ", ".join(map(str, data.dropped_lines)) + (
                ", ..." if data.dropped > len(data.dropped_lines) else ""
            )
            message = "%s: dropped %s with blank cells (%s %s)"
            logger.warning(message, name, plural(data.dropped, "row"), data.unit, shown)
        return data

    @property
    def roles(self) -> Columns:
        """The columns of the dataset, with the summary of the labels that methods need."""
        return Columns(self.dataset.column_names, self.classes, self.scores)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row; few rows are in memory at once."""
        for batch in self.dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def locate(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the row number, the location and the sentences of each of the given rows of the dataset.

        The location is `line` (from 1) in a file, `item` in a JSON array, and `given_row` (from 1) in a Parquet file
        or a Python object. A file is read again; if that fails, or if it has changed since, the location is left out.
        """
        texts, places = self.dataset.select(list(rows)).to_list(), self.places(set(rows))
        return [{"row": row, **places.get(row, {}), **text} for row, text in zip(rows, texts, strict=True)]


def load_training_file(
    path: str | Path, cache_dir: str | Path | None = None, *, refresh: bool = False, documents: bool = False
) -> "TrainingData":
    """Load a training file, from the cache folder if an earlier call has read it.

    The cache folder is `cache_dir`, by default `dcpcse` in the cache folder of `datasets`; no other files are written.
    A cached file is found by the digest of its bytes. refresh: read the file again even if it is cached. Rows with
    blank cells are dropped, and one warning reports them, unless they separate documents (documents). Raises UserError
    if the file is not valid training data (with file and line), if it changes while it is read, or if the cache folder
    is not writable.
    """
    path = Path(path)
    reader_of(path)  # checks first that the file exists and has a supported extension
    warn_of_format(path)
    try:
        sha256 = rows_sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error
    cached = cache_folder(cache_dir) / f"{cache_key(path, sha256)}.arrow"
    summary = (None if refresh else read_summary(cached)) or write_cache(cached, DataSource(path), sha256)
    of_file = {"places": partial(_places_in_file, path, sha256), "breaks": partial(_breaks_in_file, path, sha256)}
    return TrainingData.of(str(path), cached, summary=summary, sha256=sha256, documents=documents, **of_file)


def _places_in_file(path: Path, sha256: str, rows: Set[int]) -> Mapping[int, Mapping[str, int]]:
    with contextlib.suppress(UserError):
        source = DataSource(path)
        _, complete = read_table(source)
        locations = [(row, number) for row, (number, _) in enumerate(complete) if row in rows]
        unit = "given_row" if source.unit == "row" else source.unit  # `row` is the row of the dataset
        return {row: {unit: number} for row, number in locations} if source.sha256 == sha256 else {}
    return {}


def _breaks_in_file(path: Path, sha256: str) -> Sequence[int]:
    """Raises UserError if the file has changed since it had this digest."""
    source, breaks, dropped = DataSource(path), array("q"), 0
    for row, _ in enumerate(read_table(source)[1]):
        if source.dropped != dropped:
            breaks.append(row)
            dropped = source.dropped
    if source.sha256 != sha256:
        raise UserError(f"training file {path} has changed while it was read; start again")
    return breaks


def distinct_sentences(path: str | Path) -> tuple[str, ...]:
    """Return the distinct sentences in all columns of a training file; raise the errors of `load_training_file`."""
    data = load_training_file(path)
    return tuple(dict.fromkeys(text for column in data.roles.sentences for text in data.dataset[column]))


LARGE_BYTES = 100 * 10**6
"""Size of a cached file from which on the log names the file."""


def load_training_data(
    data: Any,
    cache_dir: str | Path | None = None,
    *,
    refresh: bool = False,
    name: str = "train_data",
    documents: bool = False,
) -> "TrainingData":
    """Load training data from a path, or from an object that `open_table` reads.

    The columns of an object have the meaning of the columns of a file (`dcpcse.data.columns`). Rows of three cells
    without names have scores if the third cell of the first row is a number or a boolean, labels if it `is_relation`;
    rows of two have classes if the second cell of the first row is a number.
    None, NaN and blank cells are the same: their rows are dropped, and one warning reports them.

    Rows are written to the cache folder while they are read, so that memory is bounded, and the file is named by their
    digest: the same rows, from whatever object, are one file. cache_dir, refresh, documents: see `load_training_file`;
    an object is always read. name: the name of the object in messages. Raises UserError if the object is not valid
    training data (with row and column), or if the cache folder is not writable.
    """
    if isinstance(data, (str, PathLike)):
        return load_training_file(path(name, data), cache_dir, refresh=refresh, documents=documents)
    table = open_table(data, name)
    header, rows = _take_header(table)
    if table.taken_once:
        logger.info("%s: the %s is taken once; to train on its rows again, give a list of them", name, table.kind)
    source = _TableSource(table)
    complete = source.digested(header, complete_rows(source, header, _texts(table, header, rows)))
    cached, summary = write_rows(cache_folder(cache_dir), source, header, complete)
    if (size := cached.stat().st_size) > LARGE_BYTES:
        logger.info("%s: the rows take %s MB in %s", name, f"{size / 1e6:,.0f}", cached)
    of_object = {"places": source.places, "breaks": source.breaks, "documents": documents}
    return TrainingData.of(f"{name} ({table.kind})", cached, summary=summary, sha256=source.sha256, **of_object)


class _TableSource(RowSource):
    """A Python object that is being read; the digest is that of its complete rows."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name, unit="row")
        self.table = table
        self._dropped_rows = array("q")

    def error(self, number: int, problem: str) -> UserError:
        return self.table.error(number, problem)

    def leave_out(self, columns: Sequence[str]) -> str:
        return f"give {self.table.pick(columns)}"

    def drop(self, number: int) -> None:
        super().drop(number)
        self._dropped_rows.append(number)

    def digested(self, header: Header, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """Yield the rows; at their end, `sha256` is the digest of their roles and cells as JSON lines."""
        digest = hashlib.sha256(f"{json.dumps(header.roles)}\n".encode())
        for number, cells in rows:
            digest.update(f"{json.dumps(cells)}\n".encode())
            yield number, cells
        self.sha256 = digest.hexdigest()

    def places(self, rows: Set[int]) -> Mapping[int, Mapping[str, int]]:
        """Return the number, from 1, that each row of the dataset has in the object, whose dropped rows count."""
        import numpy as np

        kept_before = self._kept_before()
        return {row: {"given_row": row + 1 + int(np.searchsorted(kept_before, row, "right"))} for row in rows}

    def breaks(self) -> Sequence[int]:
        """Return the rows of the dataset before which rows were dropped."""
        return sorted(set(self._kept_before().tolist()))

    def _kept_before(self) -> Any:
        """Return the number of rows of the dataset before each dropped row, as an array."""
        import numpy as np

        dropped = np.array(self._dropped_rows)
        return dropped - 1 - np.arange(len(dropped))


def _take_header(table: Table) -> tuple[Header, Iterator[Row]]:
    """Return the columns, and the rows. Rows without names get those of their roles."""
    head: list[Row] = []
    for row in table.rows:
        head.append(row)
        if not 1 < len(row) <= len(ROLES) or _is_deciding(table, row) or len(head) >= MOST_UNDECIDED:
            break
    rows = chain(head, table.rows)
    first = next((row for row in reversed(head) if not _is_blank(row[-1])), head[-1])
    if table.columns is None and len(first) > len(ROLES):
        raise UserError(f"{table.name}: found {len(first)} columns; keep {ALLOWED}")
    names = _default_names(first) if table.columns is None else table.columns

    def error(problem: str) -> UserError:
        return UserError(f"{table.name}: {problem}")

    def example(columns: Sequence[str]) -> str:
        # If there is no such expression, the names of the others are enough.
        return f", for instance {table.pick(columns or _picked(table, names))}" if table.picked or not columns else ""

    header = header_of(names, error, _label_in(table, first), example=example)
    for name in names[:-1] if header.target else names:
        if name in table.class_names:
            words = ", ".join(map(repr, table.class_names[name][:3]))
            raise error(
                f"the column {name!r} has class labels ({words}), but its place is that of sentences; name it {LABEL} "
                f"and make it the last column, or leave it out{example([other for other in names if other != name])}"
            )
    return header, rows


def _is_deciding(table: Table, row: Row) -> bool:
    """Return whether the last cell of a row is not blank and tells what its column contains."""
    name = (table.columns or _default_names(row))[-1]
    return not _is_blank(row[-1]) and is_decided(name, row[-1])


def _label_in(table: Table, row: Row) -> Sequence[str]:
    """Return the cells of a row of three, of which only the last one is read, and only if it can be a label."""
    last = row[-1]
    # In a column without a name, numbers are scores on any scale.
    is_label = isinstance(last, (str, bool)) or (_is_number(last) and table.columns is not None)
    return ("", "", label_text(last) if is_label else "") if len(row) == len(ROLES) else ()


def _default_names(row: Row) -> Sequence[str]:
    """Return the names of the columns of rows without names, given the first row whose last cell is not blank."""
    last = row[-1]
    if len(row) == 1:
        return ("text",)
    if len(row) == 2:
        return ("text", CLASS) if _is_number(last) else ROLES[:2]
    if isinstance(last, str):
        return (*ROLES[:2], LABEL if is_relation(last) else ROLES[2])
    return (*ROLES[:2], SCORE if _is_number(last) else ROLES[2])


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (Real, Decimal)) and not is_missing(cell)


def _picked(table: Table, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns that a message suggests to pick of too many."""
    known = (*ROLES, LABEL, SCORE, CLASS)
    named = [column for column in columns if column.lower() in known or is_positive_or_negative(column)]
    texts = [column for column in table.texts if column not in named]
    if len(named) == 1 and named[0].lower() in (LABEL, CLASS) and texts:
        return [texts[0], *named]
    return named or (texts or list(columns))[:2]


def _is_blank(cell: Any) -> bool:
    return not cell.strip() if isinstance(cell, str) else is_missing(cell)


def _texts(table: Table, header: Header, rows: Iterator[Row]) -> Iterator[FileRow]:
    """Yield the number and the cells of each row as text, as the readers of files do."""
    try:
        for number, row in enumerate(rows, start=1):
            sentences = row[:-1] if header.target else row
            texts = [table.text(number, index, cell) for index, cell in enumerate(sentences)]
            if header.target:
                texts.append(_label_text(table, number, row, header))
            yield number, texts
    except OSError as error:
        raise UserError(f"{table.name}: its rows cannot be read: {error}") from error


def _label_text(table: Table, number: int, row: Row, header: Header) -> str:
    """Return the text of a label, score or class, which may be a number or a boolean."""
    index, cell = len(row) - 1, row[-1]
    if isinstance(cell, str) or is_missing(cell):
        return table.text(number, index, cell)
    if not isinstance(cell, (Real, Decimal)):
        problem = f"expected a string or a number but found {describe(cell)}"
        raise table.error(number, f"{problem}; give words to labels or classes, or numbers to scores", index)
    if header.target == CLASS and not float(cell).is_integer():
        problem = f"found {describe(cell)} as a class; give every class as a word or a whole number"
        raise table.error(number, problem, index)
    return label_text(cell)
