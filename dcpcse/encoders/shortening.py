"""Shortened embeddings: the first values of each vector. Models may be trained for them.

torch is not imported, because encoding with an ONNX file does not need it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcpcse.utils.arguments import whole_number

logger = logging.getLogger(__name__)

NOT_TRAINED = "truncate_dim %d: the model was not trained for shortened embeddings, which may be much worse"
OTHER_SIZE = "truncate_dim %d: the model was trained for embeddings of %s values; other sizes may be worse"

SIZE_WARNINGS = (NOT_TRAINED, OTHER_SIZE)


def shorten(vectors: np.ndarray, truncate_dim: int | None, normalize: bool = False) -> np.ndarray:
    """Return the first values (n, truncate_dim) of vectors. Vectors of zeros stay zero.

    Args:
        vectors: (n, H).
        truncate_dim: Number of values; None for all.
        normalize: Scale the result to unit length.
    """
    truncated = np.ascontiguousarray(vectors[:, :truncate_dim])
    if not normalize:
        return truncated
    lengths = np.linalg.norm(truncated, axis=1, keepdims=True)
    return truncated / np.where(lengths > 0, lengths, lengths.dtype.type(1))


def require_size(truncate_dim: Any, dimension: int, trained: Sequence[int], told: set[int]) -> None:
    """Raise UserError unless embeddings can be shortened to a size; warn if the model was not trained for it.

    Args:
        truncate_dim: The size; None for all values.
        dimension: The dimension H of the embeddings.
        trained: The sizes that the model was trained for.
        told: The sizes with a warning so far; each gets one.
    """
    if truncate_dim is None:
        return
    whole_number("truncate_dim", truncate_dim, 1, dimension)
    if truncate_dim in (dimension, *trained, *told):
        return
    told.add(truncate_dim)
    if trained:
        logger.warning(OTHER_SIZE, truncate_dim, ", ".join(map(str, trained)))
    else:
        logger.warning(NOT_TRAINED, truncate_dim)
