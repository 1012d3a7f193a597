"""Scale vectors to unit length, and compute cosine similarities of vectors and of sentences."""

from collections.abc import Sequence
from typing import Any, Unpack, overload

import numpy as np
from senteval.scores import cosine, unit_rows

from dcpcse.encoders.encode_options import CosineOptions, EncodeKeywords
from dcpcse.utils.arguments import known_arguments, matrix
from dcpcse.utils.errors import UserError


def normalize_rows(vectors: np.ndarray, first: int = 0) -> np.ndarray:
    """Return the rows (n, H) scaled to unit length, in float32.

    Args:
        vectors: The rows (n, H).
        first: The number of the first row, from which error messages count.

    Raises:
        UserError: If a row is all zeros or not finite, or if the vectors are not real numbers.
    """
    rows = matrix("vectors", vectors)
    if rows.ndim != 2:
        raise UserError(f"expected a matrix (n, H) with one row per vector, found the shape {rows.shape}")
    finite = np.isfinite(rows).all(axis=1)
    if len(bad := np.flatnonzero(~(finite & rows.any(axis=1)))):
        fault = "all zeros" if finite[bad[0]] else "not finite (NaN or infinite)"
        raise UserError(f"vector {first + bad[0]} is {fault} and has no cosine; check the model that computed it")
    return unit_rows(rows).astype(np.float32)


def cosine_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the float32 cosines (N, M) of each row of `a` with each row of `b`.

    Args:
        a: Vectors (N, H).
        b: Vectors (M, H).

    Raises:
        UserError: If a row is all zeros or not finite.
    """
    return np.clip(normalize_rows(a) @ normalize_rows(b).T, -1, 1)


def pairwise_cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the float64 cosines (N,) of each row of `a` with the row of `b` that has the same index.

    The cosines are computed as in evaluation.py. The cosine of equal rows is exactly 1.

    Args:
        a: Vectors (N, H).
        b: Vectors (N, H).
    """
    return np.clip(cosine(a, b), -1, 1)


@overload
def similarity(model: Any, a: str, b: str, **options: Unpack[EncodeKeywords]) -> float: ...


@overload
def similarity(model: Any, a: str, b: Sequence[str], **options: Unpack[EncodeKeywords]) -> np.ndarray: ...


@overload
def similarity(
    model: Any, a: Sequence[str], b: str | Sequence[str], **options: Unpack[EncodeKeywords]
) -> np.ndarray: ...


@known_arguments
def similarity(
    model: Any, a: str | Sequence[str], b: str | Sequence[str], **options: Unpack[EncodeKeywords]
) -> float | np.ndarray:
    """Return the cosines of sentences: a float for two strings, (N,) for a string and a list, (N, M) for two lists.

    A returned array is float32.

    Args:
        model: Any object with `encode(sentences, batch_size=…)`.
        a: A sentence, or a list of N sentences.
        b: A sentence, or a list of M sentences.
        options: The options of `SentenceEncoder.encode` except normalize, which has no effect on cosines. With
            truncate_dim=n, for example, only the first n values of each vector are compared.

    Raises:
        UserError: If a vector is all zeros or not finite.
    """
    encode = CosineOptions(**options).encode_with(model)
    first, other = ([x] if isinstance(x, str) else x for x in (a, b))
    cosines = cosine_matrix(encode(first), encode(other))
    cosines = cosines[tuple(0 if isinstance(x, str) else slice(None) for x in (a, b))]
    return float(cosines) if np.ndim(cosines) == 0 else cosines
