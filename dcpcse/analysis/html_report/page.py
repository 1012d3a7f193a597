"""The page around the sections, and the figures in it. Everything is in the one file; nothing is loaded.

A figure is SVG with ids of its own, and greys that follow the page's colours.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from dcpcse.analysis.html_report.html import Markup, clean, escape, join, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLESHEET = Path(__file__).with_name("style.css")

_NAMESPACE = re.compile(r"\{[^}]*\}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_GREY = re.compile(r"#([0-9a-fA-F]{2})\1\1\b")
SCREEN_SCALE = 1.7
_DROPPED = ("metadata", "style")  # links to vocabularies; rules that would hold for the whole page
_DARKEST, _LIGHTEST = 0x1A, 0xE9
"""What white and black become on a dark page."""


@dataclass(frozen=True)
class Section:
    """A part of the page, its heading and the name that links go to."""

    name: str
    title: str
    body: Markup


def render_page(title: str, sections: Sequence[Section], made: datetime) -> str:
    """A whole HTML document."""
    contents = [tag("li", tag("a", section.title, href=f"#{section.name}")) for section in sections]
    body = join(
        tag(
            "header",
            tag("h1", title),
            tag("p", f"Made {made:%Y-%m-%d %H:%M}."),
            tag("nav", tag("ul", *contents), aria_label="Contents"),
        ),
        tag("main", *map(_section, sections)),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_rules(body))),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _section(section: Section) -> Markup:
    heading = f"{section.name}-heading"
    return tag("section", tag("h2", section.title, id=heading), section.body, id=section.name, aria_labelledby=heading)


def _rules(body: str) -> str:
    light, dark = grey_variables(body)
    of_pictures = f"{_variables(light)}\n@media screen and (prefers-color-scheme: dark) {{ {_variables(dark)} }}"
    return f"\n{STYLESHEET.read_text(encoding='utf-8')}\n{of_pictures}\n"


def _variables(values: Mapping[str, str]) -> str:
    return f":root {{ {' '.join(f'{name}: {value};' for name, value in values.items())} }}"


def as_svg(figure: "Figure", name: str, description: str) -> Markup:
    """A figure as an `<svg>` element.

    name: prefix of all its ids, unlike that of any other picture of the page. description: what it shows, for those
    who cannot see it.
    """
    from dcpcse.analysis.plots import style

    root = ElementTree.fromstring(clean(style.svg(figure).decode("utf-8")))
    _drop(root)
    _drop_repeated_ids(root)
    for element in root.iter():
        element.tag = _NAMESPACE.sub("", element.tag)
        element.attrib = {_NAMESPACE.sub("", key): _own(key, value, name) for key, value in element.attrib.items()}
    root.set("class", "picture")
    root.set("role", "img")
    root.set("aria-label", description)
    # What matplotlib leaves unsaid is black. Larger than on paper where there is room, never smaller.
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.set("style", f"fill: {_themed('#000000')}; width: clamp({width:g}pt, 100%, {SCREEN_SCALE * width:g}pt)")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _drop(parent: ElementTree.Element) -> None:
    for child in list(parent):
        if _NAMESPACE.sub("", child.tag) in _DROPPED:
            parent.remove(child)
        else:
            _drop(child)


def _drop_repeated_ids(root: ElementTree.Element) -> None:
    """Matplotlib defines equal shapes of different artists twice, under one id; references mean the first."""
    seen: set[str] = set()
    for element in root.iter():
        if element.get("id") in seen:
            del element.attrib["id"]
        seen.add(element.get("id", ""))


def _own(key: str, value: str, name: str) -> str:
    """An attribute with the ids of this picture, and colours of the page."""
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href") and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return _themed(_REFERENCE.sub(rf"url(#{name}-\1)", value))


def _themed(value: str) -> str:
    return _GREY.sub(lambda found: f"var(--grey-{found[1].lower()})", value)


def grey_variables(page: str) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that pictures of a page use: their values on a light page, and on a dark one."""
    used = sorted(set(re.findall(r"var\(--grey-([0-9a-f]{2})\)", page)))
    inverse = {level: round(_LIGHTEST + (_DARKEST - _LIGHTEST) * int(level, 16) / 255) for level in used}
    light = {f"--grey-{level}": f"#{level * 3}" for level in used}
    return light, {f"--grey-{level}": "#" + f"{grey:02x}" * 3 for level, grey in inverse.items()}


def captioned_figure(figure: "Figure", name: str, caption: str, description: str) -> Markup:
    """A figure with its caption; it scrolls sideways where it is too wide."""
    drawn = tag(
        "div", as_svg(figure, name, description), class_="wide", role="region", aria_label=caption, tabindex="0"
    )
    return tag("figure", drawn, tag("figcaption", escape(caption)))
