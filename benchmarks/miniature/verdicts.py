"""Decide from the measured scores whether each claim holds, does not hold, or remains undecided.

The difference of two variants has the standard error and the degrees of freedom of `dcpcse.evaluation.significance`:
test pairs are resampled, and the variance between the seeds of each variant is added. An untrained encoder has no
seeds. A claim states a range for the difference. The p-value of a claim belongs to the nearest end of this range.

The p-values of all m claims are tested together (Holm, *A simple sequentially rejective procedure*, 1979). At step k,
the k-th smallest p-value is compared with 0.05 / (m − k + 1). The first claim whose p-value is too large and all later
claims are undecided. Claims that were not run count with a p-value of 1, so that a decision stays the same when more
claims are run.

The interval of a claim has the coverage 1 − 0.05 / (m − k + 1) of its step k. For undecided claims, k is the step at
which the procedure stopped. With these levels, a claim is decided if and only if its interval contains no end of the
claimed range.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from senteval.geometry import POSITIVE_ABOVE

from benchmarks.miniature.unit import RETRIEVAL, STS_TASKS, load_data
from benchmarks.miniature.units import DEV_TASK, SCORES, SIMILARITIES, VARIANTS, read_json
from dcpcse.evaluation import significance
from dcpcse.evaluation.significance import Outcomes, ResampledScores, resample

LEVEL = 0.95
HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not", "cannot be told", "not run"

# Task → gold scores (n,) of its test pairs, in the order of the cosines.
Gold = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Run:
    """What one unit measured: a variant with one seed. similarities, scores: as `unit.measure` returns them."""

    variant: str
    seed: int | None
    similarities: Mapping[str, np.ndarray]
    scores: Mapping[str, float]
    seconds: float
    learning_rate: float | None = None
    steps: int | None = None


# Variant → its runs, one for each seed.
Runs = Mapping[str, Sequence[Run]]


def read_runs(folder: Path) -> list[Run]:
    """Read all finished units of a folder, by variant and seed."""
    runs = []
    for path in folder.glob(f"units/*/*/{SCORES}"):
        record = read_json(path)
        with np.load(path.with_name(SIMILARITIES), allow_pickle=False) as file:
            similarities = {task: 1 - file[task].astype(np.float32) for task in file.files}
        facts = {name: record.get(name) for name in ("variant", "seed", "scores", "seconds", "learning_rate", "steps")}
        runs.append(Run(similarities=similarities, **facts))
    return sorted(runs, key=lambda run: (run.variant, -1 if run.seed is None else run.seed))


def by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return variant → its runs."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.variant, []).append(run)
    return grouped


def gold_scores(data_dir: str | Path, custom_data: bool = False) -> Gold:
    """Return the gold scores of all test pairs. Raises senteval.DataError if a task is missing."""
    _, test = load_data(data_dir, custom_data)
    return {name: np.concatenate([pairs.gold for pairs in test.tasks[name].subsets]) for name in STS_TASKS}


@dataclass(frozen=True)
class Claim:
    """What a paper says about two variants, as in `claims.yaml`.

    place: table or section of the paper. says: the claim in a sentence. published: rows of
    `dcpcse/experiments/reproduction/tables/` with the figures of both variants, None where the paper prints none.
    claimed: the range in which the difference, second less first, lies if the claim holds. metric: a key of `METRICS`.
    starred: whether it is a headline claim. note: how the miniature differs from what the paper measured.
    """

    key: str
    paper: str
    place: str
    title: str
    says: str
    first: str
    second: str
    published: tuple[str | None, str | None] = (None, None)
    claimed: tuple[float, float] = (0.0, inf)
    metric: str = "avg"
    starred: bool = False
    note: str = ""
    figures: tuple[float | None, float | None] = (None, None)

    def as_dict(self) -> dict[str, Any]:
        """Return the claim as a JSON-serialisable dictionary, in which an open end of the claimed range is None."""
        return {**asdict(self), "claimed": [end if isfinite(end) else None for end in self.claimed]}


_TEXT = Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8")
CLAIMS = tuple(Claim(**facts) for facts in yaml.safe_load(_TEXT))


def _sts(runs: Runs, gold: Gold, samples: int) -> ResampledScores:
    """Resample the pairs of each of the seven STS tasks, and average the scores over the tasks."""
    scores = []
    for number, task in enumerate(STS_TASKS):
        outcomes = Outcomes("spearman", _stacked(runs, task), gold[task])
        scores.append(resample(outcomes, samples, [0, number]))
    return significance.average(scores)


def _alignment(runs: Runs, gold: Gold, samples: int) -> ResampledScores:
    """Resample the positive pairs of STS-B, whose squared distance on the unit sphere is 2 − 2 cos."""
    positive = gold[DEV_TASK] > POSITIVE_ABOVE
    values = [2 - 2 * cosines[:, positive] for cosines in _stacked(runs, DEV_TASK)]
    return resample(Outcomes("mean", values), samples, [0, len(STS_TASKS)])


def _recall(runs: Runs, gold: Gold, samples: int) -> ResampledScores:
    """Resample the pairs whose sentences are queries: both sentences of a pair are drawn together.

    The queries are the first sentences of all pairs, then the second ones (`senteval.retrieval`). Raises ValueError if
    their number is odd, as in data in which pairs share a sentence.
    """
    if len(next(iter(runs.values()))[0].similarities[RETRIEVAL]) % 2:
        raise ValueError("some pairs of the data share a sentence, so the queries cannot be resampled by pairs")
    values = [(ranks.reshape(len(ranks), 2, -1) == 1).mean(axis=1) for ranks in _stacked(runs, RETRIEVAL)]
    return resample(Outcomes("mean", values), samples, [0, len(STS_TASKS) + 1])


def _uniformity(runs: Runs, gold: Gold, samples: int) -> ResampledScores:
    """Return the uniformities without any resampling: they are one number a run, so only seeds vary."""
    observed = [np.array([run.scores["uniformity"] for run in of_variant]) for of_variant in runs.values()]
    return ResampledScores(observed, [np.zeros((len(values), 1)) for values in observed], 0, inf, "linear")


def _stacked(runs: Runs, task: str) -> list[np.ndarray]:
    """Return the cosines (R, n) of the runs of each variant on a task; for `RETRIEVAL` the reciprocal ranks."""
    return [np.stack([run.similarities[task] for run in of_variant]) for of_variant in runs.values()]


@dataclass(frozen=True)
class Metric:
    """A measure that claims are about.

    scale: factor of what `resampled` returns to what is shown. digits: of a difference. examples: what is resampled.
    """

    resampled: Callable[[Runs, Gold, int], ResampledScores]
    scale: float
    digits: int
    examples: str | None


METRICS = {
    "avg": Metric(_sts, 100, 2, "pairs"),
    "recall@1": Metric(_recall, 100, 2, "queries"),
    "alignment": Metric(_alignment, 1, 4, "pairs"),
    "uniformity": Metric(_uniformity, 1, 4, None),
}


# A claim and what the measurements say about it, as in `miniature.json`: its fields, in which an open end of
# the claimed range is None, and those of `UNANSWERED`. All figures are in the units of the papers' tables.
Answer = dict[str, Any]

# runs: number of runs of both variants. scores: their mean scores. value: the difference, second less first. low,
# high: its 95 % interval. step_level, step_low, step_high: coverage and ends of the interval of Holm's step, from
# which the verdict is read. p: two-sided p-value of the nearest end of the claimed range; p_holm: adjusted for all
# claims. covers: what the intervals cover. obstacle: why the claim was not run.
_FIGURES = (
    "scores",
    "value",
    "low",
    "high",
    "step_level",
    "step_low",
    "step_high",
    "p",
    "p_holm",
    "covers",
    "obstacle",
)
UNANSWERED = {"verdict": NOT_RUN, "runs": (0, 0), **dict.fromkeys(_FIGURES)}


@dataclass(frozen=True, eq=False)
class _Comparison:
    """A claim, the scores of its two variants' runs, and the function that compares the variants."""

    claim: Claim
    observed: Sequence[np.ndarray]
    difference: Callable[..., significance.Difference]

    @property
    def p(self) -> float:
        """The p-value of the nearest end of the claimed range, which decides on which side the interval lies."""
        scale = METRICS[self.claim.metric].scale
        return max(self.difference(against=end / scale).p for end in self.claim.claimed if isfinite(end))

    def answer(self, step_level: float, p_holm: float) -> Answer:
        metric, (low, high) = METRICS[self.claim.metric], self.claim.claimed
        plain, step = self.difference(level=LEVEL), self.difference(level=step_level)
        value = plain.value * metric.scale
        return {
            "verdict": OPEN if p_holm >= 1 - LEVEL else HOLDS if low < value < high else FAILS,
            "runs": tuple(map(len, self.observed)),
            "scores": tuple(float(scores.mean() * metric.scale) for scores in self.observed),
            "value": value,
            "low": plain.low * metric.scale,
            "high": plain.high * metric.scale,
            "step_level": step_level,
            "step_low": step.low * metric.scale,
            "step_high": step.high * metric.scale,
            "p": self.p,
            "p_holm": p_holm,
            "covers": " and ".join(filter(None, (metric.examples, "seeds" if plain.seeds else None))),
        }


def answer_claims(
    runs: Sequence[Run], gold: Gold, claims: Sequence[Claim] = CLAIMS, samples: int = significance.SAMPLES
) -> list[Answer]:
    """Answer claims from the units that were measured; a claim whose units are missing is not run.

    samples: number of resamples.
    """
    grouped, comparisons = by_variant(runs), []
    answers = {claim.key: claim.as_dict() | UNANSWERED | {"obstacle": _obstacle(claim, grouped)} for claim in claims}
    for name, metric in METRICS.items():
        asked = [claim for claim in claims if claim.metric == name and not answers[claim.key]["obstacle"]]
        needed = {variant: grouped[variant] for claim in asked for variant in (claim.first, claim.second)}
        try:
            scores = metric.resampled(needed, gold, samples) if needed else None
        except ValueError as error:  # data that cannot be resampled, such as too few pairs of the user
            for claim in asked:
                answers[claim.key]["obstacle"] = f"{name}: {error}"
            continue
        seedless = [index for index, variant in enumerate(needed) if VARIANTS[variant].method is None]
        for claim in asked:
            sides = [[*needed].index(variant) for variant in (claim.first, claim.second)]
            compare = partial(significance.difference, scores, *sides, seedless=seedless)
            comparisons.append(_Comparison(claim, [scores.observed[side] for side in sides], compare))
    # Holm: the p-value of claims that were not run is 1.
    p_values = [comparison.p for comparison in comparisons]
    adjusted = significance.holm([*p_values, *[1.0] * (len(claims) - len(p_values))])
    decided = sum(p < 1 - LEVEL for p in adjusted)
    # Decided claims come first in the order of p-values; the others share the step at which the procedure stopped.
    for step, index in enumerate(np.argsort(p_values, kind="stable")):
        step_level = 1 - (1 - LEVEL) / (len(claims) - min(step, decided))
        answers[comparisons[index].claim.key] |= comparisons[index].answer(step_level, adjusted[index])
    return list(answers.values())


def _obstacle(claim: Claim, runs: Runs) -> str | None:
    """Return which units a claim lacks; None if it can be answered."""
    lacking = []
    for variant in (claim.first, claim.second):
        count, least = len(runs.get(variant, [])), min(significance.LEAST_SEEDS, len(VARIANTS[variant].seeds))
        measure = "" if claim.metric == "avg" else f"{claim.metric} of "
        if count < least:
            lacking.append(f"{measure}{variant}: {'not measured' if least == 1 else f'{count} of {least} seeds'}")
    return "; ".join(lacking) or None
