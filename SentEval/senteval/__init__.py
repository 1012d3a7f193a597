"""Evaluation of sentence embeddings on the SentEval tasks and their kin; knows nothing of the models.

    from senteval import STS_TASKS, evaluate
    results = evaluate(encode, STS_TASKS, "SentEval/data").results     # encode: list of str -> array (n, H)
    spearman = {task: result.score for task, result in results.items()}

Whatever is wrong with the files, with the embeddings or with the request is a DataError that says in one line what to
do. `senteval.engine.SE` is the original interface.
"""

from senteval import engine
from senteval.data import ScoredPairs
from senteval.embeddings import Encode, Inside, Progress
from senteval.errors import DataError
from senteval.evaluate import Evaluation, Suite, evaluate, load_suite
from senteval.scores import Correlation, TaskResult
from senteval.settings import MODES, Settings, settings_of_mode
from senteval.sts import STS, STS_TASKS, load_pairs
from senteval.tasks import TASK_SETS, TASKS, Result, find_tasks, tasks_of_set
from senteval.transfer import TRANSFER_TASKS

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
