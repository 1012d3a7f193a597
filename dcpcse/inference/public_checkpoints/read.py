"""Recognise a checkpoint of public code by the names of its tensors, and read its files.

No code in a file is run. torch is imported only when tensors are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.encoders.storage import hub, manifest
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import AdapterConfig, EncoderConfig
from dcpcse.inference.public_checkpoints.layouts import LAYOUTS, Layout, recognise_layout
from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_header import TensorHeaders, read_header

if TYPE_CHECKING:
    from torch import Tensor

WEIGHT_FILES = {False: (manifest.WEIGHTS, manifest.PICKLE), True: (manifest.PEFT_WEIGHTS, "adapter_model.bin")}
"""Possible names of the weight file, for PEFT adapters (True) and other folders. The first existing file is used."""


@dataclass(frozen=True)
class PublicCheckpoint:
    """A checkpoint that the public code of a paper saved.

    Args:
        folder: The folder.
        layout: The format.
        parts: The parts of a model that the checkpoint contains, in words.
    """

    folder: Path
    layout: Layout
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.folder} is a {self.layout.title} checkpoint ({', '.join(self.parts)})"

    @property
    def import_command(self) -> str:
        """The command that converts the checkpoint to a model folder."""
        base = " --base ENCODER" if self.layout.frozen else ""
        return f"dcpcse import {self.folder} --output FOLDER{base}"


def find_checkpoint(name: str, options: LoadOptions) -> PublicCheckpoint | None:
    """Return the public checkpoint at a path or at an id on the Hub, or None. Files on the Hub are downloaded.

    Args:
        name: The path or id. It must not be the id of a model folder.
        options: Revision, cache and access token for the Hub.
    """
    return recognise_checkpoint(checkpoint_folder(name, options))


def checkpoint_folder(name: str, options: LoadOptions) -> Path:
    """Return the folder of a checkpoint at a path or, after a download, at an id on the Hub.

    Args:
        name: The path or id.
        options: Revision, cache and access token for the Hub.
    """
    if not hub.is_hub_id(name):
        return Path(name)
    return hub.download_checkpoint(name, (*WEIGHT_FILES[False], *WEIGHT_FILES[True]), options)


def recognise_checkpoint(folder: Path) -> PublicCheckpoint | None:
    """Return the public checkpoint in a folder, or None if the folder only contains a plain encoder.

    A SimCSE checkpoint whose head was renamed has the same tensors as a plain encoder with a pooler, and is treated
    as a plain encoder.
    """
    adapter = (folder / manifest.PEFT_CONFIG).is_file()
    if manifest.is_model_folder(folder) or (is_sentence_transformer(folder) and not adapter):
        return None
    file = find_weight_file(folder, adapter)
    names = {} if file is None else tensor_headers(file)
    layout = "peft" if adapter else recognise_layout(names)
    if layout is None or (LAYOUTS[layout].ambiguous and not any(name.startswith("mlp.") for name in names)):
        return None
    return PublicCheckpoint(folder, LAYOUTS[layout], LAYOUTS[layout].parts(names))


def find_weight_file(folder: Path, adapter: bool) -> Path | None:
    """Return the weight file of a checkpoint, or None.

    Args:
        folder: The folder.
        adapter: Whether the folder contains a PEFT adapter.
    """
    return next((folder / name for name in WEIGHT_FILES[adapter] if (folder / name).is_file()), None)


def tensor_headers(file: Path) -> TensorHeaders:
    """Return the shapes and types of the tensors in a safetensors file or pickle, without reading their values."""
    if file.suffix == ".safetensors":
        return read_header(file)
    from dcpcse.utils.tensor_files import pickled_headers  # imports torch

    return pickled_headers(file)


def is_sentence_transformer(folder: Path) -> bool:
    """Return whether sentence-transformers wrote the folder, so that the folder contains pooling settings."""
    return (folder / manifest.MODULES).is_file()


TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
"""Names of tokenizer files. One existing file is enough to load a tokenizer."""

_WEIGHTS_OF_OTHERS = (".bin", ".ckpt", ".h5", ".index.json", ".msgpack", ".onnx", ".pt", ".pth", ".safetensors")


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of public code, read into memory.

    Args:
        folder: The folder.
        file: The file of the tensors.
        tensors: The tensors by name.
        config: The content of config.json, or {} if this file is missing.
        adapter: The content of adapter_config.json of PEFT, or None.
    """

    folder: Path
    file: Path
    tensors: "Mapping[str, Tensor]"
    config: Mapping[str, Any]
    adapter: Mapping[str, Any] | None

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder contains a tokenizer."""
        return any((self.folder / name).is_file() for name in TOKENIZERS)


def read_checkpoint(folder: Path) -> ForeignCheckpoint:
    """Read the folder of a checkpoint. Raises UserError, with the name of the file, if a file is damaged."""
    _require_checkpoint(folder)
    adapter_path, config_path = folder / manifest.PEFT_CONFIG, folder / manifest.CONFIG
    adapter = manifest.read_object(adapter_path, AdapterConfig) if adapter_path.is_file() else None
    config = manifest.read_object(config_path, EncoderConfig) if config_path.is_file() else {}
    file = _weights_in(folder, adapter is not None)
    from dcpcse.utils.tensor_files import (
        load_pickle,  # they import torch
        load_tensors,
    )

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
        raise UserError(f"{folder} is already a model folder, which dcpcse.load and dcpcse evaluate load directly")


def _weights_in(folder: Path, adapter: bool) -> Path:
    if (file := find_weight_file(folder, adapter)) is None:
        others = sorted(path.name for path in folder.iterdir() if path.name.endswith(_WEIGHTS_OF_OTHERS))
        held = f"it contains {', '.join(others)}" if others else "it contains no weights"
        raise UserError(
            f"{folder} has no {' or '.join(WEIGHT_FILES[adapter])}, and other formats are not read; {held}"
        )
    return file
