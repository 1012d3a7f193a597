"""Evaluating a sentence encoder: check all files, encode every distinct sentence once, score each task."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from senteval.data import ScoredPairs
from senteval.errors import DataError, quote
from senteval.scores import TaskResult, score_task, similarities
from senteval.sts import load_task

Encode = Callable[[list[str]], np.ndarray]
"""Gives embeddings (n, H) for n sentences, row i for sentence i; it batches as it likes."""

MODES = {"test": "test", "fasttest": "test", "dev": "dev"}
"""Mode -> split that is read. "fasttest" is SentEval's name for cheaper classifiers; STS has none."""


def evaluate_sts(
    encode: Encode, tasks: Sequence[str], data_dir: str | Path, mode: str = "test", official: bool = True
) -> dict[str, TaskResult]:
    """Score an encoder on similarity tasks by the cosine of its embeddings; nothing is trained.

    encode is called once, with every distinct sentence of all tasks, shortest first, so that batches need
    little padding. It is not called before the files of all tasks are read and found right. data_dir and
    official as in load_task. Raises DataError for a wrong request, wrong files or unusable embeddings.
    Source: SentEval (Conneau and Kiela, 2018) as changed by SimCSE (Gao et al., 2021).
    """
    split = find_split_of_mode(mode)
    loaded = {name: load_task(name, data_dir, split, official) for name in check_tasks(tasks)}
    sentences = distinct_sentences([pairs for subsets in loaded.values() for pairs in subsets])
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    embeddings = check_embeddings(encode(sentences), len(row_of))

    def similarity(task: str, pairs: ScoredPairs) -> np.ndarray:
        first = embeddings[[row_of[sentence] for sentence in pairs.first]]
        second = embeddings[[row_of[sentence] for sentence in pairs.second]]
        return similarities(task, pairs, first, second)

    return {
        task: score_task(task, split, subsets, [similarity(task, pairs) for pairs in subsets])
        for task, subsets in loaded.items()
    }


def find_split_of_mode(mode: str) -> str:
    """Return the split that a mode reads; raises DataError for an unknown mode."""
    if mode not in MODES:
        raise DataError(f"unknown mode {quote(mode)}; choose one of {', '.join(MODES)}")
    return MODES[mode]


def check_tasks(tasks: Sequence[str]) -> list[str]:
    """Return the task names without repetition; raises DataError for none, or for a bare string."""
    if isinstance(tasks, str) or not tasks:
        raise DataError(f"tasks is {tasks!r}; give a list of one or more names, such as ['STSBenchmark']")
    return list(dict.fromkeys(tasks))


def distinct_sentences(sets: Sequence[ScoredPairs]) -> list[str]:
    """Return every sentence of the sets once, shortest first, else in order of appearance."""
    sides = chain.from_iterable((pairs.first, pairs.second) for pairs in sets)
    return sorted(dict.fromkeys(chain.from_iterable(sides)), key=len)


def check_embeddings(embeddings: np.ndarray, count: int) -> np.ndarray:
    """Return what an encoder gave; raises DataError unless it is an array (count, H) of real numbers."""
    if not isinstance(embeddings, np.ndarray):
        found = f"a {type(embeddings).__name__}"
    elif embeddings.ndim != 2 or len(embeddings) != count or not embeddings.shape[1]:
        found = f"an array of shape {embeddings.shape}"
    elif embeddings.dtype.kind not in "fiu":
        found = f"an array of {embeddings.dtype}"
    else:
        return embeddings
    raise DataError(
        f"encode returned {found}; a numpy array of real numbers of shape ({count}, H) is expected, "
        f"row i being the embedding of sentence i"
    )
