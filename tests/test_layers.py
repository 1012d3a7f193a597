"""Imports and names that hold for all modules; `lint-imports` (pyproject.toml) checks who may import whom."""

import ast
import re
import sys
from pathlib import Path

import dcpcse

ROOT = Path(__file__).parent.parent


def imported_packages(path: Path) -> set[str]:
    """What is imported anywhere in a file, in functions and under TYPE_CHECKING too."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in names}


def test_every_name_that_is_offered_comes_from_the_module_that_defines_it():
    for name, module in dcpcse._LAZY_IMPORTS.items():
        offered = getattr(dcpcse, name)
        assert offered.__name__ == name and offered.__module__.startswith(f"dcpcse.{module}")
    assert {*dcpcse._LAZY_IMPORTS, "UserError", "__version__", "load"} == set(dcpcse.__all__)


def test_files_of_tests_have_different_names_and_import_none_that_does_not():
    """pytest puts every folder of tests first in the path, so of two files of a name the last folder's is found."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    names = [path.stem for path in paths if path.stem != "conftest"]
    assert len(names) == len(set(names))
    pattern = re.compile(r"^\s*(from|import) conftest\b", re.MULTILINE)
    assert not [path for path in paths if pattern.search(path.read_text(encoding="utf-8"))]


def test_senteval_imports_nothing_but_numbers_and_never_dcpcse():
    allowed = {"numpy", "scipy", "sklearn", "torch", "senteval", *sys.stdlib_module_names}
    for path in (ROOT / "SentEval/senteval").rglob("*.py"):
        assert imported_packages(path) <= allowed, path
