"""Plot models by alignment and uniformity (Wang and Isola, 2020), as in figures 2 and 3 of SimCSE.

Lower is better for both measures, so better models are near the lower left corner.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.analysis.plots import inputs, style
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import checkpoints_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """Alignment and uniformity of a model, Spearman × 100 if known, and the training step of a checkpoint."""

    label: str
    alignment: float
    uniformity: float
    spearman: float | None = None
    step: int | None = None


@style.styled
def draw(points: Sequence[Point]) -> "Figure":
    """Draw a marker at the alignment and uniformity of each point; each label has a different shape of marker.

    The colour of a marker shows Spearman; the marker is hollow if Spearman is unknown. Arrows join the points that
    have the same label and a training step, in the order of the steps.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D

    figure = style.figure(style.COLUMN, 2.9)
    axes = figure.subplots()
    norm, scores = None, [point.spearman for point in points if point.spearman is not None]
    if scores:
        low, high = min(scores), max(scores)
        # A colour scale needs two ends; a single score is put in the middle.
        norm = Normalize(low - 0.5, high + 0.5) if high - low < 1e-9 else Normalize(low, high)
    handles, names = [], []
    for i, label in enumerate(dict.fromkeys(point.label for point in points)):
        group, look = [point for point in points if point.label == label], style.series_style(i)
        path = sorted((point for point in group if point.step is not None), key=lambda point: point.step)
        _draw_path(axes, path, look)
        _draw_markers(axes, group, look.marker, norm)
        line = {"linestyle": "-", "color": look.color} if len(path) > 1 else {"linestyle": "none"}
        handles.append(Line2D([], [], marker=look.marker, markerfacecolor="#bbbbbb", markeredgecolor="black", **line))
        last = path[-1] if path else group[0]
        names.append(label if last.spearman is None else f"{label} ({last.spearman:.2f})")
    axes.set(xlabel="uniformity (lower is better)", ylabel="alignment (lower is better)")
    axes.margins(0.12)
    if norm:
        style.colorbar(figure, ScalarMappable(norm, style.SEQUENTIAL), axes, "Spearman × 100", pad=0.02)
    style.legend_below(figure, handles, names)
    return figure


def _draw_path(axes: "Axes", path: Sequence[Point], look: style.SeriesStyle) -> None:
    """Draw an arrow from each checkpoint to the next, and label the first and the last with their steps."""
    for start, end in pairwise(path):
        axes.annotate(
            "", xytext=(start.uniformity, start.alignment), xy=(end.uniformity, end.alignment), zorder=2,
            arrowprops={"arrowstyle": "-|>", "color": look.color, "linewidth": 1.0, "shrinkA": 3, "shrinkB": 3,
                        "mutation_scale": 8},
        )  # fmt: skip
    # The first label is below its marker and the last one above, since they would overlap on a short path.
    for point, shift in zip([*path[:1], *path[1:][-1:]], ((5, -9), (5, 5)), strict=False):
        xy = (point.uniformity, point.alignment)
        axes.annotate(f"step {point.step}", xy, shift, textcoords="offset points", fontsize=6, color=look.color)


def _draw_markers(axes: "Axes", points: Sequence[Point], marker: str, norm: Any) -> None:
    from matplotlib import colormaps

    size = 14 if any(point.step is not None for point in points) else 30  # small markers leave room for arrows
    fill = [
        "white" if point.spearman is None else colormaps[style.SEQUENTIAL](norm(point.spearman)) for point in points
    ]
    x, y = [point.uniformity for point in points], [point.alignment for point in points]
    axes.scatter(x, y, s=size, c=fill, marker=marker, edgecolors="black", linewidths=0.6, zorder=3)


def gather(args: argparse.Namespace) -> list[Point]:
    """Return the points of the given score files, encoders and checkpoints of runs, evaluated on the same split."""
    if not (args.sources or args.over_training):
        raise UserError("nothing to draw: give score files, encoders, or --over_training RUN")
    places, runs = inputs.labelled(args.sources), inputs.labelled(args.over_training)
    if shared := next((label for label in places if label in runs), None):
        raise UserError(
            f"a model and a run have the label {shared!r}; give one of them a different label, as in {shared}-2=PLACE"
        )
    points = [_read_point(label, Path(path), args.split) for label, path in places.items() if _is_scores(path)]
    steps = {label: checkpoints(Path(path)) for label, path in runs.items()}
    encoders = {label: path for label, path in places.items() if not _is_scores(path)}
    if encoders or steps:
        return points + list(_evaluate(encoders, steps, args))
    unused = inputs.encoder_arguments(args).changed() | EncodeOptions.read(vars(args)).given().keys()
    unused |= {"custom_data"} if args.custom_data else set()
    unused |= {"data_dir"} if args.data_dir != inputs.DATA_DIR else set()
    if unused:
        raise UserError(f"--{min(unused)} has no effect, since no encoder is evaluated; omit it")
    return points


def _is_scores(path: str) -> bool:
    return path.endswith(".json")


def _read_point(label: str, path: Path, split: str) -> Point:
    task = inputs.read_task(path, "geometry", needs=("split", "spearman", "uniformity", "sentences"))
    if task["split"] != split:
        raise UserError(
            f"{path} contains scores of the {task['split']} split, not of {split}; give --split {task['split']}"
        )
    values = [task.get(name) for name in ("alignment", "uniformity", "spearman")]
    inputs.notify(f"{label}: {task['sentences']:,} sentences of {inputs.STS_TASK} {split}, scores from {path}")
    return Point(label, *inputs.numbers(values, str(path)))


def _evaluate(encoders: dict[str, str], runs: dict[str, dict[int, Path]], args: argparse.Namespace) -> Iterator[Point]:
    from senteval import settings_of_mode
    from senteval.geometry import GEOMETRY, measure_pairs

    settings = settings_of_mode(args.split, official=not args.custom_data)
    pairs = GEOMETRY[f"{inputs.STS_TASK}-geometry"].load(Path(args.data_dir), settings).pairs
    places = [(label, None, path) for label, path in encoders.items()]
    places += [(label, step, str(folder)) for label, steps in runs.items() for step, folder in steps.items()]
    for label, step, path in places:
        ((_, encoded),) = inputs.encode_by_each({label: path}, args, inputs.STS_TASK, [pairs])
        measured = measure_pairs(inputs.STS_TASK, pairs, encoded.first, encoded.second)
        yield Point(label, measured.alignment, measured.uniformity, measured.spearman, step)


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the checkpoint folders of a run by step, in the order of the steps.

    Raises UserError if the run has no checkpoints.
    """
    from dcpcse.encoders.storage.manifest import is_model_folder

    if not run.is_dir():
        raise UserError(f"--over_training {run}: is not a folder; give the output folder of a run")
    folders = {step: path for step, path in checkpoints_in(run).items() if is_model_folder(path)}
    if not folders:
        raise UserError(f"--over_training {run}: contains no checkpoint-* folder; train with --save_steps")
    return folders


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "Score file (.json of --output_file with geometry) or encoder; LABEL=PLACE sets the label."
    parser.add_argument("sources", nargs="*", metavar="SCORES_OR_MODEL", help=help)
    help = "Output folder of a run, whose checkpoints are joined by arrows; can be given several times."
    parser.add_argument("--over_training", action="append", default=[], metavar="RUN", help=help)
    inputs.add_data(parser, task=False)


KIND = style.PlotKind(
    "Plane of alignment and uniformity.", _add_options, lambda args: draw(gather(args)), of_encoders=True
)
