"""Retrieval of documents: rankings against a plain loop, scores against trec_eval."""

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from senteval import DataError, beir, settings_of_mode
from senteval.beir import BeirTask, IdentifiedTexts, ranking_scores, top_documents
from senteval.embeddings import Embeddings
from senteval.lines import Content
from senteval.scores import unit_rows
from senteval.suite import load_suite


class Data:
    """Random vectors, ids in no order, and graded judgements of a set of documents and queries."""

    def __init__(self, seed: int, documents: int, queries: int = 11, *, tied: bool = False) -> None:
        random = np.random.default_rng(seed)
        draw = (lambda shape: random.integers(-1, 2, shape) + 0.0) if tied else random.standard_normal
        width = 3 if tied else 8
        self.documents, self.queries = draw((documents, width)), draw((queries, width))
        self.documents[~self.documents.any(axis=1), 0] = self.queries[~self.queries.any(axis=1), 0] = 1
        numbers = random.permutation(documents + queries)
        self.ids = [f"é{number}" if number % 5 == 0 else str(number) for number in numbers[:documents]]
        self.query_ids = [f"q{number}" for number in numbers[documents:]]
        self.query_ids[0] = self.ids[0]  # which its query ignores
        self.relevant = [
            {int(row): int(random.integers(1, 4)) for row in random.permutation(np.arange(1, documents))[:count]}
            for count in random.integers(1, min(documents, 30), queries)
        ]
        self.cosines = unit_rows(self.queries) @ unit_rows(self.documents).T

    def ranked(self) -> list[list[int]]:
        """The rows of the documents by a plain sort: by cosine, then by id, both descending."""
        every = []
        for query, cosines in zip(self.query_ids, self.cosines.round(9), strict=True):
            keys = [(cosines[row], given, row) for row, given in enumerate(self.ids) if given != query]
            every.append([row for *_, row in sorted(keys, reverse=True)])
        return every

    def top(self) -> np.ndarray:
        ignored = np.array([self.ids.index(query) if query in self.ids else -1 for query in self.query_ids])
        documents = unit_rows(self.documents)
        return top_documents(unit_rows(self.queries), lambda rows: documents[rows], self.ids, ignored)


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
@pytest.mark.parametrize("block", [3, 64])
def test_the_ranking_is_that_of_a_plain_sort_in_blocks_of_any_size(tied, block, monkeypatch):
    monkeypatch.setattr(beir, "DOCUMENTS", block)
    monkeypatch.setattr(beir, "QUERIES", block)
    for documents in (2, 7, 100, 250):
        data = Data(documents, documents, tied=tied)
        for found, expected in zip(data.top().tolist(), data.ranked(), strict=True):
            expected = expected[: min(beir.DEPTH, documents)]
            assert found == expected + [-1] * (len(found) - len(expected))


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
@pytest.mark.parametrize("documents", [2, 60, 250])
def test_the_scores_are_those_of_trec_eval(documents, tied):
    data = Data(documents + 1, documents, tied=tied)
    found = ranking_scores(data.top(), data.relevant)
    run, judgements = {}, {}
    for query, relevant, cosines in zip(data.query_ids, data.relevant, data.cosines.round(6).tolist(), strict=True):
        judgements[query] = {data.ids[row]: score for row, score in relevant.items()}
        run[query] = {given: value for given, value in zip(data.ids, cosines, strict=True) if given != query}
    measures = {"ndcg_cut.10", "map_cut.100", "recall.10,100"}
    expected = pytrec_eval.RelevanceEvaluator(judgements, measures).evaluate(run)
    for name in ("ndcg_at_10", "map_at_100", "recall_at_10", "recall_at_100"):
        theirs = name.replace("at", "" if "recall" in name else "cut").replace("__", "_")
        # trec_eval gives scores in six digits after the comma
        np.testing.assert_allclose(found[name], [expected[query][theirs] for query in data.query_ids], atol=1e-6)
    for reciprocal, ranked, relevant in zip(found["mrr_at_10"], data.ranked(), data.relevant, strict=True):
        first = next((place for place, row in enumerate(ranked[:10], 1) if row in relevant), np.inf)
        assert reciprocal == 1 / first


def test_equal_vectors_are_tied_wherever_they_are_in_a_block():
    random = np.random.default_rng(0)
    vector = unit_rows(random.standard_normal((1, 300)))
    documents = np.concatenate([unit_rows(random.standard_normal((500, 300))), np.repeat(vector, 700, axis=0)])
    ids = [f"{number:04}" for number in random.permutation(1200)]
    found = top_documents(vector + 0, lambda rows: documents[rows], ids, np.array([-1]))[0]
    assert [ids[row] for row in found] == sorted(ids[500:], reverse=True)[:100]


def task_of(data: Data) -> BeirTask:
    def texts(name: str, ids: list[str]) -> IdentifiedTexts:
        return IdentifiedTexts(name, ids, [f"{name} {given}" for given in ids], Path(name), [*range(1, len(ids) + 1)])

    contents = {Path(name): Content.of(name.encode()) for name in ("documents", "queries")}
    own = texts("documents", data.ids), texts("queries", data.query_ids)
    return BeirTask("tiny", "test", *own, data.relevant, 2, contents)


def test_a_task_has_the_mean_scores_of_its_queries():
    data = Data(3, 40)
    task = task_of(data)
    suite = load_suite([], Path("nowhere"), settings_of_mode("test"), [task])
    assert set(suite.files) == {"documents", "queries"}
    vectors = np.concatenate([data.documents, data.queries])
    embed = Embeddings([*task.documents.texts, *task.queries.texts], vectors)
    result = suite.tasks["tiny"].score(embed, suite.settings)
    expected = ranking_scores(data.top(), data.relevant)
    assert all(getattr(result, name) == values.mean() for name, values in expected.items())
    assert (result.queries, result.documents, result.queries_left_out) == (11, 40, 2)
    assert result.points == 100 * result.score
    np.testing.assert_array_equal(result.query_ndcg, expected["ndcg_at_10"])
    np.testing.assert_array_equal(result.gold, [len(one) for one in data.relevant])
    assert result.as_dict()["ndcg_at_10"] == result.score and "gold" not in result.as_dict()
    vectors[6] = 0
    with pytest.raises(DataError, match=r"^documents:7: tiny documents: the embedding of .* is all zeros"):
        suite.tasks["tiny"].score(embed, suite.settings)
