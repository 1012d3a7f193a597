"""Open the evaluation data of a training, choose the metric of the best checkpoint, and compute metrics."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from numbers import Number
from os import PathLike
from typing import Any

import numpy as np
from senteval import TRANSFER_TASKS, Result, Suite, load_suite, settings_of_mode
from senteval.beir import BeirTask, LoadedBeir
from senteval.labels import LabelsTask, LoadedLabels
from senteval.pairs import LoadedPairs, PairsTask
from transformers import EvalPrediction

from dcpcse.data.objects import open_table
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.advice import OF_TRAINING, advice
from dcpcse.evaluation.evaluator import METRIC_NAMES, OWN_METRICS, dev_metrics, evaluate_suite
from dcpcse.evaluation.own_data import own_labels, own_pairs, own_tasks
from dcpcse.evaluation.retrieval_data import retrieval_tasks
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, invalid_choice, plural, spell

OwnTask = PairsTask | LabelsTask | BeirTask
"""A task with the user's evaluation data."""


LOADED = (LoadedPairs, LoadedLabels, LoadedBeir)
"""The types of loaded user data for evaluation."""


def dev_tasks(data: DataArguments) -> list[str]:
    """Return the names of SentEval's tasks whose dev sets are evaluated during training."""
    return [*data.eval_tasks, *(TRANSFER_TASKS if data.eval_transfer else ())]


def read_own_data(data: DataArguments, pairs: Any = None, labels: Any = None) -> list[OwnTask]:
    """Read and check the user's evaluation data of a run, before any encoder is loaded.

    Args:
        data: The options that name the evaluation data.
        pairs: Pairs as a Python object. None: the file that `--eval_pairs` names, if it is given.
        labels: Labelled texts as a Python object. None: the file that `--eval_labels` names, if it is given.
    """
    pairs, labels = (data.eval_pairs if pairs is None else pairs), (data.eval_labels if labels is None else labels)
    tasks = own_tasks({"eval_pairs": pairs, "eval_labels": labels}, data.eval_columns, "eval_columns")
    return [*tasks, *retrieval_tasks(data.eval_retrieval or [], "dev")]


def load_dev_tasks(data: DataArguments, own_tasks: Sequence[OwnTask] | None = None) -> Suite:
    """Load and check the data of the dev tasks once for the whole run, before any encoder is loaded.

    Args:
        data: The options that name the evaluation data.
        own_tasks: The user's evaluation data. None: the data that the options name.
    """
    own_tasks = read_own_data(data) if own_tasks is None else own_tasks
    settings = settings_of_mode("dev", official=not data.custom_eval_data)
    with advice(OF_TRAINING, spell("eval_tasks", ["STSBenchmark"])):
        return load_suite(dev_tasks(data), data.eval_data_dir, settings, extra=own_tasks)


def settle_metric(run: TrainingArguments, dev: Suite, option_names: Collection[str]) -> None:
    """Set `metric_for_best_model` to a metric of the user's evaluation data, or check the given metric.

    The metric is only set if the user gives evaluation data and does not choose a metric.

    Args:
        run: Options of the run, which are changed.
        dev: The tasks that are evaluated during training.
        option_names: Names of the options that the user has set.

    Raises:
        UserError: If the run does not measure the given metric.
    """
    metrics = [OWN_METRICS[task.family] for task in dev.tasks.values() if isinstance(task, LOADED)]
    if "metric_for_best_model" not in option_names:
        run.metric_for_best_model = metrics[0] if metrics else run.metric_for_best_model
        if run.load_best_model_at_end:
            warn(
                f"{spell('metric_for_best_model', run.metric_for_best_model)}: filled in; it selects the best "
                "checkpoint"
            )
        return
    sts = [metric for task, metric in METRIC_NAMES.items() if task in dev.tasks]
    transfer = [task for task in TRANSFER_TASKS if task in dev.tasks]
    known = [*metrics, *sts, *(["avg_sts"] if len(sts) == len(METRIC_NAMES) else [])]
    known += [*transfer, "avg_transfer"] if transfer else []
    if (run.metric_for_best_model or "").removeprefix("eval_") not in known:
        raise invalid_choice("metric_for_best_model", run.metric_for_best_model, known)


ComputeMetrics = Callable[[EvalPrediction], Mapping[str, float]]
"""Function of transformers' Trainer: predictions and gold labels → metrics by name."""

WITH_METRIC = (*METRIC_NAMES, *TRANSFER_TASKS)
"""Tasks that can be given by their names."""

_WITH_NAMED_METRIC = ("sts", "transfer", *OWN_METRICS)
"""Families of tasks with metrics from `dev_metrics`; for other tasks of a suite, the metric has the name of the
task."""

EVALUATES = "give pairs with scores (three columns), texts with classes (two columns), or a list of names of tasks"


@advice(OF_TRAINING)
def open_eval_dataset(data: Any, options: DataArguments, name: str = "eval_dataset") -> dict[str, Suite]:
    """Return the sets of tasks to evaluate, by name. Data that are not in a dict get the name "".

    `data` can be:

    - pairs with scores, or texts with classes (see `dcpcse.evaluation.own_data`)
    - a task of `dcpcse.evaluation.own_data`
    - the name of a task with a dev set, or a list of such names
    - a `senteval.Suite`
    - a dict with several sets of such data, by name
    - None: no evaluation

    Args:
        data: The evaluation data.
        options: Options of the data, of which `eval_data_dir` and `custom_eval_data` are used.
        name: Name of the data, for messages.

    Raises:
        UserError: If the data cannot be evaluated.
    """
    if data is None:
        return {}
    if isinstance(data, Mapping) and not _is_columns(data):
        opened = {}
        for key, value in data.items():
            if not isinstance(key, str) or not key:
                raise UserError(f"{name}: the key {key!r} is not a name; give a dict of names and data")
            inner = open_eval_dataset(value, options, key)
            opened |= {f"{key}_{other}" if other else key: suite for other, suite in inner.items()}
        return opened
    if isinstance(data, Suite):
        return {"": data}
    settings, data_dir = settings_of_mode("dev", official=not options.custom_eval_data), options.eval_data_dir
    if callable(getattr(data, "load", None)):
        return {"": load_suite([], data_dir, settings, [data])}
    data = [data] if isinstance(data, str) and data in WITH_METRIC else data
    if _is_names(data):
        if unknown := next((task for task in data if task not in WITH_METRIC), None):
            raise invalid_choice(name, unknown, WITH_METRIC)
        return {"": load_suite(list(data), data_dir, settings)}
    return {"": load_suite([], data_dir, settings, [_own_task(data, name)])}


def _is_names(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and bool(data) and all(isinstance(name, str) for name in data)


def _is_columns(data: Mapping[Any, Any]) -> bool:
    """Return whether a mapping is a table (column → cells) and not a dict of several sets of data."""
    return all(
        hasattr(cells, "__len__") and not isinstance(cells, (str, Mapping)) and _holds_cells(cells)
        for cells in data.values()
    )


def _holds_cells(cells: Any) -> bool:
    first = next(iter(cells), None)
    return isinstance(first, (str, Number, np.generic)) and not (_is_names(cells) and set(cells) <= set(WITH_METRIC))


def _own_task(data: Any, name: str) -> Any:
    """Return a task with the user's data. Three columns are pairs with scores, two columns are labelled texts."""
    if isinstance(data, (str, PathLike)):
        raise UserError(
            f"{name} {data} is not a task ({', '.join(WITH_METRIC)}); for a file, give own_pairs(file) or "
            "own_labels(file) from dcpcse.evaluation.own_data, for a folder own_retrieval(folder, 'dev') from "
            "dcpcse.evaluation.retrieval_data"
        )
    data = list(data) if isinstance(data, Iterator) else data
    table = open_table(data, name)
    width = len(table.columns) if table.columns is not None else len(next(table.rows)[1])
    if width not in (2, 3):
        raise UserError(f"{name} has {plural(width, 'column')}, not two or three; {EVALUATES}")
    return (own_pairs if width == 3 else own_labels)(data, name)


@advice(OF_TRAINING)
def compute_scores(
    model: SentenceEncoder,
    suites: Mapping[str, Suite],
    batch_size: int | None = None,
    compute: ComputeMetrics | None = None,
) -> dict[str, float]:
    """Evaluate a model and return the metrics by name, without the prefix `eval_`.

    A metric METRIC of a suite with the name NAME is called NAME_METRIC.

    Args:
        model: The model.
        suites: The sets of tasks by name, from `open_eval_dataset`.
        batch_size: As in `SentenceEncoder.encode`.
        compute: A function that computes further metrics of each set of pairs. It is called with the cosines (n,) as
            `predictions` and the gold scores (n,) as `label_ids`. If a suite has several sets, the names of these
            metrics begin with the name of the set.

    Raises:
        UserError: If `compute` does not return a mapping from names to numbers.
    """
    scores: dict[str, float] = {}
    for name, suite in suites.items():
        results = evaluate_suite(model, suite, batch_size=batch_size).results
        others = {task: result.points for task, result in results.items() if result.family not in _WITH_NAMED_METRIC}
        metrics = dev_metrics(results) | others | _own_metrics(results, compute)
        scores |= {f"{name}_{metric}" if name else metric: value for metric, value in metrics.items()}
    return scores


def _own_metrics(results: Mapping[str, Result], compute: ComputeMetrics | None) -> dict[str, float]:
    pairs = {task: result for task, result in results.items() if getattr(result, "cosines", None) is not None}
    if compute is None or not pairs:
        return {}
    metrics = {}
    for task, result in pairs.items():
        computed = compute(EvalPrediction(predictions=result.cosines, label_ids=result.gold))
        if not isinstance(computed, Mapping) or not all(isinstance(value, Number) for value in computed.values()):
            raise UserError("compute_metrics must return a dict of numbers by name, such as {'accuracy': 0.9}")
        # transformers adds the prefix, unless the function has added it.
        scores = {str(name).removeprefix("eval_"): float(value) for name, value in computed.items()}
        prefix = METRIC_NAMES.get(task, task).removesuffix("_spearman") if len(pairs) > 1 else ""
        metrics |= {f"{prefix}_{name}" if prefix else name: value for name, value in scores.items()}
    return metrics
