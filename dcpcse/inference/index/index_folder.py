"""An index in a folder, written whole or not at all, and read as it is used.

vectors.npy            unit vectors (N, H), float32
sentences.txt          the sentences, UTF-8, end to end
ends.npy               where each sentence ends in it, in bytes (N,)
cells.npy, assigned.npy  with cells only: their centroids (C, H), and the cell of every row (N,)
dcpcse_index.json      format, sizes, checksums, the model that made the vectors, the text they are of

Numbers and text only: nothing in a folder is ever run or unpickled.
"""

import contextlib
import itertools
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dcpcse.inference.index.vector_store import BLOCK
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_writable, write_json_atomic
from dcpcse.utils.npy import open_array
from dcpcse.utils.parsing import parse_json

INDEX_FORMAT = 1
RECORD, VECTORS, SENTENCES, ENDS = "dcpcse_index.json", "vectors.npy", "sentences.txt", "ends.npy"
CENTROIDS, ASSIGNED = "cells.npy", "assigned.npy"
_REQUIRED = {"rows", "dimension", "block", "model", "text", "cells", "checksums"}

Chunk = tuple[list[str], np.ndarray]


class DiskStore:
    """Rows in a folder: mapped into memory, and checked block by block when they are first used."""

    def __init__(self, folder: Path, record: Mapping[str, Any]) -> None:
        self._folder, self._sums = folder, record["checksums"]
        count, dimension = record["rows"], record["dimension"]
        self._vectors = _mapped(folder / VECTORS, (count, dimension), np.float32)
        self._ends = _small(folder / ENDS, (count,), np.int64, self._sums[ENDS])
        size = (folder / SENTENCES).stat().st_size
        if size != self._ends[-1]:
            raise damaged_error(folder / SENTENCES, f"{size} bytes instead of {self._ends[-1]}")
        # A file without a byte cannot be mapped.
        self._text = np.memmap(folder / SENTENCES, np.uint8, "r") if size else np.empty(0, np.uint8)
        self._checked: set[tuple[str, int]] = set()

    def __len__(self) -> int:
        return len(self._ends)

    def blocks(self) -> Iterator[np.ndarray]:
        for number in range(-(-len(self) // BLOCK)):
            yield self._block(number)

    def take(self, rows: np.ndarray) -> np.ndarray:
        for number in np.unique(rows // BLOCK).tolist():
            self._block(number)
        return self._vectors[rows]

    def sentence(self, row: int) -> str:
        number = row // BLOCK
        self._check(SENTENCES, number, self._text[self._start(number * BLOCK) : self._last(number)])
        return bytes(self._text[self._start(row) : self._ends[row]]).decode("utf-8", "surrogatepass")

    def _block(self, number: int) -> np.ndarray:
        block = self._vectors[number * BLOCK : (number + 1) * BLOCK]
        self._check(VECTORS, number, block)
        return block

    def _start(self, row: int) -> int:
        return int(self._ends[row - 1]) if row else 0

    def _last(self, number: int) -> int:
        return int(self._ends[min((number + 1) * BLOCK, len(self)) - 1])

    def _check(self, name: str, number: int, content: np.ndarray) -> None:
        if (name, number) in self._checked:
            return
        if zlib.crc32(content) != self._sums[name][number]:
            raise damaged_error(self._folder / name, f"rows from {number * BLOCK} on are not those that were written")
        self._checked.add((name, number))


@dataclass(frozen=True)
class IndexContents:
    """An index folder as read; cells: centroids, the cell of every row and how many a search looks into."""

    record: Mapping[str, Any]
    rows: DiskStore
    cells: tuple[np.ndarray, np.ndarray, int] | None


def is_index_folder(folder: str | Path) -> bool:
    """Whether a path is a folder that this program wrote an index into."""
    return (Path(folder) / RECORD).is_file()


def require_place(folder: Path, overwrite: bool) -> None:
    """UserError unless an index can be written there; only another index is replaced, and only if asked."""
    if is_index_folder(folder):
        if not overwrite:
            raise UserError(f"{folder} holds an index already; give another folder, or overwrite it")
    elif folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} is there, and is no index; give another folder")
    require_writable(folder.parent, f"the index {folder}")


@contextlib.contextmanager
def atomic_index_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside the given one to write into, which takes its place at the end, or goes if anything fails."""
    require_place(folder, overwrite)
    aside = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        yield aside
        require_place(folder, overwrite)
        _replace(folder, aside)
    except OSError as error:
        raise UserError(f"cannot write the index {folder} ({error.strerror}); give another place") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(folder: Path, aside: Path) -> None:
    """Put what was written in the place of the old index, of which only its own files are removed."""
    if is_index_folder(folder):
        old = folder.with_name(f"{folder.name}.old-{os.getpid()}")
        os.replace(folder, old)
        os.replace(aside, folder)
        for name in (RECORD, VECTORS, SENTENCES, ENDS, CENTROIDS, ASSIGNED):
            (old / name).unlink(missing_ok=True)
        for other in old.iterdir():
            os.replace(other, folder / other.name)
        old.rmdir()
    else:
        os.replace(aside, folder)  # an empty folder gives way


def write_rows(folder: Path, rows: int, chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Write so many sentences with their unit vectors, `BLOCK` at a time; gives dimension and checksums."""
    chunks = iter(chunks)
    first = next(chunks)
    dimension, sums = first[1].shape[1], {VECTORS: [], SENTENCES: []}
    ends = [np.zeros(1, dtype=np.int64)]
    with open(folder / VECTORS, "wb") as vectors_file, open(folder / SENTENCES, "wb") as text_file:
        _open_npy(vectors_file, rows, dimension)
        for sentences, vectors in itertools.chain([first], chunks):
            texts = [sentence.encode("utf-8", "surrogatepass") for sentence in sentences]
            ends.append(ends[-1][-1] + np.cumsum([len(text) for text in texts], dtype=np.int64))
            text, block = b"".join(texts), np.ascontiguousarray(vectors, dtype=np.float32)
            text_file.write(text)
            vectors_file.write(block.data)
            sums[SENTENCES].append(zlib.crc32(text))
            sums[VECTORS].append(zlib.crc32(block))
    return {"dimension": dimension, "checksums": sums | {ENDS: _write_small(folder / ENDS, np.concatenate(ends[1:]))}}


def _open_npy(file: BinaryIO, rows: int, dimension: int) -> None:
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": (rows, dimension)}
    np.lib.format.write_array_header_1_0(file, header)


def write_cells(folder: Path, centroids: np.ndarray, assigned: np.ndarray) -> dict[str, int]:
    """Write cells, and the cell of every row; gives their checksums."""
    arrays = {CENTROIDS: centroids.astype(np.float32), ASSIGNED: assigned.astype(np.int32)}
    return {name: _write_small(folder / name, array) for name, array in arrays.items()}


def _write_small(path: Path, array: np.ndarray) -> int:
    np.save(path, array)
    return zlib.crc32(np.ascontiguousarray(array))


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """The last file of an index."""
    write_json_atomic(folder / RECORD, {"format": INDEX_FORMAT, "block": BLOCK, **record})


def read_index(folder: str | Path) -> IndexContents:
    """Open an index folder; UserError for one that is foreign, not whole or damaged.

    Vectors and sentences are read, and checked, as they are used.
    """
    folder = Path(folder)
    record = _read_record(folder)
    count, sums = record["rows"], record["checksums"]
    try:
        rows, cells = DiskStore(folder, record), None
        if record["cells"] is not None:
            shape = (record["cells"]["num_cells"], record["dimension"])
            centroids = _small(folder / CENTROIDS, shape, np.float32, sums[CENTROIDS])
            assigned = _small(folder / ASSIGNED, (count,), np.int32, sums[ASSIGNED])
            if assigned.min() < 0 or assigned.max() >= len(centroids):
                raise damaged_error(folder / ASSIGNED, f"there are {len(centroids)} cells, and it names others")
            cells = centroids, assigned, int(record["cells"]["num_cells_in_search"])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise damaged_error(folder / RECORD, f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise damaged_error(folder, error.strerror or str(error)) from error
    return IndexContents(record, rows, cells)


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.is_file():
        what = f"holds no {RECORD}" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {what}; give a folder that an index was saved in")
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged_error(path, str(error)) from error
    found = record.get("format") if isinstance(record, dict) else None
    if found != INDEX_FORMAT:
        raise UserError(f"{path} has format {found!r}; this version reads format {INDEX_FORMAT}")
    if missing := _REQUIRED - set(record):
        raise damaged_error(path, f"it lacks {sorted(missing)}")
    _require_counts(path, record)
    return record


def _require_counts(path: Path, record: Mapping[str, Any]) -> None:
    counts = {name: record[name] for name in ("rows", "dimension", "block")}
    if not all(isinstance(value, int) and value > 0 for value in counts.values()) or record["block"] != BLOCK:
        raise damaged_error(path, f"{counts} cannot be")
    blocks, sums = -(-record["rows"] // BLOCK), record["checksums"]
    if not isinstance(sums, dict) or any(len(sums.get(name) or ()) != blocks for name in (VECTORS, SENTENCES)):
        raise damaged_error(path, f"there is not a checksum for each of {blocks} blocks")


def _mapped(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise damaged_error(path, str(error)) from error
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise damaged_error(path, f"{array.dtype} {array.shape}; {np.dtype(dtype)} {shape} is expected")
    return array


def _small(path: Path, shape: tuple[int, ...], dtype: type, checksum: int) -> np.ndarray:
    array = np.array(_mapped(path, shape, dtype))
    if zlib.crc32(np.ascontiguousarray(array)) != checksum:
        raise damaged_error(path, "its numbers are not those that were written")
    return array


def damaged_error(path: Path, problem: str) -> UserError:
    """The complaint about a file of an index."""
    return UserError(f"{path} is damaged ({problem}); build the index again")
