"""Load training files (txt, csv, tsv, json and jsonl): check every cell, and memory-map the rows.

Each reader parses one format and yields rows. The rules for all formats (the number of columns, the number of cells
per row, and blank cells) are checked in one place, on the rows that a reader yields. The general loaders of `datasets`
are not used, because they guess types: they read `NA` and `null` as missing cells, `1.5` as a number, and U+2028 as
the end of a line.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.data.arrow_cache import BATCH_ROWS, cache_folder, cache_key, memory_map, read_summary, write_cache
from dcpcse.data.columns import Columns
from dcpcse.data.duplicates import DuplicateCounts
from dcpcse.data.file_format import warn_of_format
from dcpcse.data.readers import DataSource, read_table, reader_of, unreadable
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.files import file_sha256

if TYPE_CHECKING:  # imported lazily, since the import takes over a second and would delay `train.py --help`
    from datasets import Dataset

logger = logging.getLogger(__name__)

Breaks = Callable[[], Sequence[int]]
"""A function without arguments that returns the rows of a dataset before which a row with blank cells was dropped."""

Places = Callable[[Set[int]], Mapping[int, Mapping[str, int]]]
"""A function from rows of a dataset to their locations, such as {"line": 3}; rows of unknown location are left out."""


@dataclass(frozen=True)
class TrainingData:
    """The sentences of one training file, or of one Python object.

    dataset: a table whose columns are named by their roles (`dcpcse.data.columns`): `anchor`, positives and hard
    negatives, all strings; or with labels, `label` (a string of `labels.CLASSES`), `score` (a number) or `class` (a
    string) as the last column.
    name: the path, or the name and the kind of the object, for messages and for the record of a run.
    columns: the names of the columns in the file (`text` for a txt file).
    dropped: number of rows dropped because of a blank cell. dropped_lines: line numbers, from 1, of the first few
    dropped rows (in a JSON array, item numbers; in an object, row numbers). unit: `line`, `item` or `row`.
    repeats: counts of false negatives and uninformative rows (`dcpcse.data.duplicates`).
    classes: label → number of rows, for the labels that occur. scores: the smallest and the largest score. problems:
    descriptions of columns that are probably not what they are taken for (`dcpcse.data.column_checks`).
    sha256: digest of the bytes of the file from which these rows were read (the file may have changed since), or of
    the rows of an object.
    places: function from rows of the dataset to their locations in the file or object; see `locate`. breaks: function
    that returns the rows before which rows with blank cells were dropped, as between documents; a file is read again.
    """

    name: str
    dataset: Dataset
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
    ) -> TrainingData:
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

        The location is `line` (from 1) in a file, `item` in a JSON array, and `given_row` (from 1) in a Python object.
        A file is read again; if that fails, or if the file has changed since, the location is left out.
        """
        texts, places = self.dataset.select(list(rows)).to_list(), self.places(set(rows))
        return [{"row": row, **places.get(row, {}), **text} for row, text in zip(rows, texts, strict=True)]


def load_training_file(
    path: str | Path, cache_dir: str | Path | None = None, *, refresh: bool = False, documents: bool = False
) -> TrainingData:
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
        sha256 = file_sha256(path)
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
        locations = {row: {source.unit: line} for row, (line, _) in enumerate(complete) if row in rows}
        return locations if source.sha256 == sha256 else {}
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
