"""The kinds of file that vectors are written to, as bytes that follow each other: opening, pieces, closing."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from dcpcse.utils.errors import UserError

Bytes = bytes | memoryview


class Format(Protocol):
    """A kind of file; pieces come in the order of the rows."""

    opening: bytes
    closing: bytes

    def piece(self, vectors: np.ndarray, sentences: Sequence[str] | None) -> Iterable[Bytes]:
        """The bytes of some rows: vectors (n, H), and the sentences where the file holds them."""


class Npy:
    """numpy's own file of one array (rows, H), which `np.load(..., mmap_mode="r")` opens without reading it."""

    closing = b""

    def __init__(self, rows: int, dimension: int, dtype: str, with_sentences: bool) -> None:
        if with_sentences:
            raise UserError("--with_sentences: a .npy file holds vectors only; give --output OUT.arrow")
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (rows, dimension)}
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, header)
        self.opening = file.getvalue()

    def piece(self, vectors: np.ndarray, sentences: Sequence[str] | None) -> Iterable[Bytes]:
        return [np.ascontiguousarray(vectors).reshape(-1).view(np.uint8).data]


class ArrowStream:
    """Arrow's IPC stream: a column `vector` of lists of H numbers and, by choice, one of the sentences.

    A piece is a record batch; messages follow each other, so that a file can be gone on with.
    """

    closing = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    """End of stream, as the format has it."""

    def __init__(self, rows: int, dimension: int, dtype: str, with_sentences: bool) -> None:
        import pyarrow as pa

        fields = [pa.field("sentence", pa.string(), nullable=False)] if with_sentences else []
        number = pa.float16() if dtype == "float16" else pa.float32()
        fields.append(
            pa.field("vector", pa.list_(pa.field("item", number, nullable=False), dimension), nullable=False)
        )
        self._schema = pa.schema(fields)
        self.opening = self._schema.serialize().to_pybytes()

    def piece(self, vectors: np.ndarray, sentences: Sequence[str] | None) -> Iterable[Bytes]:
        import pyarrow as pa

        kind = self._schema.field("vector").type
        columns = [pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind)]
        if sentences is not None:
            columns.insert(0, pa.array(sentences, pa.string()))
        return [memoryview(pa.record_batch(columns, schema=self._schema).serialize())]


FORMATS = {".npy": Npy, ".arrow": ArrowStream}


def format_of(output: Path) -> type[Npy] | type[ArrowStream]:
    """The kind of file by its extension; UserError for an unknown one."""
    if output.suffix not in FORMATS:
        found = f"the extension {output.suffix!r}" if output.suffix else "no extension"
        raise UserError(f"--output {output} has {found}; give one of {', '.join(FORMATS)}")
    return FORMATS[output.suffix]
