"""Sentence retrieval on STSBenchmark: how often the sentence with the same meaning ranks among the first 1, 3 or 5.

Source: D2CSE, "Sentence Retrieval". The queries are both sentences of every pair with the highest score, 5 (97 pairs
and 194 queries in the test split). The answer to a query is the other sentence of its pair. The candidates are the
other sentences of the split, ranked by cosine. The paper does not say how it treats sentences that occur more than
once. The setting `identical` offers two treatments:

merge  Each distinct sentence is a candidate once. Pairs of identical sentences then have no answer and are skipped
       (the published test split has none).
keep   Every other sentence is a candidate as often as it occurs. A second copy of the query ranks before every
       answer; the sentences of an identical pair find each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings
from senteval.errors import DataError
from senteval.lines import Located
from senteval.scores import ROUNDING, check_rows, unit_rows
from senteval.settings import Settings
from senteval.sts import STS, StsTask

EQUIVALENT = 5.0
"""Score of the pairs whose sentences have the same meaning."""

CUTOFFS = (1, 3, 5)


@dataclass(frozen=True)
class RetrievalResult:
    """Recall × 100 by number of first ranks (1, 3 or 5), and the rank of the answer to every query.

    A query is a sentence, and its answer is the sentence with the same meaning.

    Args:
        identical_pairs: The number of top-scored pairs whose sentences are identical.
        ranks: Query, answer, and rank of the answer (counted from 1), for each query. Table 3 of D2CSE shows the query
            "yes you got it .".
    """

    task: str
    split: str
    recall: dict[int, float]
    queries: int
    candidates: int
    identical: str
    identical_pairs: int
    ranks: tuple[tuple[str, str, int], ...]
    family = "retrieval"

    @property
    def points(self) -> float:
        """The mean of the recalls. The paper does not report this mean; its "Avg." (Table 4) is over the STS tasks."""
        return float(np.mean(list(self.recall.values())))

    def as_dict(self) -> dict[str, Any]:
        """Return the recalls and ranks as a JSON-serialisable dict."""
        recall = {str(cutoff): recall for cutoff, recall in self.recall.items()}
        return {**asdict(self), "recall": recall, "ranks": [list(row) for row in self.ranks]}


@dataclass(frozen=True)
class RetrievalTask:
    """Retrieval of the sentence with the same meaning among all sentences of a similarity task."""

    name: str
    pairs: StsTask
    family = "retrieval"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedRetrieval":
        """Read and check the pairs of the evaluated split. Raises DataError if no query has an answer."""
        (pairs,) = self.pairs.read_split(data_dir, settings.split, settings.official)
        top = np.flatnonzero(pairs.gold == EQUIVALENT)
        if not len(top):
            raise DataError(
                f"{pairs.source}: no pair has the score {EQUIVALENT:g}, so there is nothing to retrieve; add such "
                f"pairs, or leave {self.name} out"
            )
        if settings.identical == "merge" and all(pairs.first[row] == pairs.second[row] for row in top):
            raise DataError(
                f"{pairs.source}: every pair with the top score has two identical sentences; use identical='keep'",
                "identical='keep'",
            )
        return LoadedRetrieval(self.name, pairs)


@dataclass(frozen=True, eq=False)
class LoadedRetrieval:
    """A retrieval task with its checked pairs."""

    task: str
    pairs: ScoredPairs

    def located(self) -> Iterator[Located]:
        return self.pairs.located()

    def files(self) -> list[Path]:
        return list(self.pairs.files)

    def score(self, embed: Embeddings, settings: Settings) -> RetrievalResult:
        """Compute the recall of the answers to all queries."""
        pairs = self.pairs
        for side in (pairs.first, pairs.second):
            check_rows(self.task, pairs, side, embed(side))
        texts = [*pairs.first, *pairs.second]
        top = np.flatnonzero(pairs.gold == EQUIVALENT)
        queries = [(row, row + len(pairs)) for row in top] + [(row + len(pairs), row) for row in top]
        same = sum(pairs.first[row] == pairs.second[row] for row in top)
        if settings.identical == "merge":
            texts, queries = _merge(texts, queries)
        ranks = answer_ranks(texts, embed(texts), queries)
        return RetrievalResult(
            task=self.task,
            split=settings.split,
            recall={cutoff: 100 * float(np.mean(ranks <= cutoff)) for cutoff in CUTOFFS},
            queries=len(queries),
            candidates=len(texts) - 1,
            identical=settings.identical,
            identical_pairs=same,
            ranks=tuple(
                (texts[query], texts[answer], int(rank)) for (query, answer), rank in zip(queries, ranks, strict=True)
            ),
        )


def answer_ranks(texts: Sequence[str], vectors: np.ndarray, queries: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the rank of each query's answer by cosine, among all texts except the query. The best rank is 1.

    Copies of the answer's text are not counted. Other texts with the same cosine rank before the answer; otherwise an
    encoder with one vector for all sentences would be perfect.

    Args:
        vectors: The embeddings (N, H) of texts.
        queries: Pairs (row of the query, row of its answer).
    """
    unit = unit_rows(vectors)
    names = np.array(texts, dtype=object)
    ranks = []
    for query, answer in queries:
        cosines = unit @ unit[query]
        others = names != texts[answer]
        others[query] = False
        ranks.append(1 + np.count_nonzero(cosines[others] >= cosines[answer] - ROUNDING))
    return np.array(ranks)


def _merge(texts: list[str], queries: list[tuple[int, int]]) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the distinct texts, and the distinct queries whose answer is a different text."""
    distinct = list(dict.fromkeys(texts))
    row_of = {text: row for row, text in enumerate(distinct)}
    renumbered = dict.fromkeys((row_of[texts[query]], row_of[texts[answer]]) for query, answer in queries)
    return distinct, [(query, answer) for query, answer in renumbered if query != answer]


RETRIEVAL: dict[str, RetrievalTask] = {
    "STSBenchmark-retrieval": RetrievalTask("STSBenchmark-retrieval", STS["STSBenchmark"])
}
