"""Plots of embeddings in two dimensions: of labelled pairs (ConPVP, figure 6), and of the sentences of several models
in one plane (D2CSE, figure 2a)."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.option_fields import SEED, Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from senteval import ScoredPairs

DISSIMILAR_UP_TO = 1.0
"""Highest gold score of dissimilar pairs; those above senteval.geometry.POSITIVE_ABOVE are similar."""

LOOKS = (1, 0)
"""Styles of the first two groups; with them, 0, 3 and 5 are orange, blue and green, as in figure 6 of ConPVP."""


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
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.tick_params(labelbottom=False, labelleft=False, length=0)


@dataclass(frozen=True, eq=False)
class ProjectedPairs:
    """Coordinates of a model's pairs by group: name → coordinates (n, 2) of the first and of the second sentences.

    axes: names of the two dimensions.
    """

    groups: Mapping[str, tuple[np.ndarray, np.ndarray]]
    axes: tuple[str, str]


@style.styled
def draw_pairs(models: Mapping[str, ProjectedPairs]) -> "Figure":
    """Draw one panel per model, with the two sentences of a pair joined by a line; all models have the same groups."""
    figure, axes = style.panel_grid(len(models), 2.3)
    handles: dict[str, object] = {}
    for panel, (label, projected) in zip(axes[0], models.items(), strict=True):
        style.title(panel, label, min(len(models), style.PANELS_PER_ROW))
        for i, (name, (first, second)) in enumerate(projected.groups.items()):
            look = style.series_style(LOOKS[i] if i < len(LOOKS) else i)
            ends = np.stack([first, second])  # (2, n, 2)
            lines = panel.plot(
                ends[..., 0], ends[..., 1], markersize=3, linewidth=0.8, markeredgewidth=0, **look.line()
            )
            handles[f"{name} (n = {len(first)})"] = lines[0]
        name_axes(panel, projected.axes)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def grouped(gold: np.ndarray, scores: Sequence[float] | None = None) -> dict[str, np.ndarray]:
    """Return group → whether each pair (N,) belongs to it, from low to high gold scores (N,).

    scores: one group for each of these scores; None: dissimilar and similar pairs. Raises UserError if a group is
    empty.
    """
    from senteval.geometry import POSITIVE_ABOVE

    if scores is None:
        groups = {
            f"gold at most {DISSIMILAR_UP_TO:g}": gold <= DISSIMILAR_UP_TO,
            f"gold above {POSITIVE_ABOVE:g}": gold > POSITIVE_ABOVE,
        }
    else:
        groups = {f"gold {score:g}": gold == score for score in sorted(scores)}
    for name, rows in groups.items():
        if not rows.any():
            raise UserError(f"there is no pair with {name}; choose other --scores, or a different --task or --split")
    return groups


def sample_pairs(groups: Mapping[str, np.ndarray], count: int, seed: int) -> dict[str, np.ndarray]:
    """Return the sorted rows of at most `count` pairs of each group, drawn at random."""
    random = np.random.default_rng(seed)
    indices = {name: np.flatnonzero(rows) for name, rows in groups.items()}
    return {name: np.sort(random.choice(rows, min(count, len(rows)), replace=False)) for name, rows in indices.items()}


def gather_pairs(args: argparse.Namespace) -> dict[str, ProjectedPairs]:
    """Encode the pairs with each model, sample the same pairs for all models, and project the sample."""
    from senteval.scores import unit_rows

    if args.scores and len(set(args.scores)) < len(args.scores):
        raise UserError(f"--scores {' '.join(f'{score:g}' for score in args.scores)}: give each score once")
    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    sample = sample_pairs(grouped(np.concatenate([pairs.gold for pairs in sets]), args.scores), args.count, args.seed)
    for name, rows in sample.items():
        if len(rows) < args.count:
            inputs.notify(f"{name}: {task} {args.split} has only {plural(len(rows), 'such pair')}; all are drawn")
    rows = np.concatenate(list(sample.values()))
    ends = np.cumsum([len(indices) for indices in sample.values()])[:-1]
    projected = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        both = unit_rows(np.concatenate([encoded.first[rows], encoded.second[rows]]))
        coordinates, names = project(both, args.projection, args.seed)
        first, second = (np.split(half, ends) for half in np.split(coordinates, 2))
        projected[label] = ProjectedPairs(dict(zip(sample, zip(first, second, strict=True), strict=True)), names)
        drawn = ", ".join(f"{len(indices)} with {name}" for name, indices in sample.items())
        inputs.notify(f"{label}: {len(rows)} sampled pairs ({drawn}); {args.projection}")
    return projected


@style.styled
def draw_embeddings(models: Mapping[str, np.ndarray], names: tuple[str, str]) -> "Figure":
    """Draw one panel, with a colour and marker per model and equal scales in both directions.

    models: coordinates (N, 2) of the same sentences under each model, in one plane. names: of the two dimensions.
    """
    from matplotlib.lines import Line2D

    figure = style.figure(style.COLUMN, 3.3)
    axes = figure.subplots()
    handles = []
    for i, coordinates in enumerate(models.values()):
        look = style.series_style(i)
        # The dots are transparent, since models can lie on top of each other.
        options = {"color": look.color, "marker": look.marker, "s": 5, "linewidths": 0, "alpha": 0.45}
        axes.scatter(*coordinates.T, rasterized=True, **options)
        handles.append(Line2D([], [], linestyle="none", marker=look.marker, color=look.color))
    axes.set_aspect("equal", adjustable="datalim")
    name_axes(axes, names)
    style.legend_below(figure, handles, list(models))
    return figure


def sample_sentences(sets: "Sequence[ScoredPairs]", count: int, seed: int) -> np.ndarray:
    """Return the rows of at most `count` distinct sentences, drawn at random, in the order of the data.

    The rows count the first sentences of all pairs, followed by the second sentences of all pairs.
    """
    texts = [text for pairs in sets for text in pairs.first] + [text for pairs in sets for text in pairs.second]
    row = {text: i for i, text in reversed(list(enumerate(texts)))}
    rows = np.sort(list(row.values()))
    return np.sort(np.random.default_rng(seed).choice(rows, min(count, len(rows)), replace=False))


def gather_embeddings(args: argparse.Namespace) -> tuple[dict[str, np.ndarray], tuple[str, str]]:
    """Encode the pairs with each model, and project a sample of the sentences for all models at once.

    Raises UserError if the embeddings of two models differ in size.
    """
    from senteval.scores import unit_rows

    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    rows = sample_sentences(sets, args.count, args.seed)
    embeddings: dict[str, np.ndarray] = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        embeddings[label] = unit_rows(np.concatenate([encoded.first, encoded.second])[rows])
        first = next(iter(embeddings))
        sizes = embeddings[first].shape[1], embeddings[label].shape[1]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"the embeddings of {first} have {sizes[0]} dimensions and those of {label} {sizes[1]}; one plane "
                f"needs embeddings of one size: draw {label} without {first}"
            )
    coordinates, names = project(np.concatenate(list(embeddings.values())), args.projection, args.seed)
    inputs.notify(
        f"{len(rows):,} distinct sentences of {task} {args.split} per model; {args.projection} of all models"
    )
    return dict(zip(embeddings, np.split(coordinates, len(embeddings)), strict=True)), names


def _add_sample(parser: CommandParser, count: int, sampled: str) -> None:
    """Add the options of a sample and of its projection."""
    help = "Default: %(default)s"
    parser.add_argument("--count", type=Whole(2), default=count, help=f"Number of {sampled} (default: %(default)s).")
    parser.add_argument("--projection", choices=("pca", "tsne"), default="pca", help=help)
    parser.add_argument("--seed", type=SEED, default=0, help=f"Seed of the sample and of t-SNE. {help}")


def _add_pair_options(parser: CommandParser) -> None:
    inputs.add_pairs(parser)
    help = f"Gold scores, each a group of pairs (default: two groups, up to {DISSIMILAR_UP_TO:g} and above 4)."
    parser.add_argument("--scores", nargs="+", type=float, metavar="SCORE", help=help)
    _add_sample(parser, 30, "pairs sampled of each group")


def _add_embedding_options(parser: CommandParser) -> None:
    inputs.add_pairs(parser)
    _add_sample(parser, 1000, "distinct sentences sampled")


KINDS = {
    "pairs": style.PlotKind(
        "Labelled pairs, projected to two dimensions.",
        _add_pair_options,
        lambda args: draw_pairs(gather_pairs(args)),
        of_encoders=True,
    ),
    "embeddings": style.PlotKind(
        "Sentence embeddings of several models in one plane.",
        _add_embedding_options,
        lambda args: draw_embeddings(*gather_embeddings(args)),
        of_encoders=True,
    ),
}
