"""Spearman after the most frequent tokens are removed from the sentences (ConPVP, figure 5).

The tokens are counted in both sentences of every pair of STSBenchmark's test split. The most frequent tokens are
removed from the input of the encoder. The figure shows the average over the seven STS tasks for each number of removed
tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings, Inside
from senteval.errors import DataError
from senteval.lines import Located
from senteval.scores import ROUNDING, correlate, similarities
from senteval.settings import Settings
from senteval.sts import STS

REMOVED = (1, 2, 5, 10, 20, 50, 100)
"""The numbers of most frequent tokens that are removed."""

COUNTED_IN = "STSBenchmark"
"""The task in whose test split the tokens are counted."""


def spearman_without_frequent(
    tasks: Mapping[str, Sequence[ScoredPairs]], counted: Sequence[str], inside: Inside
) -> dict[str, dict[int, float]]:
    """Return Spearman × 100 over the pairs of all sets of each task, by task and number of removed tokens.

    Every distinct sentence is encoded once per number of removed tokens. The result ends before the first number for
    which all texts of a task become empty.

    Args:
        counted: The sentences in which tokens are counted.
    """
    distinct = list(dict.fromkeys(text for sets in tasks.values() for one in sets for text in _texts(one)))
    scores: dict[str, dict[int, float]] = {task: {} for task in tasks}
    for count in REMOVED:
        embed = Embeddings(distinct, inside.encode_without_frequent(distinct, count, counted))
        cosines = {task: _cosines(f"{task} without {count} tokens", sets, embed) for task, sets in tasks.items()}
        # In a small set no text may remain. This is not an error; the scores are left out.
        if any(np.ptp(of_task) <= ROUNDING for of_task in cosines.values()):
            break
        for task, sets in tasks.items():
            gold = np.concatenate([pairs.gold for pairs in sets])
            scores[task][count] = 100 * correlate(task, cosines[task], gold).spearman
    return scores


def _texts(pairs: ScoredPairs) -> Iterator[str]:
    return chain(pairs.first, pairs.second)


def _cosines(owner: str, sets: Sequence[ScoredPairs], embed: Embeddings) -> np.ndarray:
    return np.concatenate([similarities(owner, pairs, embed(pairs.first), embed(pairs.second)) for pairs in sets])


@dataclass(frozen=True)
class FrequentResult:
    """Spearman × 100 by task and number of removed tokens. For the number 0, the sentences are unchanged."""

    task: str
    split: str
    without: Mapping[str, Mapping[int, float]]
    family = "frequent"

    @property
    def average_without(self) -> dict[int, float]:
        """The mean of Spearman × 100 over the tasks, by number of removed tokens."""
        counts = next(iter(self.without.values()))
        return {count: float(np.mean([scores[count] for scores in self.without.values()])) for count in counts}

    def as_dict(self) -> dict[str, Any]:
        """Return the scores and their averages as a JSON-serialisable dict."""
        without = {task: _by_text(scores) for task, scores in self.without.items()}
        found = {"task": self.task, "split": self.split, "counted_in": COUNTED_IN}
        return {**found, "average_without": _by_text(self.average_without), "without": without}


def _by_text(scores: Mapping[int, float]) -> dict[str, float]:
    return {str(count): score for count, score in scores.items()}


@dataclass(frozen=True)
class FrequentTask:
    """The seven STS tasks without the most frequent tokens."""

    name: str
    family = "frequent"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedFrequent":
        """Read and check the test sets of all STS tasks. Raises DataError in dev mode: some have no dev split."""
        settings.require_test(self.name)
        sets = {name: task.read_split(data_dir, "test", settings.official) for name, task in STS.items()}
        return LoadedFrequent(self.name, sets)


@dataclass(frozen=True, eq=False)
class LoadedFrequent:
    """The sets of all STS tasks with their checked pairs."""

    task: str
    sets: Mapping[str, tuple[ScoredPairs, ...]]

    def located(self) -> Iterator[Located]:
        return chain.from_iterable(pairs.located() for sets in self.sets.values() for pairs in sets)

    def files(self) -> list[Path]:
        return [path for sets in self.sets.values() for pairs in sets for path in pairs.files]

    def score(self, embed: Embeddings, settings: Settings) -> FrequentResult:
        """Compute Spearman for each task and number of removed tokens.

        Raises DataError if `embed` has no access to the encoder's internals.
        """
        if embed.inside is None:
            raise DataError(
                f"{self.task} removes tokens, which needs access to the encoder (inside=); leave {self.task} out"
            )
        counted = [text for pairs in self.sets[COUNTED_IN] for text in _texts(pairs)]
        without = spearman_without_frequent(self.sets, counted, embed.inside)
        scores = {}
        for task, sets in self.sets.items():
            gold = np.concatenate([pairs.gold for pairs in sets])
            scores[task] = {0: 100 * correlate(task, _cosines(task, sets, embed), gold).spearman, **without[task]}
        return FrequentResult(self.task, settings.split, scores)


FREQUENT: dict[str, FrequentTask] = {"STS-frequent": FrequentTask("STS-frequent")}
