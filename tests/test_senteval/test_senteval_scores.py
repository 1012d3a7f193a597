"""Correlations against slow, independent arithmetic, and what is refused instead of scored."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from senteval import Correlation, DataError, ScoredPairs, TaskResult
from senteval.scores import correlate, cosine, similarities


def make_pairs(name, gold, first_line=1):
    count = len(gold)
    sentences = [f"{name} sentence {number}" for number in range(2 * count)]
    lines = list(range(first_line, first_line + count))
    return ScoredPairs(name, sentences[:count], sentences[count:], np.array(gold, dtype=float), Path("sts.csv"), lines)


@pytest.fixture
def generator():
    return np.random.default_rng(7)


def test_equal_rows_tie_at_exactly_one(generator):
    rows = generator.standard_normal((500, 33)).astype(np.float32)
    assert set(cosine(rows, rows.copy()).tolist()) == {1.0}


def test_half_precision_embeddings_are_scored_in_full_precision():
    first, second = np.full((1, 4), 200, dtype=np.float16), np.array([[200, 200, 200, 100]], dtype=np.float16)
    np.testing.assert_allclose(cosine(first, second), [7 / math.sqrt(4 * 13)], rtol=1e-14)


def test_as_dict_has_sentevals_shape_and_survives_json():
    subsets = {"x": Correlation(0.1, 0.2, 1), "y": Correlation(0.5, 0.6, 3)}
    result = TaskResult("STS00", "test", subsets, Correlation(0.7, 0.8, 4)).as_senteval()
    assert json.loads(json.dumps(result)) == result
    assert result["x"] == {"pearson": 0.1, "spearman": 0.2, "nsamples": 1}
    assert list(result) == ["x", "y", "all"]
    assert result["all"]["pearson"] == pytest.approx({"all": 0.7, "mean": 0.3, "wmean": 0.4})
    assert result["all"]["spearman"] == pytest.approx({"all": 0.8, "mean": 0.4, "wmean": 0.5})


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0])
def test_an_embedding_that_is_zero_or_not_finite_names_its_sentence(generator, bad, side):
    pairs = make_pairs("headlines", [1, 2, 3], first_line=11)
    rows = generator.standard_normal((2, 3, 4))
    rows[side, 1, 2:] = bad
    if not bad:
        rows[side, 1] = 0
    with pytest.raises(DataError, match="not finite" if bad else "all zeros") as caught:
        similarities("STS15", pairs, *rows)
    sentence = (pairs.first, pairs.second)[side][1]
    assert str(caught.value).startswith(f"sts.csv:12: STS15 headlines: the embedding of '{sentence}'")


def test_similarities_that_differ_by_rounding_alone_are_not_correlated():
    with pytest.raises(DataError, match=r"STS15 images: all 3 pairs have the same similarity, 0\.5"):
        correlate("STS15 images", np.full(3, 0.5), np.array([1.0, 2.0, 3.0]))
    with pytest.raises(DataError, match="same similarity"):
        correlate("STS15", 1 + np.array([0, 1e-16, 3e-16, -2e-16]), np.array([1.0, 2.0, 3.0, 4.0]))
