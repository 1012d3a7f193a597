"""The model folder on disk: what was trained, and enough about the rest that it cannot be loaded wrongly.

dcpcse.json            method, pooling, head, prompt, position offset, base and vocabulary with fingerprints
prompts.safetensors    the prompts, one tensor `prompt_embeddings` (P, 2·layers·hidden), or instead
adapter_model.safetensors + adapter_config.json
                       the same tensor where peft alone gives the same [CLS] vectors; the other name keeps
                       peft from opening half a model elsewhere
trained.safetensors    other trained weights (head, projection, shallow prompts), only where there are any
backbone/, or config.json, model.safetensors, modules.json, ...
                       the encoder, only where it was trained itself (see `dcpcse.tuned`)
tokenizer files
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from . import tuned
from .backbones import MODEL_FOLDER_FILE
from .errors import UserError
from .tensors import load_tensors, save_tensors, write_json
from .tuned import TunedBackbone

FORMAT = 2
"""Raised when templates and trained encoders came: earlier versions would load a folder without them."""
PROMPTS = "prompts.safetensors"
PEFT_PROMPTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"
TRAINED = "trained.safetensors"
PROMPT_KEY = "prompt_embeddings"
_OURS = (MODEL_FOLDER_FILE, PROMPTS, PEFT_PROMPTS, PEFT_CONFIG, TRAINED)
_FIRST = {"format", "method", "pooling", "head", "prompt", "position_offset", "base", "vocabulary", "prompts_file"}
_REQUIRED = _FIRST | {"shallow", "template", "denoising", "backbone"}


@dataclass(frozen=True)
class Contents:
    """A model folder as read: its record, the deep prompts (None without) and the other trained tensors by name."""

    record: Mapping[str, Any]
    prompts: Tensor | None
    trained: Mapping[str, Tensor]


def write(
    folder: str | Path,
    record: Mapping[str, Any],
    prompts: Tensor | None,
    trained: Mapping[str, Tensor],
    *,
    peft_config: Mapping[str, Any] | None = None,
    backbone: TunedBackbone | None = None,
) -> None:
    """Write the files of a model. With `peft_config` the prompts take the names that peft opens.

    `dcpcse.json` is written last and files of an earlier model are removed first, so a folder that was cut off
    while it was written does not load as a mixture.
    """
    folder = Path(folder)
    if backbone is not None and holds_another_encoder(folder):
        raise UserError(f"{folder} holds another encoder, which a trained one would overwrite; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    clear(folder)
    name = None if prompts is None else PROMPTS if peft_config is None else PEFT_PROMPTS
    if prompts is not None:
        save_tensors(folder / name, {PROMPT_KEY: prompts})
    if peft_config is not None:
        write_json(folder / PEFT_CONFIG, peft_config)
    if trained:
        save_tensors(folder / TRAINED, trained)
    own = None if backbone is None else backbone.write(folder)
    write_json(folder / MODEL_FOLDER_FILE, {"format": FORMAT, **record, "prompts_file": name, "backbone": own})


def clear(folder: Path) -> None:
    """Remove the files of a model from a folder; everything else stays, another's encoder too."""
    if _holds_own_encoder(folder):
        tuned.clear_backbone(folder)
    for name in _OURS:
        (folder / name).unlink(missing_ok=True)


def holds_another_encoder(folder: Path) -> bool:
    """Whether a folder holds an encoder that this program did not write, and that a trained one would overwrite."""
    return tuned.holds_encoder(folder) and not _holds_own_encoder(folder)


def _holds_own_encoder(folder: Path) -> bool:
    try:
        record = json.loads((folder / MODEL_FOLDER_FILE).read_text(encoding="utf-8"))
        return record.get("backbone") is not None
    except (OSError, ValueError, AttributeError):
        return False


def read(folder: str | Path) -> Contents:
    """Read and check a model folder; UserError names the file and what is wrong with it."""
    folder = Path(folder)
    record = _read_record(folder)
    trained = load_tensors(folder / TRAINED) if (folder / TRAINED).is_file() else {}
    return Contents(record, _read_prompts(folder, record["prompts_file"]), trained)


def _read_prompts(folder: Path, name: str | None) -> Tensor | None:
    if name is None:
        return None
    prompts = load_tensors(folder / name)
    if set(prompts) != {PROMPT_KEY}:
        raise UserError(f"{folder / name} holds {sorted(prompts)}; exactly '{PROMPT_KEY}' is expected")
    return prompts[PROMPT_KEY]


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
    found = record.get("format") if isinstance(record, dict) else None
    if found not in (1, FORMAT):
        raise UserError(f"{path} has format {found!r}; this version reads formats 1 and {FORMAT}")
    if found == 1:
        record = {**dict.fromkeys(_REQUIRED - _FIRST), **record}
    if missing := _REQUIRED - set(record):
        raise UserError(f"{path} lacks {sorted(missing)}; copy the folder again")
    if record["prompts_file"] not in (None, PROMPTS, PEFT_PROMPTS):
        raise UserError(f"{path} names the prompts file {record['prompts_file']!r}; {PROMPTS} or {PEFT_PROMPTS}")
    return record
