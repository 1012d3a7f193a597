"""Reading of the tensors in files that torch.save wrote, without running the code that a pickle can contain."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_header import TensorHeaders, require_no_pointer
from dcpcse.utils.safetensors_io import BROKEN_PICKLE, require_finite


def load_pickle(path: Path) -> dict[str, Tensor]:
    """Return name → tensor from a file written by torch.save; raise UserError for anything but finite tensors.

    Code in the file is never run: torch rejects everything but tensors and plain containers. Tensors of the current
    (zip) format are mapped from the file, so they take no memory of their own, and must be copied before the file may
    change; those of the format before torch 1.6 are read into memory.
    """
    tensors = _read(path)
    require_finite(path, tensors)
    return tensors


def pickled_headers(path: Path) -> TensorHeaders:
    """Return name → shape and type of the tensors in a file, as `load_pickle` does, without reading their values."""
    return {
        name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in _read(path).items()
    }


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path} is missing; the folder is not complete")
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
    """Return whether a file is a zip archive; raise ValueError if it is compressed, which torch.save never writes.

    A few compressed bytes could otherwise fill the memory.
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
