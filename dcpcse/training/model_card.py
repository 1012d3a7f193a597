"""The model card of a folder, from what its files say: settings, data, scores, versions; what is unknown is named."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import yaml

from dcpcse.encoders.fingerprint import trained_digest
from dcpcse.encoders.storage import manifest
from dcpcse.methods import METHODS
from dcpcse.training.run_history import Run, find_scores, require_run
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import RUN_FILE, require_scores
from dcpcse.utils.safetensors_header import read_header

CARD = "README.md"
"""What the hub shows of a repository."""

UNKNOWN = "not on record"

_DIGEST = "sha256 digest of what was trained"

TASK_AND_METRIC: Mapping[str, tuple[str, str]] = {
    "sts": ("sts", "cosine_spearman"),
    "pairs": ("sts", "cosine_spearman"),
    "finetune": ("sts", "spearman"),
    "transfer": ("text-classification", "accuracy"),
    "fewshot": ("text-classification", "accuracy"),
    "clustering": ("clustering", "accuracy"),
    "retrieval": ("retrieval", "recall"),
    "mteb": ("mteb", "main_score"),
}
"""Family of a task → the kind of task and the metric that its score is."""

COUNTER_SUFFIXES = ("running_mean", "running_var", "num_batches_tracked")
"""Ends of the names of tensors that training counts and does not learn."""


@dataclass(frozen=True)
class CardFacts:
    """All that a card is written from. run: None where the folder has no run.yaml. scores: file name → its content."""

    name: str
    record: Mapping[str, Any]
    digest: str
    numbers: Mapping[str, int]
    run: Run | None
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def write_card(folder: str | Path, name: str | None = None, scores: Sequence[str | Path] = ()) -> str:
    """The text of the card of a model folder. name: what it is called and loaded by, else the folder's own name.

    scores: files of evaluation.py --output_file; without any, those that lie in the folder. UserError for a file that
    was measured on another model than the folder's, whose place and name prove nothing.
    """
    folder = Path(folder)
    record = manifest.read_record(folder)
    run = require_run(folder) if (folder / RUN_FILE).is_file() else None
    digest = trained_digest(folder)
    found = _scores(folder, _identity(record) | {"trained": digest}, [Path(path) for path in scores])
    facts = CardFacts(name or folder.resolve().name, record, digest, count_numbers(folder, record), run, found)
    parts = [part(facts) for part in SECTIONS]
    return "\n\n".join([f"---\n{_metadata(facts)}\n---", f"# {facts.name}", *parts]) + "\n"


def count_numbers(folder: Path, record: Mapping[str, Any]) -> dict[str, int]:
    """How many numbers training made, by part, from the headers of the weight files."""
    parts: dict[str, int] = {}
    if record["prompts_file"] is not None and record["prompt"]["projection"] is None:
        parts["prompts"] = sum(_sizes(folder / record["prompts_file"]).values())
    for name, size in _sizes(folder / manifest.TRAINED).items():
        part = {"prompt": "prompts, as their projection", "shallow": "input vectors"}.get(name.split(".")[0])
        part = part or name.split(".")[0]
        parts[part] = parts.get(part, 0) + (0 if name.endswith(COUNTER_SUFFIXES) else size)
    if record["backbone"] is not None:
        sizes = _sizes(manifest.backbone_path(folder, record["backbone"]) / manifest.WEIGHTS)
        # A pooler is the head once more, for other libraries.
        parts["encoder"] = sum(size for name, size in sizes.items() if not name.startswith("pooler."))
    return parts


def _sizes(path: Path) -> dict[str, int]:
    """Numbers in each tensor of a safetensors file; nothing where there is no file."""
    if not path.is_file():
        return {}
    return {name: prod(shape) for name, (shape, _) in read_header(path).items()}


def digest_in(card: str) -> str | None:
    """The digest of the weights that a card was written of; None of a card by another hand."""
    found = re.search(rf"^\| {_DIGEST} \| ([0-9a-f]{{64}}) \|$", card, flags=re.MULTILINE)
    return found and found[1]


def _scores(folder: Path, expected: Mapping[str, Any], given: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Files of scores by name; expected: of the identity of the model that they must have been measured on."""

    def damaged(line: str) -> None:
        raise UserError(line)

    found = {path: require_scores(path) for path in given} if given else find_scores(folder, damaged)
    for path, content in found.items():
        measured = content.get("model", {}).get("identity", {})
        if others := [key for key, value in expected.items() if measured.get(key) != value]:
            raise UserError(f"{path} holds the scores of another model than {folder}: {', '.join(others)} differ")
        if not content.get("complete"):
            raise UserError(f"{path} holds the scores of an evaluation that was cut off; measure to the end")
    return {path.name: content for path, content in found.items()}


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """What `identity` says of a folder's own model, as far as its record tells."""
    return {
        "base": record["base"]["fingerprint"],
        "pooling": record["pooling"],
        "head_at_inference": bool(record["head"] and record["head"]["at_inference"]),
        "position_offset": record["position_offset"],
        "reading": {"template": record["template"], "denoising": record["denoising"]},
    }


def _metadata(facts: CardFacts) -> str:
    from huggingface_hub import ModelCardData

    base, method = facts.record["base"]["name_or_path"], facts.record["method"]
    of_hub = not Path(base).is_absolute()
    results = [result for file in facts.scores.values() for result in _results(file)]
    return ModelCardData(
        model_name=facts.name,
        library_name="dcpcse",
        pipeline_tag="sentence-similarity",
        tags=["sentence-embeddings", *([method] if method else [])],
        base_model=base if of_hub else None,
        base_model_relation=("finetune" if facts.record["backbone"] else "adapter") if of_hub else None,
        eval_results=results or None,
    ).to_yaml()


def _results(report: Mapping[str, Any]) -> list[Any]:
    from huggingface_hub import EvalResult

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
        for kind, metric in [TASK_AND_METRIC[report["tasks"][name]["family"]]]
    ]


def _summary(facts: CardFacts) -> str:
    record = facts.record
    what = "a trained encoder" if record["backbone"] else "trained prompts for a frozen encoder"
    return (
        f"Sentence embeddings of {record['base']['hidden_size']} numbers: {what}, {_base(facts)}, by the method "
        f"{_code(record['method'] or UNKNOWN)}. Written by dcpcse from the records of its folder."
    )


def _base(facts: CardFacts) -> str:
    base = facts.record["base"]
    if Path(base["name_or_path"]).is_absolute():
        return f"{_code(Path(base['name_or_path']).name)} ({base['model_type']}, a folder where it was trained)"
    return f"{_code(base['name_or_path'])} ({base['model_type']})"


def _use(facts: CardFacts) -> str:
    record, base = facts.record, facts.record["base"]
    place = ""
    if record["backbone"] is None and Path(base["name_or_path"]).is_absolute():
        place = (
            "\n\nThe frozen encoder lay in a folder of the machine that trained it: "
            '`dcpcse.load(..., base="FOLDER_OR_ID")`'
            " names its place now; another one is refused by the fingerprint of its weights."
        )
    return (
        f'## Use\n\n```python\nimport dcpcse\n\nmodel = dcpcse.load("{facts.name}")\n'
        'vectors = model.encode(["A man plays the flute.", "Rain fell."], normalize=True)\n```'
        f"{place}\n\n{_elsewhere(record)}"
    )


def _elsewhere(record: Mapping[str, Any]) -> str:
    """What other libraries do with the folder."""
    if record["backbone"] is not None and record["backbone"]["folder"] == ".":
        return "AutoModel and SentenceTransformer load it as it is, and SentenceTransformer gives the same vectors."
    fails = "AutoModel and SentenceTransformer do not load it: the plain encoder alone would give other vectors."
    if record["prompts_file"] == manifest.PEFT_PROMPTS:
        return f"{fails} peft does: `PeftModel.from_pretrained(base, folder)`; [CLS] of the last layer is the vector."
    return fails


def _settings(facts: CardFacts) -> str:
    record, base = facts.record, facts.record["base"]
    head, prompt, template = record["head"], record["prompt"], record["template"]
    rows = {
        "method": record["method"],
        "base": base["name_or_path"],
        "revision of the base": base["revision"],
        "sha256 fingerprint of its weights": base["fingerprint"],
        "type of the frozen weights": record.get("dtype"),
        "pooling": record["pooling"],
        "head": "none"
        if head is None
        else f"{head['kind']}, {'used' if head['at_inference'] else 'in training only'}",
        "template": "none" if template is None else template["text"],
        "denoising at inference": bool(record["denoising"] and record["denoising"]["inference"]),
        "full stop put to sentences": bool(template and template["final_period"]),
        "deep prompts": "none"
        if prompt is None
        else f"{prompt['length']} keys and values in {prompt['layers']} layers",
        "position of the first token": record["position_offset"],
        _DIGEST: facts.digest,
        **{f"numbers trained: {part}": f"{count:,}" for part, count in facts.numbers.items()},
        "numbers trained in all": f"{sum(facts.numbers.values()):,}",
        "numbers of the base": None,
    }
    if record["backbone"] is not None:
        del rows["numbers of the base"]
    return f"## Settings\n\n{_table(['', ''], rows.items())}"


def _training(facts: CardFacts) -> str:
    run = facts.run
    if run is None:
        return f"## Training\n\nData, options, steps and seed: {UNKNOWN} (the folder has no {RUN_FILE})."
    options = run.options
    names = ("train_file", "preset", "max_seq_length", "per_device_train_batch_size", "learning_rate")
    rows = {
        **{name: options.get(name) for name in (*names, "num_train_epochs", "seed")},
        "optimiser steps": f"{run.steps_done:,} of {run.steps_planned or UNKNOWN}",
        "processes": None,
    }
    for name, score in run.dev_scores.items():
        rows[f"dev: {name}"] = f"{score.last:.4f} at the end, best {score.best:.4f} at step {score.best_step}"
    listed = yaml.safe_dump(dict(options), sort_keys=True, allow_unicode=True)
    return (
        f"## Training\n\n{_table(['', ''], rows.items())}\n\nThe run again, by its own {RUN_FILE}:\n\n```bash\n"
        f"python train.py {RUN_FILE} --output_dir NEW_FOLDER\n```\n\n<details><summary>All its options</summary>\n\n"
        f"```yaml\n{listed}```\n\n</details>"
    )


def _shown_scores(facts: CardFacts) -> str:
    if not facts.scores:
        return f"## Scores\n\n{UNKNOWN.capitalize()}: no file of scores was given, and none lies in the folder."
    rows = []
    for file, report in facts.scores.items():
        post = report.get("postprocess")
        how = f"{report['mode']}, after {post}" if post else report["mode"]
        for task, value in report["scores_x100"].items():
            about = report["tasks"][task]
            metric = about.get("metric", TASK_AND_METRIC[about["family"]][1])
            rows.append([task, metric, f"{value:.2f}", how, file])
        rows += [
            [f"average, {family}", "", f"{value:.2f}", how, file] for family, value in report["averages_x100"].items()
        ]
    seed = None if facts.run is None else facts.run.options.get("seed")
    return (
        f"## Scores\n\n{_table(['task', 'metric', 'x 100', 'mode', 'file'], rows)}\n\nOf one model, trained with seed "
        f"{UNKNOWN if seed is None else seed}. Each file holds the digest of these very weights."
    )


def _environment(facts: CardFacts) -> str:
    calls = [] if facts.run is None else facts.run.environment
    if not calls:
        return f"## Trained with\n\nVersions and hardware: {UNKNOWN}."
    rows = []
    for call in calls:
        hardware = call.get("hardware", {})
        machine = ", ".join(hardware.get("gpus") or [f"{hardware.get('processor', UNKNOWN)}, no GPU"])
        versions = ", ".join(f"{name} {version}" for name, version in call.get("versions", {}).items())
        rows.append([call["from_step"], versions, machine, call.get("commit")])
    return f"## Trained with\n\n{_table(['from step', 'versions', 'hardware', 'commit of dcpcse'], rows)}"


def _rights(facts: CardFacts) -> str:
    unknown, method = f"{UNKNOWN.capitalize()}.", METHODS.get(facts.record["method"])
    return (
        f"## Licence\n\n{unknown} Base and training data have licences of their own.\n\n## Citation\n\n"
        f"{(method and method.citation) or unknown}"
    )


SECTIONS: Sequence[Callable[[CardFacts], str]] = (
    _summary, _use, _settings, _training, _shown_scores, _environment, _rights,
)  # fmt: skip
"""The parts of a card, in order."""


def _table(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [names, ["---"] * len(names), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    """A value in a table; unknown ones are said to be."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(value).split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`"
