"""Encoders of any maker are plain: safetensors inside their folder, a known architecture, no code of theirs.

transformers by itself would read pickled weights, ask at the terminal whether code of the checkpoint may run, load an
adapter that lies beside the weights, follow an index of shards out of the folder, and fetch compiled kernels that a
configuration names.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from dcpcse.encoders.storage.manifest import PEFT_CONFIG, WEIGHTS, read_object
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_inside

NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
"""For every `from_pretrained` and `from_config`: without a word transformers asks, and some scripts answer yes."""

# Else transformers has a public service convert pickles of a repository on the hub, and takes what that answers.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = f"{WEIGHTS}.index.json"

NO_PICKLES = (
    f"there is no {WEIGHTS}, and pickled weights (.bin) are not opened here: they can run code; dcpcse import reads "
    "published checkpoints of sentence encoders without running any; others are saved anew by transformers "
    "(save_pretrained), where their maker is trusted"
)
WITH_ADAPTER = (
    "{} holds an adapter of peft beside an encoder, which would be loaded into it; give a place with the encoder alone"
)
_REFUSED = {"quantization_config": "quantised weights", "transformers_weights": "weights of its choice"}
_OWN_ATTENTION = (None, "eager", "sdpa", "flex_attention")


def require_plain_config(name_or_path: str, config: PretrainedConfig) -> None:
    """UserError for a configuration that asks for more than a known architecture."""
    found = getattr(config, "_attn_implementation", None)
    if found not in _OWN_ATTENTION:
        raise UserError(
            f"{name_or_path}: config.json asks for the attention {found!r}, code from elsewhere; remove it"
        )
    for name, what in _REFUSED.items():
        if getattr(config, name, None) is not None:
            raise UserError(f"{name_or_path}: config.json asks for {what} ({name}); give an encoder without that")


def require_plain_folder(folder: Path) -> None:
    """UserError for a folder whose weights are pickles, lie elsewhere, or have an adapter beside them."""
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
    """UserError for an index whose shards are not safetensors files of the same folder."""
    index = read_object(folder / INDEX)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise UserError(f"{folder / INDEX} names no files (weight_map); copy the folder again")
    for name in sorted(set(shards.values())):
        if not name.endswith(".safetensors"):
            raise UserError(f"{folder / INDEX} names {name!r}, which is no safetensors file; nothing else is read")
        require_inside(folder, name)
