"""The style of all plots, for print and for colour-blind readers, and functions that save plots reproducibly."""

import argparse
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import warn
from dcpcse.utils.errors import printable
from dcpcse.utils.files import write_files
from dcpcse.utils.packages import not_installed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.3
"""Widths of a column and of a page of a two-column paper, in inches."""

PANELS_PER_ROW = 3
"""Maximum number of panels side by side."""

DPI = 240
GREY = "#6e6e6e"
SEQUENTIAL = "cividis"
"""Colour map of magnitudes; its order is the same in grey and for colour-blind readers."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
"""Colours of Okabe and Ito (2008), without yellow, which is too faint on paper."""
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
    "legend.handlelength": 2.8,  # a full period of every line style
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
    "svg.fonttype": "none",  # text stays text, which can be searched and edited
    "svg.hashsalt": "dcpcse",  # without a fixed salt, ids differ in every process
}

CHARACTERS_PER_INCH = 17
"""A conservative estimate of the number of characters per inch in the font of legends."""


@dataclass(frozen=True)
class PlotKind:
    """A kind of plot of `dcpcse plot`: its help text, its options, and the function that draws the plot.

    Args:
        of_encoders: Whether the plot also has the options that say how to load encoders.
    """

    help: str
    add_options: Callable[[CommandParser], None]
    plot: "Callable[[argparse.Namespace], Figure]"
    of_encoders: bool = False


@dataclass(frozen=True)
class SeriesStyle:
    """The colour, marker and line of a series, so that series differ in more than the colour."""

    color: str
    marker: str
    linestyle: Any
    hatch: str

    def line(self) -> dict[str, Any]:
        """Return the options with which matplotlib plots a line with markers in this style."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.linestyle}


def series_style(index: int) -> SeriesStyle:
    """Return the style of the series with this index. The first 280 styles differ in colour, marker or line."""
    return SeriesStyle(*(values[index % len(values)] for values in (COLOURS, MARKERS, LINES, HATCHES)))


def require_matplotlib() -> None:
    """Raise UserError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise not_installed("a plot", "matplotlib", "plots") from error


@contextmanager
def _style() -> Iterator[None]:
    """Apply this style to matplotlib's defaults, ignoring the user's matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", RC]):
        yield


def styled(draw: "Callable[..., Figure]") -> "Callable[..., Figure]":
    """Decorate a function so that it draws in the style of dcpcse, and raises UserError without matplotlib."""

    @wraps(draw)
    def in_style(*args: Any, **options: Any) -> "Figure":
        require_matplotlib()
        with _style():
            return draw(*args, **options)

    return in_style


def figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, without a window or global state.

    If the figure is the value of a notebook cell, the notebook shows it as a picture. pyplot would show it a second
    time.
    """
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return NotebookFigure(figsize=(width, height), layout="constrained")


def panel_grid(count: int, height: float, rows_each: int = 1, **options: Any) -> "tuple[Figure, np.ndarray]":
    """Return a figure with `count` columns of panels, at most 3 side by side, and the axes (rows_each, count).

    Unused positions are hidden.

    Args:
        height: Height of a panel in inches.
        rows_each: Number of panels in a column.
    """
    columns = min(count, PANELS_PER_ROW)
    rows = -(-count // columns)
    # One panel gets the width of a column, so that the font size is the same for any number of panels.
    grid = figure(COLUMN if columns == 1 else PAGE, height * rows * rows_each + 0.2)
    axes = grid.subplots(rows * rows_each, columns, squeeze=False, **options)
    ordered = axes.reshape(rows, rows_each, columns).transpose(1, 0, 2).reshape(rows_each, rows * columns)
    for empty in ordered[:, count:].flat:
        empty.set_axis_off()
    return grid, ordered[:, :count]


def plain(text: str, width: int | None = None) -> str:
    """Return a label, escaped so that it is drawn literally, and wrapped at `width` characters.

    Without escaping, dollar signs would start a formula, and an underscore at the start would hide the label from
    legends; XML does not allow control characters.
    """
    text = printable(text).replace("$", r"\$")
    text = f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text
    return textwrap.fill(text, width) if width else text


def legend_below(figure: "Figure", handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Add a legend below all panels, with the number of columns that fit."""
    room = int(figure.get_figwidth() * CHARACTERS_PER_INCH)
    labels = [plain(label, room - 6) for label in labels]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(len(labels), room // (longest + 6)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def colorbar(figure: "Figure", values: Any, axes: Any, label: str, **options: Any) -> Any:
    """Add a colour scale of `values` beside axes, and return the scale."""
    bar = figure.colorbar(values, ax=axes, aspect=25, **{"pad": 0.01, **options})
    bar.outline.set_linewidth(0.5)
    bar.set_label(label)
    return bar


def title(axes: "Axes", text: str, columns: int = 1, below: str = "") -> None:
    """Set the title of one of `columns` panels side by side, wrapped to fit. `below` is a second line."""
    room = COLUMN if columns == 1 else PAGE / columns
    lines = [plain(line, int((room - 0.5) * CHARACTERS_PER_INCH)) for line in (text, below) if line]
    axes.set_title("\n".join(lines))


def png(figure: "Figure") -> bytes:
    """Return the figure as PNG. Log a warning if the font lacks characters of the labels."""
    content, missing = _render(figure, "png", {"Software": None})
    if missing:
        more = f" and {len(missing) - 5} more characters" if len(missing) > 5 else ""
        warn(
            f"the font of plots has no {', '.join(missing[:5])}{more}: the PNG shows boxes in their place; the SVG "
            "contains the text"
        )
    return content


def svg(figure: "Figure") -> bytes:
    """Return the figure as SVG in UTF-8. Its text is stored as text, not as curves."""
    return _render(figure, "svg", {"Date": None})[0]


def _render(figure: "Figure", format: str, metadata: dict[str, None]) -> tuple[bytes, list[str]]:
    """Return the content of an image file, and the characters that the font lacks."""
    buffer, missing = io.BytesIO(), {}
    with _style(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        figure.savefig(buffer, format=format, metadata=metadata)
    for warning in told:
        if match := _MISSING_GLYPH.match(str(warning.message)):
            missing[chr(int(match[1]))] = None
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return buffer.getvalue(), list(missing)


_MISSING_GLYPH = re.compile(r"Glyph (\d+) .* missing from font")
"""The warning of matplotlib for each character that the font lacks."""


def save(figure: "Figure", stem: Path) -> list[Path]:
    """Write the files STEM.png and STEM.svg, or neither if one fails. Return their paths."""
    written = {stem.with_name(f"{stem.name}.png"): png(figure), stem.with_name(f"{stem.name}.svg"): svg(figure)}
    write_files(written)
    return list(written)
