"""Cosines of sentences under a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcpcse.inference.index.unit_vectors import cosine_matrix


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
