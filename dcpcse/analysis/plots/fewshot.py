"""Few-shot accuracies: how they spread over the draws of the labelled examples, by task and model."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import inputs, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP_WIDTH = 0.84
"""Width that the violins of a task share, of the distance of two tasks."""


@style.styled
def draw(models: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """Accuracies × 100 of the draws, model → task: a violin each, every draw marked, a line at the mean.

    A model that was not measured on a task leaves its place empty.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    tasks = list(dict.fromkeys(task for of_task in models.values() for task in of_task))
    whole = style.figure(style.PAGE if len(tasks) * len(models) > 4 else style.COLUMN, 2.6)
    axes = whole.subplots()
    width = GROUP_WIDTH / len(models)
    for i, of_task in enumerate(models.values()):
        shift = (i - (len(models) - 1) / 2) * width
        for task, draws in of_task.items():
            _violin(axes, tasks.index(task) + shift, np.asarray(draws), 0.92 * width, style.series_style(i))
    axes.set_xticks(range(len(tasks)), [style.plain(task) for task in tasks])
    axes.set_xlim(-0.5, len(tasks) - 0.5)
    axes.set_ylabel("accuracy, %")
    axes.grid(False, axis="x")
    looks = [style.series_style(i) for i in range(len(models))]
    handles = [Patch(facecolor=f"{look.color}55", edgecolor=look.color, hatch=look.hatch) for look in looks]
    mean = Line2D([], [], color="black", linewidth=1.4)
    style.legend_below(whole, [*handles, mean], [*models, "mean of the draws (marks)"])
    return whole


def _violin(axes: "Axes", place: float, draws: np.ndarray, width: float, look: style.SeriesStyle) -> None:
    if len(draws) > 1:  # of one draw there is no density
        (body,) = axes.violinplot([draws], [place], widths=width, showextrema=False)["bodies"]
        body.set(facecolor=f"{look.color}55", edgecolor=look.color, linewidth=0.7, alpha=None, hatch=look.hatch)
    # Side by side in the order of the draws, so that equal ones do not hide each other.
    spread = place + np.linspace(-0.22, 0.22, len(draws)) * width if len(draws) > 1 else [place]
    axes.plot(
        spread, draws, linestyle="none", marker=look.marker, markersize=2.6, color=look.color,
        markeredgecolor="black", markeredgewidth=0.3,
    )  # fmt: skip
    axes.hlines(draws.mean(), place - 0.4 * width, place + 0.4 * width, color="black", linewidth=1.4)


def gather(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Accuracies of every draw, of files of scores."""
    models = {}
    for label, path in inputs.labelled(args.scores).items():
        tasks = inputs.read_family(Path(path), "fewshot")
        models[label] = {
            task["task"].removesuffix("-fewshot"): inputs.numbers(task["draws"], f"{path}, {task['task']}")
            for task in tasks
        }
        draws = sorted({len(values) for values in models[label].values()})
        shots = sorted({task["shots"] for task in tasks})
        inputs.notify(
            f"{label}: {', '.join(models[label])}; {' or '.join(map(str, draws))} draws of "
            f"{' or '.join(map(str, shots))} examples a class ({path})"
        )
    return models


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "File of evaluation.py --task_set fewshot --output_file; LABEL=FILE says what it is called."
    parser.add_argument("scores", nargs="+", metavar="SCORES.json", help=help)


KIND = style.PlotKind("few-shot accuracies over the draws", _add_options, lambda args: draw(gather(args)))
