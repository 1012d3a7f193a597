"""Projections of vectors to two dimensions, shared by the plots that show vectors as points."""

import argparse
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.utils.option_fields import SEED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROJECTIONS = ("pca", "tsne")


def project(vectors: np.ndarray, how: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Project vectors (N, H) by `pca` or `tsne`; return coordinates (N, 2) and the names of the dimensions.

    The name of a component of PCA contains its share of the variance.
    """
    if how == "pca":
        from sklearn.decomposition import PCA

        # The solver is exact, and fast for the many rows of an embedding matrix.
        pca = PCA(2, svd_solver="covariance_eigh").fit(vectors)
        first, second = (f"component {i + 1} ({pca.explained_variance_ratio_[i]:.1%})" for i in range(2))
        return pca.transform(vectors), (first, second)
    from sklearn.manifold import TSNE

    # Use scikit-learn's default perplexity, or the highest one that is possible with few points. The vectors have
    # unit length, so their distances follow from their cosines. One thread is used, so that sums keep their order.
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed, n_jobs=1)
    return tsne.fit_transform(vectors), ("t-SNE 1", "t-SNE 2")


def name_axes(axes: "Axes", names: tuple[str, str]) -> None:
    """Name the two dimensions, and hide their values, which mean nothing by themselves."""
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.tick_params(labelbottom=False, labelleft=False, length=0)


def add_projection(parser: argparse.ArgumentParser) -> None:
    """Add the options --projection and --seed."""
    help = "Default: %(default)s"
    parser.add_argument("--projection", choices=PROJECTIONS, default="pca", help=help)
    parser.add_argument("--seed", type=SEED, default=0, help=f"Seed of the sample and of t-SNE. {help}")
