"""Bootstrap confidence intervals of scores, and paired bootstrap tests of the difference between two models.

The examples of a task are resampled with replacement, and every score is computed again for each resample (Efron and
Tibshirani, *An Introduction to the Bootstrap*, 1993). All runs of all models use the same resamples. If each model has
at least three runs with different seeds, the variance between seeds is added.

Runs are nested in models, and all runs share the examples. Diagnostic studies with several readers and cases have the
same design, so the variance is estimated as in these studies: by the method of Obuchowski and Rockette (*Hypothesis
testing of diagnostic accuracy for multiple readers and multiple tests*, 1995), with the degrees of freedom of Hillis
(*A marginal-mean ANOVA approach for analyzing multireader multicase radiological imaging data*, 2014). In contrast to
these papers, each model has a separate variance (Welch, 1947).

Scores are fractions. The functions neither read files nor use models.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_SEEDS = 3
"""Minimum number of runs of each side for an interval that covers seeds."""

SAMPLES = 2000
"""Default number of resamples. The standard error of a bootstrap standard error is then about 1.6 %."""

BY_CLASS = "mean by class"
"""A statistic of queries: their mean, whose resamples draw classes with all their queries.

Queries of one class are not independent. The interval holds for other classes, not only for other queries of the
classes in the data (cluster bootstrap; Davison and Hinkley, *Bootstrap Methods and their Application*, 1997, 3.8).
"""

LEAST_CLASSES = 5
"""Minimum number of classes for resamples of classes."""

BLOCK = 2**18
"""Maximum number of counts that are drawn at once: larger arrays do not fit into the cache of a processor."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The outcomes of the runs of all models on the n examples of a task.

    Args:
        statistic: The name of the score, such as "spearman" (a key of `STATISTICS`).
        values: For each model, an array (R, n) with a row for each of its R runs. The values are cosines for
            `spearman` and `average_precision`, 0 (wrong) and 1 (correct) for `accuracy`, and the numbers whose mean
            is the score for `mean` and `mean by class`.
        gold: Gold scores (n,) for `spearman`, labels 0 and 1 (n,) for `average_precision`, and classes (n,) for
            `mean by class`. The other statistics do not use `gold`.
        examples: The name of the examples in messages, such as "pairs".

    Raises:
        ValueError: If an array has another shape or contains NaN, or if there are too few examples.
    """

    statistic: str
    values: Sequence[np.ndarray]
    gold: np.ndarray | None = None
    examples: str = "pairs"

    def __post_init__(self) -> None:
        values = tuple(np.atleast_2d(np.asarray(array, dtype=np.float64)) for array in self.values)
        gold = None if self.gold is None else np.asarray(self.gold, dtype=np.float64)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "gold", gold)
        shapes = [np.shape(array)[-1:] for array in (*values, *([] if gold is None else [gold]))]
        if len(set(shapes)) != 1 or any(array.ndim != 2 for array in values) or (gold is not None and gold.ndim != 1):
            lengths = ", ".join(str(n) for (n,) in shapes)
            raise ValueError(f"expected values and gold scores of the same length but found {lengths}")
        if not all(np.isfinite(array).all() for array in (*values, *([] if gold is None else [gold]))):
            raise ValueError(
                f"the values or gold scores of the {self.examples} contain NaN or infinity; evaluate again"
            )
        if self.size < (least := STATISTICS[self.statistic].least):
            raise ValueError(f"there are too few {self.examples} ({self.size}); at least {least} are needed")

    @property
    def size(self) -> int:
        """The number of examples."""
        return self.values[0].shape[1]

    def scores(self, counts: np.ndarray) -> list[np.ndarray]:
        """Return the scores (R, S) of each model's R runs in S resamples.

        Args:
            counts: How often each example is in each resample (n, S).
        """
        return STATISTICS[self.statistic].scores(counts, self.gold, self.values)


def _spearman(counts: np.ndarray, gold: np.ndarray, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return Spearman's correlations with average ranks for ties; NaN if all values of a resample are equal."""
    gold = _centred_ranks(gold, counts)
    weighted = counts * gold
    square = np.einsum("ns,ns->s", weighted, gold)

    def correlation(run: np.ndarray) -> np.ndarray:
        ranks = _centred_ranks(run, counts)
        product = np.einsum("ns,ns->s", weighted, ranks)
        with np.errstate(invalid="ignore", divide="ignore"):
            return product / np.sqrt(square * np.einsum("ns,ns,ns->s", counts, ranks, ranks))

    return [np.stack([correlation(run) for run in runs]) for runs in values]


def _centred_ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the average ranks (n, S) of values (n,) in S resamples, minus their mean, which is (n + 1) / 2.

    Sorting once is enough: the ranks in a resample follow from the number of drawn examples with smaller values.
    """
    order = np.argsort(values)
    below = np.zeros((len(values) + 1, counts.shape[1]))
    np.cumsum(counts[order], axis=0, out=below[1:])
    first, last = (np.searchsorted(values[order], values, side) for side in ("left", "right"))
    return (below[first] + below[last] - len(values)) / 2


def _average_precision(counts: np.ndarray, gold: np.ndarray, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Average precision of pairs sorted by cosine, as in scikit-learn: tied cosines have one threshold."""
    positives = gold @ counts

    def precision(run: np.ndarray) -> np.ndarray:
        order = np.argsort(-run)
        ends = np.append(np.flatnonzero(np.diff(run[order])), len(run) - 1)
        retrieved, hits = counts[order], counts[order] * gold[order, None]
        retrieved, hits = (np.cumsum(array, axis=0)[ends] for array in (retrieved, hits))
        new = np.diff(hits, axis=0, prepend=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.einsum("ns,ns->s", hits / np.maximum(retrieved, 1), new) / positives

    return [np.stack([precision(run) for run in runs]) for runs in values]


def _mean(counts: np.ndarray, gold: np.ndarray | None, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [runs @ counts / counts.sum(axis=0) for runs in values]


@dataclass(frozen=True)
class Statistic:
    """How a score of a task is computed from outcomes, and how its confidence interval is computed.

    Args:
        scores: A function of `counts` (see `Outcomes.scores`), gold (n,) and the values (R, n) of each model. It
            returns the scores (R, S) of each model's R runs in S resamples.
        mean_over: The items over which the score is a mean: "examples", "positives", "classes" (which are resampled
            with all their examples), or None if the score is not a mean. In resamples, the variance of a mean over n
            items is too small by a factor of (n - 1) / n, which is corrected, with n - 1 degrees of freedom.
            Correlations are not corrected: with 50 pairs, they already vary too much in resamples.
        scale: How intervals are computed: "correlation" with Fisher's transformation, "proportion" by Wilson's method,
            "linear" without a transformation.
        least: Minimum number of examples of a task.
    """

    scores: Callable[..., list[np.ndarray]]
    mean_over: str | None
    scale: str
    least: int


STATISTICS: Mapping[str, Statistic] = {
    "spearman": Statistic(_spearman, None, "correlation", 10),
    "average_precision": Statistic(_average_precision, "positives", "proportion", 10),
    "accuracy": Statistic(_mean, "examples", "proportion", 10),
    "mean": Statistic(_mean, "examples", "linear", 3),
    BY_CLASS: Statistic(_mean, "classes", "linear", 10),
}
"""The scores by name. `mean` is the mean of values of any range, such as the main scores of several tasks."""


@dataclass(frozen=True, eq=False)
class ResampledScores:
    """The scores of all models on one task, or the means over several tasks, and their deviations in resamples.

    Args:
        observed: For each model, an array (R,) with the score of each run.
        deviations: For each model, an array (R, S) with the scores in S resamples minus their mean. If the score is a
            mean over n examples or positives, the deviations are multiplied by sqrt(n / (n - 1)).
        examples: The number of examples of the task or, for a mean over tasks, of the smallest task.
        freedom: Degrees of freedom of the variance that is due to the examples.
        scale: The scale of the statistic, or "linear" for a mean over different scales.
    """

    observed: Sequence[np.ndarray]
    deviations: Sequence[np.ndarray]
    examples: int
    freedom: float
    scale: str


def resample(outcomes: Outcomes, samples: int = SAMPLES, seed: int | Sequence[int] = 0) -> ResampledScores:
    """Return the scores of all models on a task, and in `samples` resamples of its examples.

    Raises ValueError if all gold scores or all values are equal, on the task or in a resample, because the score is
    then not defined.
    """
    size, random, statistic = outcomes.size, np.random.default_rng(seed), STATISTICS[outcomes.statistic]
    drawn_with = np.arange(size)  # the unit of each example: itself, or its class
    if statistic.mean_over == "classes":
        names, drawn_with = np.unique(outcomes.gold, return_inverse=True)
        size = len(names)
        if size < LEAST_CLASSES:
            raise ValueError(f"there are too few classes ({size}); at least {LEAST_CLASSES} are needed")
    observed = [scores[:, 0] for scores in outcomes.scores(np.ones((outcomes.size, 1)))]
    if not all(np.isfinite(array).all() for array in observed):
        raise ValueError(
            f"all gold scores or all values of the {outcomes.examples} are equal, so no score is defined; check them"
        )
    block = max(1, BLOCK // size)
    drawn = []
    for start in range(0, samples, block):
        rows = random.integers(size, size=(min(block, samples - start), size))
        rows += size * np.arange(len(rows))[:, None]
        counts = np.bincount(rows.ravel(), minlength=rows.size).reshape(rows.shape)
        drawn.append(outcomes.scores(np.ascontiguousarray(counts.T, dtype=np.float64)[drawn_with]))
    resampled = [np.concatenate(parts, axis=1) for parts in zip(*drawn, strict=True)]
    if not all(np.isfinite(array).all() for array in resampled):
        raise ValueError(
            f"gold scores or values are constant in a resample; there are too few {outcomes.examples} ({size}); "
            "evaluate on more data"
        )
    positives = np.sum(outcomes.gold == 1)
    averaged = {"examples": size, "classes": size, "positives": positives, None: np.inf}[statistic.mean_over]
    factor = 1.0 if np.isinf(averaged) else np.sqrt(averaged / (averaged - 1))
    deviations = [factor * (scores - scores.mean(axis=1, keepdims=True)) for scores in resampled]
    return ResampledScores(observed, deviations, outcomes.size, averaged - 1, statistic.scale)


def average(tasks: Sequence[ResampledScores]) -> ResampledScores:
    """Return the scores averaged over tasks with equal weights. The resamples of different tasks are independent."""

    def mean(arrays: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        return [np.mean(of_model, axis=0) for of_model in zip(*arrays, strict=True)]

    scales = {task.scale for task in tasks}
    return ResampledScores(
        mean([scores.observed for scores in tasks]),
        mean([scores.deviations for scores in tasks]),
        min(task.examples for task in tasks),
        min(task.freedom for task in tasks),
        scales.pop() if len(scales) == 1 else "linear",
    )


@dataclass(frozen=True)
class Estimate:
    """A score (the mean over the runs of a model) with its confidence interval.

    Args:
        seeds: Whether the interval includes the variance between seeds.
    """

    value: float
    low: float
    high: float
    seeds: bool

    @property
    def points(self) -> tuple[float, float, float]:
        """The score and the ends of its interval, × 100."""
        return 100 * self.value, 100 * self.low, 100 * self.high

    def covers(self, examples: str = "test pairs") -> str:
        """Return a text that says what the interval covers, such as "test pairs and seeds".

        Args:
            examples: The name of the examples, such as "test pairs".
        """
        return f"this interval covers {examples}{' and seeds' if self.seeds else ', not seeds'}"


@dataclass(frozen=True)
class Difference(Estimate):
    """The difference of the scores of two models, second minus first, with the two-sided p-value of no difference."""

    p: float


def estimate(scores: ResampledScores, model: int, level: float = 0.95) -> Estimate:
    """Return the score of a model, given by its index, with a confidence interval of coverage `level`.

    The method depends on the score:

    - correlations: Fisher's transformation
    - accuracies and average precisions: Wilson's method with the effective number of examples (Franco et al.,
      *Comparative study of confidence intervals for proportions in complex sample surveys*, 2019)
    - the statistic `mean`, and averages over tasks with different kinds of scores: a symmetric interval, which can
      exceed the range of the score
    """
    runs = scores.observed[model]
    value, seeds = float(runs.mean()), len(runs) >= LEAST_SEEDS
    error, freedom = _error([_Side(runs, scores.deviations[model])], scores.freedom, seeds)
    quantile = _quantile(level, freedom)
    low, high = SCALES[scores.scale](value, error, quantile, scores.examples)
    return Estimate(value, float(low), float(high), seeds)


def _linear(value: float, error: float, quantile: float, examples: int) -> tuple[float, float]:
    return value - quantile * error, value + quantile * error


def _fisher(value: float, error: float, quantile: float, examples: int) -> tuple[float, float]:
    """Return the interval of a correlation with this standard error, computed with Fisher's z."""
    if abs(value) >= 1:
        return value, value
    width = quantile * error / (1 - value**2)
    return np.tanh(np.arctanh(value) - width), np.tanh(np.arctanh(value) + width)


def _wilson(value: float, error: float, quantile: float, examples: int) -> tuple[float, float]:
    """Return Wilson's interval of a proportion with this standard error. The error of 0 and 1 is 0."""
    square = quantile**2 / (value * (1 - value) / error**2 if error > 0 else examples)
    middle = (value + square / 2) / (1 + square)
    width = np.sqrt(square * value * (1 - value) + square**2 / 4) / (1 + square)
    return max(0.0, middle - width), min(1.0, middle + width)


SCALES: Mapping[str, Callable[..., tuple[float, float]]] = {
    "linear": _linear,
    "correlation": _fisher,
    "proportion": _wilson,
}


def difference(
    scores: ResampledScores,
    first: int,
    second: int,
    level: float = 0.95,
    *,
    seedless: Collection[int] = (),
    against: float = 0.0,
) -> Difference:
    """Return the score of model `second` minus the score of model `first`, with interval and p-value.

    If the scores of both models are equal in all resamples, as for two copies of one model, the interval is [0, 0].

    Args:
        seedless: Indices of models that do not depend on a seed, such as an untrained encoder. Such a model has one
            run and no variance between seeds. The interval then covers seeds if the other model has at least three
            runs.
        against: The difference under the null hypothesis of the two-sided test.

    Raises:
        ValueError: If a model in `seedless` has several runs.
    """
    sides = [
        _Side(scores.observed[model], scores.deviations[model], model not in seedless) for model in (second, first)
    ]
    if any(len(side.observed) > 1 and not side.random for side in sides):
        raise ValueError("a model that does not depend on a seed has several runs; give one of its runs")
    value = float(sides[0].observed.mean() - sides[1].observed.mean())
    random = [side for side in sides if side.random]
    seeds = bool(random) and all(len(side.observed) >= LEAST_SEEDS for side in random)
    if all(np.array_equal(getattr(sides[0], name), getattr(sides[1], name)) for name in ("observed", "deviations")):
        return Difference(0.0, 0.0, 0.0, seeds, float(against == 0))
    error, freedom = _error(sides, scores.freedom, seeds)
    if error == 0:  # every example has the same difference
        return Difference(value, value, value, seeds, float(value == against))
    width, distance = _quantile(level, freedom) * error, abs(value - against)
    return Difference(value, value - width, value + width, seeds, float(2 * _student(freedom).sf(distance / error)))


@dataclass(frozen=True, eq=False)
class _Side:
    """The runs of one model: observed scores (R,), deviations (R, S), and whether they depend on a seed (random)."""

    observed: np.ndarray
    deviations: np.ndarray
    random: bool = True


def _error(sides: Sequence[_Side], freedom: float, seeds: bool) -> tuple[float, float]:
    """Return the standard error of a score (one side) or of a difference (two), and its degrees of freedom.

    If the interval covers seeds, the variance of the observed scores already contains the variance due to examples
    within a run, so only the part of the bootstrap variance that the runs share is added. For a side without seeds,
    which has a single run, the whole bootstrap variance is added.

    Args:
        freedom: Degrees of freedom of the variance that is due to the examples.
    """
    means = [side.deviations.mean(axis=0) for side in sides]
    total = float(np.mean((means[0] - sum(means[1:])) ** 2))
    if not seeds:
        return float(np.sqrt(total)), freedom
    random = [side for side in sides if side.random]
    between = [float(np.var(side.observed, ddof=1)) / len(side.observed) for side in random]
    within = sum(
        float(np.mean((side.deviations - side.deviations.mean(axis=0)) ** 2)) / (len(side.deviations) - 1)
        for side in random
    )
    shared = max(total - within, 0.0)
    variance = sum(between) + shared
    uncertainty = [part**2 / (len(side.observed) - 1) for part, side in zip(between, random, strict=True)]
    uncertainty.append(shared**2 / freedom)
    return float(np.sqrt(variance)), variance**2 / sum(uncertainty) if sum(uncertainty) else freedom


def _student(freedom: float) -> Any:
    from scipy import stats  # imported here because it is slow

    return stats.t(freedom)


def _quantile(level: float, freedom: float) -> float:
    return float(_student(freedom).ppf((1 + level) / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests (Holm, *A simple sequentially rejective procedure*, 1979)."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()
