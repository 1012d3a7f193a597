"""Whitening: embeddings with mean 0 and covariance 1 (BERT-whitening; Su et al. 2021)."""

import logging
from dataclasses import dataclass

import numpy as np

from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)

LEAST_SHARE = 1e-10
"""Of the largest variance: directions with less are noise of the arithmetic, which whitening would blow up."""


@dataclass(frozen=True)
class Whitening:
    """x → (x − mean) · matrix. mean (H,), matrix (H, K), the directions of largest variance first."""

    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray, dimensions: int | None = None) -> "Whitening":
        """The map after which these vectors (N, H) are white; computed in float64.

        dimensions K: keep so many of the directions, those of largest variance; by default all in which the vectors
        vary, with a warning where these are fewer than H. Raises UserError for fewer than asked for, or none.
        """
        exact = np.asarray(vectors, dtype=np.float64)
        mean = exact.mean(0)
        # Singular vectors of the covariance, which is symmetric: its eigenvectors, in descending order.
        directions, variances, _ = np.linalg.svd(np.cov(exact, rowvar=False, bias=True))
        there = int((variances > LEAST_SHARE * variances[0]).sum())
        wanted = there if dimensions is None else dimensions
        if dimensions is None and there < exact.shape[1]:
            logger.warning(
                "whitening keeps %d of %d dimensions: the embeddings vary in no more", there, exact.shape[1]
            )
        if not 1 <= wanted <= there:
            raise UserError(
                f"whitening to {wanted} dimensions: the {len(exact)} embeddings that it is fitted to vary in {there} "
                f"of {exact.shape[1]}; fit it to more sentences, or keep fewer dimensions"
            )
        return cls(mean, directions[:, :wanted] / np.sqrt(variances[:wanted]))

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """(N, H) → (N, K), float32."""
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)
