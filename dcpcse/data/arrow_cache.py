"""Cache the rows of training data in Arrow files, which can be memory-mapped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dcpcse.data.cache_summary import CacheSummary
from dcpcse.data.column_checks import ColumnContents, score_problem
from dcpcse.data.columns import SCORE, Header
from dcpcse.data.duplicates import Duplicates
from dcpcse.data.labels import LabelCounter
from dcpcse.data.readers import DataSource, FileRow, RowSource, delimiter_of, read_table
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import atomic_file, staging_folder
from dcpcse.utils.parsing import open_input
from dcpcse.utils.schema import parse

if TYPE_CHECKING:  # imported lazily, since the import takes over a second and would delay `train.py --help`
    import pyarrow as pa
    from datasets import Dataset

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
    identity = [sha256, path.suffix.lower(), delimiter_of(path), READER_VERSION]
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

    repeats, tally = Duplicates(header.roles), LabelCounter(header.target)
    contents = ColumnContents(header)
    schema = pa.schema([(role, pa.float64() if role == SCORE else pa.string()) for role in header.roles])
    with pa.ipc.new_stream(file, schema) as writer:
        while batch := list(islice(complete, BATCH_ROWS)):
            repeats.add(batch)
            tally.add(batch)
            contents.add(batch)
            writer.write_batch(_record_batch(zip(*(cells for _, cells in batch), strict=True), schema))
        if not writer.stats.num_record_batches:
            raise _no_rows_error(source, list(header.names))
        column_problems = contents.problems(source.leave_out)
        if fatal := next((problem.text for problem in column_problems if problem.is_fatal), None):
            raise UserError(f"{source.described}: {fatal}")
        problems = [*(problem.text for problem in column_problems), *filter(None, [score_problem(header)])]
        # The summary is not in the schema's metadata, which is written before the number of dropped rows is known.
        labels = {"classes": tally.classes, "scores": tally.scores}
        summary = {**source.summary(header), **labels, "problems": problems, "repeats": repeats.found().as_dict()}
        end = _record_batch([[] for _ in header.names], schema)
        writer.write_batch(end, custom_metadata={"summary": json.dumps(summary)})
    return summary


def _record_batch(columns: Iterable[Sequence[str]], schema: pa.Schema) -> pa.RecordBatch:
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


def memory_map(cached: Path) -> Dataset:
    """Open a cache file as a memory-mapped dataset."""
    from datasets import Dataset

    return Dataset.from_file(str(cached))
