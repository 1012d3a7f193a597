"""Check that an encoder is plain: weights in its folder, a known architecture, and no custom code.

Without these checks, transformers would ask at the terminal whether to run the checkpoint's code, load an adapter next
to the weights, follow an index to shards outside the folder, and download compiled kernels that a configuration refers
to. Weights are read from safetensors files. If there are none, weights are read from pickles (`.bin`) without running
code.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from dcpcse.encoders.storage.manifest import PEFT_CONFIG, PICKLE, WEIGHTS, WeightIndex, read_object
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_inside
from dcpcse.utils.private.models import attention_of
from dcpcse.utils.safetensors_header import require_no_pointer
from dcpcse.utils.tensor_files import load_pickle

NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
"""Option for every call of `from_pretrained` and `from_config`. By default, transformers asks whether to run code, and
a script may answer yes."""

# Otherwise transformers lets a public service convert pickles of a hub repository, and loads the result.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")

INDEX = f"{WEIGHTS}.index.json"
PICKLE_INDEX = f"{PICKLE}.index.json"
WEIGHT_FILES = {WEIGHTS: False, INDEX: False, PICKLE: True, PICKLE_INDEX: True}
"""Names of files with the weights of an encoder or with an index of its shards. The value is whether the weights are
pickles. The first file that exists is read."""

NO_WEIGHTS = f"there is neither {WEIGHTS} nor {PICKLE}; give an encoder with one of them"
WITH_ADAPTER = "{} contains a peft adapter that would be loaded into the encoder; give a folder with the encoder only"
_REJECTED_SETTINGS = {"quantization_config": "quantised weights", "transformers_weights": "custom weight files"}
_BUILT_IN_ATTENTION = (None, "eager", "sdpa", "flex_attention")


def require_plain_config(name_or_path: str, config: PretrainedConfig) -> None:
    """Raise UserError if a configuration requires an attention kernel from the Hub, quantised weights or custom files.

    Args:
        name_or_path: Folder or hub id, for the message.
        config: The configuration.
    """
    backend = attention_of(config)
    if backend not in _BUILT_IN_ATTENTION:
        raise UserError(
            f"{name_or_path}: config.json requires the attention {backend!r}, which is external code; remove it from "
            "the file"
        )
    for name, what in _REJECTED_SETTINGS.items():
        if getattr(config, name, None) is not None:
            raise UserError(f"{name_or_path}: config.json requires {what} ({name}); give an encoder without them")


def require_no_pipes(folder: Path) -> None:
    """Raise UserError if a folder contains a pipe or a device, since transformers would wait for its data."""
    for file in folder.iterdir() if os.path.isdir(folder) else ():
        if os.path.exists(file) and not file.is_file() and not file.is_dir():
            raise UserError(f"{file} is a pipe or a device, not a file; remove it, or save its contents to a file")


@dataclass(frozen=True)
class WeightFiles:
    """The files with the weights of an encoder.

    Args:
        name: Name of the file or, if the weights are in several files, of their index.
        files: Paths of the files that contain the tensors.
    """

    name: str
    files: tuple[Path, ...]

    @property
    def pickled(self) -> bool:
        """Whether the files are pickles."""
        return WEIGHT_FILES[self.name]

    def read_pickles(self) -> dict[str, Tensor]:
        """Return the tensors by name, memory-mapped where possible (`tensor_files.load_pickle`).

        Raises UserError if a file is damaged or contains more than tensors. No code in a file is run.
        """
        return {name: tensor for file in self.files for name, tensor in load_pickle(file).items()}


def find_weights(folder: Path) -> WeightFiles | None:
    """Return the weight files of a folder. None if the path is not a folder or the folder contains no weights.

    Raises UserError if the folder contains an adapter, if a file is a pointer of git-lfs, or as `shard_names`.
    """
    if not folder.is_dir():
        return None
    if (folder / PEFT_CONFIG).is_file():
        raise UserError(WITH_ADAPTER.format(folder))
    name = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if name is None:
        return None
    shards = shard_names(folder / name) if name.endswith(".json") else [name]
    files = tuple(folder / shard for shard in shards)
    for file in files:
        if file.is_file():  # a safetensors file may still have to be downloaded
            require_no_pointer(file)
    return WeightFiles(name, files)


def shard_names(index: Path) -> list[str]:
    """Return the names of the weight files that an index lists.

    Raises UserError if a file is outside the folder of the index, or if it is a pickle and the index is of safetensors
    files (or the reverse).
    """
    pickled = WEIGHT_FILES[index.name]
    names = sorted(set(read_object(index, WeightIndex)["weight_map"].values()))
    for name in names:
        if not name.endswith(".bin" if pickled else ".safetensors"):
            kind = "pickles (.bin)" if pickled else "safetensors files"
            raise UserError(f"{index} lists {name!r}, but may list only {kind}; download or save the encoder again")
        require_inside(index.parent, name)
    return names
