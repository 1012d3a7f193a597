"""Check that an encoder is plain: safetensors files in its folder, a known architecture, and no custom code.

By default, transformers would load pickled weights, ask at the terminal whether to run the checkpoint's code, load an
adapter next to the weights, follow an index to shards outside the folder, and download compiled kernels that a
configuration refers to.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from dcpcse.encoders.storage.foreign_records import WeightIndex
from dcpcse.encoders.storage.manifest import PEFT_CONFIG, WEIGHTS, read_object
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_inside

NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
"""Option of every `from_pretrained` and `from_config`; by default, transformers asks, and scripts may answer yes."""

# Otherwise transformers lets a public service convert pickles of a hub repository, and loads the result.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = f"{WEIGHTS}.index.json"

NO_PICKLES = (
    f"there is no {WEIGHTS}, and pickled weights (.bin) are not loaded because they can run code; dcpcse import reads "
    "published checkpoints of sentence encoders without running code; convert other checkpoints of a trusted origin "
    "with transformers (save_pretrained)"
)
WITH_ADAPTER = "{} contains a peft adapter that would be loaded into the encoder; give a folder with the encoder only"
_REJECTED_SETTINGS = {"quantization_config": "quantised weights", "transformers_weights": "custom weight files"}
_BUILT_IN_ATTENTION = (None, "eager", "sdpa", "flex_attention")


def require_plain_config(name_or_path: str, config: PretrainedConfig) -> None:
    """Raise UserError if a configuration requires external attention, quantised weights or custom weight files."""
    found = getattr(config, "_attn_implementation", None)
    if found not in _BUILT_IN_ATTENTION:
        raise UserError(
            f"{name_or_path}: config.json requires the attention {found!r}, which is external code; remove the entry"
        )
    for name, what in _REJECTED_SETTINGS.items():
        if getattr(config, name, None) is not None:
            raise UserError(f"{name_or_path}: config.json requires {what} ({name}); give an encoder without them")


def require_no_pipes(folder: Path) -> None:
    """Raise UserError if a folder contains a pipe or a device, at which transformers and its libraries would wait."""
    for file in folder.iterdir() if os.path.isdir(folder) else ():
        if os.path.exists(file) and not file.is_file() and not file.is_dir():
            raise UserError(f"{file} is a pipe or a device, not a file; remove it, or save its contents to a file")


def require_plain_folder(folder: Path) -> None:
    """Raise UserError if a folder's weights are pickles or outside the folder, or if it contains an adapter."""
    if not folder.is_dir():
        return
    if (folder / PEFT_CONFIG).is_file():
        raise UserError(WITH_ADAPTER.format(folder))
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        _require_shards(folder)
    elif any((folder / name).is_file() for name in PICKLES):
        raise UserError(f"cannot load the encoder {str(folder)!r}: {NO_PICKLES}")


def _require_shards(folder: Path) -> None:
    """Raise UserError if a shard of the index is not a safetensors file of the same folder."""
    for name in sorted(set(read_object(folder / INDEX, WeightIndex)["weight_map"].values())):
        if not name.endswith(".safetensors"):
            raise UserError(f"{folder / INDEX} lists {name!r}; give an encoder with weights in safetensors files only")
        require_inside(folder, name)
