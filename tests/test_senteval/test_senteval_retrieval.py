"""Retrieval against naive loops over all candidates, and what identical sentences and ties do."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from senteval import DataError, ScoredPairs, Settings
from senteval.embeddings import Embeddings
from senteval.retrieval import RETRIEVAL, LoadedRetrieval, answer_ranks
from senteval_tiny import cosine

KEEP, MERGE = Settings(identical="keep"), Settings(identical="merge")


def naive_rank(query, answer, candidates, vectors):
    """Place, from 1, of answer when candidates are sorted by cosine; query, answer, candidates are row numbers."""
    return 1 + sorted(candidates, key=lambda row: -cosine(vectors[query], vectors[row])).index(answer)


def both_ways(pairs):
    """Rows of queries and answers, in either direction, of the pairs with the top score."""
    count = len(pairs)
    return [way for row in np.flatnonzero(pairs.gold == 5) for way in ((row, row + count), (row + count, row))]


def recalls(ranks):
    return {cutoff: 100 * sum(rank <= cutoff for rank in ranks) / len(ranks) for cutoff in (1, 3, 5)}


def pairs_of(first, second, gold):
    return ScoredPairs("test", first, second, np.array(gold, dtype=float), Path("sts.csv"), [*range(1, len(gold) + 1)])


def embeddings_of(pairs, width=6, likeness=0.7, seed=0):
    """Random vectors; those of a pair are alike."""
    random = np.random.default_rng(seed)
    vectors = {}
    for first, second in zip(pairs.first, pairs.second, strict=True):
        common = random.standard_normal(width)
        for text in (first, second):
            own = random.standard_normal(width)
            vectors.setdefault(text, (likeness * common + (1 - likeness) * own) * random.uniform(0.1, 10))
    return Embeddings(list(vectors), np.stack(list(vectors.values())))


@pytest.fixture
def different():
    """60 pairs without a repeated sentence, 24 of them with the top score."""
    gold = [5, 3.2, 0, 5, 4.999] * 12
    return pairs_of([f"first {row}" for row in range(60)], [f"second {row}" for row in range(60)], gold)


@pytest.fixture
def repeated():
    """Sentences that occur again: in their own pair, in another one, and in a pair that is there twice."""
    return pairs_of(
        ["a", "b", "c", "e", "e", "g", "a", "k", "l"],
        ["a", "b2", "d", "f", "f", "b", "h", "l", "k"],
        [5, 5, 5, 5, 5, 2, 0, 5, 5],
    )


def test_recall_is_that_of_sorting_all_other_sentences(different):
    embed = embeddings_of(different)
    sentences = different.first + different.second
    vectors = embed(sentences)
    ranks, listed = [], set()
    for query, answer in both_ways(different):
        ranks.append(naive_rank(query, answer, [other for other in range(120) if other != query], vectors))
        listed.add((sentences[query], sentences[answer], ranks[-1]))
    result = LoadedRetrieval("Toy", different).score(embed, KEEP)
    assert result.recall == pytest.approx(recalls(ranks))
    assert 10 < result.recall[1] < result.recall[3] < result.recall[5] < 95
    assert result.points == pytest.approx(np.mean([result.recall[cutoff] for cutoff in (1, 3, 5)]))
    assert (result.queries, result.candidates, result.identical_pairs) == (48, 119, 0)
    assert set(result.ranks) == listed and len(result.ranks) == 48
    shown = {"recall": {str(cutoff): of for cutoff, of in result.recall.items()}, "ranks": [*map(list, result.ranks)]}
    assert json.loads(json.dumps(result.as_dict())) == vars(result) | shown
    assert replace(LoadedRetrieval("Toy", different).score(embed, MERGE), identical="keep") == result
    for side, value in (("first", 0.0), ("second", np.nan)):
        embed = embeddings_of(different)
        embed.vectors[embed._row_of[f"{side} 7"]] = value
        with pytest.raises(DataError, match=rf"sts.csv:8: .*'{side} 7'"):
            LoadedRetrieval("Toy", different).score(embed, KEEP)


def test_cosines_that_differ_by_rounding_alone_are_equal():
    texts = ["query", "answer", "other"]
    # The other's cosine is smaller by 5e-15, which is a tie, and by 5e-9.
    assert answer_ranks(texts, np.array([[1, 0], [1, 0], [1, 1e-7]]), [(0, 1)]).tolist() == [2]
    assert answer_ranks(texts, np.array([[1, 0], [1, 0], [1, 1e-4]]), [(0, 1)]).tolist() == [1]


def test_identical_sentences_are_kept_as_they_occur(repeated):
    embed = embeddings_of(repeated)
    sentences = repeated.first + repeated.second
    vectors = embed(sentences)
    ranks = []
    for query, answer in both_ways(repeated):
        # Of several copies of the answer the first to be found counts.
        others = [other for other in range(18) if other != query]
        candidates = [row for row in others if row == answer or sentences[row] != sentences[answer]]
        ranks.append(naive_rank(query, answer, candidates, vectors))
    result = LoadedRetrieval("Toy", repeated).score(embed, KEEP)
    assert result.recall == pytest.approx(recalls(ranks))
    assert (result.queries, result.candidates, result.identical_pairs) == (14, 17, 1)
    # The pair of "a" and "a": each finds the other first, whatever the vectors.
    assert ranks[:2] == [1, 1] and max(ranks) > 1


def test_identical_sentences_are_merged_into_one(repeated):
    embed = embeddings_of(repeated)
    sentences = sorted({*repeated.first, *repeated.second})
    vectors = embed(sentences)
    # "a" has no other sentence to find; e-f is there twice, k-l in both directions.
    queries = [("b", "b2"), ("b2", "b"), ("c", "d"), ("d", "c"), ("e", "f"), ("f", "e"), ("k", "l"), ("l", "k")]
    ranks = []
    for query, answer in queries:
        candidates = [row for row, text in enumerate(sentences) if text != query]
        ranks.append(naive_rank(sentences.index(query), sentences.index(answer), candidates, vectors))
    result = LoadedRetrieval("Toy", repeated).score(embed, MERGE)
    assert result.recall == pytest.approx(recalls(ranks))
    assert set(result.ranks) == {(*query, rank) for query, rank in zip(queries, ranks, strict=True)}
    assert (result.queries, result.candidates, result.identical_pairs) == (8, len(sentences) - 1, 1)


def test_a_sentence_with_two_answers_is_a_query_for_each():
    pairs = pairs_of(["a", "a", "x"], ["b", "c", "y"], [5, 5, 1])
    embed = Embeddings(["a", "b", "c", "x", "y"], np.array([[1, 0], [1, 0.1], [1, -0.2], [-1, 0], [-1, -1]]))
    assert LoadedRetrieval("Toy", pairs).score(embed, MERGE).queries == 4
    # From "a": b, c. From b: a, c. From c: a. Only a -> c is second.
    assert LoadedRetrieval("Toy", pairs).score(embed, MERGE).recall == {1: 75.0, 3: 100.0, 5: 100.0}


def test_the_real_test_split_has_the_papers_194_queries(real_data):
    loaded = RETRIEVAL["STSBenchmark-retrieval"].load(Path(real_data), KEEP)
    pairs = loaded.pairs
    sentences = list(dict.fromkeys(pairs.first + pairs.second))
    embed = Embeddings(sentences, np.random.default_rng(0).standard_normal((len(sentences), 8)))
    kept, merged = (loaded.score(embed, settings) for settings in (KEEP, MERGE))
    assert (pairs.gold == 5).sum() == 97
    assert (kept.queries, kept.candidates) == (194, 2 * 1379 - 1)
    top = {(pairs.first[row], pairs.second[row]) for row in np.flatnonzero(pairs.gold == 5)}
    both_ways = {(one, two) for one, two in top | {(two, one) for one, two in top} if one != two}
    assert (merged.queries, merged.candidates) == (len(both_ways), len(sentences) - 1)
    assert kept.identical_pairs == 97 - sum(one != two for one, two in top)
    # D2CSE's Table 3, in the words of the data.
    assert ("yes you got it .", "you got it right .") in {row[:2] for row in merged.ranks}
    # Random vectors find hardly anything but the identical sentences.
    assert kept.recall[1] == pytest.approx(100 * 2 * kept.identical_pairs / 194, abs=2)
    assert merged.recall[5] < 5
