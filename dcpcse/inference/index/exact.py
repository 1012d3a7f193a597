"""Exact search: the rows of largest cosine, the same ones in the same order by whatever library they are found.

Rows are found by products of unit vectors in float32, together with all that rounding might have put behind them;
these few are scored anew in float64, where equal vectors have equal cosines. Ties go to the earlier row.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dcpcse.inference.index.vector_store import BLOCK, VectorStore
from dcpcse.inference.similarity import pairwise_cosines
from dcpcse.utils.errors import UserError

QUERY_BATCH = 1_024
"""Queries that go over the rows together."""

EXTRA_ROWS = 16
"""Rows that faiss is asked for beyond the wanted ones, where there may be ties."""

FEW_QUERIES = 8
"""Up to so many queries at once faiss is faster than a product of matrices, in one thread."""


class Hit(NamedTuple):
    """A sentence that was found, its cosine to the query, and its number in the index, from 0."""

    sentence: str
    score: float
    row: int


Candidates = Sequence[tuple[np.ndarray, np.ndarray]]
"""For every query: rows, and their cosines in float32."""

KnnSearch = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Queries (n, H) and k → cosines and rows (n, k), best first; row -1 where there is none."""


def load_faiss() -> Any:
    """The module faiss; UserError where it is not installed."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise UserError("this backend needs faiss: pip install dcpcse[faiss]; numpy is exact without it") from error


def has_faiss() -> bool:
    """Whether faiss can be used."""
    try:
        load_faiss()
    except UserError:
        return False
    return True


def rounding_slack(dimension: int) -> float:
    """More than rounding takes off two cosines of float32 unit vectors, whatever the order of the sums."""
    return (dimension + 16) * float(np.finfo(np.float32).eps)


class TopK:
    """The rows that may be among the k best of one query, rounding considered."""

    def __init__(self, k: int, dimension: int, threshold: float | None) -> None:
        self._k, self._slack = k, rounding_slack(dimension)
        self.bound = -np.inf if threshold is None else threshold - self._slack
        self.rows, self._cosines = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)

    def add(self, rows: np.ndarray, cosines: np.ndarray) -> None:
        """Offer rows; what they surpass is dropped."""
        if not len(rows):
            return
        self.rows = np.concatenate([self.rows, rows])
        self._cosines = np.concatenate([self._cosines, cosines])
        if len(self.rows) > self._k:
            place = len(self.rows) - self._k
            self.bound = max(self.bound, np.partition(self._cosines, place)[place] - self._slack)
        stays = self._cosines >= self.bound
        self.rows, self._cosines = self.rows[stays], self._cosines[stays]


def by_numpy(queries: np.ndarray, block: np.ndarray, k: int, bounds: Sequence[float]) -> Candidates:
    """All rows of the block at or above each query's bound."""
    # In this order: with the queries first it takes half as long again.
    cosines = np.ascontiguousarray((block @ queries.T).T)
    rows = [np.flatnonzero(own >= bound) for own, bound in zip(cosines, bounds, strict=True)]
    return [(found, own[found]) for found, own in zip(rows, cosines, strict=True)]


def by_faiss(queries: np.ndarray, block: np.ndarray, k: int, bounds: Sequence[float]) -> Candidates:
    """The k best rows of the block for each query, and all that tie with the last of them."""
    faiss = load_faiss()

    def search(some: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        return faiss.knn(some, block, wanted, metric=faiss.METRIC_INNER_PRODUCT)

    return search_with_ties(search, queries, k, len(block), bounds)


def by_either(queries: np.ndarray, block: np.ndarray, k: int, bounds: Sequence[float]) -> Candidates:
    """By the faster of both; the result is the same."""
    engine = by_faiss if len(queries) <= FEW_QUERIES and k <= len(block) // 8 else by_numpy
    return engine(queries, block, k, bounds)


def search_with_ties(
    search: KnnSearch, queries: np.ndarray, k: int, available: int, bounds: Sequence[float]
) -> Candidates:
    """Of each query the k best rows, and all that tie with the k-th, rounding considered, unless below its bound."""
    found: list[tuple[np.ndarray, np.ndarray]] = [None] * len(queries)
    left, wanted, bounds = np.arange(len(queries)), k + EXTRA_ROWS, np.asarray(bounds)
    while len(left):
        wanted = min(wanted, available)
        cosines, rows = search(queries[left], wanted)
        least = np.maximum(cosines[:, min(k, wanted) - 1] - rounding_slack(queries.shape[1]), bounds[left])
        cut = (cosines[:, -1] >= least) & (rows[:, -1] >= 0) & (wanted < available)
        for place in np.flatnonzero(~cut):
            real = rows[place] >= 0
            found[left[place]] = rows[place][real], cosines[place][real]
        left, wanted = left[cut], wanted * 8
    return found


Engine = Callable[[np.ndarray, np.ndarray, int, Sequence[float]], Candidates]


def exact_search(
    rows: VectorStore, queries: np.ndarray, top_k: int, threshold: float | None, engine: Engine
) -> list[list[tuple[int, float]]]:
    """For every query (unit length) the `top_k` best rows at or above the threshold with their cosines, best first."""
    found = []
    for start in range(0, len(queries), QUERY_BATCH):
        some = queries[start : start + QUERY_BATCH]
        pools = [TopK(top_k, rows.dimension, threshold) for _ in some]
        for first, block in rows.blocks():
            candidates = engine(some, block, top_k, [pool.bound for pool in pools])
            for pool, (own, cosines) in zip(pools, candidates, strict=True):
                pool.add(own + first, cosines)
        found += [rescore(rows, q, pool.rows, top_k, threshold) for q, pool in zip(some, pools, strict=True)]
    return found


def rescore(
    rows: VectorStore, query: np.ndarray, candidates: np.ndarray, top_k: int, threshold: float | None
) -> list[tuple[int, float]]:
    """The best of the candidates by cosines in float64; of equal ones the earlier rows."""
    candidates = np.sort(candidates)
    best, scores = np.empty(0, dtype=np.int64), np.empty(0)
    # In blocks: a sentence may stand in the index a million times.
    for start in range(0, len(candidates), BLOCK):
        own = candidates[start : start + BLOCK]
        best = np.concatenate([best, own])
        vectors = rows.take(own)
        # A copy for each row: numpy lays a broadcast one out in another way, and sums it in another order.
        scores = np.concatenate([scores, pairwise_cosines(vectors, np.tile(query, (len(own), 1)))])
        order = np.lexsort((best, -scores))[:top_k]
        best, scores = best[order], scores[order]
    kept = np.ones(len(best), dtype=bool) if threshold is None else scores >= threshold
    return list(zip(best[kept].tolist(), scores[kept].tolist(), strict=True))
