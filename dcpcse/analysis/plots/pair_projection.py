"""Plot labelled pairs in two dimensions, with the two sentences of a pair joined by a line.

The pairs are similar (solid) and dissimilar ones (dashed), or have the given gold scores (ConPVP, figure 6).
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.analysis.plots.projection import add_projection, name_axes, project
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.option_fields import Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISSIMILAR_UP_TO = 1.0
"""Highest gold score of dissimilar pairs; those above senteval.geometry.POSITIVE_ABOVE are similar."""

LOOKS = (1, 0)
"""Styles of the first two groups; with them, 0, 3 and 5 are orange, blue and green, as in figure 6 of ConPVP."""


@dataclass(frozen=True, eq=False)
class ProjectedPairs:
    """Coordinates of a model's pairs by group: name → coordinates (n, 2) of the first and of the second sentences.

    axes: names of the two dimensions.
    """

    groups: Mapping[str, tuple[np.ndarray, np.ndarray]]
    axes: tuple[str, str]


@style.styled
def draw(models: Mapping[str, ProjectedPairs]) -> "Figure":
    """Draw one panel per model; all models have the same groups."""
    figure, axes = style.panel_grid(len(models), 2.3)
    handles: dict[str, object] = {}
    for panel, (label, projected) in zip(axes[0], models.items(), strict=True):
        style.title(panel, label, min(len(models), style.PANELS_PER_ROW))
        handles = _draw_panel(panel, projected)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def _draw_panel(axes: "Axes", projected: ProjectedPairs) -> dict[str, object]:
    handles = {}
    for i, (name, (first, second)) in enumerate(projected.groups.items()):
        look = style.series_style(LOOKS[i] if i < len(LOOKS) else i)
        ends = np.stack([first, second])  # (2, n, 2)
        lines = axes.plot(ends[..., 0], ends[..., 1], markersize=3, linewidth=0.8, markeredgewidth=0, **look.line())
        handles[f"{name} (n = {len(first)})"] = lines[0]
    name_axes(axes, projected.axes)
    return handles


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


def gather(args: argparse.Namespace) -> dict[str, ProjectedPairs]:
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


def _add_options(parser: CommandParser) -> None:
    inputs.add_models(parser)
    inputs.add_data(parser)
    help = f"Gold scores, each a group of pairs (default: two groups, up to {DISSIMILAR_UP_TO:g} and above 4)."
    parser.add_argument("--scores", nargs="+", type=float, metavar="SCORE", help=help)
    help = "Number of pairs sampled of each group (default: %(default)s)."
    parser.add_argument("--count", type=Whole(2), default=30, help=help)
    add_projection(parser)


KIND = style.PlotKind(
    "Labelled pairs, projected to two dimensions.", _add_options, lambda args: draw(gather(args)), of_encoders=True
)
