"""Find nearest neighbours of unit vectors, exactly (numpy or faiss) or approximately (an inverted file of faiss).

A search in float32 finds 16 more candidates than requested. The cosines of all candidates are then computed again in
float64, where equal vectors have equal cosines. The exact backends therefore return the same rows in the same order.
"""

import importlib
from typing import Any

import numpy as np

from dcpcse.encoders.quantization import QuantizedVectors, Vectors
from dcpcse.inference.similarity import pairwise_cosines
from dcpcse.utils.packages import not_installed

BLOCK = 8_192  # rows that are compared with the queries at once
EXTRA_ROWS = 16  # additional candidates: rounding in float32 may swap rows with nearly equal cosines
FEW_QUERIES = 8  # up to this number of queries, faiss is faster than numpy on one thread
ROUNDING = 1e-5  # inner products of unit vectors in float32 differ from cosines in float64 by less than this


def load_faiss() -> Any:
    """Import and return the module faiss. Raises UserError if it is not installed."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise not_installed("this backend", "faiss", "faiss", "; numpy is exact without it") from error


def nearest_rows(
    vectors: Vectors, queries: np.ndarray, k: int, backend: str, limits: np.ndarray | None = None
) -> np.ndarray:
    """Return, for each query, the row numbers (Q, k) of the vectors with the largest inner products, in any order.

    faiss does not support limits. If limits are given, numpy searches instead of faiss.

    Quantized vectors are compared by the values that `Quantizer.cells` gives for their codes. They support no limits.
    With binary codes, faiss uses the Hamming distance, which has the same order.

    Args:
        vectors: The N vectors (N, H) that are searched.
        queries: The Q query vectors (Q, H).
        k: Number of vectors to find for each query, at most N.
        backend: The search backend, such as "numpy" or "faiss".
        limits: The largest allowed inner product for each query (Q,), with a tolerance of 1e-5. Rows above the limit
            are left out, and -1 stands for missing rows.
    """
    by_faiss = limits is None and (backend == "faiss" or (backend == "auto" and len(queries) <= FEW_QUERIES))
    faiss = load_faiss() if by_faiss else None
    quantizer = vectors.quantizer if isinstance(vectors, QuantizedVectors) else None
    by_signs = faiss is not None and quantizer is not None and quantizer.is_binary
    if by_signs:
        queries = np.packbits(queries > 0, axis=1)
    elif quantizer is not None:
        queries = quantizer.weights(queries)
    rows_of = vectors if quantizer is None else vectors.codes
    scores, rows = np.full((len(queries), k), -np.inf, dtype=np.float32), np.full((len(queries), k), -1)
    for start in range(0, len(vectors), BLOCK):
        block = rows_of[start : start + BLOCK]
        if quantizer is not None:
            block = np.ascontiguousarray(quantizer.bits(block)) if by_signs else quantizer.cells(block)
        if by_signs:
            distances, indices = faiss.knn_hamming(queries, block, min(k, len(block)))
            similarities = -distances.astype(np.float32)
        elif faiss is not None:
            similarities, indices = faiss.knn(queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
        else:
            similarities = queries @ block.T
            if limits is not None:
                similarities[similarities > limits[:, None] + ROUNDING] = -np.inf
            # Few rows are better than the k best rows of earlier blocks, so the partition below is cheap.
            indices = np.flatnonzero((similarities > scores.min(axis=1, keepdims=True)).any(axis=0))
            similarities, indices = similarities[:, indices], np.broadcast_to(indices, (len(queries), len(indices)))
        scores, rows = np.hstack([scores, similarities]), np.hstack([rows, indices + start])
        best = np.argpartition(scores, -k, axis=1)[:, -k:]
        scores, rows = np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)
    rows[np.isneginf(scores)] = -1
    return rows


def rank_candidates(vectors: Vectors, query: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of candidate vectors, best first, and their float64 cosines to a query.

    Candidates with equal cosines are in the order of their rows. The number -1 stands for no candidate.

    Args:
        vectors: All vectors (N, H).
        query: The query vector (H,).
        rows: Row numbers of the candidates.
    """
    rows, scores = np.sort(rows[rows >= 0]), np.empty(0)
    for start in range(0, len(rows), BLOCK):
        block = vectors[rows[start : start + BLOCK]]
        # The query is copied for each row, because numpy sums a broadcast array in a different order.
        scores = np.append(scores, pairwise_cosines(block, np.tile(query, (len(block), 1))))
    order = np.argsort(-scores, kind="stable")
    return rows[order], scores[order]


def train_centroids(vectors: Vectors, num_cells: int) -> np.ndarray:
    """Divide vectors into cells by k-means and return the centroids (C, H).

    Args:
        vectors: The N vectors (N, H).
        num_cells: Number of cells C, at most N.
    """
    count = min(num_cells, len(vectors))
    kmeans = load_faiss().Kmeans(vectors.shape[1], count, niter=10, spherical=True, min_points_per_centroid=1)
    kmeans.train(np.asarray(vectors))  # on a sample of at most 256 vectors per cell
    return kmeans.centroids


def assign_cells(centroids: np.ndarray, vectors: Vectors) -> np.ndarray:
    """Return the cell (N,), int32, of each vector: the cell of the centroid with the largest inner product.

    Args:
        centroids: The centroids (C, H) of the cells.
        vectors: The N vectors (N, H).
    """
    faiss = load_faiss()
    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    blocks = (np.ascontiguousarray(vectors[start : start + BLOCK]) for start in range(0, len(vectors), BLOCK))
    return np.concatenate([quantizer.assign(block, 1)[:, 0] for block in blocks]).astype(np.int32)


def build_ivf(centroids: np.ndarray, cells: np.ndarray, vectors: Vectors, num_cells_in_search: int) -> Any:
    """Return an inverted file of faiss that contains vectors in their cells.

    Args:
        centroids: The centroids (C, H) of the cells.
        cells: The cell (N,) of each vector.
        vectors: The N vectors (N, H).
        num_cells_in_search: Number of cells that are searched for each query.
    """
    faiss, (num_cells, dimension) = load_faiss(), centroids.shape
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(centroids)
    index = faiss.IndexIVFFlat(quantizer, dimension, num_cells, faiss.METRIC_INNER_PRODUCT)
    index.is_trained, index.nprobe = True, min(num_cells_in_search, num_cells)
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK])
        cell_ids = cells[start : start + BLOCK].astype(np.int64)
        # `add` would search the nearest centroid of every vector again, which takes most of the time of loading.
        index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(cell_ids))
    return index
