"""Load training files (txt, csv, tsv, json and jsonl): check every cell, and memory-map the rows.

Each reader parses one format and yields rows. The rules for all formats (the number of columns, the number of cells
per row, and blank cells) are checked in one place, on the rows that a reader yields. The general loaders of `datasets`
are not used, because they guess types: they read `NA` and `null` as missing cells, `1.5` as a number, and U+2028 as
the end of a line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.data.arrow_cache import cache_folder, cache_key, memory_map, read_summary, write_cache
from dcpcse.data.duplicates import DuplicateCounts
from dcpcse.data.labels import Columns
from dcpcse.data.readers import DataSource, read_table, reader_of, unreadable
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.files import file_sha256

if TYPE_CHECKING:  # imported lazily, since the import takes over a second and would delay `train.py --help`
    from datasets import Dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """The sentences of one training file.

    dataset: a table with the string columns `anchor`, `anchor, positive` or `anchor, positive, negative`. Labelled
    pairs have `label` (a string of `labels.CLASSES`) or `score` (a number) instead of `negative`.
    columns: the names of the columns in the file (`text` for a txt file).
    dropped: number of rows dropped because of a blank cell. dropped_lines: line numbers, from 1, of the first few
    dropped rows (in a JSON array, item numbers from 1).
    repeats: counts of false negatives and uninformative rows (`dcpcse.data.duplicates`).
    classes: label → number of rows, for the labels that occur. scores: the smallest and the largest score.
    sha256: digest of the bytes of the file from which these rows were read; the file may have changed since.
    """

    dataset: Dataset
    sha256: str
    columns: tuple[str, ...]
    dropped: int
    dropped_lines: tuple[int, ...]
    repeats: DuplicateCounts
    classes: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, ...] = ()

    @property
    def roles(self) -> Columns:
        """The columns of the dataset, with the summary of the labels that methods need."""
        return Columns(self.dataset.column_names, self.classes, self.scores)


def load_training_file(
    path: str | Path, cache_dir: str | Path | None = None, *, refresh: bool = False
) -> TrainingData:
    """Load a training file, from the cache folder if an earlier call has read it.

    The cache folder is `cache_dir`, by default `dcpcse` in the cache folder of `datasets`; no other files are written.
    A cached file is found by the digest of its bytes. refresh: read the file again even if it is cached. Rows with
    blank cells are dropped, and one warning reports them. Raises UserError if the file is not valid training data
    (with file and line), if it changes while it is read, or if the cache folder is not writable.
    """
    path = Path(path)
    reader_of(path)  # checks first that the file exists and has a supported extension
    try:
        sha256 = file_sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error
    cached = cache_folder(cache_dir) / f"{cache_key(path, sha256)}.arrow"
    summary = (None if refresh else read_summary(cached)) or write_cache(cached, DataSource(path), sha256)
    _warn_of_dropped(path, **summary)
    return TrainingData(
        dataset=memory_map(cached),
        sha256=sha256,
        columns=tuple(summary["columns"]),
        dropped=summary["dropped"],
        dropped_lines=tuple(summary["dropped_lines"]),
        repeats=DuplicateCounts.of(summary["repeats"]),
        classes=summary["classes"],
        scores=tuple(summary["scores"]),
    )


def locate_rows(path: str | Path, data: TrainingData, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return the row number, the location in the training file and the sentences of each of the given rows.

    The location is `line` (from 1), or `item` in a JSON array. data: what `load_training_file` returned. The file is
    read again; if that fails, or if the file has changed since, the location is left out.
    """
    texts = data.dataset.select(list(rows)).to_list()
    places: dict[int, dict[str, int]] = {}
    with contextlib.suppress(UserError):
        source, wanted = DataSource(Path(path)), set(rows)
        _, complete = read_table(source)
        found = {row: {source.unit: line} for row, (line, _) in enumerate(complete) if row in wanted}
        places = found if source.sha256 == data.sha256 else {}
    return [{"row": row, **places.get(row, {}), **text} for row, text in zip(rows, texts, strict=True)]


def distinct_sentences(path: str | Path) -> tuple[str, ...]:
    """Return the distinct sentences in all columns of a training file; raise the errors of `load_training_file`."""
    data = load_training_file(path)
    return tuple(dict.fromkeys(text for column in data.roles.sentences for text in data.dataset[column]))


def _warn_of_dropped(path: Path, *, dropped: int, dropped_lines: list[int], unit: str, **_: Any) -> None:
    if dropped:
        shown = ", ".join(map(str, dropped_lines)) + (", ..." if dropped > len(dropped_lines) else "")
        logger.warning("%s: dropped %s with blank cells (%s %s)", path, plural(dropped, "row"), unit, shown)
