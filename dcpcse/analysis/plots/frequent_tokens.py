"""Plot Spearman after removing the k most frequent tokens from the sentences (ConPVP, figure 5)."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def draw(models: Mapping[str, Mapping[int, float]]) -> "Figure":
    """Draw Spearman × 100 over the number of removed tokens, one line per model; at 0 the sentences are unchanged."""
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
    axes.set_ylabel("Spearman × 100")
    style.legend_below(figure, handles, list(models))
    return figure


def gather(args: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Read the scores by number of removed tokens from score files, which must all be of the same split."""
    models, splits = {}, {}
    for label, path in inputs.labelled(args.scores).items():
        (task,) = inputs.read_family(Path(path), "geometry")
        if not task.get("without_frequent"):
            raise UserError(f"{path}: no scores without frequent tokens; evaluate again with --task_set geometry")
        of_count = {0: task["spearman"], **{int(count): value for count, value in task["without_frequent"].items()}}
        models[label] = dict(zip(of_count, inputs.numbers(list(of_count.values()), path), strict=True))
        splits[path] = task["split"]
        inputs.notify(
            f"{label}: {task['task']} {task['split']}, {len(of_count)} counts up to {max(of_count)} ({path})"
        )
    if len(set(splits.values())) > 1:
        listed = ", ".join(f"{path} {split}" for path, split in splits.items())
        raise UserError(f"the files are of different splits, which cannot be compared: {listed}; give one split")
    return models


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "File of evaluation.py --task_set geometry --output_file; LABEL=FILE sets the label."
    parser.add_argument("scores", nargs="+", metavar="SCORES.json", help=help)


KIND = style.PlotKind("Spearman without the most frequent tokens.", _add_options, lambda args: draw(gather(args)))
