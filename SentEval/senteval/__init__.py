"""Evaluation of sentence embeddings of any encoder, on the tasks of SentEval and on related tasks.

    from senteval import STS_TASKS, evaluate
    results = evaluate(encode, STS_TASKS, "SentEval/data").results     # encode: list of str -> array (n, H)
    spearman = {task: result.score for task, result in results.items()}

If the files, the embeddings or the settings are faulty, DataError is raised. Its message is one line with the problem
and the remedy. `senteval.engine.SE` is SentEval's original interface.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from senteval import engine
    from senteval.data import ScoredPairs
    from senteval.embeddings import Encode, Inside, Progress
    from senteval.errors import DataError
    from senteval.names import STS_TASKS, TASK_SETS, TRANSFER_TASKS, tasks_of_set
    from senteval.scores import Correlation, TaskResult
    from senteval.settings import MODES, Settings, settings_of_mode
    from senteval.sts import STS, load_pairs
    from senteval.suite import Evaluation, Suite, evaluate, load_suite
    from senteval.tasks import TASKS, Result, find_tasks

__all__ = [
    "MODES",
    "STS",
    "STS_TASKS",
    "TASKS",
    "TASK_SETS",
    "TRANSFER_TASKS",
    "Correlation",
    "DataError",
    "Encode",
    "Evaluation",
    "Inside",
    "Progress",
    "Result",
    "ScoredPairs",
    "Settings",
    "Suite",
    "TaskResult",
    "engine",
    "evaluate",
    "find_tasks",
    "load_pairs",
    "load_suite",
    "settings_of_mode",
    "tasks_of_set",
]

_MODULES = {
    "data": ("ScoredPairs",),
    "embeddings": ("Encode", "Inside", "Progress"),
    "errors": ("DataError",),
    "names": ("STS_TASKS", "TASK_SETS", "TRANSFER_TASKS", "tasks_of_set"),
    "scores": ("Correlation", "TaskResult"),
    "settings": ("MODES", "Settings", "settings_of_mode"),
    "sts": ("STS", "load_pairs"),
    "suite": ("Evaluation", "Suite", "evaluate", "load_suite"),
    "tasks": ("TASKS", "Result", "find_tasks"),
}
"""Module -> the names that this package imports from the module. TYPE_CHECKING above lists the same names."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, because importing torch, scipy and scikit-learn takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "engine":
        return import_module("senteval.engine")
    module = next(module for module, names in _MODULES.items() if name in names)
    value = globals()[name] = getattr(import_module(f"senteval.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
