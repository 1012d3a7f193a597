"""Checks of an encoder folder or a PEFT adapter: configuration, weights, tokenizer."""

import contextlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from dcpcse.doctor.findings import CheckSettings, Findings, fault, note, ok, warning
from dcpcse.encoders.storage.foreign_records import AdapterConfig, EncoderConfig
from dcpcse.encoders.storage.manifest import CONFIG, PEFT_CONFIG, PEFT_WEIGHTS, read_object
from dcpcse.inference.public_checkpoints.recognise import recognise_checkpoint
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.parsing import parse_json, read_bytes
from dcpcse.utils.safetensors_header import HEADER_DTYPES, read_header

_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

_BY_NUMPY = {"F64", "F32", "F16"}
_INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
"""Types whose values are checked with numpy, and types whose values are always finite."""


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check configuration, weights and tokenizer of an encoder."""
    try:
        config = read_object(path / CONFIG, EncoderConfig)
    except UserError as error:
        yield fault("config", str(error))
        return
    if isinstance(config.get("model_type"), str):
        sizes = ", ".join(f"{name} {config[name]}" for name in _SIZES if name in config)
        yield ok("config", f"{config['model_type']}" + (f": {sizes}" if sizes else ""))
    else:
        yield fault("config", f"{path / CONFIG} has no model_type, which transformers needs to load the encoder")
    yield from _weights(path)
    with contextlib.suppress(UserError):  # damaged weights are reported above
        if checkpoint := recognise_checkpoint(path):
            yield note("kind", f"{checkpoint}; {checkpoint.import_command} converts it to a model folder")
    yield from _tokenizer(path)


def _weights(path: Path) -> Findings:
    from dcpcse.encoders.safe_loading import NO_WEIGHTS, find_weights  # imports torch; not for training files

    try:
        weights = find_weights(path)
        if weights is None:
            yield fault("weights", f"{path}: {NO_WEIGHTS}")
        elif weights.pickled:
            tensors = weights.read_pickles()
            yield note("weights", f"{weights.name}: a pickle of {len(tensors)} tensors, all finite, without code")
        else:
            for file in weights.files:
                yield from check_tensors(file, "weights")
    except UserError as error:
        yield fault("weights", str(error))


def check_tensors(path: Path, what: str) -> Findings:
    """Check the number, types and values of the tensors in a file, reading one tensor at a time without torch."""
    try:
        tensors = read_header(path)
        bad = _not_finite(path, [name for name, (_, kind) in tensors.items() if kind in _BY_NUMPY])
    except UserError as error:
        yield fault(what, str(error))
        return
    except (SafetensorError, OSError) as error:
        yield fault(what, f"{path} is damaged ({first_line(error)}); copy it again")
        return
    for name in bad:
        yield fault(what, f"{path.name} contains NaN or infinite values in {name!r}: the training failed")
    if not bad:
        numbers = sum(int(np.prod(shape)) for shape, _ in tensors.values())
        kinds = ", ".join(sorted({HEADER_DTYPES.get(kind, kind.lower()) for _, kind in tensors.values()}))
        seen = {kind for _, kind in tensors.values()} <= _BY_NUMPY | _INTEGERS
        values = "all finite" if seen else "values not checked"
        yield ok(what, f"{path.name}: {len(tensors)} tensors, {numbers:,} values in {kinds}, {values}")


def _not_finite(path: Path, names: list[str]) -> list[str]:
    with safe_open(path, framework="numpy") as file:
        return [name for name in names if not np.isfinite(file.get_tensor(name)).all()]


def _tokenizer(path: Path) -> Findings:
    files = [name for name in _TOKENIZERS if (path / name).is_file()]
    if not files:
        yield fault("tokenizer", f"none of {', '.join(_TOKENIZERS)} exists; copy the files of the tokenizer")
        return
    if files[0] == "tokenizer.json":
        try:
            parse_json(read_bytes(path / files[0]))
        except ValueError as error:
            yield fault("tokenizer", f"{path / files[0]} is not readable JSON ({error})")
            return
    yield ok("tokenizer", files[0])
    yield from _first_token(path)


def _first_token(path: Path) -> Findings:
    """Check that texts begin with [CLS] if the encoder represents them by it, as a plain encoder does by default."""
    from dcpcse.encoders.backbones import load_tokenizer  # imports torch; not for training files
    from dcpcse.encoders.pooling import POOLERS
    from dcpcse.encoders.storage.load_options import LoadOptions
    from dcpcse.encoders.templates import missing_cls
    from dcpcse.inference.st_folder import SentenceFolder

    try:
        folder = SentenceFolder.find(str(path), LoadOptions())
        reads_cls = folder is None or POOLERS[folder.pooling.pooling].reads_cls
        missing = missing_cls(load_tokenizer(str(path), LoadOptions()))
    except UserError as error:
        yield fault("tokenizer", str(error))
        return
    if missing is not None and reads_cls:
        yield warning("tokenizer", missing)


def check_adapter(path: Path, settings: CheckSettings) -> Findings:
    """Check the configuration and weights of a PEFT adapter."""
    try:
        config = read_object(path / PEFT_CONFIG, AdapterConfig)
    except UserError as error:
        yield fault("config", str(error))
        return
    yield ok("config", f"{config.get('peft_type')} on {config.get('base_model_name_or_path')}")
    yield note("kind", "a PEFT adapter; dcpcse import converts prefix tuning to a model folder")
    yield from check_tensors(path / PEFT_WEIGHTS, "weights")
