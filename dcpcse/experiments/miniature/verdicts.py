"""Answer each claim from what was measured: holds, does not, or cannot be told; over seeds and pairs, after Holm.

The difference of two variants has the standard error and the degrees of freedom of `evaluation.significance`: test
pairs are resampled, and the variance between the seeds of each side is added. An untrained encoder has no seeds. The
p-value of a claim is that of the nearest end of its range. The p-values of all claims are one family (Holm, *A simple
sequentially rejective procedure*, 1979): the k-th smallest of m is compared with 0.05 / (m − k + 1), and all after the
first that is too large are undecided. Claims that were not run count with a p-value of 1, so that an answer stays when
more claims are run. A claim is answered by the interval of its own step, whose
coverage is 1 − 0.05 / (m − k + 1); those that are undecided share the step at which the procedure stopped. By this
choice of levels, a claim is answered if and only if its interval contains no end of the claimed range.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from senteval.geometry import POSITIVE_ABOVE

from dcpcse.evaluation import significance
from dcpcse.evaluation.significance import Outcomes, ResampledScores, average, difference, resample
from dcpcse.experiments.miniature.claims import CLAIMS, Claim
from dcpcse.experiments.miniature.measurement import RETRIEVAL, STS_TASKS, Measurement
from dcpcse.experiments.miniature.settings import VARIANTS
from dcpcse.utils.errors import UserError

LEVEL = 0.95
HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not", "cannot be told", "not run"
VERDICTS = (HOLDS, FAILS, OPEN, NOT_RUN)

TOLERANCE = 0.1
"""Points by which a recorded score may differ from that of the stored cosines, which are rounded to 16 bits."""

Runs = Mapping[str, Sequence[Measurement]]
"""Variant → its runs, one for each seed."""


def _sts(runs: Runs, gold: Mapping[str, np.ndarray], samples: int, seed: int) -> ResampledScores:
    """Resample the pairs of each of the seven STS tasks, and average the scores over the tasks."""
    scores = []
    for number, task in enumerate(STS_TASKS):
        values = [_stacked(of_variant, task, gold) for of_variant in runs.values()]
        scores.append(resample(Outcomes("spearman", values, gold[task]), samples, [seed, number]))
    averaged = average(scores)
    for of_variant, observed in zip(runs.values(), averaged.observed, strict=True):
        for run, score in zip(of_variant, observed, strict=True):
            if abs(100 * score - run.average) > TOLERANCE:
                raise UserError(
                    f"{run.variant}, seed {run.seed}: the cosines give {100 * score:.2f} with these gold scores, but "
                    f"{run.average:.2f} was recorded; give the data that the units were measured on"
                )
    return averaged


def _alignment(runs: Runs, gold: Mapping[str, np.ndarray], samples: int, seed: int) -> ResampledScores:
    """Resample the positive pairs of STS-B, whose squared distance on the unit sphere is 2 − 2 cos."""
    positive = gold["STSBenchmark"] > POSITIVE_ABOVE
    values = [2 - 2 * _stacked(of_variant, "STSBenchmark", gold)[:, positive] for of_variant in runs.values()]
    return resample(Outcomes("mean", values), samples, [seed, len(STS_TASKS)])


def _recall(runs: Runs, gold: Mapping[str, np.ndarray], samples: int, seed: int) -> ResampledScores:
    """Resample the pairs whose sentences are queries: both sentences of a pair are drawn together."""
    values = [np.stack([_hits(run) for run in of_variant]) for of_variant in runs.values()]
    return resample(Outcomes("mean", values), samples, [seed, len(STS_TASKS) + 1])


def _hits(run: Measurement) -> np.ndarray:
    """Return the share of the two sentences of each pair that find the other one first.

    The queries are the first sentences of all pairs, then the second ones (`senteval.retrieval`). Raises ValueError if
    their number is odd, as in data in which pairs share a sentence.
    """
    if len(run.similarities[RETRIEVAL]) % 2:
        raise ValueError("some pairs of the data share a sentence, so the queries cannot be resampled by pairs")
    return (run.similarities[RETRIEVAL].reshape(2, -1) == 1).mean(axis=0)


def _uniformity(runs: Runs, gold: Mapping[str, np.ndarray], samples: int, seed: int) -> ResampledScores:
    """Return the uniformities without any resampling: they are one number a run, so only seeds vary."""
    observed = [np.array([run.scores["uniformity"] for run in of_variant]) for of_variant in runs.values()]
    return ResampledScores(observed, [np.zeros((len(values), 1)) for values in observed], 0, np.inf, "linear")


def _stacked(runs: Sequence[Measurement], task: str, gold: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the cosines (R, n) of all runs of a variant on a task; raises UserError unless they fit the gold."""
    for run in runs:
        if run.similarities[task].shape != gold[task].shape:
            raise UserError(
                f"{run.variant}, seed {run.seed}: {task} has {len(run.similarities[task]):,} cosines and "
                f"{len(gold[task]):,} gold scores; give the data that the units were measured on"
            )
    return np.stack([run.similarities[task] for run in runs])


@dataclass(frozen=True)
class Metric:
    """A measure that claims are about.

    resampled: function of the runs, gold scores, number and seed of resamples. available: whether a run has it. scale:
    factor of what `resampled` returns to what is shown. digits: of a difference. unit: of a difference, in tables.
    examples: what is resampled; None if nothing is.
    """

    resampled: Callable[[Runs, Mapping[str, np.ndarray], int, int], ResampledScores]
    available: Callable[[Measurement], bool]
    scale: float
    digits: int
    label: str
    examples: str | None


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "avg": Metric(_sts, lambda run: set(STS_TASKS) <= set(run.similarities), 100, 2, "STS average", "pairs"),
        "recall@1": Metric(_recall, lambda run: RETRIEVAL in run.similarities, 100, 2, "recall@1", "queries"),
        "alignment": Metric(_alignment, lambda run: "STSBenchmark" in run.similarities, 1, 4, "alignment", "pairs"),
        "uniformity": Metric(_uniformity, lambda run: "uniformity" in run.scores, 1, 4, "uniformity", None),
    }
)


@dataclass(frozen=True)
class Answer:
    """What the measurements say about a claim; all figures are in the units of the papers' tables.

    runs: number of runs of both variants. scores: their mean scores. value: the difference, second less first. low,
    high: its 95 % interval. step_level, step_low, step_high: coverage and ends of the interval of Holm's step, from
    which the verdict is read. p: two-sided p-value of the nearest end of the claimed range; p_holm: adjusted for all
    claims. covers: what the intervals cover. obstacle: why the claim was not run.
    """

    claim: Claim
    verdict: str = NOT_RUN
    runs: tuple[int, int] = (0, 0)
    scores: tuple[float, float] | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    step_level: float | None = None
    step_low: float | None = None
    step_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    covers: str | None = None
    obstacle: str | None = None

    @property
    def digits(self) -> int:
        """Number of decimals with which differences are shown."""
        return METRICS[self.claim.metric].digits

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON-serialisable dictionary; an open end of the claimed range is None."""
        claim = {**asdict(self.claim), "figures": self.claim.figures}
        claim["claimed"] = [end if np.isfinite(end) else None for end in self.claim.claimed]
        return {**claim, **{name: value for name, value in vars(self).items() if name != "claim"}}


def answer_claims(
    measurements: Sequence[Measurement],
    gold: Mapping[str, np.ndarray],
    claims: Sequence[Claim] = CLAIMS,
    *,
    level: float = LEVEL,
    samples: int = significance.SAMPLES,
    seed: int = 0,
) -> list[Answer]:
    """Answer claims from the units that were measured; a claim whose units are missing is not run.

    gold: task → gold scores (n,) of its test pairs. level: coverage before Holm. samples, seed: number and seed of the
    resamples. Raises UserError if the measurements do not belong to the gold scores.
    """
    answers = {claim.key: Answer(claim) for claim in claims}
    comparisons = {}
    for name, metric in METRICS.items():
        runs: dict[str, list[Measurement]] = {}
        for run in filter(metric.available, measurements):
            runs.setdefault(run.variant, []).append(run)
        of_metric = [claim for claim in claims if claim.metric == name]
        obstacles = {claim.key: _obstacle(claim, runs) for claim in of_metric}
        answers |= {key: replace(answers[key], obstacle=obstacle) for key, obstacle in obstacles.items()}
        asked = [claim for claim in of_metric if obstacles[claim.key] is None]
        if needed := {variant: runs[variant] for claim in asked for variant in (claim.first, claim.second)}:
            try:
                scores = metric.resampled(needed, gold, samples, seed)
            except UserError:
                raise
            except ValueError as error:  # data that cannot be resampled, such as too few pairs of the user
                reason = f"{metric.label}: {error}"
                answers |= {claim.key: replace(answers[claim.key], obstacle=reason) for claim in asked}
            else:
                comparisons |= {claim.key: _Comparison(claim, needed, scores) for claim in asked}
    return list((answers | _after_holm(comparisons, len(answers), level)).values())


def _obstacle(claim: Claim, runs: Runs) -> str | None:
    """Return which units a claim lacks; None if it can be answered. runs: those in which its metric was measured."""
    lacking = []
    for variant in (claim.first, claim.second):
        count, least = len(runs.get(variant, [])), min(significance.LEAST_SEEDS, len(VARIANTS[variant].seeds))
        measure = "" if claim.metric == "avg" else f"{METRICS[claim.metric].label} of "
        if count < least:
            state = "not measured" if least == 1 else f"{count} of {least} seeds"
            lacking.append(f"{measure}{variant}: {state}")
    return "; ".join(lacking) or None


@dataclass(frozen=True, eq=False)
class _Comparison:
    """A claim with the resampled scores of all variants of its metric."""

    claim: Claim
    runs: Runs
    scores: ResampledScores

    def difference(self, level: float, against: float = 0.0) -> significance.Difference:
        names = list(self.runs)
        seedless = [index for index, name in enumerate(names) if VARIANTS[name].method is None]
        first, second = names.index(self.claim.first), names.index(self.claim.second)
        against /= METRICS[self.claim.metric].scale
        return difference(self.scores, first, second, level, seedless=seedless, against=against)

    @property
    def p(self) -> float:
        """The p-value of the nearest end of the claimed range, which decides on which side the interval lies."""
        return max(self.difference(LEVEL, end).p for end in self.claim.claimed if np.isfinite(end))

    def answer(self, level: float, step_level: float, p_holm: float) -> Answer:
        metric = METRICS[self.claim.metric]
        plain, step = self.difference(level), self.difference(step_level)
        names = list(self.runs)
        both = [self.scores.observed[names.index(name)] for name in (self.claim.first, self.claim.second)]
        covered = [metric.examples, "seeds" if plain.seeds else None]
        answer = Answer(
            self.claim,
            runs=(len(both[0]), len(both[1])),
            scores=(float(both[0].mean() * metric.scale), float(both[1].mean() * metric.scale)),
            value=plain.value * metric.scale,
            low=plain.low * metric.scale,
            high=plain.high * metric.scale,
            step_level=step_level,
            step_low=step.low * metric.scale,
            step_high=step.high * metric.scale,
            p=self.p,
            p_holm=p_holm,
            covers=" and ".join(filter(None, covered)),
        )
        return replace(answer, verdict=_verdict(answer, level))


def _verdict(answer: Answer, level: float) -> str:
    if answer.p_holm >= 1 - level:
        return OPEN
    low, high = answer.claim.claimed
    return HOLDS if low < answer.value < high else FAILS


def _after_holm(comparisons: Mapping[str, _Comparison], family: int, level: float) -> dict[str, Answer]:
    """Return the answers of all claims that were run, each with the interval of its step of Holm's procedure.

    family: number of all claims; the p-value of those that were not run is 1.
    """
    p_values = [comparison.p for comparison in comparisons.values()]
    adjusted = significance.holm([*p_values, *[1.0] * (family - len(p_values))])[: len(p_values)]
    decided = sum(p < 1 - level for p in adjusted)
    # Decided claims come first in the order of p-values; the others share the step at which the procedure stopped.
    steps = np.empty(len(p_values), dtype=int)
    steps[np.argsort(p_values, kind="stable")] = np.minimum(np.arange(len(p_values)), decided)
    return {
        key: comparison.answer(level, 1 - (1 - level) / (family - step), p_holm)
        for (key, comparison), step, p_holm in zip(comparisons.items(), steps, adjusted, strict=True)
    }
