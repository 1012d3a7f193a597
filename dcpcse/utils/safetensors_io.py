"""Reading and writing safetensors files, with checks of names, shapes and values."""

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
"""Name of a type for the weights of a frozen encoder → the type."""

BROKEN_PICKLE = (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
BROKEN_PICKLE += (AssertionError, MemoryError, struct.error, pickle.UnpicklingError, zipfile.BadZipFile)
"""Exceptions that `torch.load(weights_only=True)` raises if a file is damaged or contains more than tensors."""


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises UserError if the file is missing or damaged, or if a value is not finite.
    """
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
    """Raise UserError, with the file and the first such tensor, if a tensor contains NaN or infinite values.

    Args:
        path: The file, for the message.
        tensors: Its tensors by name.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{path} contains NaN or infinite values in '{name}'; the training that wrote it failed")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically.

    Args:
        path: The file.
        tensors: The tensors by name.
    """
    # save_file is not used, because only the owner could read its files.
    on_cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(on_cpu, metadata={"format": "pt"}))


def require_same_tensors(what: str, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> None:
    """Raise UserError unless expected and actual tensors have the same names and shapes.

    Args:
        what: What contains the tensors, for messages.
        expected: The expected tensors by name.
        actual: The actual ones.
    """
    if missing := set(expected) - set(actual):
        raise UserError(f"{what} lacks {listed(missing)}; copy the folder again")
    if extra := set(actual) - set(expected):
        raise UserError(f"{what} contains {listed(extra)}, which this model does not have")
    for name, tensor in expected.items():
        if tensor.shape != actual[name].shape:
            raise UserError(
                f"{what}: '{name}' has shape {tuple(actual[name].shape)}; {tuple(tensor.shape)} is expected"
            )


def listed(names: Collection[str], most: int = 4) -> str:
    """Return a text for messages: the first names in alphabetical order, and the number of the others.

    Args:
        names: The names.
        most: Largest number of names.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{sorted(names)[:most]}{more}"


def set_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the parameters of a module to a type. Buffers are kept: rotary frequencies would lose precision.

    Args:
        module: The module.
        dtype: The type.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
