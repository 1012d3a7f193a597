"""Plot Spearman after removing the k most frequent tokens from the sentences.

ConPVP's figure 5 shows the average over the STS tasks (`--task_set frequent`); `--task_set geometry` scores STS-B.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def draw(models: Mapping[str, Mapping[int, float]], scored: str | None = None) -> "Figure":
    """Draw Spearman × 100 over the number of removed tokens, one line per model; at 0 the sentences are unchanged.

    scored: the data of the scores, for the label of the axis.
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


def gather(args: argparse.Namespace) -> tuple[dict[str, dict[int, float]], str]:
    """Return label → number of removed tokens → score, from score files, and the data that all of them score.

    The data are the seven STS tasks, whose scores are averaged, or a split of STS-B. Raises UserError if they differ.
    """
    models, scored = {}, {}
    for label, path in inputs.labelled(args.scores).items():
        task = inputs.read_task(Path(path), "frequent", "geometry", needs=("task", "split"))
        scored[path], scores = _scores(task, path)
        of_count = {int(count): value for count, value in scores.items()}
        models[label] = dict(zip(of_count, inputs.numbers(list(of_count.values()), path), strict=True))
        inputs.notify(f"{label}: {scored[path]}, {len(of_count)} counts up to {max(of_count)} ({path})")
    if len(set(scored.values())) > 1:
        listed = ", ".join(f"{path} {data}" for path, data in scored.items())
        raise UserError(f"the files score different data, which cannot be compared: {listed}; give one of them")
    return models, next(iter(scored.values()))


def _scores(task: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, float]]:
    """Return what a result scores, and its scores by number of removed tokens."""
    frequent = task["family"] == "frequent"
    scores = task.get("average_without" if frequent else "without_frequent")
    if not scores:
        raise UserError(f"{path}: no scores without frequent tokens; evaluate again with --task_set frequent")
    if frequent:
        return f"mean of {len(task.get('without') or ())} STS tasks", scores
    return f"{task['task'].removesuffix('-geometry')} {task['split']}", {"0": task.get("spearman"), **scores}


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "File of evaluation.py --task_set frequent (or geometry) --output_file; LABEL=FILE sets the label."
    parser.add_argument("scores", nargs="+", metavar="SCORES.json", help=help)


KIND = style.PlotKind("Spearman without the most frequent tokens.", _add_options, lambda args: draw(*gather(args)))
