"""A folder of an encoder as it is: configuration, weights, tokenizer."""

from pathlib import Path

from dcpcse.doctor import tensor_files
from dcpcse.doctor.findings import Findings, fault, note, ok
from dcpcse.doctor.settings import CheckSettings
from dcpcse.encoders.storage.manifest import CONFIG, PEFT_CONFIG, PEFT_PROMPTS, WEIGHTS, read_object
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import parse_json

_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def check(path: Path, settings: CheckSettings) -> Findings:
    """What training or evaluation would stumble over."""
    try:
        config = read_object(path / CONFIG)
    except UserError as error:
        yield fault("config", str(error))
        return
    if isinstance(config.get("model_type"), str):
        sizes = ", ".join(f"{name} {config[name]}" for name in _SIZES if name in config)
        yield ok("config", f"{config['model_type']}" + (f": {sizes}" if sizes else ""))
    else:
        yield fault("config", f"{path / CONFIG} has no model_type; transformers cannot tell what encoder it is")
    yield from _weights(path)
    yield from _tokenizer(path)


def _weights(path: Path) -> Findings:
    from dcpcse.encoders.safe_loading import INDEX, require_plain_folder  # torch, which a training file does not need

    try:
        require_plain_folder(path)
    except UserError as error:
        yield fault("weights", str(error))
        return
    if (path / INDEX).is_file() and not (path / WEIGHTS).is_file():
        yield from _shards(path, path / INDEX)
    else:
        yield from tensor_files.check_tensors(path / WEIGHTS, "weights")


def _shards(path: Path, index: Path) -> Findings:
    """Each file that an index names, which was found to name files of this folder."""
    for shard in sorted(set(read_object(index)["weight_map"].values())):
        yield from tensor_files.check_tensors(path / shard, "weights")


def _tokenizer(path: Path) -> Findings:
    found = [name for name in _TOKENIZERS if (path / name).is_file()]
    if not found:
        yield fault("tokenizer", f"none of {', '.join(_TOKENIZERS)} is there; copy the tokenizer's files")
        return
    if found[0] == "tokenizer.json":
        try:
            parse_json((path / found[0]).read_bytes())
        except ValueError as error:
            yield fault("tokenizer", f"{path / found[0]} is not readable JSON ({error})")
            return
    yield ok("tokenizer", found[0])


def check_adapter(path: Path, settings: CheckSettings) -> Findings:
    """An adapter of peft."""
    try:
        config = read_object(path / PEFT_CONFIG)
    except UserError as error:
        yield fault("config", str(error))
        return
    yield ok("config", f"{config.get('peft_type')} on {config.get('base_model_name_or_path')}")
    yield note("kind", "an adapter of peft; dcpcse import makes a model folder of prefix tuning")
    yield from tensor_files.check_tensors(path / PEFT_PROMPTS, "weights")
