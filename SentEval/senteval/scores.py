"""Functions that correlate the similarities of embeddings with human scores.

All correlations are numbers between -1 and 1, not × 100 as in papers.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from senteval.data import ScoredPairs
from senteval.errors import DataError, quote
from senteval.lines import Line

ROUNDING = 1e-12
"""Cosines that differ by at most this much are considered equal."""


class Numbered(Protocol):
    """Data whose rows can be named in messages, by the name and file of the data and by line numbers."""

    name: str
    source: Path
    lines: Sequence[int]
    unit: str


@dataclass(frozen=True)
class Correlation:
    """Pearson and Spearman correlations of similarities with gold scores (not × 100), and the number of pairs."""

    pearson: float
    spearman: float
    nsamples: int


@dataclass(frozen=True)
class TaskResult:
    """The scores of one split of a task.

    Papers of the SimCSE family report the Spearman correlation of `all`; older papers report `mean` or `wmean`. These
    three figures are not comparable.

    Args:
        subsets: Set → correlations over the pairs of the set.
        all: Correlations over the pairs of all sets together.
        gold, cosines: Gold scores and cosines (N,) of all pairs, set by set.
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
        """The correlations averaged over the sets, with equal weights."""
        return self._average([1] * len(self.subsets))

    @property
    def wmean(self) -> Correlation:
        """The correlations averaged over the sets, weighted by their numbers of pairs."""
        return self._average([subset.nsamples for subset in self.subsets.values()])

    @property
    def score(self) -> float:
        """Spearman over the pairs of all sets together, as reported by papers of the SimCSE family."""
        return self.all.spearman

    @property
    def points(self) -> float:
        """`score` × 100, as in tables."""
        return 100 * self.score

    def _average(self, weights: Sequence[int]) -> Correlation:
        subsets = self.subsets.values()
        pearson = np.average([subset.pearson for subset in subsets], weights=weights)
        spearman = np.average([subset.spearman for subset in subsets], weights=weights)
        return Correlation(float(pearson), float(spearman), self.all.nsamples)

    def as_dict(self) -> dict[str, Any]:
        """Return the correlations (not × 100) of every set as a JSON-serialisable dict."""
        return {"task": self.task, "split": self.split, "sets": self.as_senteval()}

    def as_senteval(self) -> dict[str, dict]:
        """Return a JSON-serialisable dict in the format of SentEval's own results for STS12-16.

        {set: {'pearson', 'spearman', 'nsamples'}, ..., 'all': {'pearson': {'all', 'mean', 'wmean'},
        'spearman': {same}}}. A task with one file per split has one set, named after the split.
        """
        kinds = {"all": self.all, "mean": self.mean, "wmean": self.wmean}
        sets = {name: asdict(subset) for name, subset in self.subsets.items()}
        overall = {
            "pearson": {kind: average.pearson for kind, average in kinds.items()},
            "spearman": {kind: average.spearman for kind, average in kinds.items()},
        }
        return {**sets, "all": overall}


def similarities(task: str, pairs: ScoredPairs, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosines (N,) of pairs of embeddings, in float64.

    Args:
        first, second: The embeddings (N, H) of pairs.first and pairs.second.

    Raises:
        DataError: If an embedding is zero or not finite. The published evaluation counts the similarity of such a pair
            as 0, which hides a broken model.
    """
    for sentences, rows in ((pairs.first, first), (pairs.second, second)):
        check_rows(task, pairs, sentences, rows)
    return cosine(first, second)


def check_rows(task: str, data: Numbered, sentences: Sequence[str], rows: np.ndarray) -> None:
    """Raise DataError for the first sentence whose embedding, a row of `rows` (N, H), is zero or not finite.

    Args:
        data: The rows of data that contain the sentences, such as `ScoredPairs`.
    """
    finite = np.isfinite(rows).all(axis=1)
    usable = finite & rows.any(axis=1)
    if usable.all():
        return
    worst = int(np.argmin(usable))
    fault = "all zeros" if finite[worst] else "not finite (NaN or infinite)"
    raise DataError(
        f"{Line(data.source, data.lines[worst], '', unit=data.unit).place}: {task} {data.name}: the embedding of "
        f"{quote(sentences[worst])} is {fault}, so no cosine is defined; check the encoder (did training "
        f"diverge, or half precision overflow?)"
    )


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosines (N,) of corresponding rows of first and second (N, H), in float64.

    Rows must be finite and not zero.
    """
    first, second = scaled_to_one(first), scaled_to_one(second)
    # With the root of the product instead of the product of the roots, equal rows give exactly 1. Pairs of identical
    # sentences are then tied, not ordered by rounding errors, which changed Spearman by 4.5e-4 in STS12 SMTnews (sums
    # of random word vectors).
    return row_dot(first, second) / np.sqrt(row_dot(first, first) * row_dot(second, second))


def scaled_to_one(rows: np.ndarray) -> np.ndarray:
    """Scale every row of an array (N, H) to the maximum magnitude 1, in float64, so that no square overflows."""
    rows = rows.astype(np.float64)
    return rows / np.abs(rows).max(axis=1, keepdims=True)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale rows (N, H) to length 1, in float64; rows of zeros are unchanged."""
    rows = rows.astype(np.float64)
    # Powers of two scale without rounding, and no square of a number below 1 overflows.
    _, exponents = np.frexp(np.abs(rows).max(axis=1, keepdims=True, initial=0))
    rows = np.ldexp(rows, -exponents)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def row_dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.einsum("nh,nh->n", first, second)


def correlate(owner: str, similarity: np.ndarray, gold: np.ndarray) -> Correlation:
    """Return the correlations of similarities (N,) and gold scores (N,); see `correlations`."""
    pearson, spearman = correlations(owner, similarity, gold)
    return Correlation(float(pearson[0]), float(spearman[0]), len(gold))


def correlations(owner: str, similarity: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
    """Return scipy's Pearson and Spearman results of similarities (N,) and gold scores (N,).

    Tied values get their average rank.

    Args:
        owner: The name of the data in messages.

    Raises:
        DataError: If all similarities are equal, since no correlation is defined then.
    """
    require_different(owner, similarity)
    from scipy import stats  # imported here because it is slow: see `senteval.tasks`

    return stats.pearsonr(similarity, gold), stats.spearmanr(similarity, gold)


def require_different(owner: str, similarity: np.ndarray) -> None:
    """Raise DataError if all similarities (N,) are equal up to rounding.

    Args:
        owner: See `correlations`.
    """
    if np.ptp(similarity) <= ROUNDING:
        raise DataError(
            f"{owner}: all {len(similarity)} pairs have the same similarity, {similarity[0]:.6g}, so no "
            f"score is defined; check whether the encoder gives every sentence the same embedding"
        )


def score_task(
    task: str, split: str, subsets: Sequence[ScoredPairs], similarity_of: Sequence[np.ndarray]
) -> TaskResult:
    """Return the scores of each set and of all sets together.

    Args:
        similarity_of: For each set, the similarities (N,) of its pairs.
    """
    results = {
        pairs.name: correlate(f"{task} {pairs.name}", similarity, pairs.gold)
        for pairs, similarity in zip(subsets, similarity_of, strict=True)
    }
    gold, cosines = np.concatenate([pairs.gold for pairs in subsets]), np.concatenate(similarity_of)
    return TaskResult(task, split, results, correlate(task, cosines, gold), gold=gold, cosines=cosines)
