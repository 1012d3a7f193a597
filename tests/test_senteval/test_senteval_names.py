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
    assert tuple(senteval.MODES) == MODE_NAMES


def test_every_public_name_is_there_and_is_the_one_that_a_type_checker_sees():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen.keys() - {"import_module", "TYPE_CHECKING", "Any"} == set(senteval.__all__) <= set(dir(senteval))
    for name in senteval.__all__:
        exec(f"from senteval import {name} as a; from {seen[name]} import {name} as b; assert a is b", {})
    # Importing `senteval.x` sets the attribute x of the package, over whatever it was.
    assert {path.stem for path in PACKAGE.glob("*.py")} & set(senteval.__all__) == {"engine"}
    with pytest.raises(AttributeError, match="module 'senteval' has no attribute 'evaluator'"):
        _ = senteval.evaluator


LIBRARIES = {"numpy", "scipy", "sklearn", "torch"}
"""All libraries that senteval may import (tests/test_layers.py)."""

PROGRAM = """
import sys
from senteval import DataError, TASK_SETS, tasks_of_set
print(*sys.modules)
from senteval import TASKS
print(*sys.modules)
"""


def test_names_load_no_library_and_tasks_do_not_load_scikit_learn():
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    names, tasks = (set(line.split()) for line in done.stdout.splitlines())
    assert not names & LIBRARIES
    assert {"numpy", "torch"} <= tasks and "sklearn" not in tasks
