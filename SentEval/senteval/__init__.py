"""Evaluation of sentence embeddings on the SentEval tasks; knows nothing of the models.

    from senteval import STS_TASKS, evaluate_sts
    results = evaluate_sts(encode, STS_TASKS, "SentEval/data")      # encode: list of str -> array (n, H)
    spearman = {task: result.score for task, result in results.items()}

A task's files are read and checked by load_task; whatever is wrong with them, with the embeddings or with the
request is a DataError that says in one line what to do.
"""

from senteval.data import ScoredPairs
from senteval.errors import DataError
from senteval.evaluate import MODES, Encode, evaluate_sts
from senteval.scores import Correlation, TaskResult
from senteval.sts import STS_TASKS, TASKS, load_task

__all__ = [
    "MODES",
    "STS_TASKS",
    "TASKS",
    "Correlation",
    "DataError",
    "Encode",
    "ScoredPairs",
    "TaskResult",
    "evaluate_sts",
    "load_task",
]
