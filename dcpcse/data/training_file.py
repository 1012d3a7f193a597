"""Training files: txt, csv, tsv, json and jsonl, checked cell by cell and memory-mapped.

The readers know one format each and yield rows; whatever holds for every format (how many columns, what is
blank, how many cells a row has) is checked in one place below them. The general loaders of `datasets` are not
used because they guess: `NA` and `null` become missing cells, `1.5` a number, and U+2028 the end of a line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.data.arrow_cache import cache_folder, cache_key, memory_map, read_summary, write_cache
from dcpcse.data.duplicates import DuplicateCounts
from dcpcse.data.labels import Columns
from dcpcse.data.readers import DataSource, complete_rows, reader_of, take_columns
from dcpcse.utils.errors import UserError, plural

if TYPE_CHECKING:  # importing these takes over a second, which `train.py --help` should not wait for
    from datasets import Dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """The sentences of one training file.

    dataset: string columns `anchor`; `anchor, positive`; or `anchor, positive, negative`; instead of the last one
    `label`, a string of `labels.CLASSES`, or `score`, a number.
    columns: the names that the file itself gives them (a txt file: `text`).
    dropped: number of rows left out for a blank cell; dropped_lines: where the first few of them start, as
    line numbers from 1 (in a JSON array: item numbers from 1).
    repeats: rows that are false negatives, or teach nothing (`dcpcse.data.duplicates`).
    classes: number of rows by label, of the labels that occur; scores: the least and the largest.
    """

    dataset: Dataset
    columns: tuple[str, ...]
    dropped: int
    dropped_lines: tuple[int, ...]
    repeats: DuplicateCounts
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
    cached = cache_folder(cache_dir) / f"{cache_key(path)}.arrow"
    summary = (None if refresh else read_summary(cached)) or write_cache(cached, DataSource(path))
    _warn_of_dropped(path, **summary)
    return TrainingData(
        dataset=memory_map(cached),
        columns=tuple(summary["columns"]),
        dropped=summary["dropped"],
        dropped_lines=tuple(summary["dropped_lines"]),
        repeats=DuplicateCounts.of(summary["repeats"]),
        classes=summary["classes"],
        scores=tuple(summary["scores"]),
    )


def locate_rows(path: str | Path, data: Dataset, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Where rows of a training file stand in it (`line` from 1, `item` of a JSON array), with number and sentences.

    data: what `load_training_file` made of the file, which is read again; the place is left out where it cannot be.
    """
    texts = data.select(list(rows)).to_list()
    places: dict[int, dict[str, int]] = {}
    with contextlib.suppress(UserError):
        source = DataSource(Path(path))
        lines = reader_of(source.path)(source)
        complete = complete_rows(source, take_columns(source, lines), lines)
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
        logger.warning("%s: dropped %s, blank or partly blank (%s %s)", path, plural(dropped, "row"), unit, shown)
