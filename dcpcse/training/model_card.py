"""Write model cards: fill in the template `model_card.md.j2` from the records in a model folder."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from dcpcse.encoders.identity import differences, trained_digest
from dcpcse.encoders.storage import manifest
from dcpcse.encoders.storage.manifest import count_trained
from dcpcse.methods import METHODS
from dcpcse.training.run_history import find_scores, require_run
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import RUN_FILE, require_scores

CARD = "README.md"
"""The file that the Hub shows as the page of a repository."""

TEMPLATE = Path(__file__).with_name("model_card.md.j2")

TASK_AND_METRIC: Mapping[str, tuple[str, str]] = {
    "sts": ("sts", "cosine_spearman"),
    "pairs": ("sts", "cosine_spearman"),
    "binary-pairs": ("pair-classification", "cosine_ap"),
    "labels": ("text-classification", "accuracy"),
    "beir": ("retrieval", "ndcg_at_10"),
    "finetune": ("sts", "spearman"),
    "transfer": ("text-classification", "accuracy"),
    "fewshot": ("text-classification", "accuracy"),
    "clustering": ("clustering", "accuracy"),
    "retrieval": ("retrieval", "recall"),
    "mteb": ("mteb", "main_score"),
}
"""Family of an evaluation task → its task type on the Hub, and the metric of its score."""

_DIGEST_ROW = "SHA-256 digest of the trained weights"

_PARTS = {"prompt": "deep prompts", "shallow": "input vectors", "cls_prompt": "[CLS] vectors", "backbone": "encoder"}
_PARTS["lora"] = "LoRA adapter"
"""Part of a model, as its files name it → its name in the card. Other parts keep their names."""


def write_card(folder: str | Path, name: str | None = None, scores: Sequence[str | Path] = ()) -> str:
    """Return the text of the card of a model folder.

    Args:
        folder: The model folder.
        name: Name of the model, also used in the example that loads it. None: the name of the folder.
        scores: Files written by evaluation.py --output_file. (): those in the folder.

    Raises:
        UserError: If a file contains the scores of a different model.
    """
    folder = Path(folder)
    record = manifest.read_record(folder)
    digest = trained_digest(folder)
    reports = _read_scores(folder, _identity(record) | {"trained": digest}, [Path(path) for path in scores])
    run = require_run(folder) if (folder / RUN_FILE).is_file() else None
    method, base = record["method"], record["base"]["name_or_path"]
    on_hub = not Path(base).is_absolute()
    name = name or folder.resolve().name
    metadata = ModelCardData(
        model_name=name,
        library_name="dcpcse",
        pipeline_tag="sentence-similarity",
        tags=["sentence-embeddings", *([method] if method else [])],
        base_model=base if on_hub else None,
        base_model_relation=("finetune" if record["backbone"] else "adapter") if on_hub else None,
        eval_results=[result for report in reports.values() for result in report["results"]] or None,
    )
    card = ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATE),
        name=name,
        record=record,
        base_name=base if on_hub else Path(base).name,
        base_on_hub=on_hub,
        opens_in_peft=record["prompts_file"] == manifest.PEFT_WEIGHTS,
        digest_row=_DIGEST_ROW,
        digest=digest,
        parameters={_PARTS.get(part, part): number for part, number in count_trained(folder, record).items()},
        run=run,
        options=run and yaml.safe_dump(dict(run.options), sort_keys=True, allow_unicode=True),
        scores=reports,
        citation=METHODS[method].citation if method in METHODS else None,
    )
    return f"{card}\n"


def digest_in(card: str) -> str | None:
    """Return the digest of the weights that a card was written for; None if dcpcse did not write the card."""
    match = re.search(rf"^\| {_DIGEST_ROW} \| ([0-9a-f]{{64}}) \|$", card, flags=re.MULTILINE)
    return match and match[1]


def _read_scores(folder: Path, expected: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Return file name → content of the score files, with an entry `results` added.

    expected: entries of the model's identity. Raises UserError if those in a score file differ.
    """

    def damaged(line: str) -> None:
        raise UserError(line)

    reports = {path: require_scores(path) for path in paths} if paths else find_scores(folder, damaged)
    for path, report in reports.items():
        evaluated = report.get("model", {}).get("identity", {})
        if others := [key for key in differences(expected, evaluated) if key in expected]:
            raise UserError(
                f"{path} contains the scores of a different model from {folder}: {', '.join(others)} differ; give "
                "scores of this model"
            )
        if not report.get("complete"):
            raise UserError(f"{path} contains the scores of an interrupted evaluation; run it to the end")
        families = {name: report.get("tasks", {}).get(name, {}).get("family") for name in report["scores_x100"]}
        if odd := [name for name, family in families.items() if family not in TASK_AND_METRIC]:
            raise UserError(f"{path} is damaged: the task {odd[0]} has family {families[odd[0]]}; evaluate again")
    return {path.name: {**report, "results": _results(report)} for path, report in reports.items()}


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries of the model's `identity` that follow from the record of its folder."""
    later = {name: record["base"][name] for name in ("weights", "configuration") if record["base"].get(name)}
    return {
        **later,
        "base": record["base"]["fingerprint"],
        "pooling": record["pooling"],
        "head_at_inference": bool(record["head"] and record["head"]["at_inference"]),
        "position_offset": record["position_offset"],
        "reading": {"template": record["template"], "denoising": record["denoising"]},
    }


def _results(report: Mapping[str, Any]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type=kind,
            dataset_type=name,
            dataset_name=name,
            dataset_split=report["tasks"][name].get("split"),
            metric_type=report["tasks"][name].get("metric", metric),
            metric_name=f"{metric} x 100",
            metric_value=round(value, 2),
        )
        for name, value in report["scores_x100"].items()
        if value is not None
        for kind, metric in [TASK_AND_METRIC[report["tasks"][name]["family"]]]
    ]
