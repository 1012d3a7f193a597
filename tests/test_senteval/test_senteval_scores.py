"""Correlations against slow, independent arithmetic, and what is refused instead of scored."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from senteval import Correlation, DataError, ScoredPairs, TaskResult
from senteval.scores import correlate, cosine, score_task, similarities


def make_pairs(name, gold, first_line=1):
    count = len(gold)
    sentences = [f"{name} sentence {number}" for number in range(2 * count)]
    lines = list(range(first_line, first_line + count))
    return ScoredPairs(name, sentences[:count], sentences[count:], np.array(gold, dtype=float), Path("sts.csv"), lines)


def average_ranks(values):
    """Rank of each value, ties sharing the mean of the ranks they cover, by counting."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def naive_pearson(ones, others):
    mean_one, mean_other = sum(ones) / len(ones), sum(others) / len(others)
    products = sum((one - mean_one) * (other - mean_other) for one, other in zip(ones, others, strict=True))
    spread_one = sum((one - mean_one) ** 2 for one in ones)
    spread_other = sum((other - mean_other) ** 2 for other in others)
    return products / math.sqrt(spread_one * spread_other)


def naive_spearman(ones, others):
    return naive_pearson(average_ranks(ones), average_ranks(others))


def naive_cosine(one, other):
    length = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / length


@pytest.fixture
def generator():
    return np.random.default_rng(7)


@pytest.fixture
def tied_sets(generator):
    """Three sets of unequal size with many ties in scores and in similarities."""
    sets = [make_pairs(f"set{count}", generator.integers(0, 6, count)) for count in (9, 20, 41)]
    return sets, [generator.integers(-3, 4, len(pairs)) / 4 for pairs in sets]


def test_cosine_is_that_of_each_row_pair(generator):
    first, second = generator.standard_normal((2, 6, 5)).astype(np.float32)
    expected = [naive_cosine(one, other) for one, other in zip(first.tolist(), second.tolist(), strict=True)]
    result = cosine(first, second)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-14)


def test_equal_rows_tie_at_exactly_one(generator):
    rows = generator.standard_normal((500, 33)).astype(np.float32)
    assert set(cosine(rows, rows.copy()).tolist()) == {1.0}


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_cosine_does_not_depend_on_scale(generator, scale):
    first, second = generator.standard_normal((2, 6, 5))
    np.testing.assert_allclose(cosine(first * scale, second), cosine(first, second), rtol=1e-12)


def test_half_precision_embeddings_are_scored_in_full_precision():
    first, second = np.full((1, 4), 200, dtype=np.float16), np.array([[200, 200, 200, 100]], dtype=np.float16)
    np.testing.assert_allclose(cosine(first, second), [naive_cosine([2, 2, 2, 2], [2, 2, 2, 1])], rtol=1e-14)


def test_correlations_with_ties_are_those_of_hand_and_of_scipy(tied_sets):
    for pairs, similarity in zip(*tied_sets, strict=True):
        result = correlate("owner", similarity, pairs.gold)
        found, gold = similarity.tolist(), pairs.gold.tolist()
        assert result.nsamples == len(gold)
        assert result.pearson == pytest.approx(naive_pearson(found, gold), abs=1e-12)
        assert result.spearman == pytest.approx(naive_spearman(found, gold), abs=1e-12)
        assert result.pearson == pytest.approx(stats.pearsonr(found, gold).statistic, abs=1e-12)
        assert result.spearman == pytest.approx(stats.spearmanr(found, gold).statistic, abs=1e-12)


@pytest.mark.parametrize(("kind", "naive"), [("pearson", naive_pearson), ("spearman", naive_spearman)])
def test_all_mean_and_wmean_are_concatenation_plain_and_weighted_mean(tied_sets, kind, naive):
    sets, similarity_of = tied_sets
    result = score_task("STS00", "test", sets, similarity_of)
    each = [naive(list(found), list(pairs.gold)) for pairs, found in zip(sets, similarity_of, strict=True)]
    together = naive([x for found in similarity_of for x in found], [x for pairs in sets for x in pairs.gold])
    weighted = (9 * each[0] + 20 * each[1] + 41 * each[2]) / 70
    assert len({round(x, 6) for x in (together, sum(each) / 3, weighted)}) == 3
    assert getattr(result.all, kind) == pytest.approx(together, abs=1e-12)
    assert getattr(result.mean, kind) == pytest.approx(sum(each) / 3, abs=1e-12)
    assert getattr(result.wmean, kind) == pytest.approx(weighted, abs=1e-12)
    assert [getattr(subset, kind) for subset in result.subsets.values()] == pytest.approx(each, abs=1e-12)


def test_the_score_is_spearman_of_all_pairs_as_a_fraction():
    result = TaskResult("STS00", "test", {"x": Correlation(0.1, 0.2, 5)}, Correlation(0.3, 0.4, 5))
    assert result.score == 0.4


def test_as_dict_has_sentevals_shape_and_survives_json():
    subsets = {"x": Correlation(0.1, 0.2, 1), "y": Correlation(0.5, 0.6, 3)}
    result = TaskResult("STS00", "test", subsets, Correlation(0.7, 0.8, 4)).as_senteval()
    assert json.loads(json.dumps(result)) == result
    assert result["x"] == {"pearson": 0.1, "spearman": 0.2, "nsamples": 1}
    assert list(result) == ["x", "y", "all"]
    assert result["all"]["pearson"] == pytest.approx({"all": 0.7, "mean": 0.3, "wmean": 0.4})
    assert result["all"]["spearman"] == pytest.approx({"all": 0.8, "mean": 0.4, "wmean": 0.5})


def test_scored_arrays_become_plain_numbers(tied_sets):
    json.dumps(score_task("STS00", "test", *tied_sets).as_senteval())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_an_embedding_that_is_not_finite_names_its_sentence(generator, bad, side):
    pairs = make_pairs("headlines", [1, 2, 3], first_line=11)
    rows = generator.standard_normal((2, 3, 4))
    rows[side, 1, 2] = bad
    with pytest.raises(DataError, match="not finite") as caught:
        similarities("STS15", pairs, *rows)
    sentence = (pairs.first, pairs.second)[side][1]
    assert str(caught.value).startswith(f"sts.csv:12: STS15 headlines: the embedding of '{sentence}'")


@pytest.mark.parametrize("side", [0, 1])
def test_a_zero_embedding_names_its_sentence(generator, side):
    pairs = make_pairs("images", [1, 2, 3], first_line=5)
    rows = generator.standard_normal((2, 3, 4))
    rows[side, 2] = 0
    with pytest.raises(DataError, match="all zeros") as caught:
        similarities("STS15", pairs, *rows)
    sentence = (pairs.first, pairs.second)[side][2]
    assert str(caught.value).startswith(f"sts.csv:7: STS15 images: the embedding of '{sentence}'")


def test_similarities_that_are_all_the_same_are_an_error_not_a_zero():
    with pytest.raises(DataError, match=r"STS15 images: all 3 pairs have the same similarity, 0\.5"):
        correlate("STS15 images", np.full(3, 0.5), np.array([1.0, 2.0, 3.0]))


def test_differences_of_rounding_are_not_correlated():
    with pytest.raises(DataError, match="same similarity"):
        correlate("STS15", 1 + np.array([0, 1e-16, 3e-16, -2e-16]), np.array([1.0, 2.0, 3.0, 4.0]))


def test_a_constant_set_is_named_with_its_task(tied_sets):
    sets, similarity_of = tied_sets
    similarity_of[1] = np.full(20, 0.25)
    with pytest.raises(DataError, match=r"^STS00 set20: all 20 pairs"):
        score_task("STS00", "test", sets, similarity_of)
