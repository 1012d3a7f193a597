"""Plots over the steps of a training: the values that runs logged, and the figures of a pretraining."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NOT_DRAWN = ("step", "epoch", "total_flos")
TOTALS = "train_"
"""Prefix of the values in the last logged line of a run, such as its duration; these values are not drawn."""
TITLES = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "cosine_negative": "mean cosine of random pairs",
    "effective_rank": "effective rank",
}
ORDER = ("loss", "loss_", "weight_", "learning_rate", "grad_norm", "", "eval_")
"""Order of the panels by name or prefix of the values. Other names have the position of the empty string."""


@style.styled
def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Draw a panel per logged value and a line per run.

    A value that was not finite (null in the file) leaves a gap.

    Args:
        runs: Label → logged lines as returned by `run_files.read_metrics`.

    Raises:
        UserError: If there is nothing to draw.
    """
    names = metric_names(runs)
    if not names:
        raise UserError("the runs have logged no values that can be drawn; train with a smaller --logging_steps")
    figure, axes = style.panel_grid(len(names), 1.5, sharex=True)
    handles: dict[str, Any] = {}
    for i, (panel, name) in enumerate(zip(axes[0], names, strict=True)):
        style.title(panel, TITLES.get(name, name.replace("eval_", "dev: ", 1)), min(len(names), style.PANELS_PER_ROW))
        for run, (label, lines) in enumerate(runs.items()):
            steps, values = series(lines, name)
            if len(steps):
                # About eight markers per line tell the runs apart; one on each point would make a thick line.
                marks = {"markersize": 3.5, "markevery": max(1, len(steps) // 8)}
                (handles[label],) = panel.plot(steps, values, **marks, **style.series_style(run).line())
        panel.tick_params(labelbottom=True)  # on all panels, since the lowest one of a column may be empty
        if i + style.PANELS_PER_ROW >= len(names):
            panel.set_xlabel("step")
        panel.locator_params(nbins=5)
        panel.xaxis.get_major_locator().set_params(integer=True)
    labels = [label for label in runs if label in handles]
    style.legend_below(figure, [handles[label] for label in labels], labels)
    return figure


def metric_names(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the names of the values that are drawn, in the order of their panels."""
    logged = dict.fromkeys(name for lines in runs.values() for line in lines for name in line)
    names = [name for name in logged if name not in NOT_DRAWN and not name.startswith(TOTALS)]
    return sorted(names, key=_order)  # stable: names of the same prefix stay in the order of the log


def _order(name: str) -> int:
    exact = [i for i, start in enumerate(ORDER) if name == start]
    prefixed = [i for i, start in enumerate(ORDER) if start.endswith("_") and name.startswith(start)]
    return next(iter([*exact, *prefixed]), ORDER.index(""))


def series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps at which a value was logged, and the values. Values that were not finite are NaN."""
    logged = [(line["step"], np.nan if line[name] is None else line[name]) for line in lines if name in line]
    steps, values = zip(*logged, strict=True) if logged else ((), ())
    return np.array(steps, dtype=float), np.array(values, dtype=float)


def gather(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Read the lines of `metrics.jsonl` of each run."""
    from dcpcse.utils.run_files import METRICS, read_metrics

    runs = {}
    for label, folder in inputs.labelled(args.runs).items():
        path = Path(folder) / METRICS
        runs[label] = read_metrics(Path(folder))
        if not runs[label]:
            raise UserError(f"{path} is {'empty' if path.is_file() else 'missing'}; give the output folder of a run")
        last = max(line["step"] for line in runs[label])
        unknown = sum(value is None for line in runs[label] for value in line.values())
        gaps = f"; {plural(unknown, 'value')} not finite, drawn as gaps" if unknown else ""
        inputs.notify(f"{label}: {plural(len(runs[label]), 'line')} up to step {last} ({path}){gaps}")
    return runs


def _add_options(parser: CommandParser) -> None:
    help = "Output folder of train.py; LABEL=FOLDER sets the label."
    parser.add_model("runs", nargs="+", metavar="RUN", help=help)


KIND = style.PlotKind("Values that runs logged over their steps.", _add_options, lambda args: draw(gather(args)))


PANELS = {"bits_per_character": "bits per character", "masked_accuracy": "masked accuracy, %"}


@style.styled
def draw_pretraining(record: Mapping[str, Any]) -> "Figure":
    """Draw bits per character and masked accuracy on the held-out text, each next to the value of a unigram model.

    The steps in which the model was trained to predict the next token are shaded.

    Args:
        record: The content of `pretraining.json`.
    """
    figure = style.figure(style.PAGE, 2.1)
    steps = [point["step"] for point in record["curve"]]
    causal = record.get("causal_steps", 0)
    for panel, (name, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        look = style.series_style(0).line()
        (line,) = panel.plot(steps, [point[name] for point in record["curve"]], markersize=3, **look)
        unigram = panel.axhline(record["unigram"][name], color=style.GREY, linestyle="--")
        shown = [line, unigram]
        if causal:
            shown.append(panel.axvspan(0, min(causal, steps[-1]), color=style.GREY, alpha=0.2, linewidth=0))
        panel.set_title(label)
        panel.set_xlabel("step")
        panel.set_ylim(0, 1.08 * max(record["unigram"][name], *(point[name] for point in record["curve"])))
        panel.locator_params(nbins=5)
        panel.xaxis.get_major_locator().set_params(integer=True)
    names = ["the model", "unigram model", "steps of training on next tokens"]
    style.legend_below(figure, shown, names[: len(shown)])
    return figure


def curve_png(record: Mapping[str, Any]) -> bytes | None:
    """Return the plot of `draw_pretraining` as PNG. Without matplotlib, log a line and return None."""
    try:
        return style.png(draw_pretraining(record))
    except UserError as error:
        notify(f"no picture of the curve: {error}")
        return None
