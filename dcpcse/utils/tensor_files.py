"""Reading and writing safetensors files, and reading files of torch.save without running code."""

import pickle
import re
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_atomic
from dcpcse.utils.safetensors_header import TensorHeaders, read_header, require_no_pointer

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
        raise UserError(f"{path} is missing; the model folder is not complete: copy it again")
    read_header(path)
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); copy the folder again") from error
    require_finite(path, tensors)
    return tensors


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError if a tensor contains NaN or infinite values. The message names the file and the tensor.

    Args:
        path: The file, for the message.
        tensors: The tensors of the file by name.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(
                f"{path} contains NaN or infinite values in '{name}'; the training that wrote it failed: give another "
                "file"
            )


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
        what: The file or model with the tensors, for messages.
        expected: The expected tensors by name.
        actual: The actual tensors by name.
    """
    if missing := set(expected) - set(actual):
        raise UserError(f"{what} lacks {listed(missing)}; copy the folder again")
    if extra := set(actual) - set(expected):
        raise UserError(f"{what} contains {listed(extra)}, which this model does not have; give weights of this model")
    for name, tensor in expected.items():
        if tensor.shape != actual[name].shape:
            raise UserError(
                f"{what}: expected '{name}' with shape {tuple(tensor.shape)} but found {tuple(actual[name].shape)}; "
                "give weights of this model"
            )


def listed(names: Collection[str], most: int = 4) -> str:
    """Return a text for messages: the first names in alphabetical order, and the number of further names.

    Args:
        names: The names.
        most: Maximum number of names.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{sorted(names)[:most]}{more}"


def set_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the parameters of a module to a data type.

    Buffers are not converted, since the frequencies of rotary position embeddings would lose precision.

    Args:
        module: The module.
        dtype: The data type.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


def load_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file of torch.save, by name. Raises UserError if the file contains anything else.

    Values that are not finite raise UserError too. Code in the file is never run: torch rejects everything except
    tensors and plain containers. In the current (zip) format, the tensors are memory-mapped. They need no extra
    memory, but must be copied before the file changes. In the format before torch 1.6, the tensors are read into
    memory.
    """
    tensors = _read(path)
    require_finite(path, tensors)
    return tensors


def pickled_headers(path: Path) -> TensorHeaders:
    """Return the shape and the data type of each tensor in a file of torch.save, without reading the values."""
    return {
        name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in _read(path).items()
    }


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path} is missing; the folder is not complete: copy it again")
    try:
        require_no_pointer(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_uncompressed_zip(path))
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"contains more than tensors ({wanted[1]})" if wanted else "is damaged, or contains more than tensors"
        raise UserError(
            f"{path} {what}; it was not loaded, because that could run its author's code; use model.safetensors"
        ) from error
    except (*BROKEN_PICKLE, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged, or was not written by torch.save ({first}); copy it again") from error
    return _tensors_of(path, content)


def _is_uncompressed_zip(path: Path) -> bool:
    """Return whether a file is a zip archive. Raises ValueError if the archive is compressed.

    torch.save never writes compressed archives, and a few compressed bytes could fill the memory.
    """
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("a compressed archive")
    return True


def _tensors_of(path: Path, content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise UserError(f"{path} contains a {type(content).__name__}; expected a state dict (tensors by name)")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            raise UserError(
                f"{path} contains {name!r}, a {type(value).__name__}; expected a state dict of dense tensors only"
            )
        if value.device.type != "cpu" or value.nbytes > value.untyped_storage().nbytes():
            raise UserError(f"{path}: '{name}' claims to have more values than the file contains; copy it again")
    return {name: value.detach() for name, value in content.items()}
