"""Compare the trained model with the untouched encoder on the user's own evaluation data."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from senteval import Result, Suite, load_suite, settings_of_mode

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import PROMPT
from dcpcse.evaluation.evaluator import OWN_METRICS, evaluate_suite
from dcpcse.evaluation.outcomes import ExampleOutcomes, outcomes_of_results
from dcpcse.evaluation.significance import Outcomes, difference, resample
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model, load_plain
from dcpcse.inference.st_folder import SentenceFolder
from dcpcse.training.eval_datasets import OwnTask
from dcpcse.training.resolve_arguments import load_options
from dcpcse.training.run_history import gains_of
from dcpcse.training.trainer import Trainer
from dcpcse.utils.console import notify, warn
from dcpcse.utils.distributed import broadcast
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_atomic
from dcpcse.utils.run_files import GAIN, read_gains

Entry = dict[str, Any]
"""An entry of `gain.json` (`dcpcse.utils.run_files.GainEntry`)."""


def measure_untouched(trainer: Trainer, tasks: Sequence[OwnTask]) -> None:
    """Measure the encoder before training on the user's evaluation data, and record its scores in `gain.json`.

    Data with a recorded score, as in a resumed run, are not measured again. All processes must call this function.

    Args:
        trainer: The Trainer of the run.
        tasks: The user's evaluation data.
    """
    recorded = _recorded(trainer, tasks)
    missing = [task for task in tasks if task.name not in recorded]
    if not missing:
        return
    notify(f"measuring the untouched encoder on {' and '.join(task.name for task in missing)}")
    try:
        encoder, representation = _load_untouched(trainer)
    except UserError as error:
        warn(f"the untouched encoder is not measured, so no gain is reported: {error}")
        return
    results = _measure(encoder, _suite(missing), trainer)
    entries = {task.name: _entry(task, results, representation) for task in missing}
    _write(trainer, [(recorded | entries)[task.name] for task in tasks])


def report_gains(trainer: Trainer, tasks: Sequence[OwnTask], *, finished: bool = False) -> None:
    """Measure the trained model on the user's evaluation data; record and print its gain over the untouched encoder.

    Data without a recorded score of the untouched encoder (`measure_untouched`) are left out. All processes must call
    this function.

    Args:
        trainer: The Trainer of the run.
        tasks: The user's evaluation data.
        finished: Whether the run had already ended before this call. Recorded gains are then not measured again.
    """
    entries = _recorded(trainer, tasks)
    known = [task for task in tasks if task.name in entries]
    if missing := [task for task in known if not finished or entries[task.name].get("trained") is None]:
        results = _measure(trainer.sentence_encoder, _suite(missing), trainer)
        entries |= {task.name: _compared(entries[task.name], task, results, trainer) for task in missing}
        _write(trainer, list(entries.values()))
    for gain in gains_of(list(entries.values())):
        notify(str(gain))


def _recorded(trainer: Trainer, tasks: Sequence[OwnTask]) -> dict[str, Entry]:
    """Return the recorded entries of these data by name; they are the same in all processes."""
    try:
        entries = read_gains(Path(trainer.args.output_dir)) if trainer.is_world_process_zero() else []
    except UserError as error:
        warn(f"{error}; it is written again")
        entries = []
    known = {task.name: task.content.sha256 for task in tasks}
    return broadcast({entry["data"]: entry for entry in entries if known.get(entry["data"]) == entry["sha256"]})


def _write(trainer: Trainer, entries: Sequence[Entry]) -> None:
    if trainer.is_world_process_zero():
        text = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        write_atomic(Path(trainer.args.output_dir) / GAIN, f"[\n{text}\n]\n")


def _suite(tasks: Sequence[OwnTask]) -> Suite:
    return load_suite([], "", settings_of_mode("dev"), tasks)


def _measure(model: SentenceEncoder, suite: Suite, trainer: Trainer) -> Mapping[str, Result]:
    return evaluate_suite(model, suite, batch_size=trainer.args.per_device_eval_batch_size).results


def _load_untouched(trainer: Trainer) -> tuple[SentenceEncoder, str]:
    """Load the encoder of a run without the trained parts; return it and a description of its representation.

    If the encoder has sentence-transformers settings, these define the representation. Otherwise it is the
    representation of the trained model. Raises UserError if the encoder cannot be loaded.
    """
    model, options = trainer.sentence_encoder, load_options(trainer.model_options)
    name, run = model.source.name_or_path, trainer.args
    settings: dict[str, Any] = {name: getattr(run, name) for name in ("packing", "attention")}
    folder = SentenceFolder.find(name, options)
    if folder is None:
        settings |= _representation(model)
    args = EncoderArguments(device=str(run.device), **settings)
    encoder = load_plain(name, args, options) if folder is None else load_model(name, args, options=options)
    template = f" in the template {settings['template']}" if settings.get("template") else ""
    return encoder, str(folder.pooling) if folder else f"pooler {encoder.pooling}{template}"


def _representation(model: SentenceEncoder) -> dict[str, Any]:
    """Return the options of evaluation.py for the representation of a model without its trained parts."""
    pooler = "cls_before_pooler" if model.pooling == "cls" else model.pooling
    if model.template is None:
        return {"pooler_type": pooler}
    text = re.sub(rf"\s*{re.escape(PROMPT)}", "", str(model.template.template)).strip()
    denoise = model.denoising.inference if model.pooler.needs_template else None
    return {"pooler_type": pooler, "template": text, "final_period": model.final_period, "denoise": denoise}


def _outcomes(task: OwnTask, results: Mapping[str, Result]) -> ExampleOutcomes:
    return outcomes_of_results({task.name: results[task.name]}, "dev", task.name).tasks[task.name]


def _entry(task: OwnTask, results: Mapping[str, Result], representation: str) -> Entry:
    outcomes = _outcomes(task, results)
    return {
        "data": task.name,
        "sha256": task.content.sha256,
        "metric": outcomes.statistic,
        "representation": representation,
        "untouched": float(results[task.name].points),
        "outcomes": np.asarray(outcomes.values, dtype=float).tolist(),
    }


def _compared(entry: Entry, task: OwnTask, results: Mapping[str, Result], trainer: Trainer) -> Entry:
    """Return the entry of user data with the score of the trained model and the interval of the difference."""
    args = trainer.args
    metric = (args.metric_for_best_model or "").removeprefix("eval_")
    return {
        **entry,
        "trained": float(results[task.name].points),
        "interval": _interval(entry["outcomes"], _outcomes(task, results)),
        "chose": bool(args.load_best_model_at_end and metric == OWN_METRICS[task.family]),
    }


def _interval(before: Sequence[float], after: ExampleOutcomes) -> list[float] | None:
    """Return the 95 % interval of a difference × 100 by the paired bootstrap; None if there are too few examples."""
    try:
        interval = difference(resample(Outcomes(after.statistic, [before, after.values], after.scored_gold)), 0, 1)
    except ValueError:
        return None
    return list(interval.points[1:])
