"""The page around the sections: head, colours, contents. Everything is in the one file; nothing is loaded."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from dcpcse.analysis.html_report.html import Markup, join, tag
from dcpcse.analysis.html_report.sections import Section
from dcpcse.analysis.html_report.svg import grey_variables

STYLESHEET = Path(__file__).with_name("style.css")


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
