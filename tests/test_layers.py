"""The house: few rooms, one name for one thing; `lint-imports` (pyproject.toml) checks who may import whom."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import dcpcse

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dcpcse"
SENTEVAL = ROOT / "SentEval/senteval"
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_ENTRIES = 22
RIDDLES = {"together", "unlogged", "numbered", "settling", "plain", "asked", "arrival", "material", "answer"}
"""Names that modules had, and nobody could guess what was in them."""


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(tree: ast.AST) -> set[str]:
    """Absolute names of all that is imported anywhere in the tree, in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def public_names(tree: ast.Module) -> set[str]:
    """The content of `__all__`; nothing where there is none."""
    lists = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node.targets)
    ]
    return {name for listed in lists for name in ast.literal_eval(listed)}


def twice(definitions: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in definitions.items() if len(places) > 1}


def definitions(kind: type | tuple[type, ...]) -> dict[str, list[str]]:
    """Name of a public class or function at the top of a module → the modules that define one."""
    found = defaultdict(list)
    for path in MODULES:
        for node in tree_of(path).body:
            if not isinstance(node, kind) or node.name.startswith("_"):
                continue
            if not (is_worded(path, node) or is_overload(node)):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def is_overload(node: ast.stmt) -> bool:
    """Whether this only declares the types of one form of call of the function that follows."""
    return any(ast.unparse(one) == "overload" for one in node.decorator_list)


def is_worded(path: Path, node: ast.stmt) -> bool:
    """Whether this is the class of the same name from a lower layer, whose messages the interface translates."""
    bases = [base.attr for base in getattr(node, "bases", ()) if isinstance(base, ast.Attribute)]
    return path.parent.name == "api" and node.name in bases


def test_the_package_has_few_entries():
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_modules_are_not_called_by_riddles():
    assert not {path.stem for path in MODULES} & RIDDLES


def test_a_public_class_is_defined_once():
    assert not twice(definitions(ast.ClassDef))


def test_a_function_that_is_offered_to_users_is_defined_once():
    offered = set().union(*(public_names(tree_of(path)) for path in MODULES))
    functions = definitions((ast.FunctionDef, ast.AsyncFunctionDef))
    assert not {name: places for name, places in twice(functions).items() if name in offered}


def test_importing_dcpcse_reads_nothing_but_its_errors():
    """torch and transformers take seconds, which `train.py --help` and a wrong option should not cost."""
    tree = tree_of(PACKAGE / "__init__.py")
    at_once = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
    names = imported_modules(at_once)
    assert {name for name in names if name.startswith("dcpcse")} == {"dcpcse.utils.errors.UserError"}
    assert {name.split(".")[0] for name in names} - {"dcpcse"} <= sys.stdlib_module_names


def test_every_name_that_is_offered_comes_from_the_module_that_defines_it():
    for name, module in dcpcse._LAZY_IMPORTS.items():
        found = getattr(dcpcse, name)
        assert found.__name__ == name and found.__module__.startswith(f"dcpcse.{module}")
    assert {*dcpcse._LAZY_IMPORTS, "UserError", "__version__", "load"} == set(dcpcse.__all__)


def test_files_of_tests_have_different_names_and_import_none_that_does_not():
    """pytest puts every folder of tests first in the path, so of two files of a name the last folder's is found."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    names = [path.stem for path in paths if path.stem != "conftest"]
    assert len(names) == len(set(names))
    imported = {path.name: imported_modules(tree_of(path)) for path in paths}
    assert not {name for name, found in imported.items() if any(one.split(".")[0] == "conftest" for one in found)}


@pytest.mark.parametrize("path", sorted(SENTEVAL.rglob("*.py")), ids=lambda path: str(path.relative_to(SENTEVAL)))
def test_senteval_imports_nothing_but_numbers_and_never_dcpcse(path):
    outside = {name.split(".")[0] for name in imported_modules(tree_of(path)) if name} - sys.stdlib_module_names
    assert outside <= {"numpy", "scipy", "sklearn", "torch", "senteval"}
