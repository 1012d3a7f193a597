"""Results of finished units: means over seeds, differences to published figures, and bootstrap intervals."""

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
    """The values of one column over all seeds, × 100 as printed (alignment and uniformity are unscaled).

    comparable: whether the published figure belongs to the same encoder, steps and settings.
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
        """Sample standard deviation; None for a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def best(self) -> float:
        return min(self.values) if self.lower_is_better else max(self.values)

    @property
    def worst(self) -> float:
        return max(self.values) if self.lower_is_better else min(self.values)

    @property
    def difference(self) -> float | None:
        """Mean minus published figure; None if there is no comparable figure."""
        return None if self.published is None or not self.comparable else self.mean - self.published

    def as_dict(self) -> dict[str, Any]:
        """Return the cell as a JSON-serialisable dictionary."""
        names = ("mean", "deviation", "best", "worst", "published", "comparable", "difference")
        return {"values": list(self.values), "n": len(self.values), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class RowResult:
    """The result of a row: its cells by column, the seeds, and the gain over the baseline row.

    obstacle: why the row was not run, finished or compared.
    """

    row: PublishedRow
    cells: Mapping[str, Cell]
    seeds: tuple[int | None, ...] = ()
    obstacle: str | None = None
    over_baseline: Gain | None = None


def collect_result(row: PublishedRow, units: Sequence[RunUnit], comparable: bool) -> RowResult:
    """Return the result of a row from its finished units."""
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
    """Read the columns of a row from the scores of one unit. Raises KeyError if a column was not evaluated."""
    scores = json.loads(path.read_text(encoding="utf-8"))
    values: dict[str, float] = dict(scores["scores_x100"])
    for task in scores["tasks"].values():
        values |= {name: task[name] for name in LOWER_IS_BETTER if name in task}
    if row.family in scores["averages_x100"]:
        values[AVERAGE_COLUMN] = scores["averages_x100"][row.family]
    return {column: values[column] for column in row.columns}


def gain_over_baseline(units: Sequence[RunUnit], baseline: Sequence[RunUnit]) -> Gain:
    """Return the gain in mean STS score over a baseline, by paired bootstrap and averaged over seeds.

    Raises ValueError with the reason if there are no or too few STS pairs.
    """
    if not all((unit.folder / UNIT_SIMILARITIES).is_file() for unit in (*units, *baseline)):
        raise ValueError("one of the two has no STS pairs")
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
