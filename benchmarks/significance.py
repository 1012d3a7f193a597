"""Measure the coverage of the intervals of `dcpcse.evaluation.significance` on simulated models.

    python benchmarks/significance.py [--draws 1000] [--samples 500]

The true scores of the simulated models are known. Each draw simulates the outcomes of two models on n examples. An
outcome is the sum of the value of the example, errors that all models share, errors of one model, and errors of one
run (`SHARES`). Runs differ in the size of their errors (`--seed_spread`), so their true scores differ.

Coverage is the share of draws in which the 95 % interval contains the true score, or the true difference, of the
average run. If a model has only one run, the true score of this run is used. For the last table, equal runs are split
at random into two sides. The table contains the share of splits in which the two sides are called different.
"""

import argparse
from collections.abc import Callable
from functools import cache

import numpy as np
from prettytable import PrettyTable
from scipy.stats import norm, spearmanr
from sklearn.metrics import average_precision_score

from dcpcse.evaluation.mteb_tasks import parts_of_f1
from dcpcse.evaluation.significance import Outcomes, ResampledScores, difference, estimate, resample

SHARES = (0.6, 0.25, 0.15)
"""Shares of the variance of errors: of all models, of one model, of one run."""

NOISE = {"spearman": (0.75, 0.7), "average_precision": (0.9, 0.8), "accuracy": (1.0, 0.85)}
"""Statistic → standard deviation of the errors of the two models, where the worth of examples has deviation 1."""

SPREAD = 0.02
"""Standard deviation of the logarithm of a run's size of errors: about 0.6 points of Spearman between seeds."""


def gold_of(statistic: str, worth: np.ndarray) -> np.ndarray | None:
    """Return gold scores with the ties of STS-B (0 to 5 in steps of 0.2), or 0/1 with 30 % positives."""
    if statistic == "spearman":
        return np.round(np.clip(2.6 + 1.5 * worth, 0, 5) * 5) / 5
    return (worth > norm.isf(0.3)).astype(float) if statistic == "average_precision" else None


def values_of(statistic: str, worth: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return cosines, or for accuracies whether an example is classified correctly: 80 % for a noise of 1."""
    if statistic == "accuracy":
        return (errors < norm.ppf(0.8)).astype(float)
    return worth + errors


@cache
def true_score(statistic: str, noise: float) -> float:
    """Return the score of a run on all possible examples: exact for accuracies, else on 400,000 examples."""
    if statistic == "accuracy":
        return float(norm.cdf(norm.ppf(0.8) / noise))
    random = np.random.default_rng(99)
    worth = random.normal(size=400_000)
    cosines = worth + noise * random.normal(size=len(worth))
    gold = gold_of(statistic, worth)
    score = spearmanr(gold, cosines).statistic if statistic == "spearman" else average_precision_score(gold, cosines)
    return float(score)


@cache
def score_curve(statistic: str) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes of errors and their true scores, between which is interpolated."""
    sizes = np.linspace(0.5, 1.3, 17)
    return sizes, np.array([true_score(statistic, float(size)) for size in sizes])


def draw(statistic: str, size: int, runs: tuple[int, int], spread: float, random: np.random.Generator) -> tuple:
    """Return the outcomes of two models, and the true score of each."""
    worth, common = random.normal(size=(2, size))
    values, true = [], []
    for noise, count in zip(NOISE[statistic], runs, strict=True):
        own = random.normal(size=size)
        sizes = noise * np.exp(spread * random.normal(size=count))
        parts = common, own, random.normal(size=(count, size))
        errors = sizes[:, None] * sum(np.sqrt(share) * part for share, part in zip(SHARES, parts, strict=True))
        values.append(values_of(statistic, worth, errors))
        # With one or two runs the interval covers examples, and its target is the score of these runs.
        many = noise * np.exp(spread * np.random.default_rng(5).normal(size=20_000)) if count > 2 else sizes
        true.append(float(np.interp(many, *score_curve(statistic)).mean()))
    return Outcomes(statistic, values, gold_of(statistic, worth)), true


def percentile(scores: ResampledScores) -> tuple[float, float, float, float]:
    """Return the plain percentile intervals of the first model's score and of the difference."""
    both = zip(scores.deviations, scores.observed, strict=True)
    first, second = (part.mean(axis=0) + runs.mean() for part, runs in both)
    return (*np.quantile(first, [0.025, 0.975]), *np.quantile(second - first, [0.025, 0.975]))


def coverage(statistic: str, size: int, runs: tuple[int, int], spread: float, draws: int, samples: int) -> list[float]:
    """Return four coverages: of a model's interval and of the difference's, ours and by plain percentiles."""
    covered = np.zeros((draws, 4), dtype=bool)
    for number in range(draws):
        random = np.random.default_rng([number, size, *runs])
        outcomes, true = draw(statistic, size, runs, spread, random)
        scores = resample(outcomes, samples, number)
        one, two, plain = estimate(scores, 0), difference(scores, 0, 1), percentile(scores)
        targets = true[0], true[1] - true[0]
        bounds = ((one.low, one.high), (two.low, two.high), plain[:2], plain[2:])
        covered[number] = [low <= targets[i % 2] <= high for i, (low, high) in enumerate(bounds)]
    return covered.mean(axis=0).tolist()


def called_different(side: int, spread: float, splits: int, samples: int, size: int = 1379) -> float:
    """Return the share of random splits of 2 * side equal runs whose sides are called different (p < 0.05)."""
    random = np.random.default_rng([side, size])
    worth, common, own = random.normal(size=(3, size))
    sizes = 0.7 * np.exp(spread * random.normal(size=(20, 1)))
    parts = common, own, random.normal(size=(20, size))
    runs = worth + sizes * sum(np.sqrt(share) * part for share, part in zip(SHARES, parts, strict=True))
    gold = gold_of("spearman", worth)
    found = []
    for number in range(splits):
        order = random.permutation(20)[: 2 * side]
        scores = resample(Outcomes("spearman", [runs[order[:side]], runs[order[side:]]], gold), samples, number)
        found.append(difference(scores, 0, 1).p < 0.05)
    return float(np.mean(found))


def bitext(size: int, noise: float, shared: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the parts (n,) of sentences in their mean F1: each one looks for its translation in 12 dimensions.

    shared (3, n, 300): meanings, and errors that all models share, on both sides.
    """
    meaning, *errors = shared[:, :, :12]
    sides = [meaning + noise * (np.sqrt(0.6) * one + np.sqrt(0.4) * random.normal(size=one.shape)) for one in errors]
    first, second = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return parts_of_f1((first @ second.T).argmax(axis=1).tolist())


def ranking(size: int, noise: float, shared: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return nDCG@10 (n,) of queries with three relevant documents, graded 1 to 3, among 300."""
    grades = np.zeros((size, 300))
    grades[:, :3] = 1 + np.digitize(shared[0, :, :3], [-0.43, 0.43])
    ease = 1 + 0.5 * shared[0, :, 3:4]
    errors = np.sqrt(0.6) * shared[1] + np.sqrt(0.4) * random.normal(size=shared[1].shape)
    order = np.argsort(-(1.2 * grades * ease + noise * errors), axis=1)[:, :10]
    discount = 1 / np.log2(np.arange(2, 12))
    best = -np.sort(-grades, axis=1)[:, :10] @ discount
    return np.take_along_axis(grades, order, axis=1) @ discount / best


MEANS = {"F1 of bitext mining": (bitext, (0.7, 0.65)), "nDCG@10": (ranking, (1.0, 0.9))}
"""Score that is a mean over queries → the function that draws it, and the size of the errors of the two models."""


def coverage_of_mean(name: str, size: int, draws: int, samples: int) -> tuple[float, float]:
    """Return the coverages of a model's interval and of the difference's. True scores are the means of all draws."""
    outcomes, (function, noise) = [], MEANS[name]
    for number in range(draws):
        random = np.random.default_rng([number, size])
        shared = random.normal(size=(3, size, 300))
        outcomes.append([function(size, one, shared, random) for one in noise])
    first, second = (np.mean([one[side].mean() for one in outcomes]) for side in (0, 1))
    covered = np.zeros((draws, 2), dtype=bool)
    for number, values in enumerate(outcomes):
        scores = resample(Outcomes("mean", [one[None] for one in values]), samples, number)
        one, two = estimate(scores, 0), difference(scores, 0, 1)
        covered[number] = one.low <= first <= one.high, two.low <= second - first <= two.high
    return tuple(covered.mean(axis=0).tolist())


CASES: tuple[tuple[str, int, tuple[int, int], float], ...] = (
    *(("spearman", size, (1, 1), 0.0) for size in (100, 500, 1500)),
    *(("average_precision", size, (1, 1), 0.0) for size in (200, 1000)),
    *(("accuracy", size, (1, 1), 0.0) for size in (100, 500, 2000)),
    *(("spearman", size, (runs, runs), SPREAD) for runs in (3, 5) for size in (500, 1500)),
    ("spearman", 500, (3, 10), SPREAD),
    ("spearman", 500, (3, 3), 0.0),
    ("spearman", 1500, (3, 3), 5 * SPREAD),
    *(("accuracy", size, (runs, runs), SPREAD) for runs in (3, 5) for size in (500, 2000)),
)


def main(progress: Callable[[str], None] = print) -> None:
    """Run all cases and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=500, help="resamples of each draw")
    parser.add_argument("--splits", type=int, default=200)
    args = parser.parse_args()
    head = ["statistic", "n", "runs", "spread", "one model", "difference", "percentile: one", "percentile: difference"]
    table = PrettyTable(head, align="r")
    for statistic, size, runs, spread in CASES:
        found = coverage(statistic, size, runs, spread, args.draws, args.samples)
        table.add_row([statistic, size, f"{runs[0]}, {runs[1]}", spread, *(f"{100 * one:.1f}" for one in found)])
        progress(f"{table.get_string(start=len(table.rows) - 1, header=len(table.rows) == 1, border=False)}")
    means = PrettyTable(["mean over queries", "n", "one model", "difference"], align="r")
    for name, size in (("F1 of bitext mining", 250), ("F1 of bitext mining", 1000), ("nDCG@10", 50), ("nDCG@10", 300)):
        found = coverage_of_mean(name, size, args.draws, args.samples)
        means.add_row([name, size, *(f"{100 * one:.1f}" for one in found)])
    splits = PrettyTable(["runs of each side", "spread", "called different"], align="r")
    for side in (3, 5, 10):
        for spread in (0.0, SPREAD):
            splits.add_row([side, spread, f"{100 * called_different(side, spread, args.splits, args.samples):.1f} %"])
    print(f"{table}\n{means}\n{splits}")


if __name__ == "__main__":
    main()
