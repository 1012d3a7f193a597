"""Scores against the length of the prompt: mean over seeds, each seed, and one sample standard deviation."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.analysis.plots import inputs, style
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH_ROW = re.compile(r"(?P<study>.*)/length-(?P<length>\d+)")
"""Name of a row that says of which length it is."""

STS_AVERAGE = "STS average, Spearman × 100"
SEED_OFFSET = 0.12
"""How far right of its length a seed stands, so that the bar does not hide it."""


@style.styled
def draw(
    points: Mapping[int, Sequence[float]],
    published: Mapping[int, float] | None = None,
    score: str = STS_AVERAGE,
) -> "Figure":
    """Scores by length, of all seeds; published: by length too. Lengths stand at equal distances."""
    published = published or {}
    whole = style.figure(style.COLUMN, 2.5)
    axes = whole.subplots()
    lengths = sorted({*points, *published})
    place = {length: i for i, length in enumerate(lengths)}
    handles: dict[str, Any] = {}
    measured = [length for length in lengths if length in points]
    seeds = [(place[length] + SEED_OFFSET, value) for length in measured for value in points[length]]
    (handles["one seed"],) = axes.plot(*zip(*seeds, strict=True), linestyle="none", marker="x", color=style.GREY)
    bars = axes.errorbar(
        [place[length] for length in measured],
        [np.mean(points[length]) for length in measured],
        # Of one seed there is no deviation, and no bar.
        [np.std(points[length], ddof=1) if len(points[length]) > 1 else np.nan for length in measured],
        capsize=3,
        markersize=5,
        **style.series_style(0).line(),
    )
    handles["mean ± s.d."] = bars
    if published:
        known = [length for length in lengths if length in published]
        (handles["published"],) = axes.plot(
            [place[length] for length in known],
            [published[length] for length in known],
            markerfacecolor="white",
            **style.series_style(1).line(),
        )
    axes.set_xticks(range(len(lengths)), lengths)
    axes.margins(x=0.08)
    axes.set_xlabel("prompt length, in tokens")
    axes.set_ylabel(score)
    style.legend_below(whole, list(handles.values()), list(handles))
    return whole


def read_points(path: Path, study: str | None, cell: str) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Scores over seeds by length, and published ones, of the rows named STUDY/length-P."""
    content = inputs.read_json(path)
    rows = content.get("rows") if isinstance(content, dict) else None
    found = [(named, row) for row in rows or () if (named := LENGTH_ROW.fullmatch(row["name"]))]
    studies = dict.fromkeys(named["study"] for named, _ in found)
    if not studies:
        raise UserError(f"{path} holds no rows named .../length-P; give an answer about prompt lengths")
    if study is None and len(studies) > 1:
        raise UserError(f"{path} holds lengths of several studies; choose by --study: {', '.join(studies)}")
    if study is not None and study not in studies:
        raise UserError(f"--study {study}: {path} holds {', '.join(studies)}")
    chosen = {int(named["length"]): row["cells"] for named, row in found if study in (None, named["study"])}
    points, published = {}, {}
    for length, cells in sorted(chosen.items()):
        owner = f"{path}, length {length}"
        if cell not in cells:
            raise UserError(f"--cell {cell}: {owner} holds {', '.join(cells) or 'none'}")
        points[length] = inputs.numbers(cells[cell]["values"], owner)
        if cells[cell].get("published") is not None:
            (published[length],) = inputs.numbers([cells[cell]["published"]], f"{owner}, published")
    return points, published


def _picture(args: argparse.Namespace) -> "Figure":
    points, published = read_points(Path(args.answer), args.study, args.cell)
    for length, values in points.items():
        inputs.notify(f"length {length}: {np.mean(values):.2f}, n = {len(values)} ({args.answer})")
    return draw(points, published, STS_AVERAGE if args.cell == "avg" else args.cell)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("answer", metavar="ANSWER.json", help="Rows named STUDY/length-P with scores over seeds.")
    parser.add_argument("--cell", default="avg", help="Which score of each row (default: %(default)s).")
    parser.add_argument("--study", help="Whose lengths, where the file holds several.")


KIND = style.PlotKind("score against prompt length", _add_options, _picture)
