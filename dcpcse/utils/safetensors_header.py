"""A reader of the headers of safetensors files without torch; a malicious file cannot cost much time or memory."""

import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import open_input

MAX_HEADER_BYTES = 16 * 2**20
"""Maximum size of a header, enough for about 100,000 tensors. safetensors allows six times as much, which takes
minutes."""

POINTER = b"version https://git-lfs.github.com/spec/"
"""Start of the text file that git writes instead of a large file that was not downloaded."""

HEADER_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Name of a type of weights in a file → its name in torch and numpy."""

_READ = {*HEADER_DTYPES, "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
"""All supported types, including types of buffers such as positions; float8 and complex types are not supported."""

TensorHeaders = Mapping[str, tuple[list[int], str]]
"""Name of a tensor → its shape and type."""


def read_header(path: Path) -> TensorHeaders:
    """Return the header of a safetensors file: name of a tensor → shape and type.

    Raises UserError if the header is invalid.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; the folder is not complete: copy it again")
    try:
        _require_short_header(path)
        with safe_open(path, framework="numpy") as file:
            names = file.keys()
            slices = {name: file.get_slice(name) for name in names}
            header = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}); copy the folder again") from error
    for name, (_, dtype) in header.items():
        if dtype not in _READ:
            known = " or ".join(HEADER_DTYPES.values())
            raise UserError(f"{path}: '{name}' is of type {dtype}; convert it to {known}")
    return header


def require_no_pointer(path: Path) -> None:
    """Raise UserError if a file of weights is only a git-lfs pointer."""
    with open_input(path) as file:
        is_pointer = file.read(len(POINTER)) == POINTER
    if is_pointer:
        raise UserError(f"{path} is a pointer of git-lfs, not the weights; run git lfs pull in its folder")


def _require_short_header(path: Path) -> None:
    require_no_pointer(path)
    with open_input(path) as file:
        start = file.read(8)
    if len(start) == 8 and (length := struct.unpack("<Q", start)[0]) > MAX_HEADER_BYTES:
        raise UserError(
            f"{path} has a header of {length:,} bytes, but at most {MAX_HEADER_BYTES:,} are allowed; copy it again"
        )
