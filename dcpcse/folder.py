"""The model folder on disk: what was trained, and enough about the rest that it cannot be loaded wrongly.

dcpcse.json            method, pooling, head, prompt, position offset, base and vocabulary with fingerprints
prompts.safetensors    the prompts, one tensor `prompt_embeddings` (P, 2·layers·hidden), or instead
adapter_model.safetensors + adapter_config.json
                       the same tensor where peft alone gives the same [CLS] vectors; the other name keeps
                       peft from opening half a model elsewhere
trained.safetensors    other trained weights (head, projection), only where there are any
tokenizer files
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from .backbones import MODEL_FOLDER_FILE
from .errors import UserError

FORMAT = 1
PROMPTS = "prompts.safetensors"
PEFT_PROMPTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"
TRAINED = "trained.safetensors"
PROMPT_KEY = "prompt_embeddings"
_OURS = (MODEL_FOLDER_FILE, PROMPTS, PEFT_PROMPTS, PEFT_CONFIG, TRAINED)
_REQUIRED = {"format", "method", "pooling", "head", "prompt", "position_offset", "base", "vocabulary", "prompts_file"}


@dataclass(frozen=True)
class Contents:
    """A model folder as read: its record, the prompt tensor and the other trained tensors by name."""

    record: Mapping[str, Any]
    prompts: Tensor
    trained: Mapping[str, Tensor]


def write(
    folder: str | Path,
    record: Mapping[str, Any],
    prompts: Tensor,
    trained: Mapping[str, Tensor],
    peft_config: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of a model. With `peft_config` the prompts take the names that peft opens.

    `dcpcse.json` is written last and files of an earlier model are removed first, so a folder that was cut off
    while it was written does not load as a mixture.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    clear(folder)
    name = PROMPTS if peft_config is None else PEFT_PROMPTS
    save_tensors(folder / name, {PROMPT_KEY: prompts})
    if peft_config is not None:
        _write_json(folder / PEFT_CONFIG, peft_config)
    if trained:
        save_tensors(folder / TRAINED, trained)
    _write_json(folder / MODEL_FOLDER_FILE, {"format": FORMAT, **record, "prompts_file": name})


def clear(folder: Path) -> None:
    """Remove the files of a model from a folder; everything else stays."""
    for name in _OURS:
        (folder / name).unlink(missing_ok=True)


def read(folder: str | Path) -> Contents:
    """Read and check a model folder; UserError names the file and what is wrong with it."""
    folder = Path(folder)
    record = _read_record(folder)
    prompts = load_tensors(folder / record["prompts_file"])
    if set(prompts) != {PROMPT_KEY}:
        raise UserError(
            f"{folder / record['prompts_file']} holds {sorted(prompts)}; exactly '{PROMPT_KEY}' is expected"
        )
    trained = load_tensors(folder / TRAINED) if (folder / TRAINED).is_file() else {}
    return Contents(record, prompts[PROMPT_KEY], trained)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, all finite; UserError names the file."""
    if not path.is_file():
        raise UserError(f"{path} is missing; the model folder is not complete")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); copy the folder again") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{path} holds NaN or infinite numbers in '{name}'; the training that wrote it failed")
    return tensors


def is_model_folder(path: str | Path) -> bool:
    """Whether a path is a folder that this program wrote."""
    return (Path(path) / MODEL_FOLDER_FILE).is_file()


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / MODEL_FOLDER_FILE
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"holds no {MODEL_FOLDER_FILE}"
        raise UserError(f"{folder} {what}; give the output folder of train.py")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); copy the folder again") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else None
        raise UserError(f"{path} has format {found!r}; this version reads format {FORMAT}")
    if missing := _REQUIRED - set(record):
        raise UserError(f"{path} lacks {sorted(missing)}; copy the folder again")
    if record["prompts_file"] not in (PROMPTS, PEFT_PROMPTS):
        raise UserError(f"{path} names the prompts file {record['prompts_file']!r}; {PROMPTS} or {PEFT_PROMPTS}")
    return record


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file."""
    # Not by save_file, which leaves the file unreadable for everybody else.
    on_cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save(on_cpu, metadata={"format": "pt"}))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    # Aside and renamed: a record that is there is whole.
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(aside, path)
