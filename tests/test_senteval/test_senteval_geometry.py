"""Alignment, uniformity and anisotropy against double loops; bins, samples, and what only the encoder can tell."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from senteval import DataError, ScoredPairs, Settings
from senteval.embeddings import Embeddings
from senteval.geometry import GEOMETRY, LoadedGeometry, alignment, cosine_bins, mean_cosine, read_sample, uniformity
from senteval.lines import Line
from senteval_tiny import FakeInside, cosine

SETTINGS = Settings()


def squared_distance(one, other):
    return sum((one / np.linalg.norm(one) - other / np.linalg.norm(other)) ** 2)


def naive_uniformity(vectors):
    return math.log(np.mean([math.exp(-2 * squared_distance(*pair)) for pair in combinations(vectors, 2)]))


def naive_mean_cosine(vectors):
    return abs(np.mean([cosine(*pair) for pair in combinations(vectors, 2)]))


def naive_alignment(first, second):
    return np.mean([*map(squared_distance, first, second)])


@pytest.fixture
def random():
    return np.random.default_rng(3)


@pytest.fixture
def vectors(random):
    """With a common direction, as the embeddings of a pretrained encoder have."""
    return random.standard_normal((12, 5)) + 0.7


def test_measures_are_those_of_double_loops(vectors):
    assert alignment(vectors[:6], vectors[6:]) == pytest.approx(naive_alignment(vectors[:6], vectors[6:]))
    assert uniformity(vectors) == pytest.approx(naive_uniformity(vectors))
    assert uniformity(np.array([[1.0, 0], [0, 5]])) == pytest.approx(-4)  # exp(-2 * 2)
    assert 0.1 < mean_cosine(vectors) < 0.9 and mean_cosine(vectors) == pytest.approx(naive_mean_cosine(vectors))
    assert mean_cosine(np.array([[1.0, 0], [-2, 0]])) == pytest.approx(1)  # of -1
    # A row of zeros, as the embedding of a padding token is, has cosine 0 with all: 12 * 11 of 13 * 12 pairs have one.
    expected = naive_mean_cosine(vectors) * (12 * 11) / (13 * 12)
    assert mean_cosine(np.r_[vectors, np.zeros((1, 5))]) == pytest.approx(expected)


def test_neither_the_length_of_a_vector_nor_half_precision_counts(vectors, random):
    factors = 10.0 ** np.random.default_rng(0).integers(-3, 4, (12, 1))
    many = (random.standard_normal((2000, 4)) + 2).astype(np.float16)
    for measure in (lambda v: alignment(v[:6], v[6:12]), uniformity, mean_cosine):
        assert measure(vectors * factors) == pytest.approx(measure(vectors))
        assert measure(vectors + 1) != pytest.approx(measure(vectors))
        assert measure(many) == pytest.approx(measure(many.astype(np.float64)), rel=1e-12)


def test_bins_hold_the_cosines_of_their_scores(random):
    gold = np.r_[0, 0.99, 1, 1.5, 3, 3.999, 4, 4.2, 5, 5]  # none from 2 to 3
    cosines = random.uniform(-1, 1, len(gold))
    bins = cosine_bins(cosines, gold)
    rows = {0: [0, 1], 1: [2, 3], 3: [4, 5], 4: [6, 7, 8, 9]}
    assert [(one.low, one.high, one.pairs) for one in bins] == [(low, low + 1, len(rows[low])) for low in rows]
    for one in bins:
        inside = cosines[rows[one.low]]
        assert (one.mean, one.std) == pytest.approx((np.mean(inside), np.std(inside)))
        assert one.quantiles == pytest.approx({q: np.percentile(inside, q) for q in (5, 25, 50, 75, 95)})


GOLD = [0, 1.5, 4, 4.001, 5, 2.2, 3.3, 4.8]


@pytest.fixture
def loaded():
    """Eight pairs, three of them positive; "s0" occurs twice."""
    second = ["s0", *(f"t{row}" for row in range(1, 8))]
    pairs = ScoredPairs(
        "test", [f"s{row}" for row in range(8)], second, np.array(GOLD), Path("sts.csv"), [*range(1, 9)]
    )
    return LoadedGeometry("Toy", pairs, sample=None)


def embed(loaded, *more, inside=None):
    """Random embeddings of all sentences."""
    sentences = [*dict.fromkeys([*loaded.pairs.first, *loaded.pairs.second, *more])]
    vectors = np.random.default_rng(3).standard_normal((len(sentences), 4)) + 0.5
    return Embeddings(sentences, vectors, inside)


def test_the_split_is_measured_on_its_own_sentences_and_anisotropy_on_the_sample_where_there_is_one(loaded):
    embeddings, pairs = embed(loaded, "w1", "w2 and more"), loaded.pairs
    first, second = embeddings(pairs.first), embeddings(pairs.second)
    result, positive = loaded.score(embeddings, SETTINGS), [3, 4, 7]
    assert result.positive_pairs == 3
    assert result.alignment == pytest.approx(naive_alignment(first[positive], second[positive]))
    # All sentences as they occur, repeated ones included, and for anisotropy different ones only.
    assert result.uniformity == pytest.approx(naive_uniformity(np.r_[first, second]))
    assert result.anisotropy == pytest.approx(naive_mean_cosine(embeddings.vectors[:15]))
    assert (result.sentences, result.sample, result.sample_size) == (16, "Toy test", 15)
    cosines = [*map(cosine, first, second)]
    assert result.spearman == pytest.approx(100 * spearmanr(cosines, GOLD)[0])
    assert [(one.low, one.pairs) for one in result.bins] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 4)]
    assert result.bins[-1].mean == pytest.approx(np.mean([cosines[row] for row in (2, 3, 4, 7)]))

    sample = [Line(Path("wiki.txt"), number, text) for number, text in enumerate(["w1", " w2  and\tmore ", "s5"], 1)]
    with_sample = replace(loaded, sample=sample)
    of_sample = with_sample.score(embeddings, SETTINGS)
    assert of_sample.anisotropy == pytest.approx(naive_mean_cosine(embeddings(["w1", "w2 and more", "s5"])))
    assert (of_sample.sample, of_sample.sample_size, of_sample.uniformity) == ("wiki.txt", 3, result.uniformity)
    asked = [sentence for sentence, _ in with_sample.located()]
    assert sorted(asked) == sorted([*pairs.first, *pairs.second, "w1", "w2 and more", "s5"])


class Inside(FakeInside):
    """Also with embeddings of tokens; of the same sentences its vectors are zeros."""

    tokens = np.random.default_rng(8).standard_normal((9, 3))

    def token_embeddings(self):
        return self.tokens

    def vector(self, text, count):
        return super().vector(text, count) * (count < self.empty_from)


def test_an_encoder_at_hand_is_asked_for_tokens_and_for_sentences_without_frequent_ones(loaded):
    inside, counts = Inside(), [1, 2, 5, 10, 20, 50, 100]
    embeddings = embed(loaded, inside=inside)
    result = loaded.score(embeddings, SETTINGS)
    assert (result.token_anisotropy, result.tokens) == (pytest.approx(naive_mean_cosine(inside.tokens)), 9)
    counted = loaded.pairs.first + loaded.pairs.second
    assert inside.asked == [([*dict.fromkeys(counted)], count, counted) for count in counts]
    assert list(result.without_frequent) == counts
    for count, found in result.without_frequent.items():
        vectors = [inside.vector(text, count) for text in counted]
        assert found == pytest.approx(100 * spearmanr([*map(cosine, vectors[:8], vectors[8:])], GOLD)[0])
    without = loaded.score(embed(loaded), SETTINGS)  # the encoder
    only_by_encoder = {"token_anisotropy", "tokens", "without_frequent"}
    assert set(result.as_dict()) - set(without.as_dict()) == only_by_encoder
    assert replace(result, **dict.fromkeys(only_by_encoder)) == without
    found = json.loads(json.dumps(result.as_dict()))
    assert found["positive_above"] == 4 and found["bins"][0]["pairs"] == 1
    with pytest.raises(DataError, match=r"sts.csv:1: Toy without 20 tokens.*'s0' is all zeros"):
        loaded.score(embed(loaded, inside=Inside(empty_from=20)), SETTINGS)


def test_a_file_is_sampled_at_random_by_the_seed_without_repeated_and_empty_lines(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text("".join(f"sentence {row}\n" for row in range(40)) + "\n  \nsentence  3\n", encoding="utf-8")

    def texts(size, seed):
        lines = read_sample(path, size, seed)
        assert {line.path for line in lines} == {path} and {line.number for line in lines} <= set(range(1, 44))
        return [" ".join(line.text.split()) for line in lines]

    every = {f"sentence {row}" for row in range(40)}
    assert len(texts(1000, 0)) == 40 and set(texts(40, 0)) == every
    one, again, other = (texts(15, seed) for seed in (0, 0, 1))
    assert len(set(one)) == len(one) == 15 and one == again and set(one) != set(other) and set(one) <= every
    counts = Counter(text for seed in range(200) for text in texts(10, seed))
    # 200 draws of a quarter: 50 times each on average, standard deviation 6.
    assert len(counts) == 40 and all(25 < count < 75 for count in counts.values())


def test_the_real_splits_have_the_known_numbers_of_positive_pairs(real_data):
    for split, positive, pairs in (("test", 231, 1379), ("dev", 208, 1500)):
        loaded = GEOMETRY["STSBenchmark-geometry"].load(Path(real_data), replace(SETTINGS, split=split))
        result = loaded.score(embed(loaded), replace(SETTINGS, split=split))
        assert (result.positive_pairs, result.sentences) == (positive, 2 * pairs)
        assert sum(one.pairs for one in result.bins) == pairs
