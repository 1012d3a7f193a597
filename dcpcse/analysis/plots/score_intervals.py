"""A plot of the scores of several models on several tasks, with confidence intervals."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dcpcse.analysis.plots.style import PAGE, figure, legend_below, plain, series_style, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float | None, float | None]
"""A score × 100 and the ends of its interval, None without one."""


@styled
def draw_score_intervals(scores: Mapping[str, Mapping[str, Point]], level: float) -> "Figure":
    """Draw a point with its interval for each task and model, the tasks from top to bottom.

    scores: model → task → point; all models have the same tasks. level: coverage of the intervals.
    """
    models, tasks = list(scores), list(next(iter(scores.values())))
    step = 0.7 / len(models)
    drawn = figure(PAGE, 0.9 + len(tasks) * (0.16 + 0.11 * len(models)))
    axes = drawn.subplots()
    handles = []
    for number, (_, points) in enumerate(scores.items()):
        style = series_style(number)
        places = [row + (number - (len(models) - 1) / 2) * step for row in range(len(tasks))]
        values = [value for value, _, _ in points.values()]
        below = [0 if low is None else value - low for value, low, _ in points.values()]
        above = [0 if high is None else high - value for value, _, high in points.values()]
        handles.append(
            axes.errorbar(
                values, places, xerr=[below, above], fmt=style.marker, color=style.color, capsize=2, linewidth=1
            )
        )
    axes.set_yticks(range(len(tasks)), [plain(task, 24) for task in tasks])
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    for edge in range(1, len(tasks)):
        axes.axhline(edge - 0.5, color="#dddddd", linewidth=0.5)
    axes.set_xlabel(f"score × 100, with {100 * level:g} % intervals")
    legend_below(drawn, handles, models)
    return drawn
