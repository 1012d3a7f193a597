"""The manifest `dcpcse.json` of a model folder: the schema, and the files that the manifest describes.

The module also contains schemas of the JSON files of other libraries that dcpcse reads, with the keys that dcpcse
uses, and counts trained parameters from the headers of weight files. torch is not imported.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import file_sha256
from dcpcse.utils.parsing import parse_json, read_bytes, read_json
from dcpcse.utils.safetensors_header import TensorHeaders, read_header

MODEL_FOLDER_FILE = "dcpcse.json"
"""The file that every model folder contains."""

FOLDER_FORMAT = 2
"""The current format. Format 1 has no templates and no trained encoders. Earlier versions can only read format 1."""
PROMPTS = "prompts.safetensors"
PEFT_WEIGHTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"
TRAINED = "trained.safetensors"
PROMPT_KEY = "prompt_embeddings"
OURS = (MODEL_FOLDER_FILE, PROMPTS, PEFT_WEIGHTS, PEFT_CONFIG, TRAINED)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
MODULES = "modules.json"
BACKBONE = "backbone"
"""Names of an encoder's files. `BACKBONE` is the folder that contains them if AutoModel must not find them."""

KNOWN_POOLINGS = ("cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last", "avg_layer1_last")
KNOWN_POOLINGS += ("max", "mean_sqrt_len", "weighted_mean", "last_token", "mask")
PROMPT_PARTS = {"deep": 2, "deep_vectors": 1}
"""For each kind of deep prompts, the number of trained vectors per prompt and layer (`deep`: a key and a value)."""
HEAD_KINDS = ("tanh_mlp", "batchnorm_mlp", "mlm_transform")
DENOISING_WAYS = ("template", "attention")
DTYPE_NAMES = ("float32", "bfloat16", "float16", "float64")
"""Names that a manifest may contain. They are repeated here because the modules that define them import torch. A test
checks that both definitions agree."""

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_FILES = (
    *(TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spm.model", "tokenizer.model"),
)
"""Files that a tokenizer's save_pretrained writes, for any encoder on which prompts can be trained."""

POOLING_FOLDER, DENSE_FOLDER = "1_Pooling", "2_Dense"
SENTENCE_CONFIG = "sentence_bert_config.json"
MODEL_CONFIG = "config_sentence_transformers.json"
SENTENCE_FILES = (
    *(MODULES, SENTENCE_CONFIG, MODEL_CONFIG, f"{POOLING_FOLDER}/{CONFIG}"),
    *(f"{DENSE_FOLDER}/{name}" for name in (CONFIG, WEIGHTS)),
)
"""Relative paths of the files for sentence-transformers in a plain folder, which other libraries can open."""

BACKBONES = {
    ".": (CONFIG, WEIGHTS, *SENTENCE_FILES),
    BACKBONE: (f"{BACKBONE}/{CONFIG}", f"{BACKBONE}/{WEIGHTS}"),
}
"""For each place of a trained encoder, the relative paths of the encoder's files.

The place is `.` in a plain folder.
"""

ADAPTER = "adapter"
"""The folder of a LoRA adapter that is not the complete model, so other libraries must not open it."""

ADAPTERS = {
    ".": (PEFT_WEIGHTS, PEFT_CONFIG, *SENTENCE_FILES),
    ADAPTER: (f"{ADAPTER}/{PEFT_WEIGHTS}", f"{ADAPTER}/{PEFT_CONFIG}"),
}
"""For each place of a LoRA adapter, the relative paths of the adapter's files. The place is `.` in a plain folder."""

METHOD_NAME = "[a-z0-9][a-z0-9_.-]{0,99}"
"""Pattern of a method's name. The method need not be registered, since loading a model does not use the method."""


# No `from __future__ import annotations` here: @strict does not check types that are strings.
@strict
@dataclass(kw_only=True)
class _Head:
    kind: str = schema.one_of(HEAD_KINDS)
    at_inference: bool
    activation: str = schema.text(default="gelu")
    eps: int | float = schema.fraction(default=1e-12)


@strict
@dataclass(kw_only=True)
class _Prompt:
    kind: str = schema.one_of(tuple(PROMPT_PARTS))
    length: int = schema.size()
    layers: int = schema.size()
    heads: int = schema.size()
    head_dim: int = schema.size()
    projection: int | None = schema.size()
    dropout: int | float = schema.fraction()


@strict
@dataclass(kw_only=True)
class _Lora:
    r: int = schema.size()
    alpha: int = schema.size()
    dropout: int | float = schema.fraction()
    target_modules: list[str]


@strict
@dataclass(kw_only=True)
class _InputPrompt:
    length: int = schema.size()
    width: int = schema.size()


@strict
@dataclass(kw_only=True)
class _Template:
    text: str = schema.text()
    continuous: bool
    final_period: bool


@strict
@dataclass(kw_only=True)
class _Denoising:
    training: bool
    inference: bool
    shifted: bool
    freeze: bool
    by: str = schema.one_of(DENOISING_WAYS)
    from_zero: bool = False


@strict
@dataclass(kw_only=True)
class _Base:
    name_or_path: str = schema.text()
    revision: str | None = schema.text()
    model_type: str = schema.text()
    hidden_size: int = schema.size()
    fingerprint: str = schema.text()
    # Not in folders of earlier versions:
    weights: str | None = schema.text(default=None)
    configuration: dict | None = None
    weights_file: str | None = schema.text(default=None)


@strict
@dataclass(kw_only=True)
class _OwnBackbone:
    folder: str = schema.one_of((".", BACKBONE))
    fingerprint: str = schema.text()


@strict
@dataclass(kw_only=True)
class Manifest:
    """The schema of a model folder's manifest, `dcpcse.json`. Fields without a default are required."""

    format: int = schema.between(1, FOLDER_FORMAT)
    method: str | None = schema.allowed("the name of a method (a-z, 0-9, ., _, -)", re.compile(METHOD_NAME).fullmatch)
    arguments: dict = field(default_factory=dict)
    pooling: str = schema.one_of(KNOWN_POOLINGS)
    head: _Head | None
    prompt: _Prompt | None
    cls_prompt: _InputPrompt | None = None
    position_offset: int = schema.between(0, 10_000_000)
    dtype: str = schema.one_of(DTYPE_NAMES, default="float32")
    base: _Base
    vocabulary: str = schema.text()
    prompts_file: str | None = schema.one_of((PROMPTS, PEFT_WEIGHTS))
    # Not in format 1:
    shallow: _InputPrompt | None
    template: _Template | None
    denoising: _Denoising | None
    backbone: _OwnBackbone | None
    # Not in folders of earlier versions:
    sha256: dict = field(default_factory=dict)
    tokenizer: dict | None = None
    record_sha256: str | None = schema.text(default=None)
    # Only in folders of models that have these settings, which earlier versions do not know:
    normalize: bool = False
    max_length: int | None = schema.size(default=None)
    text_prefix: str | None = schema.text(default=None)
    prompts: dict[str, str] = field(default_factory=dict)
    lora: _Lora | None = None
    lora_folder: str | None = schema.one_of(tuple(ADAPTERS), default=None)

    def validate_pairs(self) -> None:
        """Raise ValueError if fields contradict each other, such as a template without settings of denoising."""
        for first, other in (("prompt", "prompts_file"), ("template", "denoising"), ("lora", "lora_folder")):
            if (getattr(self, first) is None) != (getattr(self, other) is None):
                raise ValueError(f"{first} and {other} belong together, but one of them is null")
        if self.lora is not None and (self.prompt is not None or self.backbone is not None):
            raise ValueError(
                "lora is recorded, so prompt (deep prompts) and backbone (a trained encoder) must be null"
            )
        if self.lora is not None and not self.lora.target_modules:
            raise ValueError("lora.target_modules is []; expected at least one name")

    def validate_sizes(self) -> None:
        """Raise ValueError if the sizes of shortened embeddings are not whole numbers, largest first."""
        sizes = self.arguments.get("matryoshka_dims") or []
        if not schema.are_sizes(sizes):
            raise ValueError(f"arguments.matryoshka_dims is {sizes!r:.60}; expected whole numbers, largest first")

    def validate_sha256(self) -> None:
        """Raise ValueError if a checksum is not a sha256, or if its file is not part of this model."""
        backbone = self.backbone and vars(self.backbone)
        for name, digest in self.sha256.items():
            if name not in file_names({**vars(self), "backbone": backbone}):
                raise ValueError(f"sha256 contains {name!r:.60}, which is not a file of this model")
            if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
                raise ValueError(f"sha256.{name} is {digest!r:.60}; expected 64 hexadecimal digits")


OPEN_FIELDS = ("method", "arguments", "base.name_or_path", "base.revision")
"""Fields that may be edited by hand. They do not change vectors, or options of loading can set them."""


def record_digest(record: Mapping[str, Any]) -> str:
    """Return the sha256 of all fields of a manifest except the editable fields (`OPEN_FIELDS`) and this sha256."""
    covered = {name: value for name, value in record.items() if name not in (*OPEN_FIELDS, "record_sha256")}
    base = covered.get("base")
    if isinstance(base, Mapping):
        covered["base"] = {name: value for name, value in base.items() if f"base.{name}" not in OPEN_FIELDS}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


_SECOND_FORMAT = ("shallow", "template", "denoising", "backbone")


def is_model_folder(path: str | Path) -> bool:
    """Return whether a path is a model folder that dcpcse wrote."""
    return (Path(path) / MODEL_FOLDER_FILE).is_file()


def read_record(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a folder, with the fields of `Manifest`.

    Raises UserError if the manifest is missing, damaged, or written by a later version.
    """
    folder = Path(folder)
    path = folder / MODEL_FOLDER_FILE
    if not path.is_file():
        problem = "is not a folder" if not folder.is_dir() else f"contains no {MODEL_FOLDER_FILE}"
        raise UserError(f"{folder} {problem}; give the output folder of a training")
    record = read_object(path)
    version = record.get("format")
    if type(version) is not int or version not in (1, FOLDER_FORMAT):
        raise UserError(
            f"{path} has format {version!r:.60}; this version reads formats 1 and {FOLDER_FORMAT}; give a folder in "
            "one of these formats, or update dcpcse"
        )
    if version == 1:
        record = {**dict.fromkeys(_SECOND_FORMAT), **record}
    try:
        schema.validate(Manifest, record)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged, or of another version: {error}; copy the folder again") from error
    later = (*(record["base"].get(name) for name in ("weights", "configuration")), record.get("tokenizer"))
    sealed = record.get("record_sha256")
    if sealed != record_digest(record) and (sealed is not None or any(fact is not None for fact in later)):
        raise UserError(
            f"{path} has been changed since it was written: record_sha256 does not match the fields; copy the folder "
            f"again (only {', '.join(OPEN_FIELDS)} may be edited; to change others, load the model and save it)"
        )
    return record


Shapes = dict[str, dict[str, tuple[int, ...]]]
"""Maps the name of a file to the shapes of the file's tensors by name."""


def adapter_file(record: Mapping[str, Any]) -> str | None:
    """Return the name of the file with the deep prompts or the LoRA adapter of a model.

    None if the model has neither.
    """
    folder = record.get("lora_folder")
    return record["prompts_file"] if folder is None else ADAPTERS[folder][0]


def shapes(record: Mapping[str, Any]) -> Shapes:
    """Return the shapes of the prompts' tensors that a manifest describes, by file and name.

    The shapes of a head and of a LoRA adapter are not included, since they depend on the encoder.
    """
    result: Shapes = {TRAINED: {}}
    if prompt := record["prompt"]:
        length, hidden = prompt["length"], prompt["heads"] * prompt["head_dim"]
        width = PROMPT_PARTS[prompt["kind"]] * prompt["layers"] * hidden
        inner = prompt["projection"]
        result[record["prompts_file"]] = {PROMPT_KEY: (length, width)}
        if inner is not None:
            layers = {0: (inner, hidden), 2: (width, inner)}
            result[TRAINED]["prompt.embedding"] = (length, hidden)
            result[TRAINED] |= {f"prompt.trans.{i}.weight": shape for i, shape in layers.items()}
            result[TRAINED] |= {f"prompt.trans.{i}.bias": shape[:1] for i, shape in layers.items()}
    for part in ("shallow", "cls_prompt"):
        if settings := record.get(part):
            result[TRAINED][f"{part}.weight"] = (settings["length"], settings["width"])
    return {file: tensors for file, tensors in result.items() if tensors}


def shape_faults(folder: Path, record: Mapping[str, Any], actual: Shapes) -> Iterator[str]:
    """Yield an error message for each tensor that is missing or whose shape differs from the manifest.

    Args:
        folder: The model folder, for messages.
        record: The manifest of the folder.
        actual: The shapes of the tensors in the files.
    """
    for file, expected in shapes(record).items():
        tensors = actual.get(file, {})
        if missing := sorted(set(expected) - set(tensors)):
            yield f"{folder / file} lacks {missing}; copy the folder again"
        for name in sorted(set(expected) & set(tensors)):
            if tensors[name] != expected[name]:
                yield f"{folder / file}: '{name}' has shape {tensors[name]}, expected {expected[name]}"
    if record.get("lora") is not None:
        file = adapter_file(record)
        yield from _lora_faults(folder / file, record["lora"]["r"], actual.get(file, {}))


def _lora_faults(path: Path, rank: int, tensors: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield an error message for each matrix of an adapter without its counterpart or with a different rank.

    Each layer has two matrices: A (rank, in) and B (out, rank).
    """
    if not tensors:
        yield f"{path} contains no matrices; copy the folder again"
    for name, shape in sorted(tensors.items()):
        layer, part, _ = name.rsplit(".", 2) if name.count(".") > 1 else ("", name, "")
        partner = {"lora_A": "lora_B", "lora_B": "lora_A"}.get(part)
        if partner is None:
            yield f"{path} contains {name!r:.100}, which is not a matrix of an adapter; copy the folder again"
        elif f"{layer}.{partner}.weight" not in tensors:
            yield f"{path} lacks '{layer}.{partner}.weight'; copy the folder again"
        elif len(shape) != 2 or shape[part == "lora_B"] != rank:
            yield f"{path}: '{name}' has shape {shape}; a matrix of rank {rank} is expected"


def file_names(record: Mapping[str, Any]) -> set[str]:
    """Return the paths, relative to the model folder, of all files that may belong to the model of a manifest."""
    prompts = {PROMPTS: (PROMPTS,), PEFT_WEIGHTS: (PEFT_WEIGHTS, PEFT_CONFIG)}.get(record["prompts_file"], ())
    adapter = () if record.get("lora_folder") is None else ADAPTERS[record["lora_folder"]]
    backbone = () if record["backbone"] is None else BACKBONES[record["backbone"]["folder"]]
    return {MODEL_FOLDER_FILE, TRAINED, *TOKENIZER_FILES, *prompts, *adapter, *backbone}


def checksums(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of every file of a model, by relative path, except the sha256 of the manifest.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    names = sorted(file_names(record) - {MODEL_FOLDER_FILE})
    return {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits. Raise UserError if the file cannot be read.

    In a tokenizer.json, the truncation and padding settings are ignored. The last call of the tokenizer sets them, so
    they may differ when the file is saved again.
    """
    try:
        if path.name == TOKENIZER_FILE:
            return hashlib.sha256(_without_last_call(read_bytes(path))).hexdigest()
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _without_last_call(data: bytes) -> bytes:
    try:
        content = parse_json(data)
    except ValueError:  # damaged, which is reported when the tokenizer is loaded
        return data
    if isinstance(content, dict):
        content = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
    return json.dumps(content).encode()


def changed_files(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error message for each file that differs from its checksum. Folders without checksums give no messages.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    if "sha256" in record:
        files = {name for name in file_names(record) - {MODEL_FOLDER_FILE} if (folder / name).is_file()}
        for name in sorted(files - set(record["sha256"])):
            yield (
                f"{folder / name} has no sha256 in {MODEL_FOLDER_FILE}, as all files of a model have; remove the file "
                "if it was added, or copy the folder again"
            )
    for name, expected in record.get("sha256", {}).items():
        path = folder / name
        if not path.is_file():
            yield f"{path} is missing; the folder is not complete: copy it again"
        elif (digest := sha256_of(path)) != expected:
            yield (
                f"{path} is damaged: it has changed since it was written, its sha256 is {digest[:12]}…, not "
                f"{expected[:12]}…; copy the folder again"
            )


def require_unchanged(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise UserError for the first file that differs from its checksum.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    if problem := next(changed_files(folder, record), None):
        raise UserError(problem)


DAMAGED = "is not readable JSON ({}); copy the folder again"
"""The message about a file that is not JSON (see `dcpcse.utils.parsing.read_json`)."""


def read_object(path: Path, kind: type | None = None) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        path: The file.
        kind: The schema of the object. None: the object is not checked here.

    Raises:
        UserError: If the file cannot be read or does not contain a JSON object.
    """
    content = read_json(path, DAMAGED)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; copy the folder again")
    if kind is not None:
        with schema.explained(path):
            schema.check(kind, content)
    return content


def backbone_path(folder: Path, record: Mapping[str, Any]) -> Path:
    """Return the path of the backbone in a model folder.

    Args:
        folder: The model folder.
        record: The entry `backbone` of the manifest.
    """
    return folder / record["folder"]


@strict
@dataclass(kw_only=True)
class EncoderConfig(schema.Foreign):
    """The schema of an encoder's `config.json`. Sizes are not checked here, since transformers checks them."""

    model_type: str | None = schema.text(default=None)
    _name_or_path: str | None = None


@strict
@dataclass(kw_only=True)
class AdapterConfig(schema.Foreign):
    """The schema of PEFT's `adapter_config.json`."""

    base_model_name_or_path: str | None = schema.text(0, default=None)
    revision: str | None = schema.text(0, default=None)
    peft_type: str | None = schema.text(0, default=None)


@strict
@dataclass(kw_only=True)
class WeightIndex(schema.Foreign):
    """The schema of `model.safetensors.index.json`, which maps tensors to files if there are several weight files."""

    weight_map: dict[str, str]


@strict
@dataclass(kw_only=True)
class PoolingConfig(schema.Foreign):
    """The schema of `1_Pooling/config.json` of sentence-transformers.

    Earlier versions of sentence-transformers wrote several keys `pooling_mode_*` in place of `pooling_mode`.
    """

    pooling_mode: Any = None


_BUFFER = re.compile(r".*(running_mean|running_var|num_batches_tracked|position_ids|token_type_ids)")
"""Pattern of the names of tensors in weight files that are not parameters."""


def parameters_of(tensors: TensorHeaders) -> TensorHeaders:
    """Return the shapes and dtypes of those tensors that are parameters, without buffers."""
    return {name: header for name, header in tensors.items() if not _BUFFER.fullmatch(name)}


def count(tensors: TensorHeaders) -> int:
    """Return the number of elements of all tensors together."""
    return sum(prod(shape) for shape, _ in tensors.values())


def count_trained(folder: Path, record: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of trained parameters in each part of a model.

    The parts are `prompt`, `lora`, `head`, `shallow`, `cls_prompt` and `backbone`. If a projection computes the prompt
    table, the projection is counted and the table is not counted.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    parts: dict[str, int] = {}
    if record.get("lora") or (record["prompt"] and record["prompt"]["projection"] is None):
        parts["lora" if record.get("lora") else "prompt"] = count(read_header(folder / adapter_file(record)))
    trained = parameters_of(read_header(folder / TRAINED)) if (folder / TRAINED).is_file() else {}
    for part in dict.fromkeys(name.split(".")[0] for name in trained):
        parts[part] = count({name: header for name, header in trained.items() if name.split(".")[0] == part})
    if record["backbone"] is not None:
        headers = parameters_of(read_header(backbone_path(folder, record["backbone"]) / WEIGHTS))
        # The pooler is a copy of the head for other libraries.
        parts["backbone"] = count({name: header for name, header in headers.items() if not name.startswith("pooler.")})
    return parts
