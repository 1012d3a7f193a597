"""Write and read an index folder.

vectors.npy         unit vectors (N, H), float32, or their codes (N, W) with another precision
ranges.npy          ranges (2, H) of the dimensions, float32 (only with the precisions int8 and uint8)
sentences.jsonl     the sentences, one JSON string per line
centroids.npy       centroids (C, H) of the cells, float32 (only with the backend ivf)
cells.npy           the cell of each vector (N,), int32 (only with the backend ivf)
dcpcse_index.json   format, sizes, backend, identity of the model, sha256 of the text and of the files above

The files contain only numbers and text. Nothing in a folder is executed or unpickled.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict
from numpy.typing import DTypeLike

from dcpcse.encoders.quantization import CODE_TYPES, WITH_RANGES, Quantizer, Vectors
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import (
    atomic_folder,
    file_sha256,
    locked_folder,
    remove,
    remove_leftovers,
    require_writable,
    staging_folder,
    write_json_atomic,
)
from dcpcse.utils.parsing import open_array, open_input, parse_json, read_text

INDEX_FORMAT = 2
RECORD, VECTORS, SENTENCES = "dcpcse_index.json", "vectors.npy", "sentences.jsonl"
CENTROIDS, CELLS = "centroids.npy", "cells.npy"  # only with the backend ivf
RANGES = "ranges.npy"  # only with the precisions int8 and uint8
_FILES = (VECTORS, SENTENCES, CENTROIDS, CELLS, RANGES)


@strict
@dataclass(kw_only=True)
class IndexRecord(schema.Open):
    """The record in an index folder: model, options and checksums of the index."""

    format: int = schema.version(INDEX_FORMAT)
    rows: int | None = schema.count(default=None)
    dimension: int = schema.count()
    precision: str = schema.one_of(tuple(CODE_TYPES), default="float32")
    backend: str = schema.one_of(("exact", "ivf"))
    num_cells_in_search: int | None = schema.between(1, schema.MAX_COUNT)
    model: dict | None
    text: str | None
    truncate_dim: int | None = schema.size(default=None)
    query_prompt: str | None = schema.text(0, default=None)
    sha256: dict[str, str] = schema.sha256()

    def validate_size(self) -> None:
        """Raise ValueError if the size of the vectors differs from the option truncate_dim."""
        if self.truncate_dim not in (None, self.dimension):
            raise ValueError(f"truncate_dim is {self.truncate_dim}, but dimension is {self.dimension}")

    def validate_cells(self) -> None:
        """Raise ValueError if `num_cells_in_search` is set without the backend ivf, or is missing with ivf."""
        if (self.backend == "ivf") != (self.num_cells_in_search is not None):
            number = self.num_cells_in_search
            raise ValueError(f"num_cells_in_search is {number}, but backend is {self.backend} (only ivf has it)")


class SavedSentences(Sequence[str]):
    """The sentences of a saved index. They stay in the file, and only the end offset of each line (8 bytes) is in
    memory.
    """

    def __init__(self, path: Path) -> None:
        with open_input(path) as file:
            self._ends = np.fromiter(itertools.accumulate(map(len, file)), np.int64)
        self._path, self._bytes = path, np.memmap(path, np.uint8, "r")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:
        line = bytes(self._bytes[self._ends[row - 1] if row else 0 : self._ends[row]])
        try:
            sentence = parse_json(line)
            if not isinstance(sentence, str):
                raise ValueError("it is not a JSON string")
        except ValueError as error:
            raise _unusable(self._path.parent, f"{SENTENCES}, line {row + 1}: {error}") from error
        return sentence


def is_index_folder(folder: str | Path) -> bool:
    """Return whether the path is a folder that contains an index."""
    return (Path(folder) / RECORD).is_file()


def require_place(folder: Path, overwrite: bool) -> None:
    """Raise UserError unless the folder is new or empty, or contains an index and `overwrite` is set.

    If the process was killed while an index was replaced, the replacement is completed first.

    Args:
        folder: The folder.
        overwrite: Whether an index in the folder may be replaced.
    """
    if folder.is_dir():
        remove_leftovers(folder, RECORD, finish=_complete)
    if is_index_folder(folder):
        if not overwrite:
            raise UserError(
                f"{folder} already contains an index; give another folder, or overwrite it "
                f"({spell('overwrite', True)})"
            )
        names = _files_of(folder)
        for path in (folder / name for name in _FILES):
            if path.is_dir() or (path.exists() and path.name not in names):
                raise UserError(f"{path} is not part of the index in this folder; move it to another folder")
    elif folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} exists and contains no index; give another folder")
    require_writable(folder if folder.exists() else folder.parent, f"the index {folder}")


def write_index(
    folder: Path,
    overwrite: bool,
    count: int,
    chunks: Iterable[tuple[Sequence[str], np.ndarray]],
    quantizer: Quantizer,
    clustering: Callable[[Vectors], tuple[np.ndarray, np.ndarray]] | None,
    num_cells_in_search: int | None,
    facts: Mapping[str, Any],
) -> None:
    """Write an index of sentences with the codes of their unit vectors atomically, chunk by chunk.

    Args:
        folder: The folder of the index.
        overwrite: Whether to replace an index in the folder.
        count: Number of sentences N.
        chunks: The n sentences and the codes (n, bytes or numbers per vector) of each chunk.
        quantizer: The quantizer that computed the codes.
        clustering: A function that returns the centroids (C, H) and the cells (N,) of the written vectors (N, H). None
            without the backend ivf.
        num_cells_in_search: Number of cells that are searched for each query. None without the backend ivf.
        facts: Entries to add to the record of the index, such as the identity of the model.
    """
    with _new_folder(folder, overwrite) as part:
        with open(part / VECTORS, "wb") as vectors_file, open(part / SENTENCES, "w", encoding="utf-8") as lines:
            for sentences, vectors in chunks:
                if not vectors_file.tell():
                    shape = (count, vectors.shape[1])
                    header = {"descr": vectors.dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(vectors_file, header)
                vectors_file.write(np.ascontiguousarray(vectors).data)
                lines.writelines(json.dumps(sentence, ensure_ascii=False) + "\n" for sentence in sentences)
        if clustering is not None:
            centroids, cells = clustering(quantizer.stored(open_array(part / VECTORS)))
            np.save(part / CENTROIDS, centroids)
            np.save(part / CELLS, cells)
        if quantizer.ranges is not None:
            np.save(part / RANGES, quantizer.ranges)
        record = {"format": INDEX_FORMAT, "rows": count, "dimension": quantizer.dimension}
        record |= {"precision": quantizer.precision} if quantizer.precision != "float32" else {}
        record |= {"backend": "exact" if clustering is None else "ivf", "num_cells_in_search": num_cells_in_search}
        sums = {path.name: file_sha256(path) for path in sorted(part.iterdir())}
        write_json_atomic(part / RECORD, record | {**facts, "sha256": sums})


@contextlib.contextmanager
def _new_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder for an index. It is moved to `folder`, or its files replace the index in `folder`.

    Other files in the folder are never moved. If the process is killed during the replacement, the folder has no
    record, and the next call completes the replacement.
    """
    require_place(folder, overwrite)
    target = folder.resolve()  # so that a symbolic link to a folder is kept
    try:
        if not target.exists():
            with atomic_folder(target) as part:
                yield part
            return
        with staging_folder(target / RECORD) as part:
            yield part
            if is_index_folder(target):
                require_place(folder, overwrite)  # an index may have been written in the meantime
            _replace(target, part)
    except OSError as error:
        raise UserError(f"cannot write the index {folder} ({error.strerror}); give another folder") from error


def _complete(part: Path) -> None:
    """Complete the replacement of an index that was interrupted by a kill, or remove an incomplete new index."""
    if is_index_folder(part):
        _replace(part.parent, part)
    remove(part)


def _replace(folder: Path, part: Path) -> None:
    """Move the files of the complete index `part` to `folder`, where they replace the files of an earlier index.

    The old record is removed first and the new record is moved last, so that a mixture of two indexes is never read.
    """
    with locked_folder(folder):
        names = _files_of(part)
        (folder / RECORD).unlink(missing_ok=True)
        for name in _FILES:
            if (part / name).exists():
                os.replace(part / name, folder / name)
            elif name not in names:
                remove(folder / name)
        os.replace(part / RECORD, folder / RECORD)


def _files_of(folder: Path) -> Collection[str]:
    """Return the names of the files in the record of an index, or of all possible files if the record is damaged."""
    try:
        return set(parse_json(read_text(folder / RECORD))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return _FILES


def read_index(
    folder: str | Path,
) -> tuple[dict[str, Any], SavedSentences, Vectors, tuple[np.ndarray, np.ndarray] | None]:
    """Open an index. Return its record, sentences, vectors (N, H) and, with ivf, centroids (C, H) and cells (N,).

    Sentences and vectors are mapped from their files, not loaded.

    Raises UserError if the folder contains no index, an index in another format, or a file that has changed.
    """
    folder = Path(folder)
    if not is_index_folder(folder):
        problem = f"contains no {RECORD}" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {problem}; give a folder that contains an index")
    try:
        record = schema.read(IndexRecord, folder / RECORD)
        precision, size = record.get("precision", "float32"), record["dimension"]
        has_ranges, has_cells = precision in WITH_RANGES, record["backend"] == "ivf"
        for name in (VECTORS, SENTENCES, *[RANGES] * has_ranges, *[CENTROIDS, CELLS] * has_cells):
            if not (folder / name).is_file():
                raise ValueError(f"{name} is missing")
            if file_sha256(folder / name) != record["sha256"].get(name):
                raise ValueError(f"{name} has changed since it was written")
        ranges = np.array(_rows(folder / RANGES, np.float32, size)) if has_ranges else None
        if ranges is not None and (len(ranges) != 2 or not np.isfinite(ranges).all()):
            raise ValueError(f"{RANGES} contains no ranges")
        quantizer = Quantizer(precision, size, ranges)
        codes = _rows(folder / VECTORS, quantizer.dtype, quantizer.width)
        sentences, vectors = SavedSentences(folder / SENTENCES), quantizer.stored(codes)
        if len(sentences) != len(vectors):
            raise ValueError(f"expected a vector for each of {len(sentences)} sentences, found {len(vectors)}")
        if record.get("rows") not in (None, len(vectors)):
            raise ValueError(f"{RECORD} records {record['rows']} vectors, but {VECTORS} contains {len(vectors)}")
        clusters = None
        if has_cells:
            centroids, cells = _rows(folder / CENTROIDS, np.float32, size), open_array(folder / CELLS)
            if cells.dtype != np.int32 or cells.shape != (len(vectors),):
                raise ValueError(f"{CELLS} contains {cells.dtype} {cells.shape}, not int32 ({len(vectors)},)")
            if cells.min() < 0 or cells.max() >= len(centroids):
                raise ValueError(
                    f"{CELLS} contains numbers of cells that do not exist; there are {len(centroids)} cells"
                )
            clusters = centroids, cells
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error
    return record, sentences, vectors, clusters


def _rows(path: Path, dtype: DTypeLike, size: int) -> np.ndarray:
    array = open_array(path)
    if array.dtype != dtype or array.shape[1:] != (size,) or not array.size or not array.flags.c_contiguous:
        raise ValueError(f"{path.name} contains {array.dtype} {array.shape}, not {np.dtype(dtype)} (rows, {size})")
    return array


def _unusable(folder: Path, problem: object) -> UserError:
    return UserError(f"the index {folder} cannot be used: {problem}; build it again with {spell('overwrite', True)}")
