"""Write the vectors (n, H) of all chunks to an output file, with one function for each file format."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dcpcse.utils.errors import OptionError, UserError, spell

Vectors = Iterator[np.ndarray]
Sentences = Iterator[list[str]] | None
Writer = Callable[[BinaryIO, Vectors, Sentences, tuple[int, int], str], None]
"""A function of the open file, vectors and sentences (or None) of each chunk, the shape (N, H), and the dtype."""


def write_npy(file: BinaryIO, vectors: Vectors, sentences: Sentences, shape: tuple[int, int], dtype: str) -> None:
    """Write all vectors as one array, which `np.load(..., mmap_mode="r")` can map to memory.

    Args:
        file: The file.
        vectors: The vectors of each chunk.
        sentences: Not used, because the format contains only vectors.
        shape: Shape (N, H) of all vectors.
        dtype: Type of the numbers, such as "float32".
    """
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for chunk in vectors:
        file.write(np.ascontiguousarray(chunk))


def write_arrow(file: BinaryIO, vectors: Vectors, sentences: Sentences, shape: tuple[int, int], dtype: str) -> None:
    """Write an Arrow IPC stream with a column `vector` of fixed-size lists.

    If sentences are given, the stream also has a column `sentence`, before the column `vector`.

    Args:
        file: The file.
        vectors: The vectors of each chunk.
        sentences: The sentences of each chunk, or None.
        shape: Shape (N, H) of all vectors.
        dtype: Type of the numbers, such as "float32".
    """
    import pyarrow as pa

    number = pa.field("item", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False)
    fields = [pa.field("sentence", pa.string(), nullable=False)] if sentences else []
    fields.append(pa.field("vector", pa.list_(number, shape[1]), nullable=False))
    schema = pa.schema(fields)
    with pa.ipc.new_stream(file, schema) as stream:
        for chunk in vectors:
            columns = [pa.array(next(sentences), pa.string())] if sentences else []
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(chunk.reshape(-1)), type=fields[-1].type))
            stream.write_batch(pa.record_batch(columns, schema=schema))


WRITERS: dict[str, Writer] = {".npy": write_npy, ".arrow": write_arrow}


def writer_for(output: Path, with_sentences: bool) -> Writer:
    """Return the writer for the extension of the output file.

    Raises UserError if the extension is unknown, or if the format cannot contain sentences.

    Args:
        output: The output file.
        with_sentences: Whether the output file also contains the sentences.
    """
    if output.suffix not in WRITERS:
        extension = f"the extension {output.suffix!r}" if output.suffix else "no extension"
        raise UserError(f"{spell('output', output)} has {extension}; choose one of {', '.join(WRITERS)}")
    if with_sentences and output.suffix == ".npy":
        raise OptionError(
            "with_sentences",
            True,
            "a .npy file contains only vectors",
            f"write {spell('output', 'OUT.arrow')} instead",
        )
    return WRITERS[output.suffix]
