"""Plot the values that runs logged: loss and its terms, learning rate, gradient norm and dev scores over steps."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.command_parser import CommandParser
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
"""Order of the panels, by name or prefix; names not listed take the position of the empty string."""


@style.styled
def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Draw a panel per logged value and a line per run.

    runs: label → logged lines as returned by `run_files.read_metrics`. A value that was not finite (null in the file)
    leaves a gap. Raises UserError if there is nothing to draw.
    """
    names = metric_names(runs)
    if not names:
        raise UserError("the runs have logged no values that can be drawn; log more often")
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
    """Return the steps at which a value was logged, and the values; NaN for those that were not finite."""
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
