"""Save encoded chunks as files. An interrupted run resumes from these files. At the end, they are joined to OUT.

OUT.parts/job.json       model, text and options from which OUT is built
OUT.parts/00000000.npz   vectors and number of truncated texts of the first chunk (one file for each chunk)
OUT.json                 model, text and options from which the finished OUT was built, and the size of OUT

Files with other names in OUT.parts are neither written nor removed.
"""

import contextlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from huggingface_hub.dataclasses import strict

from dcpcse.inference.file_encoding.encode_job import EncodedChunk
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError, same_call, spell
from dcpcse.utils.files import atomic_file, fsync, remove_leftovers, write_atomic
from dcpcse.utils.job_folder import JobFolder
from dcpcse.utils.locks import LOCK, exclusive_lock
from dcpcse.utils.option_fields import without_removed_defaults
from dcpcse.utils.parsing import BROKEN_HEADERS


@strict
@dataclass(kw_only=True)
class _Text(schema.Open):
    lines: int = schema.count()
    sha256: str = schema.sha256()


@strict
@dataclass(kw_only=True)
class MadeOf(schema.Open):
    """Everything that determines the bytes of an output file of `encode_file`."""

    format: int = schema.count(default=1)
    model: dict
    text: _Text
    options: dict = field(default_factory=dict)


@strict
@dataclass(kw_only=True)
class OutputRecord(schema.Open):
    """The record of an output file OUT: what it was made of. It is saved as OUT.json and OUT.parts/job.json."""

    made_of: MadeOf
    chunks: int | None = schema.count(default=None)
    truncated: int | None = schema.count(default=None)
    bytes: int | None = schema.count(default=None)


_SHARD = re.compile(r"\d{8}\.npz(\.part)?")
"""Names of shards. Earlier versions first wrote a shard under the second name."""


def parts_folder(output: Path) -> Path:
    """Return the folder of the shards of an output file."""
    return output.with_name(f"{output.name}.parts")


class Shards:
    """The shards of an output file. Each shard contains one encoded chunk until all shards are joined.

    A shard gets its final name after it is written, so every existing shard is complete. The caller holds the lock of
    the folder. `start`, `save` and `join` raise UserError if a file cannot be written.

    Args:
        output: The output file.
        made_of: Everything that determines the bytes of the output, as JSON values.
        count: Number of chunks.
        shape: A function that returns the shape (n, H) of the vectors of a chunk, given the number of the chunk.
        dtype: Data type of the vectors.
    """

    def __init__(
        self,
        output: Path,
        made_of: Mapping[str, Any],
        count: int,
        shape: Callable[[int], tuple[int, int]],
        dtype: str,
    ) -> None:
        self.output, self.folder = output, parts_folder(output)
        self._count, self._shape, self.dtype = count, shape, np.dtype(dtype)
        self._remedy = f"choose a different {spell('output')}, or add {spell('overwrite', True)}"
        options = {"kind": OutputRecord, "convert": _without_removed_options, "remedy": self._remedy}
        self._job = JobFolder(self.folder, "job.json", made_of, str(output), **options)
        self._result = JobFolder(output.parent, f"{output.name}.json", made_of, str(output), **options)

    def lock(self) -> AbstractContextManager[None]:
        """Return a context that holds the lock of the folder, so that no other process writes shards."""
        return exclusive_lock(self.folder, spell("output", self.output))

    def finished(self) -> dict[str, Any] | None:
        """Return the record of the output file, or None if the file is not finished.

        Shards that a killed run left after it had joined them are removed.
        """
        record = _of_this_job(self._result)
        if record is None or record.get("truncated") is None or record.get("bytes") != _size(self.output):
            return None
        if _of_this_job(self._job):
            self._remove()
        return record

    def start(self, overwrite: bool) -> list[int]:
        """Start or resume the job and return the numbers of the missing chunks.

        Raises UserError if files of a different job or of unknown origin exist. With `overwrite`, these files are
        replaced, except files of unknown origin that have the name of the record or of a shard.
        """
        with self._disk_errors():
            remove_leftovers(self.folder)
            if _of_this_job(self._job) is None:
                self._require_room(overwrite)
                self._clear()
                self._job.write({"chunks": self._count})
            # It is not enough that a file exists: after a power failure, it may have a name without content.
            return [number for number in range(self._count) if not zipfile.is_zipfile(self._path(number))]

    def save(self, number: int, chunk: EncodedChunk) -> None:
        """Save a chunk as a shard.

        Args:
            number: Number of the chunk.
            chunk: The encoded chunk.
        """
        content = io.BytesIO()
        np.savez(content, vectors=chunk.vectors, truncated=chunk.truncated)
        with self._disk_errors():
            write_atomic(self._path(number), content.getvalue())
            fsync(self._path(number))

    def join(self, write: Callable[[BinaryIO, Iterator[np.ndarray]], None]) -> dict[str, Any]:
        """Join the shards to the output, remove them, and return the record that is written next to the output.

        Args:
            write: A function that writes the vectors of all chunks, in order, to a temporary file.
        """
        truncated = []

        def vectors() -> Iterator[np.ndarray]:
            for number in range(self._count):
                chunk = self._load(number)
                truncated.append(chunk.truncated)
                yield chunk.vectors

        with self._disk_errors():
            with atomic_file(self.output) as file:
                write(file, vectors())
                file.flush()
                fsync(file.fileno())
                facts = {"truncated": sum(truncated), "bytes": file.tell()}
                self._result.path.unlink(
                    missing_ok=True
                )  # the record describes the old output, which is replaced next
            record = self._result.write(facts)
            fsync(self.output.parent)
            self._remove()
        return record

    def _load(self, number: int) -> EncodedChunk:
        """Load a shard. Raises UserError if its checksums, shapes or types are wrong."""
        path, shape = self._path(number), self._shape(number)
        try:
            with np.load(path) as shard:
                vectors, truncated = shard["vectors"], shard["truncated"]
            if vectors.dtype != self.dtype or vectors.shape != shape:
                raise ValueError(f"its vectors are {vectors.dtype} {vectors.shape}, not {self.dtype} {shape}")
            if truncated.dtype.kind != "i" or truncated.shape != () or not 0 <= truncated <= len(vectors):
                raise ValueError(f"truncated, a number of texts, must be 0 to {len(vectors)}, not {truncated!r:.60}")
            return EncodedChunk(vectors, int(truncated))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, *BROKEN_HEADERS) as error:
            raise UserError(f"{path} is damaged ({error}); remove it and repeat {same_call()}") from error

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}.npz"

    def _require_room(self, overwrite: bool) -> None:
        """Raise UserError if files of another job or of unknown origin would be overwritten."""
        job, record = (saved.read(same=not overwrite) for saved in (self._job, self._result))
        if record and self.output.exists() and not overwrite:
            raise UserError(f"{self.output} is not the file that {self._result.path} describes; {self._remedy}")
        # Links and folders with the names of records, and shards without a record of their job.
        unknown = [saved.path for saved in (self._job, self._result) if _is_no_file(saved.path)]
        unknown += [] if job else self._shards()
        if not overwrite:
            unknown += [self.folder] if not job and any(path.name != LOCK for path in self.folder.iterdir()) else []
            unknown += [self.output] if not record and os.path.lexists(self.output) else []
        if unknown:
            remedy = f"move it, or choose a different {spell('output')}"
            raise UserError(f"{unknown[0]} exists and was not written by dcpcse encode; {remedy}")

    def _shards(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if _SHARD.fullmatch(path.name)]

    def _clear(self) -> None:
        remove_leftovers(self.folder)
        for path in self._shards():
            path.unlink()

    def _remove(self) -> None:
        self._clear()
        self._job.path.unlink()  # removed last, since shards without it would be of unknown origin

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write {self.output}: {error.strerror}; fix this and repeat {same_call()} to resume"
            ) from error


def _of_this_job(saved: JobFolder) -> dict[str, Any] | None:
    """Return the record of this job, or None if there is no record or if the record belongs to another job."""
    try:
        return saved.read()
    except UserError:
        return None


def _without_removed_options(record: dict[str, Any]) -> dict[str, Any]:
    made_of = record["made_of"]
    return {**record, "made_of": {**made_of, "options": without_removed_defaults(made_of["options"])}}


def _is_no_file(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_file()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
