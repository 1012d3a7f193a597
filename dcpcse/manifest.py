"""What a model folder says of itself, in `dcpcse.json`, and where its files lie; read without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import UserError
from .parsing import parse_json

MODEL_FOLDER_FILE = "dcpcse.json"
"""The file that makes a folder one of ours."""

FORMAT = 2
"""Raised when templates and trained encoders came: earlier versions would load a folder without them."""
PROMPTS = "prompts.safetensors"
PEFT_PROMPTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"
TRAINED = "trained.safetensors"
PROMPT_KEY = "prompt_embeddings"
OURS = (MODEL_FOLDER_FILE, PROMPTS, PEFT_PROMPTS, PEFT_CONFIG, TRAINED)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MODULES = "modules.json"
BESIDE = "backbone"
"""Names of an encoder's files, and the folder that they lie in where AutoModel must not find them."""

_FIRST = {"format", "method", "pooling", "head", "prompt", "position_offset", "base", "vocabulary", "prompts_file"}
_REQUIRED = _FIRST | {"shallow", "template", "denoising", "backbone"}


def is_model_folder(path: str | Path) -> bool:
    """Whether a path is a folder that this program wrote."""
    return (Path(path) / MODEL_FOLDER_FILE).is_file()


def read_record(folder: str | Path) -> dict[str, Any]:
    """What `dcpcse.json` of a folder holds; UserError where it is not there, damaged or of a later version."""
    folder = Path(folder)
    path = folder / MODEL_FOLDER_FILE
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"holds no {MODEL_FOLDER_FILE}"
        raise UserError(f"{folder} {what}; give the output folder of train.py")
    record = read_object(path)
    found = record.get("format")
    if found not in (1, FORMAT):
        raise UserError(f"{path} has format {found!r}; this version reads formats 1 and {FORMAT}")
    if found == 1:
        record = {**dict.fromkeys(_REQUIRED - _FIRST), **record}
    if missing := _REQUIRED - set(record):
        raise UserError(f"{path} lacks {sorted(missing)}; copy the folder again")
    if record["prompts_file"] not in (None, PROMPTS, PEFT_PROMPTS):
        raise UserError(f"{path} names the prompts file {record['prompts_file']!r}; {PROMPTS} or {PEFT_PROMPTS}")
    return record


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; UserError for anything else."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); copy the folder again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; copy the folder again")
    return content


def place_of(folder: Path, record: Mapping[str, Any]) -> Path:
    """Where the backbone lies in a model folder; UserError for a place that no folder has."""
    if record["folder"] not in (".", BESIDE):
        raise UserError(f"{folder}: dcpcse.json names the place {record['folder']!r} for the encoder; . or {BESIDE}")
    return folder / record["folder"]
