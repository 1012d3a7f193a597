"""The plane of alignment and uniformity (Wang and Isola, 2020), as figures 2 and 3 of SimCSE show it.

Both are losses: the nearer to the lower left corner, the better.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from senteval import ScoredPairs


@dataclass(frozen=True)
class Point:
    """A model's two losses, its Spearman × 100 if known, and the step of its run if it is a checkpoint."""

    label: str
    alignment: float
    uniformity: float
    spearman: float | None = None
    step: int | None = None


@style.styled
def draw(points: Sequence[Point]) -> "Figure":
    """Every label has its marker; filled by Spearman where that is known, hollow elsewhere.

    Points of one label that have steps are joined by arrows, in the order of their steps.
    """
    from matplotlib.cm import ScalarMappable

    whole = style.figure(style.COLUMN, 2.9)
    axes = whole.subplots()
    norm = _norm([point.spearman for point in points if point.spearman is not None])
    labels = list(dict.fromkeys(point.label for point in points))
    handles = []
    for place, label in enumerate(labels):
        own = [point for point in points if point.label == label]
        _path(axes, [point for point in own if point.step is not None], style.series_style(place))
        _marks(axes, own, style.series_style(place).marker, norm)
        handles.append(_handle(style.series_style(place), own))
    axes.set_xlabel("uniformity (lower is better)")
    axes.set_ylabel("alignment (lower is better)")
    axes.margins(0.12)
    if norm:
        bar = whole.colorbar(ScalarMappable(norm, style.SEQUENTIAL), ax=axes, pad=0.02, aspect=25)
        bar.outline.set_linewidth(0.5)
        bar.set_label("Spearman × 100")
    style.legend_below(whole, handles, [_name(label, points) for label in labels])
    return whole


def _norm(scores: Sequence[float]) -> Any:
    from matplotlib.colors import Normalize

    if not scores:
        return None
    low, high = min(scores), max(scores)
    # A scale needs two ends: one score alone lies in the middle.
    return Normalize(low - 0.5, high + 0.5) if high - low < 1e-9 else Normalize(low, high)


def _path(axes: "Axes", points: Sequence[Point], look: style.SeriesStyle) -> None:
    """Arrows from each checkpoint to the next, and the steps of the first and the last."""
    ordered = sorted(points, key=lambda point: point.step)
    for start, end in pairwise(ordered):
        axes.annotate(
            "", xytext=(start.uniformity, start.alignment), xy=(end.uniformity, end.alignment), zorder=2,
            arrowprops={"arrowstyle": "-|>", "color": look.color, "linewidth": 1.0, "shrinkA": 3, "shrinkB": 3,
                        "mutation_scale": 8},
        )  # fmt: skip
    # The first below and the last above: a short path's would cover each other.
    ends = dict(zip([*ordered[:1], *ordered[1:][-1:]], ((5, -9), (5, 5)), strict=False))
    for point, shift in ends.items():
        place = (point.uniformity, point.alignment)
        axes.annotate(f"step {point.step}", place, shift, textcoords="offset points", fontsize=6, color=look.color)


def _marks(axes: "Axes", points: Sequence[Point], marker: str, norm: Any) -> None:
    size = 14 if any(point.step is not None for point in points) else 30  # small ones leave room for arrows
    options: dict[str, Any] = {"marker": marker, "s": size, "edgecolors": "black", "linewidths": 0.6, "zorder": 3}
    known = [point for point in points if point.spearman is not None]
    hollow = [point for point in points if point.spearman is None]
    if known:
        scores = [point.spearman for point in known]
        axes.scatter(*_places(known), c=scores, cmap=style.SEQUENTIAL, norm=norm, **options)
    if hollow:
        axes.scatter(*_places(hollow), c="white", **options)


def _places(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.uniformity for point in points], [point.alignment for point in points]


def _handle(look: style.SeriesStyle, points: Sequence[Point]) -> Any:
    from matplotlib.lines import Line2D

    joined = sum(point.step is not None for point in points) > 1
    line = {"linestyle": "-", "color": look.color} if joined else {"linestyle": "none"}
    return Line2D([], [], marker=look.marker, markerfacecolor="#bbbbbb", markeredgecolor="black", **line)


def _name(label: str, points: Sequence[Point]) -> str:
    """Label and score, for which of a run's checkpoints the last one stands."""
    last = max((point for point in points if point.label == label), key=lambda point: point.step or 0)
    return label if last.spearman is None else f"{label} ({last.spearman:.2f})"


def gather(args: argparse.Namespace) -> list[Point]:
    """Points of score files, of encoders, and of the checkpoints of runs; all of one split."""
    if not (args.sources or args.over_training):
        raise UserError("nothing to draw: give files of scores, encoders, or --over_training RUN")
    places = inputs.labelled(args.sources)
    files = {label: Path(place) for label, place in places.items() if place.endswith(".json")}
    runs = inputs.labelled(args.over_training)
    if shared := next((label for label in places if label in runs), None):
        raise UserError(f"two are called {shared!r}; give LABEL=PLACE for one of them")
    points = [_of_scores(label, path, args.split) for label, path in files.items()]
    steps = {label: checkpoints(Path(place)) for label, place in runs.items()}
    encoders = {label: place for label, place in places.items() if label not in files}
    if not (encoders or steps):
        _refuse_unused(args)
    else:
        points += _of_encoders(encoders, steps, args)
    return points


def _refuse_unused(args: argparse.Namespace) -> None:
    """UserError for options that say how to measure, where everything is measured already."""
    changed = inputs.encoder_arguments(args).changed()
    changed |= {"custom_data"} if args.custom_data else set()
    changed |= {"data_dir"} if args.data_dir != inputs.DATA_DIR else set()
    if changed:
        raise UserError(f"--{min(changed)} only counts where an encoder is measured, and none is; leave it out")


def _of_scores(label: str, path: Path, split: str) -> Point:
    (task,) = inputs.read_family(path, "geometry")
    if task["split"] != split:
        raise UserError(f"{path} measures the {task['split']} split, not {split}; give --split {task['split']}")
    values = [task[name] for name in ("alignment", "uniformity", "spearman")]
    inputs.notify(f"{label}: {task['sentences']:,} sentences of {inputs.STS_TASK} {split}, measured in {path}")
    return Point(label, *inputs.numbers(values, str(path)))


def _of_encoders(
    encoders: dict[str, str], runs: dict[str, dict[int, Path]], args: argparse.Namespace
) -> Iterator[Point]:
    from senteval import settings_of_mode
    from senteval.geometry import GEOMETRY

    settings = settings_of_mode(args.split, official=not args.custom_data)
    pairs = GEOMETRY[f"{inputs.STS_TASK}-geometry"].load(Path(args.data_dir), settings).pairs
    for label, place in encoders.items():
        yield _measured(label, None, place, args, pairs)
    for label, steps in runs.items():
        for step, folder in steps.items():
            yield _measured(label, step, str(folder), args, pairs)


def _measured(label: str, step: int | None, place: str, args: argparse.Namespace, pairs: "ScoredPairs") -> Point:
    from senteval.geometry import measure_pairs

    ((_, encoded),) = inputs.encode_by_each({label: place}, args, inputs.STS_TASK, [pairs])
    measured = measure_pairs(inputs.STS_TASK, pairs, encoded.first, encoded.second)
    return Point(label, measured.alignment, measured.uniformity, measured.spearman, step)


def checkpoints(run: Path) -> dict[int, Path]:
    """Step → folder of the checkpoints of a run, in order; UserError where there is none."""
    from dcpcse.encoders.storage.manifest import is_model_folder

    if not run.is_dir():
        raise UserError(f"--over_training {run}: is not a folder")
    numbered = {path.name.removeprefix("checkpoint-"): path for path in run.glob("checkpoint-*")}
    found = {int(step): path for step, path in numbered.items() if step.isdigit() and is_model_folder(path)}
    if not found:
        raise UserError(f"--over_training {run}: holds no checkpoint-* folder; train it with --save_steps")
    return dict(sorted(found.items()))


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "Score file (.json of --output_file with geometry) or an encoder; LABEL=PLACE says what it is called."
    parser.add_argument("sources", nargs="*", metavar="SCORES_OR_MODEL", help=help)
    help = "Folder of a run: its checkpoints, joined by arrows; several may be given."
    parser.add_argument("--over_training", action="append", default=[], metavar="RUN", help=help)
    inputs.add_data(parser, task=False)


KIND = style.PlotKind(
    "plane of alignment and uniformity", _add_options, lambda args: draw(gather(args)), of_encoders=True
)
