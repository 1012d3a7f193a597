"""Plot few-shot accuracies over random draws of the labelled examples, by task and model."""

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
"""Total width of the violins of a task, relative to the distance between two tasks."""


@style.styled
def draw(models: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """Draw the accuracies × 100 of all draws, given by model and then by task.

    Each model and task gets a violin, a mark per draw, and a line at the mean. If a model was not evaluated on a task,
    its position stays empty.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    tasks = list(dict.fromkeys(task for of_task in models.values() for task in of_task))
    figure = style.figure(style.PAGE if len(tasks) * len(models) > 4 else style.COLUMN, 2.6)
    axes = figure.subplots()
    width = GROUP_WIDTH / len(models)
    looks = [style.series_style(i) for i in range(len(models))]
    for i, of_task in enumerate(models.values()):
        shift = (i - (len(models) - 1) / 2) * width
        for task, draws in of_task.items():
            _violin(axes, tasks.index(task) + shift, np.asarray(draws), 0.92 * width, looks[i])
    axes.set_xticks(range(len(tasks)), [style.plain(task) for task in tasks])
    axes.set_xlim(-0.5, len(tasks) - 0.5)
    axes.set_ylabel("accuracy, %")
    axes.grid(False, axis="x")
    handles = [Patch(facecolor=f"{look.color}55", edgecolor=look.color, hatch=look.hatch) for look in looks]
    mean = Line2D([], [], color="black", linewidth=1.4)
    style.legend_below(figure, [*handles, mean], [*models, "mean of the draws (marks)"])
    return figure


def _violin(axes: "Axes", x: float, draws: np.ndarray, width: float, look: style.SeriesStyle) -> None:
    spread = [x]
    if len(draws) > 1:  # a single draw has no density
        (body,) = axes.violinplot([draws], [x], widths=width, showextrema=False)["bodies"]
        body.set(facecolor=f"{look.color}55", edgecolor=look.color, linewidth=0.7, alpha=None, hatch=look.hatch)
        # Marks are side by side in the order of the draws, so that equal accuracies do not hide each other.
        spread = x + np.linspace(-0.22, 0.22, len(draws)) * width
    axes.plot(
        spread, draws, linestyle="none", marker=look.marker, markersize=2.6, color=look.color,
        markeredgecolor="black", markeredgewidth=0.3,
    )  # fmt: skip
    axes.hlines(draws.mean(), x - 0.4 * width, x + 0.4 * width, color="black", linewidth=1.4)


def gather(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Read the accuracy of every draw from score files."""
    models = {}
    for label, path in inputs.labelled(args.scores).items():
        tasks = inputs.read_family(Path(path), "fewshot", needs=("task", "draws", "shots"))
        models[label] = {
            task["task"].removesuffix("-fewshot"): inputs.numbers(task["draws"], f"{path}, {task['task']}")
            for task in tasks
        }
        draws = sorted({len(values) for values in models[label].values()})
        shots = sorted({task["shots"] for task in tasks})
        inputs.notify(
            f"{label}: {', '.join(models[label])}; {' or '.join(map(str, draws))} draws of "
            f"{' or '.join(map(str, shots))} examples per class ({path})"
        )
    return models


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "File of evaluation.py --task_set fewshot --output_file; LABEL=FILE sets the label."
    parser.add_argument("scores", nargs="+", metavar="SCORES.json", help=help)


KIND = style.PlotKind("Few-shot accuracies over the draws.", _add_options, lambda args: draw(gather(args)))
