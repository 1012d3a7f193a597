"""Plots of scores.

- few-shot accuracies over random draws of the labelled examples
- Spearman after the k most frequent tokens are removed from the sentences (ConPVP, figure 5)
- differences of models with confidence intervals
- scores by prompt length
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from huggingface_hub.dataclasses import strict

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils import schema
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import read_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


GROUP_WIDTH = 0.84
"""Total width of the violins of a task, relative to the distance between two tasks."""

Point = tuple[float, float | None, float | None]
"""A score × 100 and the ends of its interval; None without an interval."""


@style.styled
def draw_fewshot(models: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """Draw the accuracies × 100 with all random choices of few-shot examples.

    Each model and task has a violin, a mark per draw, and a line at the mean. If a model was not evaluated on a task,
    its place stays empty.

    Args:
        models: Name of a model → task → accuracies × 100 of all draws.
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


def gather_fewshot(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the few-shot accuracy of every random draw of examples, for each label in the plot and each task.

    The accuracies are read from score files.
    """
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


@style.styled
def draw_frequent(models: Mapping[str, Mapping[int, float]], scored: str | None = None) -> "Figure":
    """Draw Spearman × 100 over the number of removed tokens, with one line per model.

    Args:
        models: Name of a model → number of removed tokens → Spearman × 100. For the number 0, the sentences are
            unchanged.
        scored: The data on which the scores are computed, for the label of the axis.
    """
    figure = style.figure(style.COLUMN, 2.5)
    axes = figure.subplots()
    handles = []
    for i, of_count in enumerate(models.values()):
        counts = sorted(of_count)
        handles += axes.plot(counts, [of_count[count] for count in counts], **style.series_style(i).line())
    counts = sorted({count for of_count in models.values() for count in of_count})
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)  # logarithmic, but includes 0
    axes.set_xticks(counts, counts)
    axes.minorticks_off()
    axes.set_xlabel("most frequent tokens removed")
    axes.set_ylabel(style.plain(f"Spearman × 100, {scored}" if scored else "Spearman × 100", 20))
    style.legend_below(figure, handles, list(models))
    return figure


def gather_frequent(args: argparse.Namespace) -> tuple[dict[str, dict[int, float]], str]:
    """Return the scores by label and number of removed tokens, from score files, and the name of the data.

    The data are the seven STS tasks, whose scores are averaged (`--task_set frequent`), or a split of STS-B
    (`--task_set geometry`). Raises UserError if the files have scores on different data.
    """
    models, scored = {}, {}
    for label, path in inputs.labelled(args.scores).items():
        task = inputs.read_task(Path(path), "frequent", "geometry", needs=("task", "split"))
        scored[path], scores = _without_frequent(task, path)
        of_count = {int(count): value for count, value in scores.items()}
        models[label] = dict(zip(of_count, inputs.numbers(list(of_count.values()), path), strict=True))
        inputs.notify(
            f"{label}: {scored[path]}, {len(of_count)} numbers of removed tokens, up to {max(of_count)} ({path})"
        )
    if len(set(scored.values())) > 1:
        listed = ", ".join(f"{path} {data}" for path, data in scored.items())
        raise UserError(
            f"scores on different data cannot be compared: {listed}; give only files with scores on the same data"
        )
    return models, next(iter(scored.values()))


def _without_frequent(task: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, float]]:
    """Return the name of the data of a result, and the scores by number of removed tokens."""
    frequent = task["family"] == "frequent"
    scores = task.get("average_without" if frequent else "without_frequent")
    if not scores:
        raise UserError(f"{path}: no scores with frequent tokens removed; evaluate again with --task_set frequent")
    if frequent:
        return f"mean of {len(task.get('without') or ())} STS tasks", scores
    return f"{task['task'].removesuffix('-geometry')} {task['split']}", {"0": task.get("spearman"), **scores}


@style.styled
def draw_differences(differences: Mapping[str, Mapping[str, Point]], level: float) -> "Figure":
    """Draw a point with its interval for each task and pair of models, with the tasks from top to bottom.

    A line marks the difference 0.

    Args:
        differences: Name of a pair of models → task → difference × 100 and ends of its interval. All pairs must have
            the same tasks.
        level: Coverage of the intervals.
    """
    tasks = list(next(iter(differences.values())))
    step = 0.7 / len(differences)
    figure = style.figure(style.PAGE, 0.9 + len(tasks) * (0.16 + 0.11 * len(differences)))
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    handles = []
    for number, points in enumerate(differences.values()):
        look = style.series_style(number)
        rows = [row + (number - (len(differences) - 1) / 2) * step for row in range(len(tasks))]
        values = [value for value, _, _ in points.values()]
        below = [0 if low is None else value - low for value, low, _ in points.values()]
        above = [0 if high is None else high - value for value, _, high in points.values()]
        handles.append(
            axes.errorbar(values, rows, xerr=[below, above], fmt=look.marker, color=look.color, capsize=2, linewidth=1)
        )
    axes.set_yticks(range(len(tasks)), [style.plain(task, 24) for task in tasks])
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    for edge in range(1, len(tasks)):
        axes.axhline(edge - 0.5, color="#dddddd", linewidth=0.5)
    axes.set_xlabel(f"difference of scores × 100, with {100 * level:g} % intervals")
    style.legend_below(figure, handles, list(differences))
    return figure


def _add_scores(parser: CommandParser, task_set: str) -> None:
    help = f"File of evaluation.py --task_set {task_set} --output_file; LABEL=FILE sets the label."
    parser.add_argument("scores", nargs="+", metavar="SCORES.json", help=help)


LENGTH_ROW = re.compile(r"(?P<study>.*)/length-(?P<length>[0-9]{1,9})")
"""Name of a row with the scores of a prompt length."""


@strict
@dataclass(kw_only=True)
class _AnswerCell(schema.Open):
    values: list  # lists of numbers; `inputs.numbers` checks the cell that is drawn
    published: int | float | None = schema.finite(default=None)
    comparable: bool = True


@strict
@dataclass(kw_only=True)
class AnswerRow(schema.Open):
    """A row of the JSON file that dcpcse reproduce writes (`reproduction.result_tables.as_json`)."""

    name: str
    cells: dict[str, _AnswerCell] = field(default_factory=dict)


STS_AVERAGE = "STS average, Spearman × 100"
SEED_OFFSET = 0.12
"""Horizontal offset of the marks of single seeds, so that the error bar does not hide them."""


@style.styled
def draw_prompt_lengths(
    points: Mapping[int, Sequence[float]],
    published: Mapping[int, float] | None = None,
    score: str = STS_AVERAGE,
    comparable: bool = True,
) -> "Figure":
    """Draw the scores of all seeds and the published scores by prompt length. The lengths are equally spaced.

    Args:
        comparable: Whether the published scores belong to the same encoder, steps and settings. If not, the legend
            calls them not comparable.
    """
    published = published or {}
    figure = style.figure(style.COLUMN, 2.5)
    axes = figure.subplots()
    lengths = sorted({*points, *published})
    x = {length: i for i, length in enumerate(lengths)}
    handles: dict[str, Any] = {}
    measured = [length for length in lengths if length in points]
    seeds = [(x[length] + SEED_OFFSET, value) for length in measured for value in points[length]]
    (handles["one seed"],) = axes.plot(*zip(*seeds, strict=True), linestyle="none", marker="x", color=style.GREY)
    handles["mean ± s.d."] = axes.errorbar(
        [x[length] for length in measured],
        [np.mean(points[length]) for length in measured],
        # A single seed has no deviation, and therefore no error bar.
        [np.std(points[length], ddof=1) if len(points[length]) > 1 else np.nan for length in measured],
        capsize=3,
        markersize=5,
        **style.series_style(0).line(),
    )
    if published:
        known = [length for length in lengths if length in published]
        heights = [published[length] for length in known]
        # Without a line: DCPCSE states two of the points of its figure 2, and nothing about the points between them.
        look = {**style.series_style(1).line(), "linestyle": "none", "markerfacecolor": "white"}
        name = "published" if comparable else "published, not comparable"
        (handles[name],) = axes.plot([x[length] for length in known], heights, **look)
    axes.set_xticks(range(len(lengths)), lengths)
    axes.set_xlim(-0.6, len(lengths) - 0.4)
    axes.set_xlabel("prompt length in tokens")
    axes.set_ylabel(style.plain(score, 20))
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def read_prompt_lengths(
    path: Path, study: str | None, cell: str
) -> tuple[dict[int, list[float]], dict[int, float], bool]:
    """Return the scores of all seeds by length, the published scores by length, and whether they are comparable.

    The scores come from the rows with names of the form STUDY/length-P, where P is the prompt length. Rows that were
    not run are left out.

    Args:
        study: Name of the study. None if the file contains only one study.
        cell: Name of the column whose values are returned.
    """
    content = read_json(path)
    rows = content.get("rows", []) if isinstance(content, dict) else []
    with schema.explained(path):
        schema.check(list[AnswerRow], rows)
    matches = [(named, row) for row in rows if (named := LENGTH_ROW.fullmatch(row["name"])) and row.get("cells")]
    studies = dict.fromkeys(named["study"] for named, _ in matches)
    if not studies:
        raise UserError(f"{path}: no finished rows named .../length-P; give the results of a study of prompt lengths")
    if study is None and len(studies) > 1:
        raise UserError(f"{path} contains several studies; choose one with --study: {', '.join(studies)}")
    if study is not None and study not in studies:
        raise UserError(f"--study {study}: not in {path}; choose from: {', '.join(studies)}")
    chosen = {int(named["length"]): row["cells"] for named, row in matches if study in (None, named["study"])}
    points, published, comparable = {}, {}, True
    for length, cells in sorted(chosen.items()):
        owner = f"{path}, length {length}"
        if cell not in cells:
            raise UserError(f"--cell {cell}: not in {owner}; choose from: {', '.join(cells) or 'none'}")
        points[length] = inputs.numbers(cells[cell]["values"], owner)
        if cells[cell].get("published") is not None:
            (published[length],) = inputs.numbers([cells[cell]["published"]], f"{owner}, published")
            comparable &= cells[cell].get("comparable", True)
    return points, published, comparable


def _plot_prompt_lengths(args: argparse.Namespace) -> "Figure":
    points, published, comparable = read_prompt_lengths(Path(args.answer), args.study, args.cell)
    for length, values in points.items():
        printed = f"; published {published[length]:g}" if length in published else ""
        inputs.notify(f"length {length}: {np.mean(values):.2f}, n = {len(values)} ({args.answer}){printed}")
    return draw_prompt_lengths(points, published, STS_AVERAGE if args.cell == "avg" else args.cell, comparable)


def _add_prompt_length_options(parser: argparse.ArgumentParser) -> None:
    help = "Answer file of dcpcse reproduce, with rows named STUDY/length-P."
    parser.add_argument("answer", metavar="ANSWER.json", help=help)
    parser.add_argument("--cell", default="avg", help="Score of each row to draw (default: %(default)s).")
    parser.add_argument("--study", help="Study to draw, if the file contains several.")


KINDS = {
    "prompt-length": style.PlotKind("Score against prompt length.", _add_prompt_length_options, _plot_prompt_lengths),
    "fewshot": style.PlotKind(
        "Few-shot accuracies over the draws.",
        lambda parser: _add_scores(parser, "fewshot"),
        lambda args: draw_fewshot(gather_fewshot(args)),
    ),
    "frequent": style.PlotKind(
        "Spearman without the most frequent tokens.",
        lambda parser: _add_scores(parser, "frequent (or geometry)"),
        lambda args: draw_frequent(*gather_frequent(args)),
    ),
}
