"""Files of tensors and of JSON, read with their faults named."""

import pickle
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_atomic
from dcpcse.utils.safetensors_header import read_header

TORCH_DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
"""Types that the weights of a frozen encoder may have."""

BROKEN_PICKLE = (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
BROKEN_PICKLE += (AssertionError, MemoryError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile)
"""What `torch.load(weights_only=True)` raises for files that torch.save did not write whole, with tensors alone."""


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, all finite; UserError names the file."""
    if not path.is_file():
        raise UserError(f"{path} is missing; the model folder is not complete")
    read_header(path)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); copy the folder again") from error
    require_finite(path, tensors)
    return tensors


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """UserError that names the file and the first tensor in it with NaN or infinite numbers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{path} holds NaN or infinite numbers in '{name}'; the training that wrote it failed")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    # Not by save_file, whose files only their owner can read.
    on_cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(on_cpu, metadata={"format": "pt"}))


def require_same_tensors(what: str, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """UserError unless both hold the same names with the same shapes."""
    if missing := set(expected) - set(found):
        raise UserError(f"{what} lacks {listed(missing)}; copy the folder again")
    if extra := set(found) - set(expected):
        raise UserError(f"{what} holds {listed(extra)}, which this model does not have")
    for name, tensor in expected.items():
        if tensor.shape != found[name].shape:
            raise UserError(
                f"{what}: '{name}' has shape {tuple(found[name].shape)}; {tuple(tensor.shape)} is expected"
            )


def listed(names: Collection[str], most: int = 4) -> str:
    """Names in order for a message of one line, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{sorted(names)[:most]}{more}"


def set_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Keep the parameters of a module in this type; not its buffers: rotary frequencies would be spoilt."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
