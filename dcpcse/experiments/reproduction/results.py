"""What came out of units, beside what was published: means over seeds, differences, and how sure they are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from senteval.bootstrap import Gain, Scored, gain

from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, PublishedRow
from dcpcse.experiments.reproduction.units import UNIT_SCORES, UNIT_SIMILARITIES, RunUnit

LOWER_IS_BETTER = ("alignment", "uniformity")


@dataclass(frozen=True)
class Cell:
    """A figure over seeds, × 100 as printed (alignment and uniformity as they are).

    comparable: whether the published figure is of the same encoder, steps and settings.
    """

    values: tuple[float, ...]
    published: float | None
    comparable: bool = True
    lower_is_better: bool = False

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """Of a sample; None for one value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def best(self) -> float:
        return min(self.values) if self.lower_is_better else max(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if self.lower_is_better else min(self.values)

    @property
    def difference(self) -> float | None:
        """Mean − published; None where there is nothing to compare."""
        return None if self.published is None or not self.comparable else self.mean - self.published

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        names = ("mean", "deviation", "best", "worst", "published", "comparable", "difference")
        return {"values": list(self.values), "n": len(self.values), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class RowResult:
    """What is known of a row: its cells by column, of which seeds, and its gain over the row it is compared with.

    obstacle: why it was not run, not to its end, or not compared.
    """

    row: PublishedRow
    cells: Mapping[str, Cell]
    seeds: tuple[int | None, ...] = ()
    obstacle: str | None = None
    over_baseline: Gain | None = None


def collect_result(row: PublishedRow, units: Sequence[RunUnit], comparable: bool) -> RowResult:
    """The answer of a row from its finished units."""
    found = [read_figures(unit.folder / UNIT_SCORES, row) for unit in units]
    cells = {
        column: Cell(
            tuple(one[column] for one in found), row.published.get(column), comparable, column in LOWER_IS_BETTER
        )
        for column in row.columns
        if found
    }
    return RowResult(row, cells, tuple(unit.seed for unit in units))


def read_figures(path: Path, row: PublishedRow) -> dict[str, float]:
    """The columns of a row in the scores of one unit; KeyError for one that was not measured."""
    scores = json.loads(path.read_text(encoding="utf-8"))
    values: dict[str, float] = dict(scores["scores_x100"])
    for task in scores["tasks"].values():
        values |= {name: task[name] for name in LOWER_IS_BETTER if name in task}
    if row.family in scores["averages_x100"]:
        values[AVERAGE_COLUMN] = scores["averages_x100"][row.family]
    return {column: values[column] for column in row.columns}


def gain_over_baseline(units: Sequence[RunUnit], baseline: Sequence[RunUnit]) -> Gain:
    """Gain in the mean STS score over a baseline's, pairs resampled and seeds averaged.

    ValueError, with the reason, where there are no STS pairs, or too few.
    """
    if not all((unit.folder / UNIT_SIMILARITIES).is_file() for unit in (*units, *baseline)):
        raise ValueError("there are no STS pairs of both")
    ours, theirs = ([_similarities(unit) for unit in side] for side in (units, baseline))
    tasks = [name.removesuffix("/gold") for name in ours[0] if name.endswith("/gold")]
    sets = [
        Scored(
            ours[0][f"{task}/gold"],
            np.stack([run[f"{task}/cosine"] for run in theirs]),
            np.stack([run[f"{task}/cosine"] for run in ours]),
        )
        for task in tasks
    ]
    return gain(sets)


def _similarities(unit: RunUnit) -> dict[str, np.ndarray]:
    with np.load(unit.folder / UNIT_SIMILARITIES) as file:
        return dict(file)
