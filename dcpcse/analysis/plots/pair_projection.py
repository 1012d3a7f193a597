"""Labelled pairs in two dimensions: like ones, joined by solid lines, should lie near, unlike ones (dashed) far."""

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

UNLIKE_UP_TO = 1.0
"""Gold score up to which a pair counts as unlike; like ones lie above senteval.geometry.POSITIVE_ABOVE."""


@dataclass(frozen=True, eq=False)
class ProjectedPairs:
    """Places (N, 2) of the first and the second sentence of every pair, and which pairs are alike (N,).

    axes: what the two directions are.
    """

    first: np.ndarray
    second: np.ndarray
    alike: np.ndarray
    axes: tuple[str, str]


@style.styled
def draw(models: Mapping[str, ProjectedPairs]) -> "Figure":
    """One panel a model."""
    whole, axes = style.panel_grid(len(models), 2.3)
    handles: dict[str, object] = {}
    for panel, (label, projected) in zip(axes[0], models.items(), strict=True):
        style.title(panel, label, min(len(models), style.PANELS_PER_ROW))
        handles = _panel(panel, projected)
    style.legend_below(whole, list(handles.values()), list(handles))
    return whole


def _panel(axes: "Axes", projected: ProjectedPairs) -> dict[str, object]:
    looks = {
        f"gold above {_like_above():g}": (projected.alike, style.COLOURS[0], "o", "-"),
        f"gold at most {UNLIKE_UP_TO:g}": (~projected.alike, style.COLOURS[1], "^", "--"),
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


def _like_above() -> float:
    from senteval.geometry import POSITIVE_ABOVE

    return POSITIVE_ABOVE


def sample_pairs(gold: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Row numbers, in order, of so many pairs drawn of the like and of the unlike ones; of fewer all."""
    random = np.random.default_rng(seed)
    kinds = {f"above {_like_above():g}": gold > _like_above(), f"up to {UNLIKE_UP_TO:g}": gold <= UNLIKE_UP_TO}
    chosen = []
    for name, rows in kinds.items():
        if not rows.any():
            raise UserError(f"no pair has a gold score {name}; ask for another --task or --split")
        found = np.flatnonzero(rows)
        chosen.append(random.choice(found, min(count, len(found)), replace=False))
    return np.sort(np.concatenate(chosen))


def project(vectors: np.ndarray, how: str, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    """Places (N, 2) of vectors (N, H) of unit length, and what the directions are called."""
    return PROJECTIONS[how](vectors, seed)


def _pca(vectors: np.ndarray, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    from sklearn.decomposition import PCA

    fitted = PCA(2, svd_solver="full").fit(vectors)
    names = [f"component {i} ({share:.1%} of variance)" for i, share in enumerate(fitted.explained_variance_ratio_, 1)]
    return fitted.transform(vectors), tuple(names)


def _tsne(vectors: np.ndarray, seed: int) -> tuple[np.ndarray, tuple[str, str]]:
    from sklearn.manifold import TSNE

    # Scikit-learn's default perplexity, or what few points allow.
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    # Cosine geometry is that of these vectors' distances: they have unit length. One thread: sums keep their order.
    tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed, n_jobs=1)
    return tsne.fit_transform(vectors), ("t-SNE 1", "t-SNE 2")


PROJECTIONS = {"pca": _pca, "tsne": _tsne}


def gather(args: argparse.Namespace) -> dict[str, ProjectedPairs]:
    """Encode by every model, draw the pairs (the same of all models), and project what was drawn."""
    from senteval.scores import unit_rows

    if args.count < 2:
        raise UserError(f"--count {args.count}: must be at least 2")
    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    rows = sample_pairs(np.concatenate([pairs.gold for pairs in sets]), args.count, args.seed)
    projected = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        both = unit_rows(np.concatenate([encoded.first[rows], encoded.second[rows]]))
        where, names = project(both, args.projection, args.seed)
        alike = encoded.gold[rows] > _like_above()
        projected[label] = ProjectedPairs(where[: len(rows)], where[len(rows) :], alike, names)
        inputs.notify(
            f"{label}: {len(rows)} pairs drawn, {alike.sum()} of them alike; {args.projection} of these alone"
        )
    return projected


def _add_options(parser: argparse.ArgumentParser) -> None:
    inputs.add_models(parser)
    inputs.add_data(parser)
    help = "default: %(default)s"
    parser.add_argument("--projection", choices=list(PROJECTIONS), default="pca", help=help)
    parser.add_argument("--count", type=int, default=30, help="Pairs of each kind, drawn at random; " + help)
    parser.add_argument("--seed", type=int, default=0, help="Of the draw and of t-SNE; " + help)


KIND = style.PlotKind(
    "labelled pairs, projected to 2-D", _add_options, lambda args: draw(gather(args)), of_encoders=True
)
