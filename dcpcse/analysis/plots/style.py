"""What every picture shares: its kind, its look, and how it is written.

For print, for the colour-blind, and the same bytes every time.
"""

import argparse
import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.utils.errors import UserError, printable
from dcpcse.utils.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.3
"""Widths of a column and of a page of a two-column paper, in inches."""

PANELS_PER_ROW = 3
"""Panels beside each other, at most."""

DPI = 240
GREY = "#6e6e6e"
SEQUENTIAL = "cividis"
"""Colour map of magnitudes: the same order in grey and to the colour-blind."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito (2008), without the yellow, which is too faint on paper."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")

RC = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.8,  # a whole period of every line style
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "svg.fonttype": "none",  # text that can be searched and edited
    "svg.hashsalt": "dcpcse",  # otherwise ids are drawn anew in every process
}

CHARACTERS_PER_INCH = 17
"""Of a legend's font; on the safe side."""


@dataclass(frozen=True)
class PlotKind:
    """A kind for the command: help, options, and what makes the picture of them.

    of_encoders: it takes the options of encoders too.
    """

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    picture: "Callable[[argparse.Namespace], Figure]"
    of_encoders: bool = False


@dataclass(frozen=True)
class SeriesStyle:
    """What tells one series from the others, by more than its colour."""

    color: str
    marker: str
    linestyle: Any
    hatch: str

    def line(self, **changes: Any) -> dict[str, Any]:
        """Options of a line with marks."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle, **changes}


def series_style(index: int) -> SeriesStyle:
    """The look of the i-th series; no two among the first 280 share colour, marker and line."""
    return SeriesStyle(*(values[index % len(values)] for values in (COLOURS, MARKERS, LINES, HATCHES)))


def require_matplotlib() -> None:
    """UserError where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UserError('pictures need matplotlib: pip install "matplotlib>=3.9,<4" (the extra pictures)') from error


@contextmanager
def _style() -> Iterator[None]:
    """Matplotlib's own defaults with ours on top, whatever the user's matplotlibrc says."""
    import matplotlib.style

    with matplotlib.style.context(["default", RC]):
        yield


def styled(draw: "Callable[..., Figure]") -> "Callable[..., Figure]":
    """Draw in our style; UserError where matplotlib is missing."""

    @wraps(draw)
    def in_style(*args: Any, **options: Any) -> "Figure":
        require_matplotlib()
        with _style():
            return draw(*args, **options)

    return in_style


def figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches; of no window and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panel_grid(count: int, height: float, rows_each: int = 1, **options: Any) -> "tuple[Figure, np.ndarray]":
    """A figure for so many panels, at most `PANELS_PER_ROW` beside each other, and its axes (rows_each, count).

    height: of a panel, in inches. Places that stay empty are switched off.
    """
    columns = min(count, PANELS_PER_ROW)
    rows = -(-count // columns)
    # Column width for one panel, so that type keeps its size whatever the number of panels.
    whole = figure(COLUMN if columns == 1 else PAGE, height * rows * rows_each + 0.2)
    axes = whole.subplots(rows * rows_each, columns, squeeze=False, **options)
    ordered = axes.reshape(rows, rows_each, columns).transpose(1, 0, 2).reshape(rows_each, rows * columns)
    for empty in ordered[:, count:].flat:
        empty.set_axis_off()
    return whole, ordered[:, :count]


def plain(text: str, width: int | None = None) -> str:
    """Escape a label so that it is drawn literally, and wrap it at `width` characters.

    Dollar signs would start a formula, an underscore at the start would hide it from legends, and XML does not allow
    control characters.
    """
    text = printable(text).replace("$", r"\$")
    text = f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text
    return textwrap.fill(text, width) if width else text


def legend_below(whole: "Figure", handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under all panels, in as many columns as fit."""
    room = int(whole.get_figwidth() * CHARACTERS_PER_INCH)
    labels = [plain(label, room - 6) for label in labels]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(len(labels), room // (longest + 6)))
    whole.legend(handles, labels, loc="outside lower center", ncols=columns)


def title(axes: "Axes", text: str, columns: int = 1, below: str = "") -> None:
    """A panel's title, in lines that fit one of so many panels beside each other; below: what stands under it."""
    room = COLUMN if columns == 1 else PAGE / columns
    lines = [plain(line, int((room - 0.5) * CHARACTERS_PER_INCH)) for line in (text, below) if line]
    axes.set_title("\n".join(lines))


def png(whole: "Figure") -> bytes:
    """The picture as PNG."""
    return _render(whole, "png", {"Software": None})


def svg(whole: "Figure") -> bytes:
    """The picture as SVG, in UTF-8, its text as text."""
    return _render(whole, "svg", {"Date": None})


def _render(whole: "Figure", form: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with _style():
        whole.savefig(buffer, format=form, metadata=metadata)
    return buffer.getvalue()


def save(whole: "Figure", stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg, each whole or not at all; gives their paths."""
    written = {stem.with_name(f"{stem.name}.png"): png(whole), stem.with_name(f"{stem.name}.svg"): svg(whole)}
    for path, content in written.items():
        write_atomic(path, content)
    return list(written)
