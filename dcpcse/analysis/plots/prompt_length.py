"""Plot scores against prompt length: the mean over seeds, each seed's score, and one sample standard deviation."""

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
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH_ROW = re.compile(r"(?P<study>.*)/length-(?P<length>[0-9]{1,9})")
"""Name of a row with the scores of a prompt length."""


@strict
@dataclass(kw_only=True)
class _AnswerCell(schema.Open):
    values: list  # of numbers, which `inputs.numbers` requires of the cell that is drawn
    published: int | float | None = schema.finite(default=None)
    comparable: bool = True


@strict
@dataclass(kw_only=True)
class AnswerRow(schema.Open):
    """A row in the answer file of dcpcse reproduce, which `reproduction.result_tables.as_json` writes."""

    name: str
    cells: dict[str, _AnswerCell] = field(default_factory=dict)


STS_AVERAGE = "STS average, Spearman × 100"
SEED_OFFSET = 0.12
"""Horizontal offset of the marks of single seeds, so that the error bar does not hide them."""


@style.styled
def draw(
    points: Mapping[int, Sequence[float]],
    published: Mapping[int, float] | None = None,
    score: str = STS_AVERAGE,
    comparable: bool = True,
) -> "Figure":
    """Draw the scores of all seeds and the published scores by prompt length; the lengths are equally spaced.

    comparable: whether the published scores belong to the same encoder, steps and settings; the legend says if not.
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
        # Without a line: DCPCSE states two of the points of its figure 2, and nothing about those between.
        look = {**style.series_style(1).line(), "linestyle": "none", "markerfacecolor": "white"}
        name = "published" if comparable else "published, not comparable"
        (handles[name],) = axes.plot([x[length] for length in known], heights, **look)
    axes.set_xticks(range(len(lengths)), lengths)
    axes.set_xlim(-0.6, len(lengths) - 0.4)
    axes.set_xlabel("prompt length in tokens")
    axes.set_ylabel(style.plain(score, 20))
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def read_points(path: Path, study: str | None, cell: str) -> tuple[dict[int, list[float]], dict[int, float], bool]:
    """Return length → scores of all seeds, length → published score, and whether the two are comparable.

    These are the values of the rows named STUDY/length-P. Rows that were not run are left out.
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


def _plot(args: argparse.Namespace) -> "Figure":
    points, published, comparable = read_points(Path(args.answer), args.study, args.cell)
    for length, values in points.items():
        printed = f"; published {published[length]:g}" if length in published else ""
        inputs.notify(f"length {length}: {np.mean(values):.2f}, n = {len(values)} ({args.answer}){printed}")
    return draw(points, published, STS_AVERAGE if args.cell == "avg" else args.cell, comparable)


def _add_options(parser: argparse.ArgumentParser) -> None:
    help = "Answer file of dcpcse reproduce, with rows named STUDY/length-P."
    parser.add_argument("answer", metavar="ANSWER.json", help=help)
    parser.add_argument("--cell", default="avg", help="Score of each row to draw (default: %(default)s).")
    parser.add_argument("--study", help="Study to draw, if the file contains several.")


KIND = style.PlotKind("Score against prompt length.", _add_options, _plot)
