"""Vectors in cells, of which a search looks into a few (an inverted file, by faiss): faster, and it may miss rows."""

from collections.abc import Sequence

import numpy as np

from dcpcse.inference.index.exact import Candidates, load_faiss, rescore, search_with_ties
from dcpcse.inference.index.vector_store import VectorStore
from dcpcse.utils.errors import UserError

TRAINING_ROWS = 256
"""Rows a cell that the centroids are trained on, at most: faiss's own default."""

SEED = 1234


class IVFIndex:
    """faiss's IVF over unit vectors; the metric is the inner product, in the cells and between them.

    centroids (C, H); num_cells_in_search: cells that a query looks into.
    """

    def __init__(self, centroids: np.ndarray, num_cells_in_search: int) -> None:
        faiss = load_faiss()
        self.centroids, self.num_cells_in_search = np.ascontiguousarray(centroids), num_cells_in_search
        self._assigned: list[np.ndarray] = []
        self._quantizer = faiss.IndexFlatIP(centroids.shape[1])
        self._quantizer.add(self.centroids)
        self._index = faiss.IndexIVFFlat(
            self._quantizer, centroids.shape[1], len(centroids), faiss.METRIC_INNER_PRODUCT
        )
        self._index.is_trained = True  # the centroids are there already

    @classmethod
    def train(cls, rows: VectorStore, num_cells: int, num_cells_in_search: int) -> "IVFIndex":
        """Cells of the rows, at most one for each row, without any row in them yet."""
        count = min(num_cells, len(rows))
        drawn = np.random.default_rng(SEED).choice(len(rows), min(len(rows), count * TRAINING_ROWS), replace=False)
        kmeans = load_faiss().Kmeans(
            rows.dimension, count, niter=10, spherical=True, seed=SEED, min_points_per_centroid=1
        )
        kmeans.train(rows.take(np.sort(drawn)))
        return cls(kmeans.centroids, num_cells_in_search)

    @property
    def assigned(self) -> np.ndarray:
        """The cell of every row (N,), int32."""
        return np.concatenate(self._assigned) if self._assigned else np.empty(0, dtype=np.int32)

    def add(self, vectors: np.ndarray, assigned: np.ndarray | None = None) -> None:
        """Put the next rows into their cells; assigned: where these are known."""
        faiss = load_faiss()
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if assigned is None:
            assigned = self._quantizer.search(vectors, 1)[1][:, 0]
        cells = np.ascontiguousarray(assigned, dtype=np.int64)
        self._index.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(cells))
        self._assigned.append(cells.astype(np.int32))

    def search(
        self, rows: VectorStore, queries: np.ndarray, top_k: int, threshold: float | None
    ) -> list[list[tuple[int, float]]]:
        """As `exact.exact_search`, of the rows in the cells that are looked into."""
        self._index.nprobe = min(self.num_cells_in_search, len(self.centroids))
        bounds = [-np.inf] * len(queries)
        found: Candidates = search_with_ties(self._faiss_search, queries, min(top_k, len(rows)), len(rows), bounds)
        return [rescore(rows, query, own, top_k, threshold) for query, (own, _) in zip(queries, found, strict=True)]

    def _faiss_search(self, queries: np.ndarray, wanted: int) -> Sequence[np.ndarray]:
        return self._index.search(np.ascontiguousarray(queries), wanted)


def require_cells(num_cells: int, num_cells_in_search: int) -> None:
    """UserError for numbers of cells that cannot be."""
    for name, value in {"num_cells": num_cells, "num_cells_in_search": num_cells_in_search}.items():
        if value < 1:
            raise UserError(f"{name} {value}: must be at least 1")
