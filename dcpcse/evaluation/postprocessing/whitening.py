"""Whitening, which gives embeddings mean 0 and an identity covariance matrix (BERT-whitening; Su et al. 2021)."""

import logging
from dataclasses import dataclass

import numpy as np

from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)

LEAST_SHARE = 1e-10
"""Directions with less than this share of the largest variance are rounding errors, which whitening would amplify."""


@dataclass(frozen=True)
class Whitening:
    """The map x → (x − mean) · matrix.

    Args:
        mean: (H,).
        matrix: (H, K), columns in descending order of variance.
    """

    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray, dimensions: int | None = None) -> "Whitening":
        """Return the map that gives vectors mean 0 and an identity covariance matrix, computed in float64.

        Args:
            vectors: (N, H).
            dimensions: K, the number of directions of largest variance that are kept. None: all directions in which
                the vectors vary; a warning is logged if there are fewer than H.

        Raises:
            UserError: If the vectors vary in fewer than K directions, or in none.
        """
        exact = np.asarray(vectors, dtype=np.float64)
        mean = exact.mean(0)
        # The singular vectors of the covariance matrix are its eigenvectors, in descending order of variance.
        directions, variances, _ = np.linalg.svd(np.cov(exact, rowvar=False, bias=True))
        rank = int((variances > LEAST_SHARE * variances[0]).sum())
        size = rank if dimensions is None else dimensions
        if dimensions is None and rank < exact.shape[1]:
            logger.warning(
                "whitening keeps %d of %d dimensions: the embeddings vary in no others", rank, exact.shape[1]
            )
        if not 1 <= size <= rank:
            raise UserError(
                f"whitening to {size} dimensions: the {len(exact)} embeddings that it is fitted to vary in {rank} "
                f"of {exact.shape[1]} dimensions only; fit it to more sentences, or keep fewer dimensions"
            )
        return cls(mean, directions[:, :size] / np.sqrt(variances[:size]))

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the whitened embeddings (N, K), in float32, of embeddings (N, H)."""
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)
