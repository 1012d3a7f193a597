"""The pictures of the page: claims with their intervals, scores of all variants, prompt length, and figure 2."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots import prompt_length, style, token_projection
from dcpcse.evaluation.outcomes import packed
from dcpcse.experiments.miniature.claims import HIGHER, LENGTHS, LOWER
from dcpcse.experiments.miniature.measurement import Measurement, best_untouched
from dcpcse.experiments.miniature.settings import VARIANTS
from dcpcse.experiments.miniature.verdicts import FAILS, HOLDS, METRICS, OPEN, Answer
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_files
from dcpcse.utils.parsing import read_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOKENS = "tokens.npz"
"""File in the folder of a miniature: what figure 2 shows."""

LOOKS: Mapping[str, tuple[str, str]] = {
    HOLDS: (style.COLOURS[2], "o"),
    FAILS: (style.COLOURS[1], "X"),
    OPEN: (style.GREY, "D"),
}
"""Verdict → colour and marker; the markers tell them apart without colour."""

ROW = 0.17
"""Height of a row in inches."""


def reference_scores(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return the scores that trained variants are compared with: untouched [CLS], mean, and the best on STS-B dev."""
    named = {"untouched-cls": "untouched [CLS]", "untouched-mean": "untouched mean"}
    scores = {named[run.variant]: run.average for run in measurements if run.variant in named}
    if best := best_untouched(measurements):
        scores[f"best untouched on dev: {best.variant.removeprefix('untouched-')}"] = best.average
    return scores


@style.styled
def draw_claims(answers: Sequence[Answer]) -> "Figure":
    """Draw the difference of each claim that was run, with its 95 % interval and that of its step of Holm.

    Differences are turned so that the right-hand side is the claimed one. Scores in points are in the first panel,
    alignment and uniformity in the second.
    """
    points = [answer for answer in answers if answer.value is not None and METRICS[answer.claim.metric].scale == 100]
    others = [answer for answer in answers if answer.value is not None and METRICS[answer.claim.metric].scale == 1]
    panels = [part for part in (points, others) if part]
    heights = [ROW * len(part) + 0.1 for part in panels]
    drawn = style.figure(style.PAGE, sum(heights) + 0.55 * len(panels) + 0.5)
    axes = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, part in zip(axes, panels, strict=True):
        _forest(panel, part)
        unit = "points" if part is points else "alignment or uniformity"
        panel.set_xlabel(f"difference in {unit}\n(right: as claimed)")
    _claim_legend(drawn, [*points, *others])
    return drawn


def _forest(axes: "Axes", answers: Sequence[Answer]) -> None:
    ends = [end for entry in answers for end in (entry.step_low, entry.step_high) if isfinite(end)]
    for row, answer in enumerate(answers):
        colour, marker = LOOKS[answer.verdict]
        sign = -1 if answer.claim.claimed == LOWER else 1
        for low, high, width in (
            (answer.step_low, answer.step_high, 0.7),
            (answer.low, answer.high, 2.2),
        ):
            axes.plot([sign * low, sign * high], [row, row], color=colour, linewidth=width, solid_capstyle="butt")
        axes.plot([sign * answer.value], [row], color=colour, marker=marker, markersize=4.5, linestyle="none")
        first, second = answer.claim.figures
        if first is not None and second is not None:
            axes.plot([sign * (second - first)], [row], **PUBLISHED)
            ends.append(second - first)
        if answer.claim.claimed not in (HIGHER, LOWER):
            low, high = answer.claim.claimed
            axes.fill_betweenx([row - 0.45, row + 0.45], low, high, color="#dddddd", linewidth=0, zorder=0)
    titles = [f"{'* ' if entry.claim.starred else ''}{entry.claim.title} ({entry.claim.paper})" for entry in answers]
    axes.set_yticks(range(len(answers)), [style.plain(title) for title in titles], fontsize=6.5)
    for tick, answer in zip(axes.get_yticklabels(), answers, strict=True):
        tick.set_fontweight("bold" if answer.claim.starred else "normal")
    axes.set_ylim(len(answers) - 0.4, -0.6)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.grid(visible=False, axis="y")
    _scale(axes, max(map(abs, ends)))


PUBLISHED = {"color": "black", "marker": "|", "markersize": 7, "markeredgewidth": 1.2, "linestyle": "none"}
"""The look of a published difference."""


def _scale(axes: "Axes", largest: float) -> None:
    """Scale the axis by powers beyond 1, since differences of 0.3 and of 30 points are drawn side by side."""
    if largest <= 2:
        return
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    ticks = [tick for tick in (1, 3, 10, 30) if tick <= largest]
    places = [*(-tick for tick in reversed(ticks)), 0, *ticks]
    axes.set_xticks(places, [f"{position:+g}" if position else "0" for position in places])
    axes.minorticks_off()
    axes.set_xlim(-1.2 * largest, 1.2 * largest)


def _claim_legend(drawn: "Figure", answers: Sequence[Answer]) -> None:
    from matplotlib.lines import Line2D

    handles = {}
    for verdict, (colour, marker) in LOOKS.items():
        if any(answer.verdict == verdict for answer in answers):
            handles[verdict] = Line2D([], [], color=colour, marker=marker, linewidth=2.2)
    handles["published difference"] = Line2D([], [], **PUBLISHED)
    handles["thick: 95 %; thin: of the step of Holm"] = Line2D([], [], color="black", linewidth=0.7)
    if any(answer.claim.claimed not in (HIGHER, LOWER) for answer in answers):
        handles["claimed range"] = Line2D([], [], color="#dddddd", linewidth=5)
    style.legend_below(drawn, list(handles.values()), list(handles))


@style.styled
def draw_scores(measurements: Sequence[Measurement]) -> "Figure":
    """Draw the STS average of each seed and the mean of each trained variant, and untouched encoders as lines."""
    runs: dict[str, list[float]] = {}
    for run in measurements:
        if VARIANTS[run.variant].method is not None:
            runs.setdefault(run.variant, []).append(run.average)
    names = sorted(runs, key=lambda name: -float(np.mean(runs[name])))
    drawn = style.figure(style.PAGE, ROW * len(names) + 1.1)
    axes = drawn.subplots()
    handles = {}
    for row, name in enumerate(names):
        (handles["one seed"],) = axes.plot(
            runs[name], [row] * len(runs[name]), linestyle="none", marker="x", color=style.GREY, markersize=3.5
        )
        (handles["mean over seeds"],) = axes.plot(
            [np.mean(runs[name])], [row], linestyle="none", marker="o", color=style.COLOURS[0]
        )
    for number, (label, score) in enumerate(reference_scores(measurements).items(), start=1):
        look = style.series_style(number)
        handles[label] = axes.axvline(score, color=look.color, linestyle=look.linestyle, linewidth=1)
    axes.set_yticks(range(len(names)), [f"{'* ' if VARIANTS[name].starred else ''}{name}" for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(prompt_length.STS_AVERAGE)
    style.legend_below(drawn, list(handles.values()), list(handles))
    return drawn


def length_points(measurements: Sequence[Measurement]) -> dict[int, list[float]]:
    """Return prompt length → STS average × 100 of each seed."""
    points: dict[int, list[float]] = {}
    for length, variant in LENGTHS.items():
        if averages := [run.average for run in measurements if run.variant == variant]:
            points[length] = averages
    return points


def draw_lengths(measurements: Sequence[Measurement]) -> "Figure":
    """Draw the STS average against the prompt length (DCPCSE, figure 2)."""
    return prompt_length.draw(length_points(measurements))


def store_tokens(folder: Path, encoders: Mapping[str, Path], text: Path, most: int = 100_000) -> None:
    """Write what PromptBERT's figure 2 shows of some encoders with LM heads, so that it is drawn without them.

    folder: that of the miniature. encoders: name → folder. text: file in which tokens are counted; most: number of its
    lines that are read.
    """
    from dcpcse.inference.loading import load_model

    lines = token_projection.read_lines(text, most)
    arrays: dict[str, np.ndarray] = {}
    for label, path in encoders.items():
        model = load_model(str(path), EncoderArguments(pooler_type="static_lm_head"))
        for panel in token_projection.token_panels(label, model, list(token_projection.MATRICES), lines):
            arrays |= {
                f"{label}/{panel.matrix}/places": panel.places.astype(np.float16),
                f"{label}/{panel.matrix}/rank": panel.rank.astype(np.int32),
                f"{label}/{panel.matrix}/subword": panel.subword,
                f"{label}/{panel.matrix}/capital": panel.capital,
                f"{label}/{panel.matrix}/axes": np.array(panel.axes),
            }
    arrays["text"] = np.array(text.name)
    write_files({folder / TOKENS: packed(arrays)})


def read_tokens(folder: Path) -> tuple[list[token_projection.Tokens], str]:
    """Return what `store_tokens` wrote, and the name of the text. Raises UserError if the file is damaged."""
    path = folder / TOKENS
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as file:
            arrays = dict(file)
        panels = [
            token_projection.Tokens(
                label,
                matrix,
                *(arrays[f"{label}/{matrix}/{name}"] for name in ("places", "rank", "subword", "capital")),
                tuple(str(name) for name in arrays[f"{label}/{matrix}/axes"]),
            )
            for label, matrix, _ in (name.split("/") for name in arrays if name.endswith("/places"))
        ]
        return panels, str(arrays["text"])
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path} is damaged; delete it, and run dcpcse reproduce --miniature again") from error


def draw_tokens(folder: Path) -> "Figure":
    """Draw PromptBERT's figure 2: token embeddings by frequency and by class, tied and untied."""
    return token_projection.draw(*read_tokens(folder))
