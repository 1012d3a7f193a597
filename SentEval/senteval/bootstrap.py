"""How sure a difference between two encoders is: a paired bootstrap over scored pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata


@dataclass(frozen=True)
class Scored:
    """One set of n pairs: gold scores (n,), and the similarities that two encoders give them.

    before, after: (n,), or (R, n) for R runs of an encoder with other seeds, whose correlations are averaged.
    """

    gold: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def __post_init__(self) -> None:
        shapes = [np.shape(values) for values in (self.gold, self.before, self.after)]
        if len(shapes[0]) != 1 or any(shape[-1:] != shapes[0] or len(shape) > 2 for shape in shapes):
            raise ValueError(f"three arrays of one length are needed; got {', '.join(map(str, shapes))}")

    def gain(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Spearman(after) - Spearman(before) over these pairs, (S,) of rows (S, n), one number of all pairs.

        NaN where one of them is constant there.
        """
        gold = rankdata(self.gold[rows], axis=-1)
        return _mean_correlation(gold, self.after, rows) - _mean_correlation(gold, self.before, rows)


def _mean_correlation(gold: np.ndarray, runs: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    """Pearson of ranks gold (S, n) with those of each run (R, n), averaged over runs: (S,)."""
    ranks = rankdata(np.atleast_2d(runs)[:, rows], axis=-1)  # (R, S, n)
    return np.mean([_correlation(gold, run) for run in ranks], axis=0)


def _correlation(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Pearson along the last axis; NaN for a constant row."""
    one, other = (values - values.mean(axis=-1, keepdims=True) for values in (one, other))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(axis=-1) / np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))


@dataclass(frozen=True)
class Gain:
    """Mean gain in Spearman over sets of pairs, its percentile interval, and a two-sided p of no gain; fractions."""

    value: float
    low: float
    high: float
    p: float


AT_ONCE = 2**18
"""Numbers that are ranked at once, at most: many small resamples together, large ones alone."""


def _resampled(scored: Scored, samples: int, random: np.random.Generator) -> np.ndarray:
    """Gains (samples,) in resamples of one set."""
    size = len(scored.gold)
    together = max(1, AT_ONCE // size)
    counts = [min(together, samples - start) for start in range(0, samples, together)]
    return np.concatenate([scored.gain(random.integers(size, size=(count, size))) for count in counts])


def gain(sets: Sequence[Scored], level: float = 0.95, samples: int = 2000, seed: int = 0) -> Gain:
    """The mean over sets of Spearman(after) - Spearman(before), resampled (Efron, 1979).

    Each resample draws as many pairs as there are with replacement, in each set for itself, and ranks them anew. p is
    twice the share of resamples on the other side of 0, at least 2 / (samples + 1). Raises ValueError for no set, and
    for similarities that are constant in a resample.
    """
    random = np.random.default_rng(seed)
    drawn = sum(_resampled(scored, samples, random) for scored in sets) / len(sets)
    if not np.isfinite(drawn).all():
        raise ValueError("gold scores or similarities are constant in a resample; there are too few pairs")
    beyond = min((drawn <= 0).sum(), (drawn >= 0).sum())
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    value = float(np.mean([scored.gain() for scored in sets]))
    return Gain(value, float(low), float(high), min(1.0, 2 * (1 + int(beyond)) / (samples + 1)))
