"""The description of a model for mteb: its ModelMeta, from the model and from the record of its training run."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.fingerprint import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.utils.parsing import parse_yaml, read_text
from dcpcse.utils.run_files import RUN_FILE, read_options

STS_TASKS = frozenset({"STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R"})

TRAINING_DATA: Mapping[str, frozenset[str]] = {
    "wiki1m_for_simcse.txt": frozenset({"Wikipedia"}),
    "nli_for_simcse.csv": frozenset({"SNLI", "MNLI"}),
    "allnli.csv": frozenset({"SNLI", "MNLI"}),
    "stsb_train.csv": frozenset({"STSBenchmark"}),
    "sts_texts.txt": STS_TASKS,
}
"""Training file of the presets → the data sets in it, by their names in mteb. All are English and public."""


def model_meta(
    mteb: Any,
    model: SentenceEncoder,
    folder: Path | None,
    prompts: Mapping[str, str],
    prefix: str,
    options: EncodeOptions,
) -> Any:
    """Return mteb's ModelMeta of a model; what is unknown is None.

    The revision is a digest of everything that the vectors depend on, because mteb caches results by revision.

    Args:
        mteb: The module.
        model: The model.
        folder: The model's folder, whose run says on which data it was trained, and whose README.md what its license
            is.
        prompts: The text before each text of a task, by name.
        prefix: The model's default prompt.
        options: Options of encoding.
    """
    facts = identity(model) | ({"text_prefix": prefix} if prefix else {}) | options.recorded()
    facts |= {"prompts": dict(prompts)} if prompts else {}
    base = model.source.name_or_path
    base = Path(base).name if Path(base).is_absolute() else base
    weights = list(model.parameters())
    data = training_datasets(folder)
    # What XLM-R learns from English data is meant for its other languages too.
    is_multilingual = model.encoder.backbone.config.model_type == "xlm-roberta"
    known = {
        "name": f"dcpcse/{model.method or model.pooling}-{base.replace('/', '-')}",
        "revision": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40],
        "languages": None if data is None or is_multilingual else ["eng-Latn"],
        "n_parameters": sum(weight.numel() for weight in weights),
        "n_embedding_parameters": model.encoder.backbone.get_input_embeddings().weight.numel(),
        "memory_usage_mb": round(sum(weight.numel() * weight.element_size() for weight in weights) / 2**20),
        "max_tokens": model.max_tokens,
        "embed_dim": options.truncate_dim or model.dimension,
        "framework": ["PyTorch"],
        "similarity_fn_name": mteb.models.model_meta.ScoringFunction.COSINE,
        "use_instructions": any([*prompts.values(), prefix]),
        "training_datasets": data,
        "public_training_data": None if data is None else True,
        "adapted_from": base,
        "license": _license(folder, get_args(mteb.types.Licenses)),
    }
    return mteb.models.ModelMeta.create_empty(overwrites=known)


def training_datasets(folder: Path | None) -> set[str] | None:
    """Return the data sets on which the model in a folder was trained, by their names in mteb; None if unknown.

    They follow from the name of the training file of the run, if it is one of the files that data/ builds for the
    presets. Raises UserError if the run's record is damaged.
    """
    if folder is None or not (folder / RUN_FILE).is_file():
        return None
    file = read_options(folder).get("train_file")
    names = TRAINING_DATA.get(Path(file).name) if isinstance(file, str) else None
    return None if names is None else set(names)


def _license(folder: Path | None, known: tuple[str, ...]) -> str | None:
    """Return the license in the metadata of the folder's README.md; None if there is none that is known to mteb.

    A README.md that cannot be read has no license: it says nothing about the vectors, which mteb evaluates anyway.
    """
    try:
        text = read_text(folder / "README.md") if folder else ""
        metadata = parse_yaml(text.partition("\n---")[0]) if text.startswith("---") else None
    except (OSError, ValueError):
        return None
    value = metadata.get("license") if isinstance(metadata, dict) else None
    return value.lower() if isinstance(value, str) and value.lower() in known else None
