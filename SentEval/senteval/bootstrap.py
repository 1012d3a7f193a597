"""A paired bootstrap test of the difference between two encoders on scored pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata


@dataclass(frozen=True)
class Scored:
    """One set of n pairs with gold scores (n,) and the similarities of two encoders.

    before, after: the similarities (n,), or (R, n) for R runs with different seeds, whose correlations are averaged.
    Raises ValueError if the shapes do not agree.
    """

    gold: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def __post_init__(self) -> None:
        shapes = [np.shape(values) for values in (self.gold, self.before, self.after)]
        if len(shapes[0]) != 1 or any(shape[-1:] != shapes[0] or len(shape) > 2 for shape in shapes):
            raise ValueError(f"three arrays of the same length are needed; got shapes {', '.join(map(str, shapes))}")

    def gain(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return Spearman(after) - Spearman(before), by default over all pairs; for rows (S, n) an array (S,).

        The gain is NaN if gold scores or similarities are constant.
        """
        gold = rankdata(self.gold[rows], axis=-1)
        return _mean_correlation(gold, self.after, rows) - _mean_correlation(gold, self.before, rows)


def _mean_correlation(gold: np.ndarray, runs: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    """Return Pearson's correlation (S,) of gold ranks (S, n) with the ranks of runs (R, n), averaged over runs."""
    ranks = rankdata(np.atleast_2d(runs)[:, rows], axis=-1)  # (R, S, n)
    return np.mean([_correlation(gold, run) for run in ranks], axis=0)


def _correlation(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation along the last axis; NaN for a constant row."""
    one, other = (values - values.mean(axis=-1, keepdims=True) for values in (one, other))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(axis=-1) / np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))


@dataclass(frozen=True)
class Gain:
    """The mean gain in Spearman over sets of pairs, its percentile interval and two-sided p-value, as fractions."""

    value: float
    low: float
    high: float
    p: float


MAX_RANKED = 2**18
"""Maximum of numbers that are ranked at once: small resamples are ranked together, large ones one by one."""


def _resampled(scored: Scored, samples: int, random: np.random.Generator) -> np.ndarray:
    """Return the gains (samples,) in resamples of one set."""
    size = len(scored.gold)
    block = max(1, MAX_RANKED // size)
    counts = [min(block, samples - start) for start in range(0, samples, block)]
    return np.concatenate([scored.gain(random.integers(size, size=(count, size))) for count in counts])


def gain(sets: Sequence[Scored], level: float = 0.95, samples: int = 2000, seed: int = 0) -> Gain:
    """Return the mean over sets of Spearman(after) - Spearman(before), with a bootstrap interval (Efron, 1979).

    Each resample draws n pairs with replacement from each set of n pairs and ranks them again. level: coverage
    of the interval. samples: number of resamples. p is twice the share of resamples on the other side of 0, at least
    2 / (samples + 1). Raises ValueError if gold scores or similarities are constant in a resample.
    """
    random = np.random.default_rng(seed)
    drawn = sum(_resampled(scored, samples, random) for scored in sets) / len(sets)
    if not np.isfinite(drawn).all():
        raise ValueError("gold scores or similarities are constant in a resample; there are too few pairs")
    beyond = min((drawn <= 0).sum(), (drawn >= 0).sum())
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    value = float(np.mean([scored.gain() for scored in sets]))
    return Gain(value, float(low), float(high), min(1.0, 2 * (1 + int(beyond)) / (samples + 1)))
