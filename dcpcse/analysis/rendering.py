"""Render HTML from the jinja2 templates of this package."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dcpcse.utils.errors import printable

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """Render a template, given by its path relative to this folder; all values are escaped.

    Control characters and lone surrogates, which HTML and UTF-8 do not allow, are written as in JSON (`\\u0000`).
    """
    return printable(_ENVIRONMENT.get_template(template).render(values))
