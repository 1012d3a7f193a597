"""Checks of an encoder folder, a PEFT adapter, or a model folder, including folders of runs and checkpoints."""

import contextlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from dcpcse.doctor.findings import CheckSettings, Findings, fault, note, ok, warning
from dcpcse.encoders.storage import manifest
from dcpcse.encoders.storage.manifest import (
    CONFIG,
    PEFT_CONFIG,
    PEFT_WEIGHTS,
    AdapterConfig,
    EncoderConfig,
    read_object,
)
from dcpcse.inference.public_checkpoints.read import recognise_checkpoint
from dcpcse.interop.folder_contents import find_base, require_shapes
from dcpcse.training.run_history import find_scores, is_checkpoint, read_run
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.parsing import parse_json, read_bytes
from dcpcse.utils.run_files import RUN_FILE, STATE, checkpoints_in
from dcpcse.utils.safetensors_header import HEADER_DTYPES, read_header

_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model")
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

_BY_NUMPY = {"F64", "F32", "F16"}
_INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
"""Types whose values are checked with numpy, and types whose values are always finite."""


def check_encoder(path: Path, settings: CheckSettings) -> Findings:
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
    """Check the number, types and values of the tensors in a safetensors file; the findings concern `what`.

    One tensor is read at a time, without torch.
    """
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
    """Check that texts begin with [CLS] if the encoder uses the vector of [CLS], as plain encoders do by default."""
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


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check manifest, checksums and tensors of a model folder, and whether the model loads with its base encoder."""
    try:
        record = manifest.read_record(path)
    except UserError as error:
        yield fault("record", str(error))
        return
    yield ok("record", f"format {record['format']}, method {record['method']}, pooling {record['pooling']}")
    whole = True
    for finding in (*_checksums(path, record), *_tensors(path, record)):
        whole = whole and finding.level != "fault"
        yield finding
    yield from _base(path, record, settings, whole)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    yield ok("size", f"{size / 1e6:,.1f} MB")


def _checksums(path: Path, record: dict) -> Findings:
    changed = list(manifest.changed_files(path, record))
    for text in changed:
        yield fault("checksum", text)
    if "sha256" not in record:
        yield note("checksum", "the folder has no checksums (earlier version); save the model again to add them")
    elif not changed:
        yield ok("checksum", f"{len(record['sha256'])} files are unchanged")


def _tensors(path: Path, record: dict) -> Findings:
    names = [name for name in (manifest.adapter_file(record), manifest.TRAINED) if name]
    files = [path / name for name in names if (path / name).is_file() or name != manifest.TRAINED]
    if record["backbone"] is not None:
        files.append(manifest.backbone_path(path, record["backbone"]) / manifest.WEIGHTS)
    for file in files:
        yield from check_tensors(file, "weights")
    try:
        require_shapes(path, record)
    except UserError as error:
        yield fault("shapes", str(error))


def _base(path: Path, record: dict, settings: CheckSettings, whole: bool) -> Findings:
    """Check that the model loads with its base encoder, if that is available. A different encoder fails to load."""
    base = find_base(path, record)
    if settings.base is None and base["found"] is not True:
        level = note if base["found"] is None else warning
        yield level("base", f"{record['base']['name_or_path']}: {base['where']}; its fingerprint was not compared")
        return
    if not whole:
        yield note("base", "not loaded, since the folder is damaged")
        return
    from dcpcse.encoders.sentence_encoder import SentenceEncoder  # imports torch, which takes seconds
    from dcpcse.encoders.templates import missing_cls

    try:
        model = SentenceEncoder.load(path, None if record["backbone"] is not None else settings.base, device="cpu")
    except UserError as error:
        yield fault("base", str(error))
        return
    where = "the encoder in the folder" if record["backbone"] else settings.base or record["base"]["name_or_path"]
    yield ok("base", f"loads; {where} has the recorded fingerprint")
    if model.pooler.reads_cls and (missing := missing_cls(model.tokenizer)) is not None:
        yield warning("tokenizer", missing)


def check_run(path: Path, settings: CheckSettings) -> Findings:
    """Check the records and checkpoints of a run. Yield nothing for a folder without records and checkpoints."""
    if not any((path / name).is_file() for name in (RUN_FILE, STATE)):
        return
    found = read_run(path)
    damaged: list[str] = list(found.problems)
    find_scores(path, damaged.append)
    for problem in dict.fromkeys(damaged):
        yield fault("run record", problem)
    if (path / RUN_FILE).is_file() and not damaged:
        planned = "?" if found.steps_planned is None else found.steps_planned
        end = "finished" if found.finished else "not finished"
        yield ok("run", f"{found.steps_done} of {planned} steps, {end}")
    if is_checkpoint(path):
        yield from _checkpoint(path)
        return
    for folder in checkpoints_in(path).values():
        found = list(_checkpoint(folder))
        if folder.is_dir():  # otherwise a running training has just removed it
            yield from found


def _checkpoint(folder: Path) -> Findings:
    from dcpcse.training.checkpoints import require_whole  # imports torch; only pickles of tensors are opened

    try:
        step = require_whole(folder).step
    except UserError as error:
        yield fault("checkpoint", f"training cannot resume from {folder.name}: {error}")
        return
    yield ok("checkpoint", f"{folder.name} is complete (step {step})")
