"""The command `dcpcse info FOLDER`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dcpcse.encoders.pooling import POOLERS
from dcpcse.interop.folder_contents import FolderFacts, describe_folder
from dcpcse.training.run_history import Gain
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.run_files import mode_and_size, notify_of_running


def info_command(argv: Sequence[str]) -> None:
    """Run `dcpcse info`. Raises UserError for mistakes of the user."""
    args = info_parser().parse_args(list(argv))
    facts = describe_folder(Path(args.folder), notify)
    notify_of_running(args.folder)
    print_result(json.dumps(facts, indent=2, ensure_ascii=False) if args.json else format_facts(facts))


def format_facts(facts: FolderFacts) -> str:
    """Format the facts returned by `describe_folder`: one line per fact, then the files, then the scores."""
    shown = {name.replace("_", " "): _text(name, value) for name, value in facts.items() if name not in _SECTIONS}
    shown = {name: text for name, text in shown.items() if text}
    sizes = {name: _bytes(size) for name, size in facts["files"].items()}
    scores = [f"  {line}" for line in _score_lines(facts["scores"]) or ["not recorded"]]
    sections = [_columns(shown), ["files", *_columns(sizes, "  ")], ["scores", *scores]]
    return "\n\n".join("\n".join(lines) for lines in sections)


_SECTIONS = ("files", "scores")


def _columns(pairs: Mapping[str, str], indent: str = "") -> list[str]:
    width = max(map(len, pairs), default=0)
    return [f"{indent}{name:{width}}  {text}" for name, text in pairs.items()]


def _text(name: str, value: Any) -> str:
    """Return a value as text, or "" for an empty value."""
    if value in (None, "", {}, []):
        return ""
    if name in _FORMATS:
        return _FORMATS[name](value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _base(base: Mapping[str, Any]) -> str:
    size = f" ({base['model_type']}, hidden size {base['hidden_size']})" if "model_type" in base else ""
    revision = f" at {base['revision']}" if base["revision"] else ""
    return f"{base['name_or_path']}{revision}{size}; {base['where']}"


def _head(head: Mapping[str, Any]) -> str:
    return f"{head['kind']}, {'part of the representation' if head['at_inference'] else 'training only'}"


def _template(template: Mapping[str, Any]) -> str:
    notes = ["its tokens are continuous prompts"] if template["continuous"] else []
    notes += ["a full stop is added to sentences without an end mark"] if template["final_period"] else []
    return "; ".join([template["text"], *notes])


def _prompt(prompt: Mapping[str, Any]) -> str:
    projection = f", projected from an inner size of {prompt['projection']}" if prompt["projection"] else ""
    sizes = f"{prompt['layers']} layers, {prompt['heads']} heads of {prompt['head_dim']}"
    form = ", one vector per layer" if prompt["kind"] == "deep_vectors" else ""
    return f"{prompt['length']} deep prompts{form}: {sizes}{projection}"


def _lora(lora: Mapping[str, Any]) -> str:
    dropout = f", dropout {lora['dropout']:g} in training" if lora["dropout"] else ""
    return f"rank {lora['r']}, alpha {lora['alpha']}{dropout}: {', '.join(lora['target_modules'])}"


def _denoising(denoising: Mapping[str, Any]) -> str:
    if not denoising["inference"]:
        return "not at inference"
    return f"by {denoising['by']}{', at positions from 0' if denoising['from_zero'] else ''}"


def _parameters(parameters: Mapping[str, Any]) -> str:
    if "in_all" in parameters:
        return f"{parameters['in_all']:,}"
    parts = ", ".join(f"{name} {number:,}" for name, number in parameters["of_these"].items())
    return f"{parameters['trained']:,} trained: {parts}"


_FORMATS = {
    "base": _base,
    "head": _head,
    "template": _template,
    "prompt": _prompt,
    "lora": _lora,
    "parameters": _parameters,
    "pooling": lambda name: f"{name}: {POOLERS[name].help}" if name in POOLERS else name,
    "denoising": _denoising,
}
"""A dict from facts to functions that format them, for facts whose text is not simply the value."""


def _score_lines(scores: Mapping[str, Any]) -> list[str]:
    lines = []
    if run := scores.get("run"):
        planned = "?" if run["steps_planned"] is None else run["steps_planned"]
        lines.append(f"run: {run['steps_done']}/{planned} steps, {'finished' if run['finished'] else 'unfinished'}")
        for name, of in run["dev"].items():
            lines.append(f"dev {name}: best {of['best']:.4f} at step {of['best_step']}, last {of['last']:.4f}")
        lines += [str(Gain(**gain)) for gain in run.get("gains", [])]
    for name, report in scores.get("evaluations", {}).items():
        shown = {f"{family} average": value for family, value in report["averages_x100"].items()}
        shown |= report["scores_x100"]
        scores_of = ", ".join(f"{task} {_score(value)}" for task, value in shown.items())
        lines.append(f"{name} ({mode_and_size(report['mode'], report.get('truncate_dim'))}): {scores_of}")
    return lines


def _score(value: float | None) -> str:
    return "missing" if value is None else f"{value:.2f}"


def _bytes(size: float) -> str:
    if size < 1000:
        return f"{size} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"


def info_parser() -> CommandParser:
    """Return the parser of `dcpcse info`."""
    parser = CommandParser(
        prog="dcpcse info",
        description="Describe a folder: a model, a run, a PEFT adapter or an encoder. Nothing is loaded.",
    )
    parser.add_model("folder", "Folder of a model, a run or a checkpoint.")
    parser.add_argument("--json", action="store_true", help="Print it as JSON.")
    return parser
