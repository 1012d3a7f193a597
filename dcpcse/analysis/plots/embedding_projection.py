"""Plot the sentence embeddings of several models in one plane (D2CSE, figure 2a)."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.analysis.plots.projection import add_projection, name_axes, project
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from senteval import ScoredPairs


@dataclass(frozen=True, eq=False)
class ProjectedModels:
    """Coordinates (N, 2) of the same sentences under each model, in one plane; axes: names of the two dimensions."""

    places: Mapping[str, np.ndarray]
    axes: tuple[str, str]


@style.styled
def draw(projected: ProjectedModels) -> "Figure":
    """Draw one panel, with a colour and marker per model and equal scales in both directions."""
    from matplotlib.lines import Line2D

    figure = style.figure(style.COLUMN, 3.3)
    axes = figure.subplots()
    handles = []
    for i, places in enumerate(projected.places.values()):
        look = style.series_style(i)
        # The dots are transparent, since models can lie on top of each other.
        options = {"color": look.color, "marker": look.marker, "s": 5, "linewidths": 0, "alpha": 0.45}
        axes.scatter(*places.T, rasterized=True, **options)
        handles.append(Line2D([], [], linestyle="none", marker=look.marker, color=look.color))
    axes.set_aspect("equal", adjustable="datalim")
    name_axes(axes, projected.axes)
    style.legend_below(figure, handles, list(projected.places))
    return figure


def sample_sentences(sets: "Sequence[ScoredPairs]", count: int, seed: int) -> np.ndarray:
    """Return the rows of at most `count` distinct sentences, drawn at random, in the order of the data.

    The rows count the first sentences of all pairs, followed by the second sentences of all pairs.
    """
    texts = [text for pairs in sets for text in pairs.first] + [text for pairs in sets for text in pairs.second]
    row = {text: i for i, text in reversed(list(enumerate(texts)))}
    rows = np.sort(list(row.values()))
    return np.sort(np.random.default_rng(seed).choice(rows, min(count, len(rows)), replace=False))


def gather(args: argparse.Namespace) -> ProjectedModels:
    """Encode the pairs with each model, and project a sample of the sentences for all models at once.

    Raises UserError if the embeddings of two models differ in size.
    """
    from senteval.scores import unit_rows

    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    rows = sample_sentences(sets, args.count, args.seed)
    vectors: dict[str, np.ndarray] = {}
    for label, encoded in inputs.encode_by_each(places, args, task, sets):
        vectors[label] = unit_rows(np.concatenate([encoded.first, encoded.second])[rows])
        _require_same_size(vectors)
    coordinates, names = project(np.concatenate(list(vectors.values())), args.projection, args.seed)
    inputs.notify(
        f"{len(rows):,} distinct sentences of {task} {args.split} per model; {args.projection} of all models"
    )
    return ProjectedModels(dict(zip(vectors, np.split(coordinates, len(vectors)), strict=True)), names)


def _require_same_size(vectors: dict[str, np.ndarray]) -> None:
    first, last = next(iter(vectors)), next(reversed(vectors))
    sizes = vectors[first].shape[1], vectors[last].shape[1]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"the embeddings of {first} have {sizes[0]} dimensions and those of {last} {sizes[1]}; one plane needs "
            f"embeddings of one size: draw {last} without {first}"
        )


def _add_options(parser: CommandParser) -> None:
    inputs.add_models(parser)
    inputs.add_data(parser)
    help = "Number of distinct sentences sampled (default: %(default)s)."
    parser.add_argument("--count", type=Whole(2), default=1000, help=help)
    add_projection(parser)


KIND = style.PlotKind(
    "Sentence embeddings of several models in one plane.",
    _add_options,
    lambda args: draw(gather(args)),
    of_encoders=True,
)
