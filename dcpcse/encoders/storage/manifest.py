"""What a model folder says of itself, in `dcpcse.json`, and where its files lie; read without torch."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.files import file_sha256
from dcpcse.utils.json_schema import Anything, ByName, Fields, Flag, JsonText, Maybe, Number, OneOf, Whole
from dcpcse.utils.parsing import parse_json, read_text

MODEL_FOLDER_FILE = "dcpcse.json"
"""The file that makes a folder one of ours."""

FOLDER_FORMAT = 2
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
BACKBONE = "backbone"
"""Names of an encoder's files, and the folder that they lie in where AutoModel must not find them."""

KNOWN_POOLINGS = ("cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last", "avg_layer1_last", "mask")
HEAD_KINDS = ("tanh_mlp", "batchnorm_mlp", "mlm_transform")
DENOISING_WAYS = ("template", "attention")
DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64")
"""Names that a record may hold. They stand here too, as the modules that give them a meaning take torch to import;
a test compares them."""

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_FILES = (
    *(TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spm.model", "tokenizer.model"),
)
"""What a tokenizer's save_pretrained writes, for any encoder that prompts are trained on."""

_POOLING, _DENSE = "1_Pooling", "2_Dense"
SENTENCE_CONFIG = "sentence_bert_config.json"
PLAIN_FILES = (
    *(CONFIG, WEIGHTS, MODULES, SENTENCE_CONFIG),
    *(f"{folder}/{name}" for folder, name in ((_POOLING, CONFIG), (_DENSE, CONFIG), (_DENSE, WEIGHTS))),
)
"""Relative paths of a trained backbone as other libraries open it; elsewhere it lies in `backbone/`."""

BACKBONE_FILES = (f"{BACKBONE}/{CONFIG}", f"{BACKBONE}/{WEIGHTS}")

METHOD_NAME = "[a-z0-9][a-z0-9_.-]{0,99}"
"""Pattern of what a method may be called. Which ones there are, a record need not know: nothing of them is needed to
load what they have trained."""

_HEX = JsonText("[0-9a-f]{64}", "a sha256, 64 hexadecimal digits,")
_SIZE = Whole(1, 10_000_000)
_SHALLOW = Fields({"length": _SIZE, "width": _SIZE})
_SUMMED = OneOf({PROMPTS, PEFT_PROMPTS, PEFT_CONFIG, TRAINED, *TOKENIZER_FILES, *PLAIN_FILES, *BACKBONE_FILES}, "file")

_FIRST = {
    "format": Whole(1),
    "method": Maybe(JsonText(METHOD_NAME, "the name of a method (small letters, digits, . _ -)")),
    "pooling": OneOf(KNOWN_POOLINGS, "pooling"),
    "head": Maybe(
        Fields(
            {"kind": OneOf(HEAD_KINDS, "kind of head"), "at_inference": Flag()},
            {"activation": JsonText(), "eps": Number(0, 1)},
        )
    ),
    "prompt": Maybe(
        Fields(
            {
                "kind": OneOf(("deep",), "kind of prompt"),
                **dict.fromkeys(("length", "layers", "heads", "head_dim"), _SIZE),
                "projection": Maybe(_SIZE),
                "dropout": Number(0, 1),
            }
        )
    ),
    "position_offset": Whole(0, 10_000_000),
    "base": Fields(
        {
            "name_or_path": JsonText(),
            "revision": Maybe(JsonText()),
            "model_type": JsonText(),
            "hidden_size": _SIZE,
            "fingerprint": JsonText(),
        }
    ),
    "vocabulary": JsonText(),
    "prompts_file": Maybe(OneOf((PROMPTS, PEFT_PROMPTS), "prompts file")),
}
_SECOND = {
    "shallow": Maybe(_SHALLOW),
    "template": Maybe(Fields({"text": JsonText(), "continuous": Flag(), "final_period": Flag()})),
    "denoising": Maybe(
        Fields(
            {
                **dict.fromkeys(("training", "inference", "shifted", "freeze"), Flag()),
                "by": OneOf(DENOISING_WAYS, "way of denoising"),
            }
        )
    ),
    "backbone": Maybe(Fields({"folder": OneOf((".", BACKBONE), "place of the encoder"), "fingerprint": JsonText()})),
}
_LATER = {
    "arguments": Anything(),
    "cls_prompt": Maybe(_SHALLOW),
    "dtype": OneOf(DTYPE_NAMES, "type of weights"),
    "sha256": ByName(_SUMMED, _HEX),
}
RECORD_SCHEMA = Fields({**_FIRST, **_SECOND}, _LATER)
"""What a record holds: fields of the first format, those of the second, and those that not every folder has."""

_TOGETHER = (("prompt", "prompts_file"), ("template", "denoising"))
"""Fields of which both are null, or neither."""


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
    if type(found) is not int or found not in (1, FOLDER_FORMAT):
        raise UserError(f"{path} has format {found!r}; this version reads formats 1 and {FOLDER_FORMAT}")
    if found == 1:
        record = {**dict.fromkeys(_SECOND), **record}
    if problem := next(record_faults(record), None):
        raise UserError(f"{path} is damaged, or of another version: {problem}; copy the folder again")
    return record


def record_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is wrong with what a record holds, a sentence each."""
    wrong = list(RECORD_SCHEMA.faults(record))
    yield from wrong
    if wrong:
        return
    for one, other in _TOGETHER:
        if (record[one] is None) != (record[other] is None):
            yield f"{one} and {other} belong together, and one of them is null"
    names = file_names(record)
    if stray := sorted(set(record.get("sha256", {})) - names):
        yield f"sha256 names {stray}, which a model of this record does not have"


Shapes = dict[str, dict[str, tuple[int, ...]]]
"""File → tensor → shape."""


def shapes(record: Mapping[str, Any]) -> Shapes:
    """Shapes of the tensors that a record tells of: all prompts. Those of a head hang on the encoder."""
    found: Shapes = {TRAINED: {}}
    if prompt := record["prompt"]:
        length, hidden = prompt["length"], prompt["heads"] * prompt["head_dim"]
        width, inner = 2 * prompt["layers"] * hidden, prompt["projection"]
        found[record["prompts_file"]] = {PROMPT_KEY: (length, width)}
        if inner is not None:
            layers = {0: (inner, hidden), 2: (width, inner)}
            found[TRAINED]["prompt.embedding"] = (length, hidden)
            found[TRAINED] |= {f"prompt.trans.{i}.weight": shape for i, shape in layers.items()}
            found[TRAINED] |= {f"prompt.trans.{i}.bias": shape[:1] for i, shape in layers.items()}
    for part in ("shallow", "cls_prompt"):
        if own := record.get(part):
            found[TRAINED][f"{part}.weight"] = (own["length"], own["width"])
    return {file: tensors for file, tensors in found.items() if tensors}


def shape_faults(folder: Path, record: Mapping[str, Any], found: Shapes) -> Iterator[str]:
    """A sentence for each tensor that is not there or has another shape than the record tells; found: of the files."""
    for file, expected in shapes(record).items():
        tensors = found.get(file, {})
        if missing := sorted(set(expected) - set(tensors)):
            yield f"{folder / file} lacks {missing}; copy the folder again"
        for name in sorted(set(expected) & set(tensors)):
            if tensors[name] != expected[name]:
                yield f"{folder / file}: '{name}' has shape {tensors[name]}; {expected[name]} is expected"


def file_names(record: Mapping[str, Any]) -> set[str]:
    """Relative paths of the files that a model of this record may have; none leads out of its folder."""
    prompts = {PROMPTS: {PROMPTS}, PEFT_PROMPTS: {PEFT_PROMPTS, PEFT_CONFIG}}.get(record["prompts_file"], set())
    backbone = () if record["backbone"] is None else _BACKBONES[record["backbone"]["folder"]]
    return {MODEL_FOLDER_FILE, TRAINED, *TOKENIZER_FILES} | prompts | {*backbone}


_BACKBONES = {".": PLAIN_FILES, BACKBONE: BACKBONE_FILES}


def checksums(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    """sha256 by relative path of every file of a model that lies in a folder, the record itself left out."""
    names = sorted(file_names(record) - {MODEL_FOLDER_FILE})
    return {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}


def sha256_of(path: Path) -> str:
    """sha256 of a file, in hexadecimal digits; UserError where it cannot be read.

    Of a tokenizer.json without the last call's truncation and padding, which change when it is saved again.
    """
    try:
        if path.name == TOKENIZER_FILE:
            return hashlib.sha256(_without_last_call(path.read_bytes())).hexdigest()
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _without_last_call(data: bytes) -> bytes:
    try:
        content = parse_json(data)
    except ValueError:  # damaged, which loading it will tell
        return data
    if isinstance(content, dict):
        content = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    return json.dumps(content).encode()


def changed_files(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each file that is not the one that was written with the record; folders of before have none."""
    if "sha256" in record:
        weights = {name for name in file_names(record) if name.endswith(".safetensors") and (folder / name).is_file()}
        for name in sorted(weights - set(record["sha256"])):
            yield f"{folder / name} has no sha256 in {MODEL_FOLDER_FILE}, as all weights have; copy the folder again"
    for name, expected in record.get("sha256", {}).items():
        path = folder / name
        if not path.is_file():
            yield f"{path} is missing; the folder is not complete: copy it again"
        elif (found := sha256_of(path)) != expected:
            yield (
                f"{path} is damaged: it has changed since it was written, its sha256 is {found[:12]}…, not "
                f"{expected[:12]}…; copy the folder again"
            )


def require_unchanged(folder: Path, record: Mapping[str, Any]) -> None:
    """UserError for a file that is not the one that was written with the record."""
    if problem := next(changed_files(folder, record), None):
        raise UserError(problem)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; UserError for anything else."""
    try:
        content = parse_json(read_text(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({first_line(error)}); copy the folder again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; copy the folder again")
    return content


def backbone_path(folder: Path, record: Mapping[str, Any]) -> Path:
    """Where the backbone lies in a model folder; record: its part `backbone`."""
    return folder / record["folder"]
