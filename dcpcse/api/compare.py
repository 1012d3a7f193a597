"""`dcpcse.compare`: the scores of several models with confidence intervals, and paired tests of their differences."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from senteval.names import FAMILY_OF, LABELS_METRICS, MODE_NAMES

from dcpcse.api.evaluate import evaluate, tasks_or_pairs
from dcpcse.evaluation.advice import advice
from dcpcse.utils.arguments import known_arguments, location, number, whole_number
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, invalid_choice, no_effect, parameter_names, shown, spell

if TYPE_CHECKING:
    from dcpcse.analysis.model_comparison import Comparison
    from dcpcse.evaluation.evaluation_result import EvaluationResult
    from dcpcse.evaluation.outcomes import RunOutcomes


@known_arguments
@parameter_names(custom_data="official=False")
@advice()
def compare(
    models: Sequence[Any] | Mapping[str, Any],
    tasks: Any = None,
    *,
    names: Sequence[str | None] | None = None,
    pairs: Any = None,
    labels: Any = None,
    metric: str | None = None,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    retrieval: str | Path | Sequence[str | Path] | None = None,
    mode: str = "test",
    data_dir: str | Path = "SentEval/data",
    official: bool = True,
    batch_size: int | None = None,
    cache_dir: str | Path | None = None,
    show_progress: bool = True,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> "Comparison":
    """Compare models by a paired bootstrap over test examples and, with at least three seeds per model, over seeds.

    See docs/compare.md for the method.

    Args:
        models: A list of models, or a dict from names to models. A model is anything that `dcpcse.evaluate` accepts,
            a result of `dcpcse.evaluate`, or a results file. A results file is written by `dcpcse evaluate
            --output_file` or `--similarities_file`, or by mteb (the file of a task, or a folder of such files). For a
            model with several seeds, give the list of its runs.
        tasks: As in `dcpcse.evaluate`. None: the tasks of the results in `models`, if there are any. Only tasks for
            which all runs have scores are compared.
        names: List of the names of the models. If the list or one of its names is None, the name of the model's
            folder is used.
        pairs: As in `dcpcse.evaluate`.
        labels: As in `dcpcse.evaluate`.
        metric: As in `dcpcse.evaluate`. None: "accuracy". With "map", the classes are resampled with all their texts.
        columns: As in `dcpcse.evaluate`.
        retrieval: As in `dcpcse.evaluate`.
        mode: As in `dcpcse.evaluate`.
        data_dir: As in `dcpcse.evaluate`.
        official: As in `dcpcse.evaluate`.
        batch_size: As in `dcpcse.evaluate`.
        cache_dir: As in `dcpcse.evaluate`.
        show_progress: As in `dcpcse.evaluate`.
        level: Coverage of the confidence intervals, from 0.5 to 0.999.
        samples: Number of resamples of the bootstrap, at least 100. If results contain only main scores, as results
            of mteb do, the tasks of an average are resampled instead of the test examples.
        seed: Seed of the resampling.

    Returns:
        A `Comparison`, which prints as tables. The first table contains the scores of the models with their intervals.
        The other tables contain, for each difference of two models, the interval, the p-value, the p-value adjusted
        for the number of tasks (Holm), and whether one model is better. Two or three models are compared pairwise. Of
        more models, each model is compared with the first model.

    Raises:
        UserError: If there is only one model, if the data or the modes of results differ, or if a task has too few
            examples.
    """
    options = {"data_dir": data_dir, "official": official, "batch_size": batch_size, "cache_dir": cache_dir}
    options["columns"] = columns
    data = {"tasks": tasks, "pairs": pairs, "labels": labels, "metric": metric, "retrieval": retrieval}
    evaluated_by = partial(evaluate, **options, show_progress=show_progress)
    return compare_models(models, names, data, mode, evaluated_by, level=level, samples=samples, seed=seed)


def compare_models(
    models: Any,
    names: Sequence[str | None] | None,
    data: Mapping[str, Any],
    mode: str,
    evaluate: "Callable[..., EvaluationResult]",
    *,
    level: float,
    samples: int,
    seed: int,
) -> "Comparison":
    """Compare models as `compare` does, but evaluate them with the function `evaluate`.

    Args:
        data: The arguments tasks, pairs, labels, metric and retrieval of `compare`, by name.
        evaluate: A function that is called with a model, and with `mode` and the values of `data` as keywords.
    """
    from dcpcse.analysis.model_comparison import compare_runs

    number("level", level, 0.5, 0.999)
    whole_number("samples", samples, 100)
    whole_number("seed", seed, 0)
    if mode not in MODE_NAMES:
        raise invalid_choice("mode", mode, MODE_NAMES)
    groups = _named(models, names)
    if len(groups) < 2:
        raise UserError("only one model is given; give at least two models, each as a list if it has several seeds")
    if data["metric"] is not None and data["labels"] is None:
        raise no_effect("metric", f"without {spell('labels')}")
    # Data that can be read only once are kept for all models.
    data = {name: list(value) if isinstance(value, Iterator) else value for name, value in data.items()}
    metric = data["metric"] or LABELS_METRICS[0]
    chosen, _ = tasks_or_pairs(data["tasks"], mode)
    evaluated = {name: [_given_outcomes(entry) for entry in entries] for name, entries in groups.items()}
    results = [run for of_model in evaluated.values() for run in of_model if run is not None]
    if results and all(value is None for value in data.values()):
        data["tasks"] = [task for task in results[0].names if task in FAMILY_OF]
        if not data["tasks"] and any(run is None for of_model in evaluated.values() for run in of_model):
            raise UserError(
                f"the given results contain scores for {', '.join(results[0].names) or 'no tasks'}; to evaluate the "
                "other models too, give tasks, pairs, labels or retrieval"
            )
    runs: dict[str, list[RunOutcomes]] = {}
    for name, entries in groups.items():
        runs[name] = []
        for index, (entry, run) in enumerate(zip(entries, evaluated[name], strict=True), start=1):
            if run is None:
                notify(f"evaluating {name}" + (f", run {index} of {len(entries)}" if len(entries) > 1 else ""))
                run = _outcomes(evaluate(entry, mode=mode, **{**data, "metric": metric}), name)
            runs[name].append(_with_tasks(name, run, chosen) if chosen else run)
    return compare_runs(runs, level=level, samples=samples, seed=seed)


def _named(models: Any, names: Sequence[str | None] | None) -> dict[str, list[Any]]:
    """Return a dict from the name of each model to its runs. Raises UserError for wrong types, names or numbers."""
    if isinstance(models, Mapping):
        if names is not None:
            raise UserError("names has no effect on a dict of models; leave it out")
        if wrong := [name for name in models if not isinstance(name, str) or not name.strip()]:
            raise UserError(f"models: the name {wrong[0]!r} is not a string; give each model a name")
        entries, named = [*models.values()], [*models]
    elif isinstance(models, list | tuple):
        entries, named = [*models], names
    else:
        raise UserError(f"models is {shown(models)}; give a list of models, or a dict of name → model")
    groups = [[*entry] if isinstance(entry, list | tuple) else [entry] for entry in entries]
    if empty := [index for index, group in enumerate(groups, start=1) if not group]:
        raise UserError(f"models: model {empty[0]} is an empty list; give at least one run")
    named = [None] * len(groups) if named is None else named
    is_list = isinstance(named, list | tuple) and all(name is None or isinstance(name, str) for name in named)
    if not is_list or len(named) != len(groups):
        raise UserError(f"names is {shown(named)}; give a list of {len(groups)} names, one for each model")
    if twice := [name for name, count in Counter(filter(None, named)).items() if count > 1]:
        raise UserError(f"names: {twice[0]!r:.60} is given twice; give each model a different name")
    labels: list[str] = []
    for index, (name, group) in enumerate(zip(named, groups, strict=True), 1):
        labels.append(name or _unused(_name(group) or f"model {index}", [*named, *labels]))
    return dict(zip(labels, groups, strict=True))


def _unused(name: str, used: Collection[str | None]) -> str:
    """Return the name if it is unused, otherwise the name with a number, such as "model (2)"."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return name if name not in used else next(candidate for candidate in numbered if candidate not in used)


def _name(runs: Sequence[Any]) -> str:
    """Return a name for a model: the beginning that the paths of all its runs share."""
    if all(isinstance(run, str | os.PathLike) for run in runs):
        paths = [os.path.normpath(location("model", run)) for run in runs]
        # Characters, not parts of paths: result/sup-0 and result/sup-1 are "sup".
        shared = paths[0] if len(paths) == 1 else os.path.commonprefix(paths).rstrip("-_/. ")  # noqa: RUF071
        return Path(shared).stem if shared.endswith((".json", ".npz")) else Path(shared).name
    name = getattr(runs[0], "__name__", "")
    return name if name.isidentifier() else ""


def _given_outcomes(entry: Any) -> "RunOutcomes | None":
    """Return the outcomes in a result or a results file, or None for a model that must be evaluated first."""
    from dcpcse.evaluation.evaluation_result import EvaluationResult
    from dcpcse.evaluation.outcomes import is_results, read_outcomes

    if isinstance(entry, EvaluationResult):
        return _outcomes(entry, "the given result")
    if not isinstance(entry, str | os.PathLike):
        return None
    path = Path(location("model", entry))
    if path.suffix in (".json", ".npz") and not path.exists():
        raise UserError(f"the results file {path} does not exist; check the path")
    return read_outcomes(path) if is_results(path) else None


def _outcomes(evaluation: "EvaluationResult", source: str) -> "RunOutcomes":
    from dcpcse.evaluation.outcomes import outcomes_of_results

    return outcomes_of_results(evaluation.results, evaluation.mode, source)


def _with_tasks(name: str, run: "RunOutcomes", chosen: Collection[str]) -> "RunOutcomes":
    """Return a run with only the chosen tasks of senteval, and with all tasks of mteb and of the user's data.

    Args:
        name: Name of the model, for messages.

    Raises:
        UserError: If the run has none of these tasks.
    """

    def kept(task: str) -> bool:
        return task in chosen or task not in FAMILY_OF

    tasks = {task: outcomes for task, outcomes in run.tasks.items() if kept(task)}
    main_scores = {task: score for task, score in run.main_scores.items() if kept(task)}
    if not tasks and not main_scores:
        others = ", ".join(run.names) or "none"
        raise UserError(
            f"{name} has no results of the chosen tasks, only of {others}; choose from these, or leave tasks out"
        )
    return replace(run, tasks=tasks, main_scores=main_scores)
