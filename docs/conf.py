"""The site: `sphinx-build -W -b html docs site`, which fetches nothing."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "SentEval")]

project = "DCPCSE"
html_title = project
html_theme = "furo"
html_show_copyright = False
html_copy_source = False

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "matplotlib.sphinxext.plot_directive"]
nb_execution_mode = "off"  # pages show the stored outputs; benchmarks/notebooks.sh runs the notebooks
plot_formats = ["svg"]
plot_html_show_formats = plot_html_show_source_link = False
exclude_patterns = ["_build", "miniature/findings.md"]  # the latter is a part of miniature.md
myst_heading_anchors = 4
highlight_language = "none"  # blocks that name no language are output
smartquotes = False  # which would make one dash of the two of an option

default_role = "py:obj"  # `name` in a docstring: a link where it leads to something, code elsewhere
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True


def keep_plain_text(app: "Sphinx", what: str, name: str, obj: Any, options: dict[str, Any], lines: list[str]) -> None:
    """Docstrings are plain text: stars are stars, and indented lines stand as they are written."""
    found: list[str] = []
    block = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and found[-1:] == [""] and not block:
            found += ["::", ""]
        block = indented or (block and not line)
        found.append(line if indented else line.replace("*", r"\*"))
    lines[:] = found


def setup(app: "Sphinx") -> None:
    """What Sphinx calls to let this file take part."""
    app.connect("autodoc-process-docstring", keep_plain_text)
