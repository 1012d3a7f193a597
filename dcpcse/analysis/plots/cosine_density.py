"""Plot the kernel densities of the cosines of pairs, with all models in one panel (D2CSE, figure 2b)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.analysis.plots.cosine_by_score import PairScores, gather
from dcpcse.utils.command_parser import CommandParser

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 400
"""Number of points of a curve."""
MARGIN = 4.0
"""Bandwidths by which a curve goes beyond the lowest and the highest cosine; all but 3e-5 of a kernel is within."""
MARKS = 12
"""Number of markers on a curve, which tell the models apart without colours."""


@style.styled
def draw(models: Mapping[str, PairScores]) -> "Figure":
    """Draw a density per model, whose area is 1."""
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
    axes.set_xlabel("cosine similarity")
    axes.set_ylabel("density")
    style.legend_below(figure, handles, list(models))
    return figure


def density(cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points (P,) and the Gaussian kernel density (P,) of cosines (N,), which must not all be equal.

    The bandwidth follows Scott's rule, the default of scipy. The curve is not cut off at a cosine of 1.
    """
    from scipy.stats import gaussian_kde

    kernel = gaussian_kde(cosine)
    margin = MARGIN * np.sqrt(kernel.covariance.item())
    x = np.linspace(cosine.min() - margin, cosine.max() + margin, POINTS)
    return x, kernel(x)


def _add_options(parser: CommandParser) -> None:
    inputs.add_models(parser)
    inputs.add_data(parser)


KIND = style.PlotKind(
    "Density of the cosines of pairs, models overlaid.",
    _add_options,
    lambda args: draw(gather(args)),
    of_encoders=True,
)
