"""Files of weights: their heads, and whether every number in them is finite; a tensor at a time, without torch."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from dcpcse.doctor.findings import Findings, fault, ok
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.safetensors_header import HEADER_DTYPES, read_header

_BY_NUMPY = {"F64", "F32", "F16"}
_WHOLE = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
"""Types that numpy can look into, and those of numbers that are finite in any case."""


def check_tensors(path: Path, what: str) -> Findings:
    """Number, types and values of the tensors in a file."""
    try:
        tensors = read_header(path)
        bad = _not_finite(path, [name for name, (_, kind) in tensors.items() if kind in _BY_NUMPY])
    except UserError as error:
        yield fault(what, str(error))
        return
    except (SafetensorError, OSError) as error:
        yield fault(what, f"{path} is damaged ({first_line(error)}); copy it again")
        return
    for name in bad:
        yield fault(what, f"{path.name} holds NaN or infinite numbers in {name!r}; the training that wrote it failed")
    if not bad:
        numbers = sum(int(np.prod(shape)) for shape, _ in tensors.values())
        kinds = ", ".join(sorted({HEADER_DTYPES.get(kind, kind.lower()) for _, kind in tensors.values()}))
        looked = (
            "all finite" if {kind for _, kind in tensors.values()} <= _BY_NUMPY | _WHOLE else "values not looked at"
        )
        yield ok(what, f"{path.name}: {len(tensors)} tensors, {numbers:,} numbers in {kinds}, {looked}")


def _not_finite(path: Path, names: list[str]) -> list[str]:
    with safe_open(path, framework="numpy") as file:
        return [name for name in names if not np.isfinite(file.get_tensor(name)).all()]
