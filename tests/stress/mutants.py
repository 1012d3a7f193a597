"""Mutation check: bugs planted one by one in losses, objectives, pooling and metrics; a unit test must fail for each.

    python tests/stress/mutants.py                                 20 bugs in each module
    python tests/stress/mutants.py dcpcse/losses/functional.py --most 1000    all that can be planted in one

A bug is one change of the syntax tree: + for -, < for <=, a negated condition, another number or axis, a call left out
(detach, normalize, ...), a sum for a mean. Prints the share found and every survivor. Those in `EQUIVALENT` change
nothing that could be seen, for the reason given there, and do not count.
"""

import argparse
import ast
import copy
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_A_BUG = 240
"""A bug may make a test go on forever, which is seen."""

MOST_NUMBER = 50
"""Greater ones are the published sizes of files, which tests hold where the real data lie."""

SENTEVAL = "tests/test_senteval/test_senteval"
PROPERTIES, SCORES = "tests/integration/test_properties.py", f"{SENTEVAL}_properties.py"
LOADING, SIGNIFICANCE = f"{SENTEVAL}_loading.py", "tests/evaluation/test_significance.py"
TESTS = {
    "dcpcse/losses/functional.py": ["tests/losses/test_functional.py", PROPERTIES, "-k", "losses or loop"],
    "dcpcse/data/views.py": ["tests/data/test_views.py"],
    "dcpcse/losses/base.py": ["tests/losses/test_contrastive.py", "tests/losses/test_masked_lm.py"],
    "dcpcse/losses/contrastive.py": ["tests/losses/test_contrastive.py", "tests/losses/test_row_chunks.py"],
    "dcpcse/losses/nt_xent.py": ["tests/losses/test_row_chunks.py", "tests/losses/test_contrastive.py"],
    "dcpcse/losses/row_chunks.py": ["tests/losses/test_row_chunks.py"],
    "dcpcse/losses/energy_hinge.py": ["tests/losses/test_energy_hinge.py", "tests/losses/test_row_chunks.py"],
    "dcpcse/losses/masked_lm.py": ["tests/losses/test_masked_lm.py"],
    "dcpcse/losses/replaced_token_detection.py": ["tests/losses/test_replaced_token_detection.py"],
    "dcpcse/encoders/pooling.py": ["tests/encoders/test_pooling.py", PROPERTIES, "-k", "pool"],
    "dcpcse/encoders/packing.py": ["tests/encoders/test_packing.py", PROPERTIES, "-k", "pack"],
    "SentEval/senteval/scores.py": [SCORES, "-k", "scores or similar or correl or averaged"],
    "SentEval/senteval/sts.py": [f"{SENTEVAL}_sts.py", f"{SENTEVAL}_evaluate.py"],
    "SentEval/senteval/retrieval.py": [f"{SENTEVAL}_retrieval.py", LOADING, SCORES, "-k", "retrieval or rank"],
    "SentEval/senteval/clustering.py": [f"{SENTEVAL}_clustering.py", LOADING, SCORES, "-k", "clust or matched"],
    "dcpcse/evaluation/significance.py": [SIGNIFICANCE, "-k", "not the_truth and not equal_runs"],
}
"""Module → the tests that must see a bug in it, as pytest is told."""

STRICT = "True -> False"  # of zip(strict=...) for what is as long anyway
EQUIVALENT = {
    # Embeddings are matrices: their last dimension is the second.
    **{"dcpcse/losses/functional.py": ["-1 -> 1"], "dcpcse/losses/nt_xent.py": ["-1 -> 1", STRICT]},
    "SentEval/senteval/sts.py": [STRICT],
    # No spread is that number exactly; a product of two rows is the same either way; numpy's number is a float.
    "SentEval/senteval/scores.py": [
        "np.ptp(similarity) <= ROUNDING -> np.ptp(similarity) < ROUNDING",
        "row_dot(first, second) -> row_dot(second, first)",
        *(f"row_dot({side}, {side}) -> row_dot({side}, {side})" for side in ("first", "second")),
        *(f"float({name}[0]) -> {name}[0]" for name in ("pearson", "spearman")),
    ],
    "SentEval/senteval/clustering.py": [
        STRICT,
        *(f"float({call}) -> {call}" for call in ("np.mean(self.accuracies)", "np.std(self.nmis, ddof=1)")),
    ],
    # Cosines turned about have the same means.
    "dcpcse/losses/contrastive.py": [
        "self._count(views['anchor'], views[self.positive]) -> self._count(views[self.positive], views['anchor'])",
        "cosines(anchors, positives) -> cosines(positives, anchors)",
    ],
}
"""Module → changes that nobody could tell from the right code."""

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
OPERATORS |= {ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}
COMPARISONS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
COMPARISONS = {one: other for pair in COMPARISONS for one, other in (pair, pair[::-1])}
NAMES = {"sum": "mean", "mean": "sum", "min": "max", "max": "min", "any": "all", "all": "any", "argmin": "argmax"}
NAMES |= {"zeros": "ones", "cumsum": "cumprod", "first": "second", "second": "first", "before": "after"}
NAMES |= {"after": "before"}
LEFT_OUT = {"detach", "clone", "float", "long", "clamp", "flatten", "squeeze", "unsqueeze", "expand", "abs", "astype"}
LEFT_OUT |= {"normalize", "precise", "rankdata", "unit_rows", "scaled_to_one", "sqrt", "check_rows", "require_count"}

SYMMETRIC = {"isinstance", "getattr", "zip", "max", "min", "allclose", "approx"}
"""Functions of two arguments that are not exchanged: the same comes out, or never anything."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug: the module as it then is, and its line before and after."""

    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.line}: {self.before} -> {self.after}"


def mutants(source: str) -> Iterator[Mutant]:
    """Every bug that can be planted, in the order of the code."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr) or _is_text(node):
            continue
        for other in _changes(node):
            changed = copy.deepcopy(tree)
            spot = list(ast.walk(changed))[number]
            if not _is_code(changed, spot):
                continue
            _put(changed, spot, other)
            yield Mutant(node.lineno, *map(ast.unparse, (node, other, ast.fix_missing_locations(changed))))


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions to stand in the place of one."""
    changed = copy.deepcopy(node)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        changed.op = OPERATORS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        changed.ops[0] = COMPARISONS[type(node.ops[0])]()
        yield changed
    elif isinstance(node, ast.BoolOp):
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield changed.operand
    elif isinstance(node, ast.IfExp):
        changed.body, changed.orelse = changed.orelse, changed.body
        yield changed
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value < MOST_NUMBER:
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) else 2 * node.value + 0.25)
        if node.value == 1:
            yield ast.Constant(0)
    elif isinstance(node, ast.Attribute) and node.attr == "T":
        yield changed.value
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        changed.attr = NAMES[node.attr]
        yield changed
    elif isinstance(node, ast.Call):
        yield from _calls(changed)


def _calls(call: ast.Call) -> Iterator[ast.expr]:
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if isinstance(call.func, ast.Name) and name in NAMES:
        yield ast.Call(ast.Name(NAMES[name], ast.Load()), call.args, call.keywords)
    if name in LEFT_OUT:
        if not _of_module(call.func):
            yield call.func.value
        elif call.args:
            yield call.args[0]
    if len(call.args) == 2 and name not in SYMMETRIC:
        yield ast.Call(call.func, call.args[::-1], call.keywords)


def _of_module(called: ast.expr) -> bool:
    """Whether a function is called by its own name, or as a library's: what it takes is its argument."""
    plain = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
    return isinstance(called, ast.Name) or (plain and called.value.id in ("F", "np", "torch"))


def _is_text(node: ast.expr) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, (ast.JoinedStr, ast.FormattedValue))


def _is_code(tree: ast.AST, spot: ast.AST) -> bool:
    """Whether an expression is run: not an annotation, a decorator, or the message of an error."""
    for node in ast.walk(tree):
        apart: list[ast.AST | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            apart = [node.returns, *(one.annotation for one in arguments), *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            apart = list(node.decorator_list)
        elif isinstance(node, ast.AnnAssign):
            apart = [node.annotation]
        elif isinstance(node, (ast.JoinedStr, ast.Raise)):
            apart = [node]
        if any(one is not None and any(part is spot for part in ast.walk(one)) for one in apart):
            return False
    return True


def _put(tree: ast.AST, spot: ast.AST, other: ast.expr) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is spot:
                setattr(node, name, other)
            elif isinstance(value, list):
                setattr(node, name, [other if one is spot else one for one in value])


def scratch_copy(place: Path) -> Path:
    """The project in another folder, to plant bugs in."""
    for name in ("dcpcse", "SentEval", "tests", "data", "docs", "setup.py", "pyproject.toml", "README.md"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__", "downstream"))
        else:
            shutil.copy(source, place / name)
    return place


def passes(folder: Path, tests: list[str], log: Path) -> bool:
    """Whether the tests pass in a folder; in a process of its own that has the libraries loaded already."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    code = 1
    try:
        signal.alarm(SECONDS_A_BUG)
        os.chdir(folder)
        sys.path[:0] = [str(folder), str(folder / "SentEval")]
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]))
    finally:
        os._exit(code)


def load_libraries() -> None:
    """Everything that takes seconds to import and is not ours."""
    for name in (
        "datasets",
        "hypothesis.extra.numpy",
        "peft",
        "scipy.stats",
        "sklearn.cluster",
        "sklearn.linear_model",
    ):
        importlib.import_module(name)
    for name in ("AutoModel", "AutoModelForMaskedLM", "AutoTokenizer", "Trainer"):
        getattr(importlib.import_module("transformers"), name)


def check(module: str, most: int, seed: int, folder: Path) -> tuple[int, int, list[Mutant]]:
    """Planted, found, and those that survived and should not have."""
    path, right = folder / module, (ROOT / module).read_text(encoding="utf-8")
    if not passes(folder, TESTS[module], folder / "log"):
        raise SystemExit(f"{module}: its tests fail without a bug:\n{(folder / 'log').read_text()[-2000:]}")
    every = list(mutants(right))
    chosen = sorted(random.Random(seed).sample(range(len(every)), min(most, len(every))))
    survivors, planted = [], 0
    for mutant in (every[i] for i in chosen):
        if f"{mutant.before} -> {mutant.after}" in EQUIVALENT.get(module, ()):
            continue
        planted += 1
        path.write_text(mutant.source, encoding="utf-8")
        if passes(folder, TESTS[module], folder / "log"):
            survivors.append(mutant)
            print(f"    survived {module}:{mutant}", flush=True)
    path.write_text(right, encoding="utf-8")
    return planted, planted - len(survivors), survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(TESTS)}")
    parser.add_argument("--most", type=int, default=20, help="bugs in each module")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    args = parser.parse_args()
    if unknown := set(args.modules) - set(TESTS):
        parser.error(f"no tests are known for {', '.join(sorted(unknown))}")
    sys.dont_write_bytecode = True
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    load_libraries()
    planted = found = 0
    with tempfile.TemporaryDirectory() as place:
        folder = scratch_copy(Path(place))
        for module in args.modules or TESTS:
            started = time.monotonic()
            own, seen, _ = check(module, args.most, args.seed, folder)
            planted, found = planted + own, found + seen
            print(f"{module:40} {seen:4} of {own:4} found, {time.monotonic() - started:.0f} s", flush=True)
    print(f"in all {found} of {planted} found ({found / max(planted, 1):.1%})")
    return 0 if found == planted else 1


if __name__ == "__main__":
    sys.exit(main())
