"""Private names of other libraries, which a release may rename, are used in dcpcse/utils/private only."""

import ast
import re
from pathlib import Path

import pytest
import torch
import transformers

from dcpcse.pretraining.trainer import MaskedLMTrainer
from dcpcse.training.arguments import TrainingArguments
from dcpcse.training.trainer import Trainer
from dcpcse.utils.private import require_names
from dcpcse.utils.private.trainer import HookedTrainer

ROOT = Path(__file__).parents[2]
OF_PYTHON = {"_asdict", "_replace", "_exit", "_at_fork_reinit", "_actions", "_format_args", "_group_actions"}
OF_PYTHON |= {"_action_groups", "_option_string_actions", "_subparsers", "_StoreFalseAction", "_AppendAction"}
"""Names of namedtuple, os, threading and argparse."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(code: str) -> set[str]:
    """Private attributes that code uses without defining them, and private names that it imports from elsewhere."""
    nodes = list(ast.walk(ast.parse(code)))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    defined |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    defined |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)} - defined
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.module.startswith("dcpcse.")]
    used |= {part for node in imports for part in [*node.module.split("."), *(one.name for one in node.names)]}
    strings = [node.args[1] for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"]
    used |= {one.value for one in strings if isinstance(one, ast.Constant)}
    return {name for name in used if is_private(name)} - OF_PYTHON


def test_no_other_module_uses_a_private_name_of_a_library():
    files = [path for folder in ("dcpcse", "SentEval") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    found = {path: private_names(path.read_text(encoding="utf-8")) for path in files}
    allowed = ROOT / "dcpcse/utils/private"
    # A subclass uses the private methods of its base class beside it.
    own = {"_drawn", "_plain"}
    assert {path: names - own for path, names in found.items() if names - own and allowed not in path.parents} == {}


def test_no_private_name_of_ours_replaces_one_of_transformers():
    for ours, theirs in (
        *((Trainer, HookedTrainer), (MaskedLMTrainer, HookedTrainer)),
        (TrainingArguments, transformers.TrainingArguments),
    ):
        names = {name for kind in ours.__mro__ if kind not in theirs.__mro__ for name in vars(kind)}
        assert {name for name in names if is_private(name) and hasattr(theirs, name)} <= {"_argument_group_name"}


def test_a_missing_name_is_named_with_the_version():
    for owner in (torch.Tensor, transformers.Trainer, transformers.PretrainedConfig(), torch):
        library = torch if owner in (torch.Tensor, torch) else transformers
        line = re.escape(f"{library.__name__} {library.__version__} is not supported")
        with pytest.raises(ImportError, match=f"{line}.* has no _gone; "):
            require_names(owner, "__doc__", "_gone")
