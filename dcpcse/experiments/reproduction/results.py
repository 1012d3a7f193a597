"""Results of finished units: means over seeds, differences to published figures, and bootstrap intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict

from dcpcse.evaluation.significance import Difference, Outcomes, average, difference, resample
from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, PublishedRow
from dcpcse.experiments.reproduction.units import PRINTED, UNIT_SCORES, UNIT_SIMILARITIES, RunUnit
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import Scores

GEOMETRY = ("alignment", "uniformity", "anisotropy", "token_anisotropy")
"""Columns of the geometry task, which are not scaled; lower is better."""

LOWER_IS_BETTER = (*GEOMETRY, "rank")


@strict
@dataclass(kw_only=True)
class SimilarityLine(schema.Open):
    """A line that `dcpcse search similarity --json` prints."""

    sentences: list[str]
    score: int | float = schema.finite()

    def validate_sentences(self) -> None:
        """Raise ValueError unless the line contains two sentences."""
        if len(self.sentences) != 2:
            raise ValueError(f"sentences is {self.sentences!r:.60}; expected two")


@dataclass(frozen=True)
class Cell:
    """The reproduced values of a row in one column, one per seed, and the published figure.

    They are × 100 as in the papers. Geometry, cosines and ranks are not scaled.

    Args:
        published: The published figure. It is the mean or the best of the runs: see `PublishedRow.reported`.
        published_best, published_worst: The published maximum and minimum over runs.
        comparable: Whether encoder, steps and settings are the same as for the published figures.
        digits: The number of decimals with which the figures are printed.
    """

    values: tuple[float, ...]
    published: float | None
    comparable: bool = True
    lower_is_better: bool = False
    reported: str = "mean"
    published_best: float | None = None
    published_worst: float | None = None
    digits: int = 2

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None if there is only one value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def best(self) -> float:
        return min(self.values) if self.lower_is_better else max(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if self.lower_is_better else min(self.values)

    @property
    def difference(self) -> float | None:
        """The mean minus the published figure; None if there is no comparable figure.

        If the published figure is the best of several runs, the best value replaces the mean.
        """
        if self.published is None or not self.comparable:
            return None
        return (self.best if self.reported == "best" else self.mean) - self.published

    def as_dict(self) -> dict[str, Any]:
        """Return the cell as a JSON-serialisable dictionary."""
        names = ("mean", "deviation", "best", "worst", "published", "reported", "published_best", "published_worst")
        statistics = {name: getattr(self, name) for name in (*names, "comparable", "difference")}
        return {"values": list(self.values), "n": len(self.values), **statistics}


@dataclass(frozen=True)
class RowResult:
    """The result of reproducing a published row: cells by column, seeds, and the gain over the baseline row.

    Args:
        notes: Lines that explain the figures.
        obstacle: The reason why the row was not run, finished or compared.
    """

    row: PublishedRow
    cells: Mapping[str, Cell]
    seeds: tuple[int | None, ...] = ()
    obstacle: str | None = None
    over_baseline: Difference | None = None
    notes: tuple[str, ...] = ()


def collect_result(row: PublishedRow, units: Sequence[RunUnit], comparable: bool) -> RowResult:
    """Return the result of a row from its finished units.

    Args:
        comparable: Whether the results can be compared with the published figures.
    """
    figures = [read_figures(unit) for unit in units]
    measured = [column for column in row.columns if figures and all(column in scores for scores in figures)]
    cells = {column: _cell(row, column, [scores[column] for scores in figures], comparable) for column in measured}
    notes = [f"assumed: {row.assumed}"] if row.assumed and figures else []
    if figures and (missing := [column for column in row.columns if column not in cells]):
        notes.append(f"not measured on these data: {', '.join(missing)}")
    if row.predict and figures:
        notes += _token_notes(row, _predicted(units[0]))
    return RowResult(row, cells, tuple(unit.seed for unit in units), notes=tuple(notes))


def _cell(row: PublishedRow, column: str, values: Sequence[float], comparable: bool) -> Cell:
    return Cell(
        tuple(values),
        row.published.get(column),
        comparable,
        column in LOWER_IS_BETTER,
        row.reported,
        row.best.get(column),
        row.worst.get(column),
        4 if column in (*GEOMETRY, *row.similarity) else 2,
    )


def read_figures(unit: RunUnit) -> dict[str, float]:
    """Return column → figure of a row with one seed, read from its files, without columns that were not measured."""
    row = unit.row
    values: dict[str, float] = {}
    if "evaluate" in unit.steps:
        values = figures_of(row, schema.read(Scores, unit.folder / UNIT_SCORES))
    if row.similarity:
        lines = schema.read_lines(SimilarityLine, unit.folder / PRINTED["similarity"])
        values |= {line["sentences"][1]: line["score"] for line in lines}
    if row.predict:
        line = _predicted(unit)
        values |= {column: len(set(line[column]) & set(row.predict[column])) for column in row.columns}
    return {column: values[column] for column in row.columns if column in values}


def figures_of(row: PublishedRow, scores: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a row by column, from the content of a score file of evaluation.py."""
    values: dict[str, float | None] = dict(scores.get("scores_x100", {}))
    for task in scores.get("tasks", {}).values():
        values |= {name: task[name] for name in GEOMETRY if name in task}
        values |= {f"recall@{cutoff}": recall for cutoff, recall in (task.get("recall") or {}).items()}
        values |= {f"without {count}": score for count, score in (task.get("average_without") or {}).items()}
        ranks = {(query, answer): rank for query, answer, rank in task.get("ranks") or ()}
        if row.answer in ranks:
            values["rank"] = ranks[row.answer]
    values[AVERAGE_COLUMN] = scores.get("averages_x100", {}).get(row.family)
    return {name: value for name, value in values.items() if value is not None}


def _predicted(unit: RunUnit) -> dict[str, list[str]]:
    """Return the predicted tokens of each column."""
    path = unit.folder / PRINTED["predict"]
    lines = schema.read_lines(dict, path)
    if len(lines) != 1 or not all(_is_tokens(lines[0].get(column)) for column in unit.row.columns):
        raise UserError(f"{path} is damaged: expected one line with the tokens of {', '.join(unit.row.columns)}")
    return lines[0]


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(token, str) for token in value)


def _token_notes(row: PublishedRow, line: Mapping[str, Any]) -> list[str]:
    """Return one line per column with the predicted and the published tokens."""
    return [
        f"{row.predict['sentence']} {column}: {', '.join(line[column])} (published: {', '.join(row.predict[column])})"
        for column in row.columns
    ]


def gain_over_baseline(units: Sequence[RunUnit], baseline: Sequence[RunUnit]) -> Difference:
    """Return the gain in mean STS score over a baseline, with the interval of the paired bootstrap.

    The interval covers seeds if the row and the baseline have at least three seeds each. Raises ValueError with the
    reason if there are no STS pairs or too few.
    """
    if not all((unit.folder / UNIT_SIMILARITIES).is_file() for unit in (*units, *baseline)):
        raise ValueError("the row or its baseline has no STS pairs")
    theirs, ours = ([_similarities(unit) for unit in side] for side in (baseline, units))
    tasks = [name.removesuffix("/cosine") for name in ours[0] if name.endswith("/cosine")]
    if not tasks:
        raise ValueError("the row or its baseline has no STS pairs")
    scores = []
    for number, task in enumerate(tasks):
        cosines = [np.stack([run[f"{task}/cosine"] for run in side]) for side in (theirs, ours)]
        scores.append(resample(Outcomes("spearman", cosines, ours[0][f"{task}/gold"]), seed=[0, number]))
    return difference(average(scores), 0, 1)


def _similarities(unit: RunUnit) -> dict[str, np.ndarray]:
    with np.load(unit.folder / UNIT_SIMILARITIES) as file:
        return dict(file)
