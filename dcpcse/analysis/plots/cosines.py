"""Plots of the cosines of pairs.

- the joint density of cosines and gold scores (ConPVP, figure 4), with the distribution of the cosines per bin of gold
  scores
- the density of the cosines (D2CSE, figure 2b)
"""

import argparse
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.analysis.plots.inputs import PairScores
from dcpcse.utils.command_parser import CommandParser

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 400
"""Number of points of a density."""
MARGIN = 4.0
"""Bandwidths by which a density extends beyond the lowest and the highest cosine; a kernel has 3e-5 of its mass
outside."""
MARKS = 12
"""Number of markers on a density. Markers distinguish the models without colours."""


@style.styled
def draw_cosines(models: Mapping[str, PairScores], bins: bool = True) -> "Figure":
    """Draw the cosines by gold score: a hexagonal histogram per model and, below it, a violin per bin of gold scores.

    All panels have the same scales, so that models can be compared.

    Args:
        bins: Whether to draw the panels with the violins.
    """
    from matplotlib.colors import LogNorm

    figure, axes = style.panel_grid(len(models), 1.9, rows_each=2 if bins else 1, sharey=True)
    columns = min(len(models), style.PANELS_PER_ROW)
    gold = np.concatenate([scored.gold for scored in models.values()])
    low = min(float(scored.cosine.min()) for scored in models.values())
    extent = (float(np.floor(gold.min())), float(np.ceil(gold.max())), float(np.floor(10 * low) / 10), 1.0)
    hexagons = []
    for i, (label, scored) in enumerate(models.items()):
        style.title(axes[0, i], label, columns, below=f"Spearman × 100 = {scored.spearman:.2f}")
        axes[0, i].set_xlabel("gold score")
        hexagons.append(
            axes[0, i].hexbin(
                scored.gold, scored.cosine, gridsize=(22, 10), extent=extent, mincnt=1, cmap=f"{style.SEQUENTIAL}_r",
                linewidths=0.1, label="pairs",
            )
        )  # fmt: skip
        if bins:
            _violins(axes[1, i], scored, extent)
        if i % columns == 0:
            for panel in axes[:, i]:
                panel.set_ylabel("cosine similarity")
    norm = LogNorm(1, max(2, *(shown.get_array().max() for shown in hexagons)))
    for shown in hexagons:
        shown.set_norm(norm)
    style.colorbar(figure, hexagons[0], list(axes[0]), "pairs per hexagon", format="%d")
    return figure


def _violins(axes: "Axes", scored: PairScores, extent: tuple[float, ...]) -> None:
    """Draw the density of the cosines in each gold bin, with a dot at the median and a bar from 25 % to 75 %."""
    bins = binned(scored)
    centres = [(low + high) / 2 for low, high in bins]
    shown = axes.violinplot(list(bins.values()), centres, widths=0.85, showextrema=False, showmedians=False)
    for body in shown["bodies"]:
        body.set(facecolor=style.COLOURS[5], edgecolor=style.COLOURS[0], linewidth=0.7, alpha=0.7)
    for centre, chosen in zip(centres, bins.values(), strict=True):
        low, median, high = np.percentile(chosen, [25, 50, 75])
        axes.vlines(centre, low, high, color="black", linewidth=2.5)
        axes.plot(centre, median, marker="o", color="white", markeredgecolor="black", markersize=4)
    axes.set_xlim(extent[0] - 0.1, extent[1] + 0.1)
    axes.set_xticks(centres, [f"{low:g}–{high:g}\n{len(bins[low, high])}" for low, high in bins])
    axes.set_xlabel(f"gold score bin; pairs (n = {len(scored.gold)})", fontsize=7)


def binned(scored: PairScores) -> dict[tuple[float, float], np.ndarray]:
    """Return the cosines of each non-empty bin [low, high) of gold scores; the last bin includes its upper end."""
    from senteval.geometry import BINS

    row = np.minimum(np.digitize(scored.gold, BINS), len(BINS) - 1) - 1
    return {ends: scored.cosine[row == i] for i, ends in enumerate(pairwise(BINS)) if (row == i).any()}


@style.styled
def draw_densities(models: Mapping[str, PairScores]) -> "Figure":
    """Draw the density of the cosines of each model in one panel; the area below each curve is 1."""
    figure = style.figure(style.COLUMN, 2.5)
    axes = figure.subplots()
    handles = []
    for i, scored in enumerate(models.values()):
        look = style.series_style(i)
        x, height = density(scored.cosine)
        # The marks of the models are at different points, so that equal curves do not hide each other.
        start = i * POINTS // (MARKS * len(models))
        handles += axes.plot(x, height, markevery=(start, POINTS // MARKS), markersize=3, **look.line())
        axes.fill_between(x, height, color=look.color, alpha=0.12, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="x", useOffset=False)  # cosines that are almost equal are shown in full
    axes.locator_params(axis="x", nbins=5)
    axes.set(xlabel="cosine similarity", ylabel="density")
    style.legend_below(figure, handles, list(models))
    return figure


def density(cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points (P,) and, at these points, the Gaussian kernel density (P,) of cosines (N,).

    The cosines must not all be equal. The bandwidth follows Scott's rule, the default of scipy. The curve extends
    beyond a cosine of 1.
    """
    from scipy.stats import gaussian_kde

    kernel = gaussian_kde(cosine)
    margin = MARGIN * np.sqrt(kernel.covariance.item())
    x = np.linspace(cosine.min() - margin, cosine.max() + margin, POINTS)
    return x, kernel(x)


def gather(args: argparse.Namespace) -> dict[str, PairScores]:
    """Return the gold scores and the cosines of a split's pairs for each model."""
    return dict(inputs.encode_by_each(inputs.labelled(args.models), args, *inputs.load_sets(args)))


def _add_options(parser: CommandParser) -> None:
    inputs.add_pairs(parser)
    help = "Draw one panel per model, without the distribution per bin of gold scores."
    parser.add_argument("--no_bins", dest="bins", action="store_false", help=help)


KINDS = {
    "cosines": style.PlotKind(
        "Cosine of each pair against its gold score.",
        _add_options,
        lambda args: draw_cosines(gather(args), args.bins),
        of_encoders=True,
    ),
    "densities": style.PlotKind(
        "Density of the cosines of pairs, models overlaid.",
        inputs.add_pairs,
        lambda args: draw_densities(gather(args)),
        of_encoders=True,
    ),
}
