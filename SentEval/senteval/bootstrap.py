"""How sure a difference between two encoders is: a paired bootstrap over the scored pairs of one set."""

import numpy as np
from scipy.stats import rankdata


def gain_interval(
    gold: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of Spearman(after) - Spearman(before) over resampled pairs (Efron, 1979).

    gold, before, after: (n,) gold scores and the similarities that two encoders give the same n pairs. Each
    resample draws n pairs with replacement and ranks them anew. Raises ValueError for arrays of other shapes.
    """
    gold, before, after = (np.asarray(values, dtype=float) for values in (gold, before, after))
    if gold.ndim != 1 or not gold.shape == before.shape == after.shape:
        raise ValueError(f"three arrays of one length are needed; got {gold.shape}, {before.shape}, {after.shape}")
    random = np.random.default_rng(seed)
    gains = []
    for _ in range(samples):
        drawn = random.integers(len(gold), size=len(gold))
        ranks = [rankdata(values[drawn]) for values in (gold, before, after)]
        gains.append(np.corrcoef(ranks[0], ranks[2])[0, 1] - np.corrcoef(ranks[0], ranks[1])[0, 1])
    low, high = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
