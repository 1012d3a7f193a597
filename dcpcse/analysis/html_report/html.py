"""HTML from Python calls: whatever comes as a plain string is text, and is escaped."""

import html
import re
from collections.abc import Sequence
from typing import Any

_VOID = {"meta", "br"}
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def clean(text: str) -> str:
    """Text in which U+FFFD stands for what neither HTML nor UTF-8 can hold."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def escape(part: Any) -> Markup:
    """HTML as it is, and anything else as text."""
    return part if isinstance(part, Markup) else Markup(html.escape(clean(str(part))))


def join(*parts: Any) -> Markup:
    """Parts one after the other."""
    return Markup("".join(map(escape, parts)))


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; `class_` is the attribute class, `aria_label` is aria-label; None leaves an attribute out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    words = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    return Markup(f"<{name}{words}>" if name in _VOID else f"<{name}{words}>{join(*children)}</{name}>")


def remark(text: str) -> Markup:
    """A line about what is not shown, and why."""
    return tag("p", text, class_="note")


def table(caption: str, header: Sequence[Any], rows: Sequence[Markup], above: Markup = Markup("")) -> Markup:  # noqa: B008
    """A table that scrolls sideways where it is too wide, with the keyboard too; above: a first row of headers."""
    heads = tag("tr", *(cell if isinstance(cell, Markup) else tag("th", cell, scope="col") for cell in header))
    whole = tag("table", tag("caption", tag("span", caption)), tag("thead", above, heads), tag("tbody", *rows))
    return tag("div", whole, class_="wide", role="region", aria_label=caption, tabindex="0")


def row(name: Any, cells: Sequence[Any], **attributes: Any) -> Markup:
    """A row: its header, and its cells."""
    cells = [cell if isinstance(cell, Markup) and cell.startswith("<td") else tag("td", cell) for cell in cells]
    return tag("tr", tag("th", name, scope="row"), *cells, **attributes)


def number(text: Any, best: bool = False) -> Markup:
    """A cell of a number; the best of its column is bold."""
    return tag("td", tag("strong", text) if best else text, class_="number")


def absent(text: str) -> Markup:
    """A cell that says that there is nothing."""
    return tag("td", text, class_="absent")
