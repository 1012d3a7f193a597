"""Plot labelled pairs in two dimensions: similar pairs (solid) should be close, dissimilar ones (dashed) far apart."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISSIMILAR_UP_TO = 1.0
"""Highest gold score of dissimilar pairs; those above senteval.geometry.POSITIVE_ABOVE are similar."""


@dataclass(frozen=True, eq=False)
class ProjectedPairs:
    """Coordinates (N, 2) of the first and second sentence of each pair, and which pairs are similar (N,).

    axes: names of the two dimensions.
    """

    first: np.ndarray
    second: np.ndarray
    similar: np.ndarray
    axes: tuple[str, str]


@style.styled
def draw(models: Mapping[str, ProjectedPairs]) -> "Figure":
    """Draw one panel per model."""
    figure, axes = style.panel_grid(len(models), 2.3)
    handles: dict[str, object] = {}
    for panel, (label, projected) in zip(axes[0], models.items(), strict=True):
        style.title(panel, label, min(len(models), style.PANELS_PER_ROW))
        handles = _draw_panel(panel, projected)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def _draw_panel(axes: "Axes", projected: ProjectedPairs) -> dict[str, object]:
    looks = {
        f"gold above {_similar_above():g}": (projected.similar, style.COLOURS[0], "o", "-"),
        f"gold at most {DISSIMILAR_UP_TO:g}": (~projected.similar, style.COLOURS[1], "^", "--"),
    }
    handles = {}
    for name, (rows, color, marker, linestyle) in looks.items():
        ends = np.stack([projected.first[rows], projected.second[rows]])  # (2, n, 2)
        options = {"color": color, "marker": marker, "linestyle": linestyle, "markersize": 3, "linewidth": 0.8}
        lines = axes.plot(ends[..., 0], ends[..., 1], markeredgewidth=0, **options)
        handles[f"{name} (n = {int(rows.sum())})"] = lines[0]
    axes.set_xlabel(projected.axes[0])
    axes.set_ylabel(projected.axes[1])
    axes.tick_params(labelbottom=False, labelleft=False, length=0)
    return handles


def _similar_above() -> float:
    from senteval.geometry import POSITIVE_ABOVE

    return POSITIVE_ABOVE


def sample_pairs(gold: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the sorted rows of at most `count` similar and at most `count` dissimilar pairs, drawn at random."""
    random = np.random.default_rng(seed)
    kinds = {
        f"above {_similar_above():g}": gold > _similar_above(),
        f"up to {DISSIMILAR_UP_TO:g}": gold <= DISSIMILAR_UP_TO,
    }
    chosen = []
    for name, rows in kinds.items():
        if not rows.any():
            raise UserError(f"no pair has a gold score {name}; choose a different --task or --split")
        found = np.flatnonzero(rows)
        chosen.append(random.choice(found, min(count, len(found)), replace=False))
    return np.sort(np.concatenate(chosen))


def project(vectors: np.ndarray, how: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Project unit vectors (N, H) by `pca` or `tsne`; return coordinates (N, 2) and the names of the dimensions."""
    if how == "pca":
        from sklearn.decomposition import PCA

        pca = PCA(2, svd_solver="full").fit(vectors)
        first, second = (f"component {i + 1} ({pca.explained_variance_ratio_[i]:.1%} of variance)" for i in range(2))
        return pca.transform(vectors), (first, second)
    from sklearn.manifold import TSNE

    # Use scikit-learn's default perplexity, or the highest one that is possible with few points. The vectors have
    # unit length, so their distances follow from their cosines. One thread is used, so that sums keep their order.
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed, n_jobs=1)
    return tsne.fit_transform(vectors), ("t-SNE 1", "t-SNE 2")


def gather(args: argparse.Namespace) -> dict[str, ProjectedPairs]:
    """Encode the pairs with each model, sample the same pairs for all models, and project the sample."""
    from senteval.scores import unit_rows

    if args.count < 2:
        raise UserError(f"--count {args.count}: must be at least 2")
    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    rows = sample_pairs(np.concatenate([pairs.gold for pairs in sets]), args.count, args.seed)
    projected = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        both = unit_rows(np.concatenate([encoded.first[rows], encoded.second[rows]]))
        coordinates, names = project(both, args.projection, args.seed)
        similar = encoded.gold[rows] > _similar_above()
        projected[label] = ProjectedPairs(coordinates[: len(rows)], coordinates[len(rows) :], similar, names)
        inputs.notify(f"{label}: {len(rows)} sampled pairs, {similar.sum()} of them similar; {args.projection}")
    return projected


def _add_options(parser: argparse.ArgumentParser) -> None:
    inputs.add_models(parser)
    inputs.add_data(parser)
    help = "Default: %(default)s"
    parser.add_argument("--projection", choices=["pca", "tsne"], default="pca", help=help)
    parser.add_argument("--count", type=int, default=30, help=f"Number of pairs sampled of each kind. {help}")
    parser.add_argument("--seed", type=int, default=0, help=f"Seed of the sample and of t-SNE. {help}")


KIND = style.PlotKind(
    "Labelled pairs, projected to two dimensions.", _add_options, lambda args: draw(gather(args)), of_encoders=True
)
