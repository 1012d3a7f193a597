"""Load the evaluation data that a run measures during training, and settle the metric of its best checkpoint."""

from collections.abc import Collection, Sequence
from typing import Any

from senteval import TRANSFER_TASKS, Suite, load_suite, settings_of_mode
from senteval.beir import BeirTask, LoadedBeir
from senteval.labels import LabelsTask, LoadedLabels
from senteval.pairs import LoadedPairs, PairsTask

from dcpcse.evaluation.advice import OF_TRAINING, advice
from dcpcse.evaluation.evaluator import OWN_METRICS
from dcpcse.evaluation.own_data import own_labels, own_pairs
from dcpcse.evaluation.retrieval_data import retrieval_tasks
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, spell

OwnTask = PairsTask | LabelsTask | BeirTask
"""Evaluation data of the user's own."""


LOADED = (LoadedPairs, LoadedLabels, LoadedBeir)
"""The types of own evaluation data after they are loaded."""


def dev_tasks(data: DataArguments) -> list[str]:
    """Return the names of the tasks that are evaluated on their dev sets."""
    return [*data.eval_tasks, *(TRANSFER_TASKS if data.eval_transfer else ())]


def read_own_data(data: DataArguments, pairs: Any = None, labels: Any = None) -> list[OwnTask]:
    """Read and check the own evaluation data of a run, before any encoder is loaded.

    Args:
        data: The options that name the evaluation data.
        pairs: Pairs as a Python object; None if they are a file (`--eval_pairs`), or if there are none.
        labels: Labelled texts as a Python object; None if they are a file (`--eval_labels`), or if there are none.
    """
    pairs, labels = (data.eval_pairs if pairs is None else pairs), (data.eval_labels if labels is None else labels)
    tasks: list[OwnTask] = [own_pairs(pairs, "eval_pairs")] if pairs is not None else []
    tasks += [own_labels(labels, "eval_labels")] if labels is not None else []
    return [*tasks, *retrieval_tasks(data.eval_retrieval or [], "dev")]


def load_dev_tasks(data: DataArguments, own_tasks: Sequence[OwnTask] | None = None) -> Suite:
    """Load and check the data of the dev tasks once for the whole run, before any encoder is loaded.

    Args:
        data: The options that name the evaluation data.
        own_tasks: The own evaluation data. None: those that the options name.
    """
    own_tasks = read_own_data(data) if own_tasks is None else own_tasks
    settings = settings_of_mode("dev", official=not data.custom_eval_data)
    with advice(OF_TRAINING, spell("eval_tasks", ["STSBenchmark"])):
        return load_suite(dev_tasks(data), data.eval_data_dir, settings, extra=own_tasks)


def settle_metric(run: TrainingArguments, dev: Suite, option_names: Collection[str]) -> None:
    """Set the metric of the best checkpoint to that of the own data, if there are any and no metric is given.

    Args:
        run: Options of the run, which are changed.
        dev: The dev evaluation.
        option_names: Names of the options that the user has set.

    Raises:
        UserError: If the given metric is not measured, which depends on the scores of the pairs.
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
    name = (run.metric_for_best_model or "").removeprefix("eval_")
    if name in OWN_METRICS.values() and name not in metrics:
        scores = "only 0 and 1" if name == "pairs_spearman" else "other scores than 0 and 1"
        raise UserError(
            f"{spell('metric_for_best_model', name)} is not measured, since the pairs of {spell('eval_pairs')} have "
            f"{scores}; give {metrics[0]}"
        )
