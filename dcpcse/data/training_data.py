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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from huggingface_hub.dataclasses import strict

from dcpcse.data.checks import ColumnContents, ColumnProblem, header_problems, score_problems, warn_of_format
from dcpcse.data.column_choice import Chosen
from dcpcse.data.columns import SCORE, Columns, Header, LabelCounter
from dcpcse.data.duplicates import DuplicateCounts, Duplicates
from dcpcse.data.objects import open_table, rows_of_batches
from dcpcse.data.readers import delimiter_of, format_of, open_file, reader_of, rows_sha256, unreadable
from dcpcse.data.tables import Table, TextRow, read_rows
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
    """The summary at the end of a cache file: columns, dropped rows, labels, probable faults, repeated rows."""

    columns: list[str]
    dropped: int = schema.count()
    dropped_lines: list[int]
    unit: str
    classes: dict[str, int]
    scores: list[int | float]
    problems: list[str]
    repeats: _Repeats


READER_VERSION = 10  # to be increased if the readers change the rows of a file; old cache files are then ignored

BATCH_ROWS = 10_000


def cache_folder(cache_dir: str | Path | None) -> Path:
    """Return the cache folder: `cache_dir` if given, otherwise `dcpcse` in the cache folder of `datasets`."""
    if cache_dir is not None:
        return Path(cache_dir)
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "dcpcse"


def cache_key(path: Path, sha256: str, columns: Mapping[str, str]) -> str:
    """Return the cache key of a file, which depends on its digest, format, delimiter and chosen columns."""
    identity = [sha256, format_of(path), delimiter_of(path), READER_VERSION, *([columns] if columns else [])]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def write_cache(cached: Path, table: Table, sha256: str) -> dict[str, Any]:
    """Write the rows of a file to `cached` atomically, and return a summary of them.

    Args:
        cached: The cache file, whose name contains `sha256`.
        table: The table of the file.
        sha256: Digest of the file.

    Raises:
        UserError: If the bytes that were read have a different digest. Nothing is written then.
    """
    with _explained(cached.parent), atomic_file(cached) as file:
        summary = _write_stream(file, table, *read_rows(table))
        if table.sha256 != sha256:
            raise UserError(f"training file {table.path} has changed while it was read; start again")
        return summary


def write_rows(folder: Path, table: Table) -> tuple[Path, str, dict[str, Any]]:
    """Write the rows of an object to a file in the cache folder; return the path, the digest and the summary.

    The name of the file contains a digest of the roles of the columns and of the rows. A file with the same rows is
    therefore replaced. If reading or writing fails, no file remains.
    """
    header, rows = read_rows(table)
    digest = hashlib.sha256(f"{json.dumps(header.roles)}\n".encode())

    def digested() -> Iterator[TextRow]:
        for number, cells in rows:
            digest.update(f"{json.dumps(cells)}\n".encode())
            yield number, cells

    with _explained(folder), staging_folder(folder / "rows") as part:
        with open(part / "rows.arrow", "wb") as file:
            summary = _write_stream(file, table, header, digested())
        identity = json.dumps(["rows", digest.hexdigest(), READER_VERSION])
        cached = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.arrow"
        os.replace(part / "rows.arrow", cached)
        return cached, digest.hexdigest(), summary


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raise UserError instead of an OSError if the cache folder cannot be written to."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; choose another folder with "
            f"{spell('cache_dir')}"
        ) from error


def _write_stream(file: BinaryIO, table: Table, header: Header, complete: Iterator[TextRow]) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    counts, dropped_before = RowCounts(header), 0
    types = [(role, pa.float64() if role == SCORE else pa.string()) for role in header.roles]
    schema = pa.schema([*types, (NUMBER, pa.int64()), (AFTER_DROPPED, pa.bool_())])
    with pa.ipc.new_stream(file, schema) as writer:
        while batch := list(islice(complete, BATCH_ROWS)):
            counts.add(batch)
            numbers, cells = zip(*batch, strict=True)
            dropped = np.searchsorted(table.dropped, numbers)
            after_dropped = np.diff(dropped, prepend=dropped_before) > 0
            dropped_before = dropped[-1]
            columns = [*zip(*cells, strict=True), numbers, after_dropped]
            writer.write_batch(_record_batch(columns, schema))
        if not writer.stats.num_record_batches:
            raise _no_rows_error(table, list(header.names))
        problems = counts.problems(table)
        if fatal := next((problem.text for problem in problems if problem.is_fatal), None):
            raise UserError(f"{table.described}: {fatal}")
        # The summary is not in the schema's metadata, which is written before the number of dropped rows is known.
        labels = {"classes": counts.labels.classes, "scores": counts.labels.scores}
        repeats = counts.repeats.found().as_dict()
        summary = {**table.summary(header), **labels, "repeats": repeats}
        summary["problems"] = [problem.text for problem in problems]
        end = _record_batch([[] for _ in schema], schema)
        writer.write_batch(end, custom_metadata={"summary": json.dumps(summary)})
    return summary


class RowCounts:
    """Counts repeated rows and labels, and finds columns that are probably misread, while rows are read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.repeats, self.labels = Duplicates(header.roles), LabelCounter(header.target)
        self.contents = ColumnContents(header)

    def add(self, rows: Sequence[TextRow]) -> None:
        """Count rows without blank cells, given by their numbers and cells."""
        for counter in (self.repeats, self.labels, self.contents):
            counter.add(rows)

    def problems(self, table: Table) -> list[ColumnProblem]:
        """Return the probable faults of the columns of a table, whose rows were added to these counts."""
        named = header_problems(table.path, self.header.names)
        return [*named, *self.contents.problems(table.leave_out), *score_problems(self.header)]


def _record_batch(columns: Iterable[Sequence[str]], schema: "pa.Schema") -> "pa.RecordBatch":
    import pyarrow as pa

    columns = (map(float, cells) if kind.name == SCORE else cells for cells, kind in zip(columns, schema, strict=True))
    return pa.record_batch([*map(pa.array, map(list, columns), schema.types)], schema)


def _no_rows_error(table: Table, columns: list[str]) -> UserError:
    reason = "no rows follow the header"
    if table.dropped:
        reason = f"all of its {len(table.dropped)} rows have blank cells"
    return UserError(f"{table.described} contains no sentences: {reason} (columns {columns}); add at least one row")


def read_summary(cached: Path) -> dict[str, Any] | None:
    """Return the summary at the end of a cache file, or None if the file is missing or incomplete."""
    import pyarrow as pa

    summary = None
    # The file does not exist, a crash truncated it, or another program changed it. It is then written again.
    with contextlib.suppress(OSError, pa.ArrowException, KeyError, ValueError):
        open_input(cached).close()  # raises OSError for a pipe, which would wait for data
        with pa.memory_map(str(cached)) as file:
            for _, metadata in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
                summary = metadata and parse(CacheSummary, metadata["summary"])
    return summary


def memory_map(cached: Path) -> "Dataset":
    """Open a cache file as a memory-mapped dataset."""
    from datasets import Dataset

    return Dataset.from_file(str(cached))


logger = logging.getLogger(__name__)

NUMBER, AFTER_DROPPED = "number", "after_dropped"
"""Further columns of a cache file, besides the roles: the number of a row in its file or object, and whether rows with
blank cells were dropped directly before it."""


@dataclass(frozen=True)
class TrainingData:
    """The sentences of one training file, or of one Python object.

    Args:
        dataset: A table whose columns are named by their roles (`dcpcse.data.columns`): `anchor`, positives and hard
            negatives, which contain strings, or None in rows with fewer positives or negatives than others. In
            labelled data, the last column is `label` (such as entailment), `score` (a number) or `class` (a string).
        name: The path, or the name and the kind of the object, for messages and for the record of a run.
        columns: The names of the columns in the file (`text` for a txt file).
        dropped: Number of rows dropped because of a blank cell.
        dropped_lines: Line numbers, from 1, of the first few dropped rows (in a JSON array, item numbers; in an
            object, row numbers).
        unit: `line`, `item` or `row`.
        repeats: Counts of false negatives and uninformative rows (`dcpcse.data.duplicates`).
        classes: The number of rows of each label that occurs, by label.
        scores: The smallest and the largest score.
        problems: Descriptions of columns that are probably misread (`dcpcse.data.checks`).
        sha256: Digest of the bytes of the file when it was read, or of the rows of an object.
        places: A table of the same rows with the columns `number` (the number in the file or object) and
            `after_dropped` (whether a dropped row precedes the row).
    """

    name: str
    dataset: "Dataset"
    sha256: str
    columns: tuple[str, ...]
    dropped: int
    dropped_lines: tuple[int, ...]
    unit: str
    repeats: DuplicateCounts
    places: "Dataset" = field(repr=False, compare=False)
    classes: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, cached: Path, *, summary: Mapping[str, Any], sha256: str, documents: bool = False
    ) -> "TrainingData":
        """Return the data in a cache file, with the summary of its rows; log a warning if rows were dropped.

        Args:
            documents: Whether blank rows separate documents. Dropped blank rows are then not reported.
        """
        rows, places = memory_map(cached), [NUMBER, AFTER_DROPPED]
        facts = {key: tuple(value) if isinstance(value, list) else value for key, value in summary.items()}
        facts["repeats"] = DuplicateCounts.of(summary["repeats"])
        tables = {"dataset": rows.remove_columns(places), "places": rows.select_columns(places)}
        data = cls(name=name, sha256=sha256, **tables, **facts)
        if data.dropped and not documents:
            shown = ", ".join(map(str, data.dropped_lines)) + (
                ", ..." if data.dropped > len(data.dropped_lines) else ""
            )
            message = "%s: dropped %s with blank cells (%s %s)"
            logger.warning(message, name, plural(data.dropped, "row"), data.unit, shown)
        return data

    @property
    def sets(self) -> Mapping[str, "TrainingData"]:
        """A dict with this training set alone, by its name. (`dcpcse.data.mixture.TrainingSets` has several.)"""
        return {self.name: self}

    @property
    def roles(self) -> Columns:
        """The roles of the columns of the dataset, with the classes that occur and the range of the scores."""
        return Columns(self.dataset.column_names, self.classes, self.scores)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row, with None for absent sentences; few rows are in memory at once."""
        yield from rows_of_batches(self.dataset.with_format("arrow").iter(batch_size=BATCH_ROWS))

    def locate(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return a dict for each of the given rows: the row number, the location in the data, and the sentences.

        The key of the location is `line` (from 1) in a file, `item` in a JSON array, and `given_row` (from 1) in a
        Parquet file or a Python object.
        """
        unit = "given_row" if self.unit == "row" else self.unit  # `row` is the row of the dataset
        texts, numbers = self.dataset.select(rows).to_list(), self.places.select(rows)[NUMBER]
        return [{"row": row, unit: number, **text} for row, number, text in zip(rows, numbers, texts, strict=True)]

    def breaks(self) -> Sequence[int]:
        """Return the numbers of the rows that follow a dropped row. Dropped blank rows can separate documents."""
        return self.places.with_format("numpy")[AFTER_DROPPED][:].nonzero()[0].tolist()


def load_training_file(
    path: str | Path,
    cache_dir: str | Path | None = None,
    *,
    refresh: bool = False,
    documents: bool = False,
    columns: Chosen = None,
) -> "TrainingData":
    """Load a training file. If an earlier call has read the same file, the rows are loaded from the cache folder.

    The cached rows are found by the digest of the bytes of the file. Files are written only to the cache folder. Rows
    with blank cells are dropped, and one warning reports them unless `documents` is true.

    Args:
        path: The file.
        cache_dir: The cache folder. None: `dcpcse` in the cache folder of `datasets`.
        refresh: Read the file again even if it is cached.
        documents: Whether blank rows separate documents.
        columns: As in `dcpcse.data.objects.open_table`.

    Raises:
        UserError: If the file is not valid training data (with file and line), if it changes while it is read, or if
            the cache folder is not writable.
    """
    path = Path(path)
    reader_of(path)  # checks first that the file exists and has a supported extension
    warn_of_format(path)
    try:
        sha256 = rows_sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error
    cached = cache_folder(cache_dir) / f"{cache_key(path, sha256, columns or {})}.arrow"
    summary = None if refresh else read_summary(cached)
    summary = summary or write_cache(cached, open_file(path, columns=columns), sha256)
    return TrainingData.of(str(path), cached, summary=summary, sha256=sha256, documents=documents)


def distinct_sentences(path: str | Path) -> tuple[str, ...]:
    """Return the distinct sentences in all columns of a training file; raise the errors of `load_training_file`."""
    data = load_training_file(path)
    texts = (text for column in data.roles.sentences for text in data.dataset[column] if text is not None)
    return tuple(dict.fromkeys(texts))


LARGE_BYTES = 100 * 10**6
"""Size of a cached file above which the log names the file."""


def load_training_data(
    data: Any,
    cache_dir: str | Path | None = None,
    *,
    refresh: bool = False,
    name: str = "train_data",
    documents: bool = False,
    columns: Chosen = None,
) -> "TrainingData":
    """Load training data from a path, or from an object that `open_table` reads.

    The columns of an object have the same meaning as the columns of a file (`dcpcse.data.columns`). If the columns
    have no names, the cells of the first row decide:

    - three cells, the third a number or a boolean: two sentences and a score
    - three cells, the third a relation (`is_relation`): two sentences and a label
    - two cells, the second a number: a sentence and a class

    None and NaN count as blank cells. Rows with blank cells are dropped, and one warning reports them.

    The rows of an object are written to the cache folder while they are read, so memory is bounded. The name of the
    file contains the digest of the rows, so the same rows of different objects are written to the same file.

    Args:
        data: The path or the object.
        cache_dir, refresh, documents: As in `load_training_file`. `refresh` has no effect on an object.
        name: The name of the object in messages.
        columns: As in `open_table`.

    Raises:
        UserError: If the object is not valid training data (with row and column), or if the cache folder is not
            writable.
    """
    if isinstance(data, (str, PathLike)):
        file = path(name, data)
        return load_training_file(file, cache_dir, refresh=refresh, documents=documents, columns=columns)
    table = open_table(data, name, columns)
    if table.taken_once:
        logger.info(
            "%s: the %s can be read only once; for another training, give a list of its rows", name, table.kind
        )
    cached, sha256, summary = write_rows(cache_folder(cache_dir), table)
    if (size := cached.stat().st_size) > LARGE_BYTES:
        logger.info("%s: the rows take %s MB in %s", name, f"{size / 1e6:,.0f}", cached)
    return TrainingData.of(f"{name} ({table.kind})", cached, summary=summary, sha256=sha256, documents=documents)
