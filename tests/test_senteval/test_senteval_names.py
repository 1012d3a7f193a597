"""What `senteval` and `senteval.names` promise: every public name exists, and importing names loads no library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import senteval
from senteval.names import FAMILIES, FAMILY_OF, MODE_NAMES

PACKAGE = Path(senteval.__file__).parent


def test_the_names_are_those_of_the_tasks_in_their_order():
    assert tuple(FAMILY_OF) == tuple(senteval.TASKS)
    assert {name: task.family for name, task in senteval.TASKS.items()} == FAMILY_OF
    assert {task for tasks in senteval.TASK_SETS.values() for task in tasks} < set(senteval.TASKS)
    assert list(FAMILIES) == list(dict.fromkeys(task.family for task in senteval.TASKS.values()))


def test_the_names_of_modes_are_those_of_their_settings():
    assert tuple(senteval.MODES) == MODE_NAMES


@pytest.mark.parametrize("name", senteval.__all__)
def test_every_public_name_is_there_and_is_the_one_that_a_type_checker_sees(name):
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen.keys() - {"import_module", "TYPE_CHECKING", "Any"} == set(senteval.__all__)
    code = f"from senteval import {name} as found; from {seen[name]} import {name} as meant; assert found is meant"
    exec(code, {})
    assert name in dir(senteval)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'senteval' has no attribute 'evaluator'"):
        _ = senteval.evaluator


def test_no_public_name_is_hidden_by_a_module_of_that_name():
    """Importing `senteval.x` sets the attribute x of the package, over whatever it was."""
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert modules & set(senteval.__all__) == {"engine"}


LIBRARIES = {"numpy", "scipy", "sklearn", "torch"}
"""All libraries that senteval may import (tests/test_layers.py)."""

PROGRAM = """
import sys
from senteval import DataError, TASK_SETS, tasks_of_set
print(*sys.modules)
from senteval import TASKS
print(*sys.modules)
from senteval.clustering import matched_accuracy
matched_accuracy([0], [0])
print(*sys.modules)
import senteval
print(senteval.engine.SE.__name__)
"""


def test_names_load_no_library_and_tasks_load_scikit_learn_only_when_they_are_scored():
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    names, tasks, scored, engine = (set(line.split()) for line in done.stdout.splitlines())
    assert not names & LIBRARIES
    assert {"numpy", "torch"} <= tasks and "sklearn" not in tasks
    assert "sklearn" in scored
    assert engine == {"SE"}
