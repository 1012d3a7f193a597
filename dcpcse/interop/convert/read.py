"""Read the files of a checkpoint: its tensors, without running any code in them, and its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dcpcse.encoders.storage import manifest
from dcpcse.encoders.storage.foreign_records import AdapterConfig, EncoderConfig
from dcpcse.interop.convert.layouts import LAYOUTS, recognise_layout
from dcpcse.utils.errors import UserError
from dcpcse.utils.pickled_tensors import load_pickle
from dcpcse.utils.safetensors_header import read_header
from dcpcse.utils.safetensors_io import load_tensors

WEIGHT_FILES = {False: (manifest.WEIGHTS, manifest.PICKLE), True: (manifest.PEFT_WEIGHTS, "adapter_model.bin")}
"""Whether a folder is a PEFT adapter → possible names of its weight file; the first that exists is read."""

TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
"""Tokenizer files; any one of them is enough to load a tokenizer."""

_WEIGHTS_OF_OTHERS = (".bin", ".ckpt", ".h5", ".index.json", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors")


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A loaded checkpoint. config: its config.json, {} without one; adapter: PEFT's adapter_config.json, or None."""

    folder: Path
    file: Path
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    adapter: Mapping[str, Any] | None

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder contains a tokenizer."""
        return any((self.folder / name).is_file() for name in TOKENIZERS)


def read_checkpoint(folder: Path) -> ForeignCheckpoint:
    """Read a checkpoint's folder; raise UserError that names a damaged file and its problem."""
    _require_checkpoint(folder)
    adapter_path, config_path = folder / manifest.PEFT_CONFIG, folder / manifest.CONFIG
    adapter = manifest.read_object(adapter_path, AdapterConfig) if adapter_path.is_file() else None
    config = manifest.read_object(config_path, EncoderConfig) if config_path.is_file() else {}
    file = _weights_in(folder, adapter is not None)
    tensors = load_tensors(file) if file.suffix == ".safetensors" else load_pickle(file)
    if not tensors:
        raise UserError(f"{file} contains no tensors; copy it again")
    return ForeignCheckpoint(folder, file, tensors, config, adapter)


def _require_checkpoint(folder: Path) -> None:
    if folder.is_file():
        raise UserError(f"{folder} is a file; give its folder, which also contains the configuration")
    if not folder.is_dir():
        raise UserError(f"the folder {folder} does not exist; check the path")
    if manifest.is_model_folder(folder):
        raise UserError(f"{folder} is a model folder already; dcpcse.load and evaluation.py load it as it is")


def _weights_in(folder: Path, adapter: bool) -> Path:
    names = WEIGHT_FILES[adapter]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        others = sorted(path.name for path in folder.iterdir() if path.name.endswith(_WEIGHTS_OF_OTHERS))
        held = f"it contains {', '.join(others)}" if others else "it contains no weights"
        raise UserError(f"{folder} has no {' or '.join(names)}, and other formats are not read; {held}")
    return found


def recognise_checkpoint(folder: Path) -> str | None:
    """Return the key in `LAYOUTS` of a folder that contains more than a plain encoder; None for any other folder.

    A SimCSE checkpoint whose head was renamed has the tensors of a plain encoder with a pooler, and is taken as one.
    """
    if (folder / manifest.PEFT_CONFIG).is_file():
        return "peft"
    file = next((folder / name for name in WEIGHT_FILES[False] if (folder / name).is_file()), None)
    if file is None or is_sentence_transformer(folder):
        return None
    names = read_header(file) if file.suffix == ".safetensors" else load_pickle(file)
    found = recognise_layout(names)
    plain = found is None or (LAYOUTS[found].ambiguous and not any(name.startswith("mlp.") for name in names))
    return None if plain else found


def is_sentence_transformer(folder: Path) -> bool:
    """Whether the folder was written by sentence-transformers and therefore contains its own pooling settings."""
    return (folder / manifest.MODULES).is_file()
