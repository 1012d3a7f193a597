"""The house: few rooms, one name for one thing; `lint-imports` (pyproject.toml) checks who may import whom."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

import dcpcse

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dcpcse"
SENTEVAL = ROOT / "SentEval/senteval"

MOST_ENTRIES = 22
RIDDLES = {"together", "unlogged", "numbered", "settling", "plain", "asked", "arrival", "material", "answer"}
"""Names that modules had, and nobody could guess what was in them."""


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


MODULES = {path: tree_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


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
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node.targets)]
    return {name for node in assigned for name in ast.literal_eval(node.value)}


def definitions(kind: type | tuple[type, ...]) -> dict[str, list[str]]:
    """Name of a public class or function that several modules define at their top → these modules."""
    found = defaultdict(list)
    for path, tree in MODULES.items():
        nodes = [node for node in tree.body if isinstance(node, kind) and not node.name.startswith("_")]
        for node in nodes:
            if not is_worded(path, node) and "overload" not in map(ast.unparse, node.decorator_list):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    return {name: places for name, places in found.items() if len(places) > 1}


def is_worded(path: Path, node: ast.stmt) -> bool:
    """Whether this is the class of the same name from a lower layer, whose messages the interface translates."""
    bases = [base.attr for base in getattr(node, "bases", ()) if isinstance(base, ast.Attribute)]
    return path.parent.name == "api" and node.name in bases


def test_the_package_has_few_entries_and_no_riddles():
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
    assert not {path.stem for path in MODULES} & RIDDLES


def test_a_public_class_and_a_function_that_is_offered_to_users_are_defined_once():
    assert not definitions(ast.ClassDef)
    offered = set().union(*map(public_names, MODULES.values()))
    functions = definitions((ast.FunctionDef, ast.AsyncFunctionDef))
    assert not {name: places for name, places in functions.items() if name in offered}


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


def test_senteval_imports_nothing_but_numbers_and_never_dcpcse():
    allowed = {"numpy", "scipy", "sklearn", "torch", "senteval", *sys.stdlib_module_names}
    imported = {
        path: {name.split(".")[0] for name in imported_modules(tree_of(path))} for path in SENTEVAL.rglob("*.py")
    }
    assert {path: names - allowed for path, names in imported.items() if not names <= allowed} == {}
