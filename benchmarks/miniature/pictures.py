"""The pictures of the page: claims with their intervals, and tokens."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.miniature.verdicts import FAILS, HOLDS, METRICS, OPEN, Answer

STYLE = ["default", Path(__file__).with_name("miniature.mplstyle")]

# Colours of Okabe and Ito (2008), which colour-blind readers can tell apart.
RED, GREEN, GREY = "#D55E00", "#009E73", "#6e6e6e"

# Verdict → colour and marker; the markers tell them apart without colour.
LOOKS = {HOLDS: (GREEN, "o"), FAILS: (RED, "X"), OPEN: (GREY, "D")}

# Height of a row and width of a page in inches.
ROW, WIDTH = 0.17, 6.3

# The look of a published difference.
PUBLISHED = {"color": "black", "marker": "|", "markersize": 7, "markeredgewidth": 1.2, "linestyle": "none"}


def _save(drawn: Figure, handles: Mapping[str, Any], columns: int, path: Path) -> None:
    """Add a legend below all panels, and write the picture, the same bytes each time."""
    drawn.legend([*handles.values()], [*handles], loc="outside lower center", ncols=columns)
    drawn.savefig(path, metadata={"Software": None})


@matplotlib.style.context(STYLE)
def draw_claims(answers: Sequence[Answer], path: Path) -> None:
    """Draw the difference of each claim that was run, with its 95 % interval and that of its step of Holm.

    Differences are turned so that the right-hand side is the claimed one. Scores in points are in the first panel,
    alignment and uniformity in the second.
    """
    run = [answer for answer in answers if answer["value"] is not None]
    parts = {
        "points": [answer for answer in run if METRICS[answer["metric"]].scale == 100],
        "alignment or uniformity": [answer for answer in run if METRICS[answer["metric"]].scale == 1],
    }
    parts = {unit: part for unit, part in parts.items() if part}
    heights = [ROW * len(part) + 0.1 for part in parts.values()]
    drawn = Figure(figsize=(WIDTH, sum(heights) + 0.55 * len(parts) + 0.5), layout="constrained")
    axes = drawn.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (unit, part) in zip(axes, parts.items(), strict=True):
        _forest(panel, part)
        panel.set_xlabel(f"difference in {unit}\n(right: as the paper claims)")
    axes[0].set_title("The claims that were run")
    handles = {
        verdict: Line2D([], [], color=colour, marker=marker, linewidth=2.2)
        for verdict, (colour, marker) in LOOKS.items()
        if any(answer["verdict"] == verdict for answer in run)
    }
    handles["published difference"] = Line2D([], [], **PUBLISHED)
    handles["thick: 95 % interval; thin: interval after Holm"] = Line2D([], [], color="black", linewidth=0.7)
    if any(None not in answer["claimed"] for answer in run):
        handles["claimed range"] = Line2D([], [], color="#dddddd", linewidth=5)
    _save(drawn, handles, 2, path)


def _forest(axes: Axes, answers: Sequence[Answer]) -> None:
    """Draw a row for each claim: its intervals, its difference, and the published difference."""
    reach = [abs(end) for one in answers for end in (one["step_low"], one["step_high"]) if isfinite(end)]
    for row, answer in enumerate(answers):
        colour, marker = LOOKS[answer["verdict"]]
        sign = -1 if answer["claimed"][0] is None else 1
        for ends, width in ((("step_low", "step_high"), 0.7), (("low", "high"), 2.2)):
            places = [sign * answer[end] for end in ends]
            axes.plot(places, [row, row], color=colour, linewidth=width, solid_capstyle="butt")
        axes.plot([sign * answer["value"]], [row], color=colour, marker=marker, markersize=4.5, linestyle="none")
        if None not in answer["figures"]:
            published = answer["figures"][1] - answer["figures"][0]
            axes.plot([sign * published], [row], **PUBLISHED)
            reach.append(abs(published))
        if None not in answer["claimed"]:
            axes.fill_betweenx([row - 0.45, row + 0.45], *answer["claimed"], color="#dddddd", linewidth=0, zorder=0)
    titles = [f"{'★ ' if one['starred'] else ''}{one['title']} ({one['paper']})" for one in answers]
    axes.set_yticks(range(len(answers)), titles, fontsize=6.5)
    for tick, answer in zip(axes.get_yticklabels(), answers, strict=True):
        tick.set_fontweight("bold" if answer["starred"] else "normal")
    axes.set_ylim(len(answers) - 0.4, -0.6)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.grid(visible=False, axis="y")
    if (largest := max(reach)) > 2:  # powers beyond 1, since differences of 0.3 and of 30 are drawn side by side
        axes.set_xscale("symlog", linthresh=1, linscale=0.6)
        ticks = [tick for tick in (-30, -10, -3, -1, 0, 1, 3, 10, 30) if abs(tick) <= largest]
        axes.set_xticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(-1.2 * largest, 1.2 * largest)


def plot(kind: str, words: Sequence[str], path: Path) -> None:
    """Draw a picture of `dcpcse plot`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dcpcse", "plot", kind, *words, "--output", f"{folder}/plot"]
        subprocess.run(command, check=True)
        shutil.copyfile(f"{folder}/plot.png", path)
