"""From embeddings of pairs to correlations with human scores; no files and no encoder in here.

All correlations are fractions between -1 and 1, not the hundredfold that papers print.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from senteval.data import ScoredPairs
from senteval.errors import DataError, quote

ROUNDING = 1e-12
"""Cosines that differ by no more than this differ by rounding alone."""


@dataclass(frozen=True)
class Correlation:
    """Correlations of similarities with gold scores, as fractions, and the number of pairs behind them."""

    pearson: float
    spearman: float
    nsamples: int


@dataclass(frozen=True)
class TaskResult:
    """The scores of one split of a task: of each set, of all its pairs at once, and averaged over its sets.

    gold, cosines: of all its pairs (N,), set after set, which `all` is computed from.

    Papers of the SimCSE family report Spearman of `all`; older ones report `mean` or `wmean`, and the
    three are not comparable.
    """

    task: str
    split: str
    subsets: dict[str, Correlation]
    all: Correlation
    family: str = "sts"
    gold: np.ndarray | None = field(default=None, repr=False, compare=False)
    cosines: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def mean(self) -> Correlation:
        """The average over the sets, each counting the same."""
        return self._average([1] * len(self.subsets))

    @property
    def wmean(self) -> Correlation:
        """The average over the sets, each counting as much as it has pairs."""
        return self._average([subset.nsamples for subset in self.subsets.values()])

    @property
    def score(self) -> float:
        """The number that SimCSE-family papers report: Spearman over the pairs of all sets together."""
        return self.all.spearman

    @property
    def points(self) -> float:
        """The score × 100, as tables show it."""
        return 100 * self.score

    def _average(self, weights: Sequence[int]) -> Correlation:
        subsets = self.subsets.values()
        pearson = np.average([subset.pearson for subset in subsets], weights=weights)
        spearman = np.average([subset.spearman for subset in subsets], weights=weights)
        return Correlation(float(pearson), float(spearman), self.all.nsamples)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; correlations are fractions."""
        return {"task": self.task, "split": self.split, "sets": self.as_senteval()}

    def as_senteval(self) -> dict[str, dict]:
        """JSON-ready, in the shape of SentEval's own results for STS12-16.

        {set: {'pearson', 'spearman', 'nsamples'}, ..., 'all': {'pearson': {'all', 'mean', 'wmean'},
        'spearman': {same}}}. A task of one file a split has one set, called as the split.
        """
        kinds = {"all": self.all, "mean": self.mean, "wmean": self.wmean}
        sets = {name: asdict(subset) for name, subset in self.subsets.items()}
        overall = {
            "pearson": {kind: average.pearson for kind, average in kinds.items()},
            "spearman": {kind: average.spearman for kind, average in kinds.items()},
        }
        return {**sets, "all": overall}


def similarities(task: str, pairs: ScoredPairs, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of embeddings, (N,) float64.

    first and second (N, H) are the embeddings of pairs.first and pairs.second. Raises DataError for an
    embedding that is zero or not finite; the published evaluation counts such a pair as similarity 0, which
    hides a broken model.
    """
    for sentences, rows in ((pairs.first, first), (pairs.second, second)):
        check_rows(task, pairs, sentences, rows)
    return cosine(first, second)


def check_rows(task: str, pairs: ScoredPairs, sentences: Sequence[str], rows: np.ndarray) -> None:
    """Raise DataError naming the first sentence whose embedding, a row of (N, H), has no cosine."""
    finite = np.isfinite(rows).all(axis=1)
    usable = finite & rows.any(axis=1)
    if usable.all():
        return
    worst = int(np.argmin(usable))
    fault = "all zeros" if finite[worst] else "not finite (NaN or infinite)"
    raise DataError(
        f"{pairs.source}:{pairs.lines[worst]}: {task} {pairs.name}: the embedding of "
        f"{quote(sentences[worst])} is {fault}, so no cosine is defined; check the encoder (did training "
        f"diverge, or half precision overflow?)"
    )


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine of each row of first (N, H) with the same row of second, (N,) float64.

    Rows must be finite and not zero.
    """
    first, second = largest_one(first), largest_one(second)
    # One root of the product, not two roots: equal rows then give exactly 1, and pairs of identical
    # sentences tie in rank instead of being ordered by rounding. That order moved Spearman by 4.5e-4 in
    # STS12 SMTnews (sums of random word vectors).
    return row_dot(first, second) / np.sqrt(row_dot(first, first) * row_dot(second, second))


def largest_one(rows: np.ndarray) -> np.ndarray:
    """Scale every row (H,) of rows to a largest magnitude of 1, in float64, so that no square overflows."""
    rows = rows.astype(np.float64)
    return rows / np.abs(rows).max(axis=1, keepdims=True)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows (N, H) at length 1, in float64; rows of zeros stay."""
    rows = rows.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def row_dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.einsum("nh,nh->n", first, second)


def correlate(owner: str, similarity: np.ndarray, gold: np.ndarray) -> Correlation:
    """Correlate similarities with gold scores as `correlations` does, without its p-values."""
    pearson, spearman = correlations(owner, similarity, gold)
    return Correlation(float(pearson[0]), float(spearman[0]), len(gold))


def correlations(owner: str, similarity: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
    """Return scipy's own Pearson and Spearman results of similarities and gold scores, both (N,).

    Tied values share their average rank. Raises DataError, naming owner, if all similarities are the same: no
    correlation is defined then.
    """
    if np.ptp(similarity) <= ROUNDING:
        raise DataError(
            f"{owner}: all {len(similarity)} pairs have the same similarity, {similarity[0]:.6g}, so no "
            f"correlation is defined; check whether the encoder gives every sentence the same embedding"
        )
    from scipy import stats  # here only: see `senteval.tasks`

    return stats.pearsonr(similarity, gold), stats.spearmanr(similarity, gold)


def score_task(
    task: str, split: str, subsets: Sequence[ScoredPairs], similarity_of: Sequence[np.ndarray]
) -> TaskResult:
    """Score each set and all of them together; similarity_of holds one array (N,) for each set."""
    results = {
        pairs.name: correlate(f"{task} {pairs.name}", similarity, pairs.gold)
        for pairs, similarity in zip(subsets, similarity_of, strict=True)
    }
    gold, cosines = np.concatenate([pairs.gold for pairs in subsets]), np.concatenate(similarity_of)
    return TaskResult(task, split, results, correlate(task, cosines, gold), gold=gold, cosines=cosines)
