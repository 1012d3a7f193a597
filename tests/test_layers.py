"""The order of the package: a module imports from lower layers only, and senteval knows nothing of dcpcse."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dcpcse"
SENTEVAL = ROOT / "SentEval/senteval"

LAYERS = (
    {"errors", "arrays", "labels", "packing", "parsing", "prepacking", "repeats", "schema", "interruption"},
    {"options", "weights", "paths", "devices", "flex", "postprocessing", "cluster", "manifest", "numbered"},
    {"losses", "attention", "distributed", "presets", "embedding_cache", "templates", "tensors", "masking"},
    {"tokens", "plain", "tuned", "corpus", "together", "sharding", "lines", "records", "augmentations"},
    {"pooling", "denoising", "textfile", "template_generation", "unlogged", "locks"},
    {"legacy", "views", "positions", "prompts", "backbones", "data"},
    {"heads", "promptable", "bases", "folder"},
    {"encoder", "identity", "hub", "saving"},
    {"generator", "in_mteb", "mixing"},
    {"arguments", "evaluation_arguments", "searching"},
    {"models"},
    {"static", "topk", "st", "adapters"},
    {"representations", "word_vectors"},
    {"objectives"},
    {"methods"},
    {"collators", "plugins"},
    {"cli"},
    {"evaluator", "checkpoints", "tables", "gradient_cache"},
    {"report", "loading", "recording", "mteb_tasks", "guards", "step", "plan"},
    {"output"},
    {"trainer", "history"},
    {"card"},
    {"publishing", "first_checks"},
    {"settling", "preconditions"},
    {"training", "evaluating", "encoding", "exporting", "importing", "pictures", "comparison"},
    {"simcse", "similarity", "search", "contents"},
    {"quickstart", "predict", "info", "template_search", "corrupt", "hyperparameter_search", "encode", "runs"},
    {"hub_commands", "doctor"},
    {"reporting"},
    {"__main__", "demo"},
    {"reproduction"},
)
"""Lowest first; a name is a module of dcpcse or a package in it, inside which imports are free."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """`dcpcse/objectives/mlm.py` → objectives, `dcpcse/models.py` → models, `dcpcse/__init__.py` → the empty name."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


def imported_modules(path: Path, tree: ast.AST) -> set[str]:
    """Absolute names of all that is imported anywhere in the tree, in functions and under TYPE_CHECKING too."""
    found = set()
    package = ("dcpcse", *path.relative_to(PACKAGE).parts[:-1]) if path.is_relative_to(PACKAGE) else ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))
            source = base if node.level else node.module
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


def parts_imported(path: Path, tree: ast.AST | None = None) -> set[str]:
    names = imported_modules(path, tree or ast.parse(path.read_text(encoding="utf-8")))
    parts = {name.split(".")[1] for name in names if name.startswith("dcpcse.")}
    return parts | ({""} if "dcpcse" in names else set())


def test_every_module_has_a_layer():
    assert {part_of(path) for path in MODULES} - {""} == set(LEVEL)


@pytest.mark.parametrize("path", filter(part_of, MODULES), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(path):
    part = part_of(path)
    others = parts_imported(path) - {part}
    too_high = {name for name in others if LEVEL.get(name, len(LAYERS)) >= LEVEL[part]}
    assert not too_high, f"{part} (layer {LEVEL[part]}) imports {sorted(too_high)}"


def test_importing_dcpcse_reads_nothing_but_its_errors():
    """torch and transformers take seconds, which `train.py --help` and a wrong option should not cost."""
    path = PACKAGE / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_once = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
    assert parts_imported(path, at_once) == {"errors"}
    outside = {name.split(".")[0] for name in imported_modules(path, at_once)} - {"dcpcse"}
    assert outside <= sys.stdlib_module_names


@pytest.mark.parametrize("path", sorted(SENTEVAL.rglob("*.py")), ids=lambda path: str(path.relative_to(SENTEVAL)))
def test_senteval_imports_nothing_but_numbers_and_never_dcpcse(path):
    names = imported_modules(path, ast.parse(path.read_text(encoding="utf-8")))
    outside = {name.split(".")[0] for name in names if name} - sys.stdlib_module_names - {"senteval"}
    assert outside <= {"numpy", "scipy", "sklearn", "torch"}


def test_this_test_sees_every_way_to_import():
    path = PACKAGE / "objectives/mlm.py"
    source = """
import dcpcse.a
from dcpcse import b
from dcpcse.c import x
from .. import d
from ..e import x
from ..f.g import x
from .own import x
from . import own
def later():
    from ..h import x
if TYPE_CHECKING:
    from ..i import x
"""
    assert parts_imported(path, ast.parse(source)) == {*"abcdefhi", "objectives"}


def test_an_installed_package_has_every_part():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    listed = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (parts,) = (
        ast.literal_eval(node.value)
        for node in listed.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS"
    )
    assert sorted(parts) == sorted(packages)
