"""Cosine of each pair against its gold score: how many pairs lie where, and how they spread in every gold bin."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class PairScores:
    """Gold scores and cosines of all pairs, both (N,), and their Spearman × 100."""

    gold: np.ndarray
    cosine: np.ndarray
    spearman: float


@style.styled
def draw(models: Mapping[str, PairScores]) -> "Figure":
    """Two panels a model, one above the other: counts of pairs in hexagons, and a violin for each gold bin."""
    whole, axes = style.panel_grid(len(models), 1.9, rows_each=2, sharey=True)
    columns = min(len(models), style.PANELS_PER_ROW)
    extent = _extent(models)
    hexagons = []
    for place, (label, scored) in enumerate(models.items()):
        style.title(axes[0, place], label, columns, below=f"Spearman × 100 = {scored.spearman:.2f}")
        hexagons.append(_hexagons(axes[0, place], scored, extent))
        _violins(axes[1, place], scored, extent)
        if place % columns == 0:
            axes[0, place].set_ylabel("cosine of the pair")
            axes[1, place].set_ylabel("cosine of the pair")
    _count_bar(whole, axes[0], hexagons)
    return whole


def _extent(models: Mapping[str, PairScores]) -> tuple[float, float, float, float]:
    """Ends of gold scores and of cosines, over all models: their panels compare."""
    gold = np.concatenate([scored.gold for scored in models.values()])
    low = min(float(scored.cosine.min()) for scored in models.values())
    return float(np.floor(gold.min())), float(np.ceil(gold.max())), float(np.floor(10 * low) / 10), 1.0


def _hexagons(axes: "Axes", scored: PairScores, extent: tuple[float, ...]) -> "PolyCollection":
    axes.set_xlabel("gold score")
    return axes.hexbin(
        scored.gold, scored.cosine, gridsize=(22, 10), extent=extent, mincnt=1, cmap=f"{style.SEQUENTIAL}_r",
        linewidths=0.1, label="pairs",
    )  # fmt: skip


def _count_bar(whole: "Figure", axes: np.ndarray, hexagons: "list[PolyCollection]") -> None:
    """One scale for the counts of all panels."""
    from matplotlib.colors import LogNorm

    norm = LogNorm(1, max(2, *(shown.get_array().max() for shown in hexagons)))
    for shown in hexagons:
        shown.set_norm(norm)
    bar = whole.colorbar(hexagons[0], ax=list(axes), pad=0.01, aspect=25, format="%d")
    bar.outline.set_linewidth(0.5)
    bar.set_label("pairs a hexagon")


def _violins(axes: "Axes", scored: PairScores, extent: tuple[float, ...]) -> None:
    """Density of the cosines of every gold bin; a bar at the median, a box from 25 to 75 %."""
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
    axes.set_xlabel(f"bin of gold; its pairs (n = {len(scored.gold)})", fontsize=7)


def binned(scored: PairScores) -> dict[tuple[float, float], np.ndarray]:
    """Cosines by gold bin, from its low end to below its high one (the last includes it); empty ones are left out."""
    from senteval.geometry import BINS

    # The bin of each pair; what stands at the very end belongs to the last one.
    place = np.minimum(np.digitize(scored.gold, BINS), len(BINS) - 1) - 1
    return {ends: scored.cosine[place == i] for i, ends in enumerate(pairwise(BINS)) if (place == i).any()}


def gather(args: argparse.Namespace) -> dict[str, PairScores]:
    """Encode and score the pairs of a split by every model."""
    places = inputs.labelled(args.models)
    task, sets = inputs.load_sets(args)
    encoded = inputs.encode_by_each(places, args, task, sets)
    return {label: PairScores(pairs.gold, pairs.cosine, pairs.spearman) for label, pairs in encoded}


def _add_options(parser: argparse.ArgumentParser) -> None:
    inputs.add_models(parser)
    inputs.add_data(parser)


KIND = style.PlotKind(
    "cosine of every pair against gold", _add_options, lambda args: draw(gather(args)), of_encoders=True
)
