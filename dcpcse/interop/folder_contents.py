"""Describe the contents of a model folder or a checkpoint from its small files and the headers of its weights.

No model is loaded, and torch is not imported. The weights of a frozen encoder are therefore not checked.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from dcpcse.encoders.storage import manifest
from dcpcse.encoders.storage.manifest import (
    AdapterConfig,
    EncoderConfig,
    PoolingConfig,
    count,
    count_trained,
    parameters_of,
)
from dcpcse.inference.public_checkpoints.read import (
    WEIGHT_FILES,
    find_weight_file,
    recognise_checkpoint,
    tensor_headers,
)
from dcpcse.training.run_history import find_scores, read_run
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.run_files import METRICS, RUN_FILE, STATE, last_checkpoint, read_beside_training
from dcpcse.utils.safetensors_header import HEADER_DTYPES, read_header

FolderFacts = dict[str, Any]

_OF_ENCODERS = ("model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads")
_OF_ENCODERS += ("max_position_embeddings", "vocab_size")
_OF_ADAPTERS = ("peft_type", "task_type", "num_virtual_tokens", "token_dim", "num_layers", "num_attention_heads")
_OF_ADAPTERS += ("r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save", "peft_version")


def describe_folder(folder: Path, on_problem: Callable[[str], None]) -> FolderFacts:
    """Return a JSON-serialisable description of the folder of a model, an encoder, an adapter or a training.

    File sizes are in bytes. Dev scores are in the training's unit, and scores of evaluations are × 100.

    Args:
        folder: The folder.
        on_problem: A function that is called with a message of one line for each damaged record of a training.

    Raises:
        UserError: If the folder is of an unknown kind, or if the model is damaged.
    """
    # Otherwise, optional files of a checkpoint that is removed meanwhile would silently be missing in the description.
    return read_beside_training(
        folder, lambda: _describe(folder, on_problem), is_complete=lambda facts: folder.is_dir()
    )


def _describe(folder: Path, on_problem: Callable[[str], None]) -> FolderFacts:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}; give the folder of a model, a run or a checkpoint")
    describe = {
        manifest.MODEL_FOLDER_FILE: _model,
        manifest.PEFT_CONFIG: _adapter,
        manifest.CONFIG: _encoder,
        RUN_FILE: _run_without_model,
    }
    file = next((name for name in describe if (folder / name).is_file()), None)
    if file is None:
        raise UserError(f"{folder} contains none of {', '.join(describe)}; give the folder of a model or a run")
    try:
        facts = describe[file](folder)
    except (KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(f"{folder / file} is damaged ({error}); copy the folder again") from error
    return {"folder": str(folder), **facts, "files": _files(folder), "scores": _scores(folder, on_problem)}


def _model(folder: Path) -> FolderFacts:
    record = manifest.read_record(folder)
    manifest.require_unchanged(folder, record)
    require_shapes(folder, record)
    denoising = record["denoising"]
    parts = count_trained(folder, record)
    return {
        "kind": "model folder",
        "format": record["format"],
        "method": record["method"],
        "arguments": record.get("arguments") or {},
        "base": record["base"] | find_base(folder, record),
        "parameters": {"trained": sum(parts.values()), "of_these": parts},
        "pooling": record["pooling"],
        "matryoshka_dims": (record.get("arguments") or {}).get("matryoshka_dims") or [],
        "head": record["head"],
        "template": record["template"],
        "denoising": denoising and _denoising(denoising),
        "prompt": record["prompt"],
        "lora": record.get("lora"),
        "shallow_prompt": record["shallow"],
        "cls_prompt": record.get("cls_prompt"),
        "position_offset": record["position_offset"],
        "dtype": record.get("dtype", "float32"),
    }


def _denoising(record: Mapping[str, Any]) -> FolderFacts:
    return {**{name: record[name] for name in ("inference", "by")}, "from_zero": record.get("from_zero", False)}


def require_shapes(folder: Path, record: Mapping[str, Any]) -> None:
    """Raise UserError if the shapes of the tensors in a model folder differ from the manifest.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    names = (manifest.adapter_file(record), manifest.TRAINED)
    files = [name for name in names if name and (folder / name).is_file()]
    shapes = {
        name: {tensor: tuple(shape) for tensor, (shape, _) in read_header(folder / name).items()} for name in files
    }
    if problem := next(manifest.shape_faults(folder, record, shapes), None):
        raise UserError(problem)


def find_base(folder: Path, record: Mapping[str, Any]) -> FolderFacts:
    """Return a dict: `found`, whether the encoder of a model is at its recorded location, and `where`, a description.

    `found` is None if the encoder would be downloaded.

    Args:
        folder: The model folder.
        record: The manifest of the folder.
    """
    if record["backbone"] is None:
        return _find_encoder(record["base"])
    path = manifest.backbone_path(folder, record["backbone"])
    return {"found": (path / manifest.WEIGHTS).is_file(), "where": f"trained, saved in {path}"}


def _find_encoder(wanted: Mapping[str, Any]) -> FolderFacts:
    """Return `found` and `where` of a recorded encoder, as in `find_base`."""
    name = wanted["name_or_path"]
    if not os.path.isdir(name):  # Path.is_dir raises for a name that is too long
        return _find_on_hub(name, wanted["revision"])
    if not (Path(name) / manifest.CONFIG).is_file():
        return {"found": False, "where": f"the folder exists, but contains no {manifest.CONFIG}"}
    config = manifest.read_object(Path(name) / manifest.CONFIG, EncoderConfig)
    for key in ("model_type", "hidden_size"):
        if key in wanted and config.get(key) != wanted[key]:
            return {"found": False, "where": f"the folder contains a different encoder, with {key} {config.get(key)}"}
    return {"found": True, "where": "the folder exists"}


def _find_on_hub(name: str, revision: str | None) -> FolderFacts:
    missing = {"found": False, "where": f"the folder does not exist; give its location with {spell('base')}"}
    if Path(name).is_absolute() or name.startswith("."):
        return missing
    try:
        cached = try_to_load_from_cache(name, manifest.CONFIG, revision=revision)
    except HFValidationError:
        return missing
    if isinstance(cached, str):
        return {"found": True, "where": "in the Hub's cache on this machine"}
    return {"found": None, "where": "not in the Hub's cache on this machine; loading the model downloads it"}


def _adapter(folder: Path) -> FolderFacts:
    config = manifest.read_object(folder / manifest.PEFT_CONFIG, AdapterConfig)
    base = {"name_or_path": config.get("base_model_name_or_path"), "revision": config.get("revision")}
    location = _find_encoder(base) if base["name_or_path"] else {"found": None, "where": "not recorded in the adapter"}
    facts = {"kind": "PEFT adapter", **_chosen(config, _OF_ADAPTERS), "base": base | location}
    return facts | _weights(folder, adapter=True)


def _encoder(folder: Path) -> FolderFacts:
    config = manifest.read_object(folder / manifest.CONFIG, EncoderConfig)
    weights = _weights(folder, adapter=False)
    kind = "checkpoint of other code" if "checkpoint_of" in weights else "Hugging Face folder"
    return {"kind": kind, **_chosen(config, _OF_ENCODERS), **weights} | _sentence_transformer(folder)


def _chosen(config: Mapping[str, Any], names: Iterable[str]) -> FolderFacts:
    return {name: config[name] for name in names if config.get(name) is not None}


def _weights(folder: Path, *, adapter: bool) -> FolderFacts:
    """Return the number of parameters, the data types and, for checkpoints of public code, the facts about them."""
    if (file := find_weight_file(folder, adapter)) is None:
        others = sorted(path.name for path in folder.glob("*.bin"))
        missing = f"{WEIGHT_FILES[adapter][0]} does not exist"
        return {"weights": f"{', '.join(others)}: a pickle, not opened" if others else missing}
    tensors = parameters_of(tensor_headers(file))
    kinds = sorted({HEADER_DTYPES.get(kind, kind) for _, kind in tensors.values()})
    return {"parameters": {"in_all": count(tensors)}, "dtype": ", ".join(kinds), **_public_code(folder)}


def _public_code(folder: Path) -> FolderFacts:
    """Return the format and parts of a checkpoint of public code, and the import command. {} for other folders."""
    checkpoint = recognise_checkpoint(folder)
    if (
        checkpoint is None or not checkpoint.parts
    ):  # all PEFT adapters are recognised, but only prefixes can be imported
        return {}
    names = {"checkpoint_of": checkpoint.layout.title, "contains": list(checkpoint.parts)}
    return names | {"to_import": checkpoint.import_command}


def _sentence_transformer(folder: Path) -> FolderFacts:
    """Return the pooling of a sentence-transformers folder, or {} for other folders."""
    path = folder / "1_Pooling" / manifest.CONFIG
    if not (folder / manifest.MODULES).is_file() or not path.is_file():
        return {}
    config = manifest.read_object(path, PoolingConfig)
    modes = [name.removeprefix("pooling_mode_") for name, on in config.items() if name[:13] == "pooling_mode_" and on]
    return {"sentence_transformers_pooling": config.get("pooling_mode") or ", ".join(modes)}


def _run_without_model(folder: Path) -> FolderFacts:
    newest = last_checkpoint(folder)
    return {"kind": "unfinished run of a training, without a model", "newest_checkpoint": newest and newest.name}


def _files(folder: Path) -> dict[str, int]:
    """Return a dict from names of files and subfolders to sizes in bytes, without files that are removed meanwhile."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        name = f"{path.name}/" if path.is_dir() else path.name
        size = sum(map(_size, path.rglob("*"))) if path.is_dir() else _size(path)
        if os.path.lexists(path):
            sizes[name] = size
    return sizes


def _size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 for anything else, such as a broken link."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def _scores(folder: Path, on_problem: Callable[[str], None]) -> FolderFacts:
    """Return the scores of the training run in a folder, and of evaluations in the folder and its parent folder."""
    scores: FolderFacts = {}
    if any((folder / name).is_file() for name in (RUN_FILE, STATE, METRICS)):
        run = read_run(folder)
        for problem in run.problems:
            on_problem(problem)
        dev = {
            name: {"best": of.best, "best_step": of.best_step, "last": of.last} for name, of in run.dev_scores.items()
        }
        steps = {"steps_done": run.steps_done, "steps_planned": run.steps_planned, "finished": run.finished}
        gains = {"gains": [asdict(gain) for gain in run.gains]} if run.gains else {}
        scores["run"] = {**steps, "dev": dev, **gains}
    reports = {path.name: report for path, report in find_scores(folder, on_problem).items()}
    reports |= {f"../{path.name}": report for path, report in _scores_above(folder).items()}
    if reports:
        scores["evaluations"] = {name: _evaluation(report) for name, report in reports.items()}
    return scores


def _scores_above(folder: Path) -> dict[Path, Mapping[str, Any]]:
    """Return the evaluations in the parent folder that match this model, if the parent contains no other model."""
    above = folder.absolute().parent
    if not manifest.is_model_folder(folder) or sum(map(manifest.is_model_folder, above.iterdir())) > 1:
        return {}
    record = manifest.read_record(folder)
    head = record["head"] is not None and record["head"]["at_inference"]
    expected = {
        "method": record["method"],
        "pooling": record["pooling"],
        "head_at_inference": head,
        "base": record["base"],
    }

    def is_own(report: Mapping[str, Any]) -> bool:
        model = report.get("model")
        return isinstance(model, Mapping) and all(model.get(name) == value for name, value in expected.items())

    # Problems of other files in the parent folder are not reported.
    return {path: report for path, report in find_scores(above, lambda line: None).items() if is_own(report)}


def _evaluation(report: Mapping[str, Any]) -> FolderFacts:
    averages = dict(report.get("averages_x100", {}))
    size = {"truncate_dim": report["truncate_dim"]} if report.get("truncate_dim") else {}
    return {"mode": report.get("mode"), **size, "averages_x100": averages, "scores_x100": dict(report["scores_x100"])}
