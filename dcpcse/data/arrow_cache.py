"""The Arrow cache of a training file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dcpcse.data.duplicates import Duplicates
from dcpcse.data.labels import SCORE, LabelCounter, label_kind
from dcpcse.data.readers import ROLES, DataSource, read_table
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:  # importing these takes over a second, which `train.py --help` should not wait for
    import pyarrow as pa
    from datasets import Dataset

READER_VERSION = 3  # raise it when the same file would give other rows: it makes old cache files unused

BATCH_ROWS = 10_000


def cache_folder(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "dcpcse"


def cache_key(path: Path) -> str:
    """A name for this state of the file, as far as its size and time tell."""
    # The name as given decides format and delimiter, and may differ from that of the file a link leads to.
    state = path.stat()
    identity = [str(path.resolve()), path.name, state.st_size, state.st_mtime_ns, READER_VERSION]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def write_cache(cached: Path, source: DataSource) -> dict[str, Any]:
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


def _write_stream(file: BinaryIO, source: DataSource) -> dict[str, Any]:
    import pyarrow as pa

    columns, complete = read_table(source)
    kind = label_kind(columns)
    repeats, tally = Duplicates(len(columns), labelled=kind is not None), LabelCounter(kind)
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


def _no_rows_error(source: DataSource, columns: list[str]) -> UserError:
    found = "no row follows the header"
    if source.dropped:
        found = f"all of its {source.dropped} rows are blank or partly blank"
    return UserError(f"training file {source.path} gives no sentence: {found} (columns {columns}); add some")


def read_summary(cached: Path) -> dict[str, Any] | None:
    """The summary that closes the cache file; None if there is no complete cache file."""
    import pyarrow as pa

    summary = None
    # OSError and ArrowInvalid: not there, or cut off by a crash of the machine; it is then written anew.
    with contextlib.suppress(OSError, pa.ArrowInvalid), pa.memory_map(str(cached)) as file:
        for _, metadata in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
            summary = metadata and json.loads(metadata["summary"])
    return summary


def memory_map(cached: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_file(str(cached))
