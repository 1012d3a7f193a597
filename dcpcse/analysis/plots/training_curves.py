"""What runs logged over their steps: loss and its terms, learning rate, norm of the gradient, dev scores."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.errors import UserError, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_DRAWN = ("step", "epoch", "total_flos")
"""Of each line: its place, and what says nothing about training."""
TOTALS = "train_"
"""How the numbers of a run's last line begin, such as its time."""
TITLES = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "grad_norm": "norm of the gradient",
    "cosine_negative": "mean cosine of random pairs",
    "effective_rank": "effective rank",
}
ORDER = ("loss", "loss_", "weight_", "learning_rate", "grad_norm", "", "eval_")
"""Names, or what they begin with, in the order of their panels; what is none of these comes before the dev scores."""


@style.styled
def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """A panel for each number, a line for each run; lines of `metrics.jsonl`, as `run_files.read_metrics` gives.

    A number that was not finite (null in the file) leaves a gap. Raises UserError where there is nothing to draw.
    """
    names = metric_names(runs)
    if not names:
        raise UserError("the runs have logged nothing that can be drawn; lower --logging_steps")
    whole, axes = style.panel_grid(len(names), 1.5, sharex=True)
    handles: dict[str, Any] = {}
    for place, (panel, name) in enumerate(zip(axes[0], names, strict=True)):
        style.title(panel, TITLES.get(name, name.replace("eval_", "dev: ", 1)), min(len(names), style.PANELS_PER_ROW))
        for i, (label, lines) in enumerate(runs.items()):
            steps, values = series(lines, name)
            if len(steps):
                # Marks on all points of a long curve would be one thick line: some eight of them tell the runs apart.
                marks = {"markersize": 3.5, "markevery": max(1, len(steps) // 8)}
                (handles[label],) = panel.plot(steps, values, **marks, **style.series_style(i).line())
        panel.tick_params(labelbottom=True)  # of all: the lowest of a column may be empty
        if place + style.PANELS_PER_ROW >= len(names):
            panel.set_xlabel("step")
        panel.locator_params(nbins=5)
        panel.xaxis.get_major_locator().set_params(integer=True)
    style.legend_below(
        whole, [handles[label] for label in runs if label in handles], [r for r in runs if r in handles]
    )
    return whole


def metric_names(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Names of what is drawn, in the order of their panels."""
    logged = dict.fromkeys(name for lines in runs.values() for line in lines for name in line)
    kept = [name for name in logged if name not in NOT_DRAWN and not name.startswith(TOTALS)]
    return sorted(kept, key=_order)  # stable: within a kind as they were logged


def _order(name: str) -> int:
    exact = [i for i, start in enumerate(ORDER) if name == start]
    begun = [i for i, start in enumerate(ORDER) if start.endswith("_") and name.startswith(start)]
    return next(iter([*exact, *begun]), ORDER.index(""))


def series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a number, NaN where it was not finite."""
    logged = [(line["step"], np.nan if line[name] is None else line[name]) for line in lines if name in line]
    steps, values = zip(*logged, strict=True) if logged else ((), ())
    return np.array(steps, dtype=float), np.array(values, dtype=float)


def gather(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Lines of the `metrics.jsonl` of every run."""
    from dcpcse.utils.run_files import METRICS, read_metrics

    runs = {}
    for label, place in inputs.labelled(args.runs).items():
        path = Path(place) / METRICS
        runs[label] = read_metrics(Path(place))
        if not runs[label]:
            raise UserError(f"{path} {'is empty' if path.is_file() else 'is missing'}; give the folder of a run")
        last = max(line["step"] for line in runs[label])
        unknown = sum(value is None for line in runs[label] for value in line.values())
        said = f"; {unknown} numbers were not finite and are gaps" if unknown else ""
        inputs.notify(f"{label}: {plural(len(runs[label]), 'line')} up to step {last} ({path}){said}")
    return runs


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "Output folder of train.py; LABEL=FOLDER says what it is called."
    parser.add_argument("runs", nargs="+", metavar="RUN", help=help)


KIND = style.PlotKind("what runs logged over their steps", _add_options, lambda args: draw(gather(args)))
