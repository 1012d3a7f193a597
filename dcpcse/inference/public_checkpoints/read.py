"""Read the files of a checkpoint: its tensors, without running any code in them, and its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dcpcse.encoders.storage import manifest
from dcpcse.encoders.storage.foreign_records import AdapterConfig, EncoderConfig
from dcpcse.inference.public_checkpoints.recognise import WEIGHT_FILES, find_weight_file
from dcpcse.utils.errors import UserError
from dcpcse.utils.tensor_files import load_pickle, load_tensors

TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
"""Tokenizer files; any one of them is enough to load a tokenizer."""

_WEIGHTS_OF_OTHERS = (".bin", ".ckpt", ".h5", ".index.json", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors")


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A loaded checkpoint.

    Args:
        folder: The folder.
        file: The file of the tensors.
        tensors: The tensors by name.
        config: Its config.json, {} without one.
        adapter: PEFT's adapter_config.json, or None.
    """

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
        raise UserError(f"{folder} is a model folder already; dcpcse.load and dcpcse evaluate load it as it is")


def _weights_in(folder: Path, adapter: bool) -> Path:
    if (file := find_weight_file(folder, adapter)) is None:
        others = sorted(path.name for path in folder.iterdir() if path.name.endswith(_WEIGHTS_OF_OTHERS))
        held = f"it contains {', '.join(others)}" if others else "it contains no weights"
        raise UserError(
            f"{folder} has no {' or '.join(WEIGHT_FILES[adapter])}, and other formats are not read; {held}"
        )
    return file
