"""Compare models by the outcomes of their runs: scores with intervals, and paired tests of the differences."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from prettytable import PrettyTable
from senteval.names import FAMILY_OF

from dcpcse.evaluation import significance
from dcpcse.evaluation.outcomes import MTEB, ExampleOutcomes, RunOutcomes
from dcpcse.utils.errors import UserError, first_names, plural
from dcpcse.utils.tables import as_latex, make_table, mean_and_deviation

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

ALL_PAIRS = 3
"""Maximum number of models of which all pairs are compared; more models are compared with the first one."""

FAMILY_OF_STATISTIC = {
    "spearman": "pairs",
    "average_precision": "binary-pairs",
    "accuracy": "labels",
    "mean": "beir",
    significance.BY_CLASS: "labels-map",
}
"""Statistic → name of the family in results, for tasks that belong to no family of senteval."""

UNDECIDED = "cannot be told apart"

TASKS, LANGUAGES = "tasks", "languages"
"""The units that are resampled for an average of main scores."""


@dataclass(frozen=True)
class ModelScore:
    """A model's score × 100 on a task (the mean over the model's runs), with its confidence interval.

    Args:
        low, high: The ends of the interval; None if the results contain only the score of the task, without examples.
        size: Number of test pairs or examples of the task. For an average of scores without examples, the number of
            tasks. None for other averages, and for tasks without examples.
        covers: The sources of variation that the interval covers, such as "test pairs and seeds".
        deviation: The standard deviation over the runs (n - 1 in the denominator); None for a single run.
    """

    task: str
    model: str
    runs: int
    size: int | None
    value: float
    low: float | None = None
    high: float | None = None
    covers: str | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class ModelDifference:
    """The difference of two models' scores × 100, second minus first, with its interval and two-sided p-value.

    Args:
        low, high, p: The ends of the interval, and the p-value; None if the results contain no examples.
        p_holm: The p-value adjusted for the number of tasks (Holm); None for averages, which are not adjusted.
        verdict: A text that says which model is better, according to p_holm or, for averages, to p.
    """

    task: str
    first: str
    second: str
    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: str = "not tested"
    covers: str | None = None

    def cells(self) -> list[str]:
        """Return the cells of this difference's row in the table of differences."""
        bounds = "-" if self.low is None else f"{self.low:+.2f} to {self.high:+.2f}"
        return [self.task, f"{self.value:+.2f}", bounds, _p_value(self.p), _p_value(self.p_holm), self.verdict]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The scores of models and their differences. `print` shows them as tables, a notebook as HTML tables.

    Args:
        mode: "test", "fasttest" or "dev"; None if the results files do not contain the mode.
        level: Coverage of the intervals.
        samples: Number of resamples.
        seed: Seed of the resamples.
        runs: Name of a model → number of its runs.
        scores: The score of each task and model.
        differences: The difference of each task and pair of models.
        notes: Lines that say what the intervals cover, and what was left out.
    """

    mode: str | None
    level: float
    samples: int
    seed: int
    runs: dict[str, int]
    scores: list[ModelScore]
    differences: list[ModelDifference]
    notes: list[str]

    def __str__(self) -> str:
        return "\n".join([*map(str, self._tables()), *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        attributes = {"class": "dataframe", "style": "white-space: pre; margin-top: 0.5em"}
        shown = [part.get_html_string(attributes=attributes) for part in self._tables()]
        return "\n".join([*shown, *(f"<p>{escape(note)}</p>" for note in self.notes)])

    def _tables(self) -> Iterator[PrettyTable]:
        interval = f"{100 * self.level:g} % interval"
        tasks = list(dict.fromkeys(score.task for score in self.scores))
        cells = {(score.task, score.model): score for score in self.scores}
        heads = [name if count == 1 else f"{name} ({count} runs)" for name, count in self.runs.items()]
        first = next(iter(self.runs))
        rows = [
            [task, cells[task, first].size or "", *(_with_interval(cells[task, model]) for model in self.runs)]
            for task in tasks
        ]
        yield make_table(["task", "n", *heads], rows, "lr", f"score x 100 [{interval}]")
        pairs: dict[tuple[str, str], list[ModelDifference]] = {}
        for difference in self.differences:
            pairs.setdefault((difference.first, difference.second), []).append(difference)
        heads = ["task", "difference", interval, "p", "p (Holm)", "verdict"]
        for (first, second), differences in pairs.items():
            yield make_table(heads, [row.cells() for row in differences], "lrrrrl", f"{second} minus {first}")

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the differences × 100 as a DataFrame with one row per task and pair of models."""
        import pandas  # a requirement of datasets, imported here because it is slow

        return pandas.DataFrame([asdict(difference) for difference in self.differences])

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON-serialisable dictionary."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the comparison as JSON."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_latex(self) -> str:
        """Return the scores × 100 as a LaTeX table (package booktabs): a row per model, a column per task.

        With several runs of a model, the cells are the mean ± the standard deviation over the runs.
        """
        cells = {(score.model, score.task): mean_and_deviation(score.value, score.deviation) for score in self.scores}
        tasks = dict.fromkeys(score.task for score in self.scores)
        return as_latex(["model", *tasks], [[model, *(cells[model, task] for task in tasks)] for model in self.runs])

    def to_csv(self) -> str:
        """Return the scores × 100 as csv: a line per task and model, with the fields of `ModelScore`."""
        import pandas

        table = pandas.DataFrame([asdict(score) for score in self.scores]).convert_dtypes()  # whole numbers stay whole
        return table.to_csv(index=False, lineterminator="\n")

    def plot(self) -> "Figure":
        """Return a matplotlib figure with the difference and interval of each pair of models on each task.

        Intervals of single scores would not show whether a difference is significant, because the models are compared
        on the same examples. Raises UserError if matplotlib is not installed.
        """
        from dcpcse.analysis.plots.scores import draw_differences

        pairs: dict[str, dict[str, tuple[float, float | None, float | None]]] = {}
        for row in self.differences:
            pairs.setdefault(f"{row.second} minus {row.first}", {})[row.task] = (row.value, row.low, row.high)
        return draw_differences(pairs, self.level)


def _with_interval(score: ModelScore) -> str:
    return f"{score.value:.2f}" + ("" if score.low is None else f" [{score.low:.2f}, {score.high:.2f}]")


def _p_value(p: float | None) -> str:
    return "" if p is None else "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def compare_runs(
    models: Mapping[str, Sequence[RunOutcomes]],
    *,
    level: float = 0.95,
    samples: int = significance.SAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare models by the outcomes of their runs on the tasks that all runs have.

    Args:
        models: Name of a model → runs of the model with different seeds.

    Raises:
        UserError: If only one model is given, if runs differ in mode or data, if two runs of a model are the same run,
            or if a task has too few examples.
    """
    if len(models) < 2:
        raise UserError(f"{plural(len(models), 'model')} given; give at least two models to compare")
    runs = [(name, run) for name, of_model in models.items() for run in of_model]
    mode = _common_mode(runs)
    tasks, notes = _common_tasks(runs)
    for task in [*tasks["examples"], *tasks["main_scores"]]:
        _require_same_family(task, runs)
    for task in tasks["examples"]:
        _require_same_data(task, runs)
    _require_different_seeds(models)
    resampled = _resample(models, tasks, samples, seed)
    names = list(models)
    pairs = list(combinations(range(len(names)), 2))
    pairs = pairs if len(names) <= ALL_PAIRS else [pair for pair in pairs if pair[0] == 0]
    scores = [score for row in resampled for score in row.scores(models, level)]
    differences = [diff for first, second in pairs for diff in _differences(resampled, names, first, second, level)]
    notes += _notes(models, resampled, scores, differences)
    counts = {name: len(of_model) for name, of_model in models.items()}
    return Comparison(mode, level, samples, seed, counts, scores, differences, notes)


def _common_mode(runs: Sequence[tuple[str, RunOutcomes]]) -> str | None:
    modes = {run.mode: (name, run) for name, run in runs if run.mode is not None}
    if len(modes) > 1:
        (mode, (first, _)), (other, (second, _)) = list(modes.items())[:2]
        raise UserError(
            f"{first} was evaluated in mode {mode} and {second} in mode {other}; evaluate all of them in one mode"
        )
    return next(iter(modes), None)


def _common_tasks(runs: Sequence[tuple[str, RunOutcomes]]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the tasks that all runs have, by the kind of their scores, and notes.

    The keys are `examples`, for tasks with outcomes of examples, and `main_scores`, for tasks that only have main
    scores. Tasks are in the order of the published tables, followed by other tasks. Raises UserError if there is no
    common task.
    """
    task_names = list(dict.fromkeys(task for _, run in runs for task in run.names))
    order = {task: index for index, task in enumerate(FAMILY_OF)}
    task_names.sort(key=lambda task: order.get(task, len(order)))
    tasks: dict[str, list[str]] = {"examples": [], "main_scores": []}
    notes: list[str] = []
    missing: dict[tuple[str, ...], list[str]] = {}
    for task in task_names:
        lacking = dict.fromkeys(name for name, run in runs if task not in run.tasks)
        if not lacking:
            tasks["examples"].append(task)
        elif all(task in run.main_scores for _, run in runs):
            tasks["main_scores"].append(task)
        else:
            missing.setdefault(tuple(lacking), []).append(task)
    if not any(tasks.values()):
        lists = "; ".join(f"{name}: {', '.join(run.names) or 'none'}" for name, run in runs)
        raise UserError(f"the models have no task in common ({lists}); evaluate them on the same tasks")
    for names, left in missing.items():
        notes.append(f"left out, since there is no result of {', '.join(names)}: {first_names(left, 12)}")
    return tasks, notes


def _require_same_family(task: str, runs: Sequence[tuple[str, RunOutcomes]]) -> None:
    """Raise UserError if a name stands for user data in one run and for another task in another run."""
    families = {run.families[task][-1]: name for name, run in runs if any(run.families.get(task, ()))}
    if len(families) > 1:
        (kind, first), (other, second) = list(families.items())[:2]
        raise UserError(
            f"{task} is a {kind} task in {first} and a {other} task in {second}; rename your own data {task}"
        )


def _require_same_data(task: str, runs: Sequence[tuple[str, RunOutcomes]]) -> None:
    """Raise UserError unless all runs have the same number of examples and the same gold scores, if known."""
    (first, base), *others = [(name, run.tasks[task]) for name, run in runs]
    for name, outcomes in others:
        problem = None
        if outcomes.statistic != base.statistic:
            problem = f"{outcomes.statistic} and {base.statistic}"
        elif len(outcomes.values) != len(base.values):
            problem = f"{len(outcomes.values):,} and {len(base.values):,} {base.examples}"
        elif outcomes.gold is not None and base.gold is not None and not np.array_equal(outcomes.gold, base.gold):
            kinds = {"mean": "numbers of relevant documents", significance.BY_CLASS: "classes"}
            kind = kinds.get(base.statistic, "gold scores")
            problem = f"{int(np.sum(outcomes.gold != base.gold)):,} {kind} differ"
        if problem:
            raise UserError(
                f"{task}: {name} and {first} were evaluated on different data ({problem}); evaluate both on "
                "the same data"
            )


def _require_different_seeds(models: Mapping[str, Sequence[RunOutcomes]]) -> None:
    """Raise UserError if two runs of a model have the same outcomes, since they are then the same run."""
    for name, runs in models.items():
        for first, second in combinations(range(len(runs)), 2):
            shared = set(runs[first].tasks) & set(runs[second].tasks)
            # Different models can agree in values that are only 0 and 1.
            telling = [task for task in shared if len(np.unique(runs[first].tasks[task].values)) > 2]
            if telling and all(
                np.array_equal(runs[first].tasks[task].values, runs[second].tasks[task].values) for task in shared
            ):
                raise UserError(
                    f"runs {first + 1} and {second + 1} of {name} have the same outcomes; give each seed once, and "
                    "a model without seeds as one run"
                )


@dataclass(frozen=True, eq=False)
class _Row:
    """A task or an average: the resampled or main scores (R,) of each model, and the name of its examples."""

    task: str
    size: int | None
    examples: str
    resampled: significance.ResampledScores | None
    main_scores: Sequence[np.ndarray] = ()
    is_average: bool = False

    @property
    def has_examples(self) -> bool:
        """Whether the intervals come from resampled examples instead of resampled tasks."""
        return self.resampled is not None and self.examples not in (TASKS, LANGUAGES)

    @property
    def points(self) -> Sequence[np.ndarray]:
        """For each model, the scores × 100 (R,) of its R runs."""
        return self.main_scores if self.resampled is None else [100 * scores for scores in self.resampled.observed]

    def scores(self, models: Mapping[str, Sequence[RunOutcomes]], level: float) -> Iterator[ModelScore]:
        for number, (name, runs) in enumerate(models.items()):
            deviation = float(np.std(self.points[number], ddof=1)) if len(runs) > 1 else None
            if self.resampled is None:
                value = float(self.main_scores[number].mean())
                yield ModelScore(self.task, name, len(runs), None, value, deviation=deviation)
                continue
            estimate = significance.estimate(self.resampled, number, level)
            covers = estimate.covers(self.examples)
            yield ModelScore(self.task, name, len(runs), self.size, *estimate.points, covers, deviation)

    def difference(self, names: Sequence[str], first: int, second: int, level: float) -> ModelDifference:
        key = (self.task, names[first], names[second])
        if self.resampled is None:
            return ModelDifference(*key, float(self.main_scores[second].mean() - self.main_scores[first].mean()))
        difference = significance.difference(self.resampled, first, second, level)
        return ModelDifference(*key, *difference.points, difference.p, covers=difference.covers(self.examples))


def _resample(
    models: Mapping[str, Sequence[RunOutcomes]], tasks: Mapping[str, Sequence[str]], samples: int, seed: int
) -> list[_Row]:
    """Return a row for each task, and an average for each family of at least two tasks.

    If all tasks of an average have outcomes of examples, the examples are resampled. Otherwise the tasks are
    resampled; at least three tasks are needed for this.
    """
    rows: dict[str, _Row] = {}
    for number, task in enumerate(tasks["examples"]):
        runs = [[run.tasks[task] for run in of_model] for of_model in models.values()]
        resampled = _resample_task(task, runs, samples, [seed, number])
        rows[task] = _Row(task, len(runs[0][0].values), f"test {runs[0][0].resampled}", resampled)
    for task in tasks["main_scores"]:
        scores = [np.array([run.main_scores[task] for run in of_model]) for of_model in models.values()]
        rows[task] = _Row(task, None, TASKS, None, scores)
    families = _families_of_all(rows, models)
    members: dict[str, dict[str, None]] = {}  # family → its tasks, and the families that are in it
    for task in rows:
        _add_to_families(task, families, members)
    averages: dict[str, _Row] = {}

    def average(family: str) -> _Row:
        if family not in averages:
            of_family = [rows[name] if name in rows else average(name) for name in members[family]]
            are_languages = family.startswith(f"{MTEB}/") and any(name in members for name in members[family])
            unit = LANGUAGES if are_languages else TASKS
            averages[family] = _average(family, of_family, unit, samples, [seed, len(rows)])
        return averages[family]

    for family in members:
        average(family)
    several = {name: row for name, row in averages.items() if len(members[name]) > 1}
    # Two families of the same tasks, such as the only type of MTEB tasks and all of them, have one row.
    distinct = dict({tuple(members[name]): (name, row) for name, row in several.items()}.values())
    ordered = sorted(distinct, key=lambda name: name == MTEB)  # the types of its tasks come first
    named = [replace(distinct[name], task="Avg." if len(ordered) == 1 else f"Avg. {name}") for name in ordered]
    shown = [replace(row, task=_shown_name(task, members)) for task, row in rows.items()]
    return [*shown, *(replace(row, is_average=True) for row in named)]


def _families_of_all(tasks: Iterable[str], models: Mapping[str, Sequence[RunOutcomes]]) -> dict[str, tuple[str, ...]]:
    """Return the families of each task and each family, from the runs with the most families."""
    runs = [run for of_model in models.values() for run in of_model]
    known = {name for run in runs for name in run.families}
    families = {name: max((run.families.get(name, ()) for run in runs), key=len) for name in known}
    return families | {task: _families(task, runs[0]) for task in tasks if not any(families.get(task, ()))}


def _shown_name(task: str, members: Mapping[str, Mapping[str, None]]) -> str:
    """Return the name of a row. For parts of MTEB tasks, it contains the split only if there are several splits."""
    subset = task.rpartition("/")[0]
    return subset if task.startswith(f"{MTEB}/") and len(members[subset]) == 1 else task


def _add_to_families(name: str, families: Mapping[str, tuple[str, ...]], members: dict[str, dict[str, None]]) -> None:
    """Add a task to the members of its families, and these families to the members of larger families."""
    for family in families[name]:
        members.setdefault(family, {})[name] = None
        if family.startswith(f"{MTEB}/"):
            _add_to_families(family, families, members)


def _average(name: str, of_family: Sequence[_Row], unit: str, samples: int, seed: Sequence[int]) -> _Row:
    """Return the average of rows.

    Args:
        unit: A word for the rows if the rows, and not examples, are resampled.
    """
    if len(of_family) == 1:
        return of_family[0]
    if all(one.has_examples for one in of_family):
        kinds = {one.examples for one in of_family}
        examples = kinds.pop() if len(kinds) == 1 else "test examples"
        return _Row(name, None, examples, significance.average([one.resampled for one in of_family]))
    scores = [np.stack(one, axis=1) for one in zip(*(row.points for row in of_family), strict=True)]
    # Splits of the same texts are not independent of each other.
    are_splits = unit == TASKS and name.startswith(f"{MTEB}/")
    if are_splits or len(of_family) < significance.STATISTICS["mean"].least:
        return _Row(name, None, unit, None, [one.mean(axis=1) for one in scores])
    outcomes = significance.Outcomes("mean", [one / 100 for one in scores], examples=unit)
    return _Row(name, len(of_family), unit, significance.resample(outcomes, samples, seed))


def _resample_task(
    task: str, runs: Sequence[Sequence[ExampleOutcomes]], samples: int, seed: Sequence[int]
) -> significance.ResampledScores:
    first = runs[0][0]
    values = [np.stack([run.values for run in of_model]) for of_model in runs]
    try:
        outcomes = significance.Outcomes(first.statistic, values, first.scored_gold, first.examples)
        return significance.resample(outcomes, samples, seed)
    except ValueError as error:
        raise UserError(f"{task}: {error}") from error


def _families(task: str, run: RunOutcomes) -> tuple[str, ...]:
    """Return the families of a task, as a results file or senteval names them."""
    if families := tuple(filter(None, run.families.get(task, (FAMILY_OF.get(task),)))):
        return families
    return (FAMILY_OF_STATISTIC[run.tasks[task].statistic] if task in run.tasks else "other",)


def _differences(
    rows: Sequence[_Row], names: Sequence[str], first: int, second: int, level: float
) -> list[ModelDifference]:
    """Return the difference of two models on each task, with p-values adjusted for the number of tasks."""
    differences = [row.difference(names, first, second, level) for row in rows]
    tests = [index for index, (row, diff) in enumerate(zip(rows, differences, strict=True)) if diff.p is not None]
    tasks = [index for index in tests if not rows[index].is_average]
    adjusted = dict(zip(tasks, significance.holm([differences[index].p for index in tasks]), strict=True))
    for index in tests:
        p = adjusted.get(index, differences[index].p)
        better = differences[index].second if differences[index].value > 0 else differences[index].first
        verdict = f"{better} is better" if p < 1 - level else UNDECIDED
        differences[index] = replace(differences[index], p_holm=adjusted.get(index), verdict=verdict)
    return differences


def _notes(
    models: Mapping[str, Sequence[RunOutcomes]],
    rows: Sequence[_Row],
    scores: Sequence[ModelScore],
    differences: Sequence[ModelDifference],
) -> list[str]:
    """Return notes on what the intervals cover, on unequal numbers of runs, and on tasks without examples."""
    owners: dict[str, dict[str, None]] = {}
    lines_of_tasks = {(result.task, result.covers) for result in (*differences, *scores) if result.covers}
    if len(lines_of_tasks) == len({task for task, _ in lines_of_tasks}):  # in each task, all intervals cover the same
        for result in scores:
            if result.covers:
                owners.setdefault(result.covers, {})[result.task] = None
    else:
        for difference in differences:
            if difference.covers:
                owners.setdefault(difference.covers, {})[f"{difference.second} minus {difference.first}"] = None
        for result in scores:
            if result.covers and (result.covers not in owners or len(owners) > 1):
                owners.setdefault(result.covers, {})[result.model] = None
    notes = [line if len(owners) == 1 else f"{first_names(list(of))}: {line}" for line, of in owners.items()]
    counts = {name: len(runs) for name, runs in models.items()}
    if len(set(counts.values())) > 1:
        summary = ", ".join(f"{name} {count}" for name, count in counts.items())
        notes.append(
            f"unequal numbers of runs ({summary}); an interval of a difference covers seeds from "
            f"{significance.LEAST_SEEDS} of both models"
        )
    if any(row.resampled is None for row in rows):
        tasks = [row.task for row in rows if row.resampled is None]
        notes.append(
            f"no interval for {first_names(tasks)}: the results have only the main scores of these tasks. dcpcse "
            "evaluate --similarities_file records the outcomes of examples if a task has them"
        )
    return notes
