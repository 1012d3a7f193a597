"""Files of weights told by their head, with bounds on what a foreign one can cost. Read without torch."""

import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dcpcse.utils.errors import UserError

MAX_HEADER_BYTES = 16 * 2**20
"""Bytes; some hundred thousand tensors. safetensors takes six times as many, over which it sits for minutes."""

HEADER_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of weights in a file, and their names elsewhere."""

_READ = {*HEADER_DTYPES, "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
"""Also those of buffers, such as positions. Float8 and complex numbers have no use here, nor tests for NaN."""

TensorHeaders = Mapping[str, tuple[list[int], str]]
"""Tensor → shape and type."""


def read_header(path: Path) -> TensorHeaders:
    """What the head of a safetensors file tells; UserError names the file and what is wrong with it."""
    if not path.is_file():
        raise UserError(f"{path} is missing; the folder is not complete")
    try:
        _require_short_header(path)
        with safe_open(path, framework="numpy") as file:
            names = file.keys()
            slices = {name: file.get_slice(name) for name in names}
            found = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}); copy the folder again") from error
    for name, (_, dtype) in found.items():
        if dtype not in _READ:
            raise UserError(f"{path} holds '{name}' in {dtype}; weights are {', '.join(HEADER_DTYPES.values())}")
    return found


def _require_short_header(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(8)
    if len(start) == 8 and (length := struct.unpack("<Q", start)[0]) > MAX_HEADER_BYTES:
        raise UserError(f"{path} has a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
