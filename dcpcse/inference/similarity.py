"""Vectors as directions: unit length, and the cosines between them and between sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from senteval.scores import cosine, unit_rows

from dcpcse.utils.errors import UserError


def normalize_rows(vectors: np.ndarray, first: int = 0) -> np.ndarray:
    """Rows (n, H) at unit length, float32; UserError for one without a direction, numbered from `first`."""
    rows = np.asarray(vectors)
    if rows.ndim != 2:
        raise UserError(f"vectors of shape {rows.shape}; rows of numbers (n, H) are expected")
    finite = np.isfinite(rows).all(axis=1)
    if len(bad := np.flatnonzero(~(finite & rows.any(axis=1)))):
        fault = "all zeros" if finite[bad[0]] else "not finite (NaN or infinite)"
        raise UserError(f"vector {first + bad[0]} is {fault}, and has no cosine; is the model whole?")
    return unit_rows(rows).astype(np.float32)


def cosine_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosines (N, M), float32, of all rows a (N, H) with all rows b (M, H); UserError for one without a direction."""
    return np.clip(normalize_rows(a) @ normalize_rows(b).T, -1, 1)


def pairwise_cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine (N,), float64, of each row of a (N, H) with the same row of b, as evaluation has it; 1 of equal rows."""
    return np.clip(cosine(a, b), -1, 1)


def similarity(
    model: Any, a: str | Sequence[str], b: str | Sequence[str], *, batch_size: int = 128
) -> float | np.ndarray:
    """Cosines of sentences: a float for two strings, (N,) for one string and a list, (N, M) for two lists.

    model: anything with `encode(sentences, batch_size=…)`. Arrays are float32. UserError for a vector of zeros or NaN,
    which has no cosine.
    """
    one, other = ([x] if isinstance(x, str) else x for x in (a, b))
    found = cosine_matrix(model.encode(one, batch_size=batch_size), model.encode(other, batch_size=batch_size))
    found = found[tuple(0 if isinstance(x, str) else slice(None) for x in (a, b))]
    return float(found) if np.ndim(found) == 0 else found
