"""Retrieval of documents for queries, with data in the layout of BEIR and with the scores of BEIR.

Source: Thakur et al., *BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval Models*
(2021). For each query, documents are ranked by the cosine of the document's and the query's embedding. The scores are
computed as by trec_eval, which BEIR and mteb use:

nDCG@10     the gain of a document is its score in the judgements, discounted by log2(rank + 1); the sum is divided by
            the same sum for the best possible ranking
MRR@10      1 / rank of the first relevant document; 0 if none of the first 10 documents is relevant
recall@k    the share of the relevant documents that are among the first k
MAP@100     the precision at the rank of each relevant document among the first 100, summed and divided by the number
            of relevant documents

A document is relevant for a query if its score in the judgements is above 0. A document with the same id as the query
is ignored, as in BEIR. Documents with equal cosines are ranked in descending order of their ids, as in trec_eval.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from senteval.embeddings import Embeddings
from senteval.lines import Content, Line, Located, record
from senteval.scores import check_rows, unit_rows
from senteval.settings import Settings

CUTOFF = 10
"""Number of first ranks that nDCG@10, MRR@10 and recall@10 count."""

DEPTH = 100
"""Number of first ranks that recall@100 and MAP@100 count. Documents after these ranks are not ranked."""

DOCUMENTS, QUERIES = 8192, 512
"""Numbers of documents and queries whose cosines are computed at once."""


@dataclass(frozen=True, eq=False)
class IdentifiedTexts:
    """N documents or N queries with their ids.

    Args:
        name: A word for the texts in messages.
        ids: The ids: N different strings.
        source, lines, unit: The file, the line number of each text, and what `lines` counts if not lines.
    """

    name: str
    ids: Sequence[str]
    texts: Sequence[str]
    source: Path
    lines: Sequence[int]
    unit: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: slice | Sequence[int]) -> "IdentifiedTexts":
        """Return the texts in these rows, with their ids and lines."""

        def of(values: Sequence[Any]) -> Sequence[Any]:
            return values[rows] if isinstance(rows, slice) else [values[row] for row in rows]

        return IdentifiedTexts(self.name, of(self.ids), of(self.texts), self.source, of(self.lines), self.unit)

    def located(self) -> Iterator[Located]:
        """Yield every text with the `Line` that contains it."""
        for text, number in zip(self.texts, self.lines, strict=True):
            yield text, Line(self.source, number, "", unit=self.unit)


@dataclass(frozen=True)
class BeirResult:
    """The scores of a ranking: fractions, averaged over queries. The module docstring defines the scores.

    Args:
        queries, documents: Number of queries and of documents.
        queries_left_out: Number of queries without a relevant document. These queries are not scored.
        query_ndcg: nDCG@10 of each query (Q,).
        gold: Number of relevant documents of each query (Q,).
    """

    task: str
    split: str
    ndcg_at_10: float
    mrr_at_10: float
    recall_at_10: float
    recall_at_100: float
    map_at_100: float
    queries: int
    documents: int
    queries_left_out: int
    query_ndcg: np.ndarray | None = field(default=None, repr=False, compare=False)
    gold: np.ndarray | None = field(default=None, repr=False, compare=False)
    family = "beir"

    @property
    def score(self) -> float:
        """The nDCG@10."""
        return self.ndcg_at_10

    @property
    def points(self) -> float:
        """nDCG@10 × 100, as in tables."""
        return 100 * self.score

    def as_dict(self) -> dict[str, Any]:
        """Return the averages and numbers as a JSON-serialisable dict; scores are fractions."""
        return {name: value for name, value in vars(self).items() if name not in ("query_ndcg", "gold")}


@dataclass(frozen=True, eq=False)
class BeirTask:
    """Retrieval among N documents for Q queries. Each query has at least one relevant document.

    Args:
        relevant: For each query, a dict: row of each relevant document → score of the document in the judgements,
            above 0.
        split: The name of the split of the judgements.
        queries_left_out: See `BeirResult`.
        contents: A dict from each file (or the name of data that are not from a file) to its content.
    """

    name: str
    split: str
    documents: IdentifiedTexts
    queries: IdentifiedTexts
    relevant: Sequence[Mapping[int, float]]
    queries_left_out: int
    contents: Mapping[Path, Content]
    family = "beir"

    @property
    def content(self) -> Content:
        """The content that identifies the data in records (see `senteval.pairs.PairsTask`)."""
        digest = Content.of("".join(content.sha256 for content in self.contents.values()).encode()).sha256
        return Content(digest, sum(content.bytes for content in self.contents.values()))

    def load(self, data_dir: Path, settings: Settings) -> "LoadedBeir":
        """Return the data, which are already loaded and checked. data_dir and `settings.split` are ignored."""
        for path, content in self.contents.items():
            record(path, content)
        return LoadedBeir(self)


@dataclass(frozen=True, eq=False)
class LoadedBeir:
    """A document retrieval task with its checked data."""

    task: BeirTask
    family = "beir"

    def located(self) -> Iterator[Located]:
        yield from self.task.documents.located()
        yield from self.task.queries.located()

    def files(self) -> list[Path]:
        return list(self.task.contents)

    def score(self, embed: Embeddings, settings: Settings) -> BeirResult:
        """Rank the documents for each query. Raises DataError if an embedding is zero: no cosine is defined then."""
        task = self.task

        def unit_vectors(texts: IdentifiedTexts) -> np.ndarray:
            vectors = embed(texts.texts)
            check_rows(task.name, texts, texts.texts, vectors)
            return unit_rows(vectors)

        row_of = {document: row for row, document in enumerate(task.documents.ids)}
        ranking = top_documents(
            unit_vectors(task.queries),
            lambda rows: unit_vectors(task.documents.part(rows)),
            task.documents.ids,
            ignored=np.array([row_of.get(query, -1) for query in task.queries.ids]),
            device=settings.device,
        )
        found = ranking_scores(ranking, task.relevant)
        return BeirResult(
            task=task.name,
            split=task.split,
            **{name: float(values.mean()) for name, values in found.items()},
            queries=len(task.queries),
            documents=len(task.documents),
            queries_left_out=task.queries_left_out,
            query_ndcg=found["ndcg_at_10"],
            gold=np.array([len(documents) for documents in task.relevant]),
        )


_STEPS, _PLACES, _NONE = 2**30, 2**32, -(2**63)


def top_documents(
    queries: np.ndarray,
    documents: Callable[[slice], np.ndarray],
    ids: Sequence[str],
    ignored: np.ndarray,
    device: str = "cpu",
) -> np.ndarray:
    """Return the rows (Q, K) of the documents with the largest cosines, best first; K is the minimum of 100 and N.

    Args:
        queries: The unit vectors (Q, H) of the queries, in float64.
        documents: A function that returns the unit vectors of the documents in a slice of rows. If a query has fewer
            than K documents, its row of the result ends with -1.
        ids: The N different ids of the documents. Among documents whose cosines are equal when rounded to 2⁻³⁰, the
            document with the largest id is first.
        ignored: For each query (Q,), the row of the document to ignore, or -1.
        device: The device on which cosines are computed. If the device has no float64, the CPU is used.
    """
    device = "cpu" if device.startswith("mps") else device
    by_id = np.array(sorted(range(len(ids)), key=ids.__getitem__))
    place = torch.from_numpy(np.argsort(by_id)).to(device)
    vectors, ignored_rows = torch.from_numpy(queries).to(device), torch.from_numpy(ignored).to(device)
    # The cosine and the position of a document are joined in one integer. No two integers are equal, and topk, which
    # would choose any of several equal values, is deterministic. Without rounding, equal vectors could differ in the
    # last bit of their cosines.
    best = torch.full((len(queries), min(DEPTH, len(ids))), _NONE, device=device)
    for start in range(0, len(ids), DOCUMENTS):
        block = torch.from_numpy(documents(slice(start, start + DOCUMENTS))).to(device)
        for first in range(0, len(queries), QUERIES):
            some = slice(first, first + QUERIES)
            keys = (vectors[some] @ block.T * _STEPS).round().long() * _PLACES + place[start : start + len(block)]
            column = ignored_rows[some] - start
            (row,) = torch.where((column >= 0) & (column < len(block)))
            keys[row, column[row]] = _NONE
            best[some] = torch.cat([best[some], keys], dim=1).topk(best.shape[1]).values
    keys = best.cpu().numpy()
    return np.where(keys == _NONE, -1, by_id[keys % _PLACES])


def ranking_scores(ranking: np.ndarray, relevant: Sequence[Mapping[int, float]]) -> dict[str, np.ndarray]:
    """Return the scores (Q,) of the queries by the names in `BeirResult`. The module docstring defines the scores.

    Args:
        ranking: For each query, the rows (Q, K) of documents, best first; -1 stands for no document.
        relevant: See `BeirTask`.
    """
    gains = np.zeros((len(relevant), max(DEPTH, ranking.shape[1])))
    best = np.zeros((len(relevant), CUTOFF))
    for query, scores in enumerate(relevant):
        gains[query, : ranking.shape[1]] = [scores.get(row, 0.0) for row in ranking[query].tolist()]
        ideal = sorted(scores.values(), reverse=True)[:CUTOFF]
        best[query, : len(ideal)] = ideal
    ranks = np.arange(1, gains.shape[1] + 1)
    discount = 1 / np.log2(ranks[:CUTOFF] + 1)
    hits, number = gains > 0, np.array([len(scores) for scores in relevant])
    return {
        "ndcg_at_10": (gains[:, :CUTOFF] @ discount) / (best @ discount),
        "mrr_at_10": (hits[:, :CUTOFF] / ranks[:CUTOFF]).max(axis=1),
        "recall_at_10": hits[:, :CUTOFF].sum(axis=1) / number,
        "recall_at_100": hits[:, :DEPTH].sum(axis=1) / number,
        "map_at_100": (hits.cumsum(axis=1) / ranks * hits)[:, :DEPTH].sum(axis=1) / number,
    }
