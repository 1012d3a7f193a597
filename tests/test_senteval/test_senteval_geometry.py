"""Alignment, uniformity and anisotropy against double loops; bins, samples, and what only the encoder can tell."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from senteval import DataError, ScoredPairs, Settings
from senteval.embeddings import Embeddings
from senteval.geometry import GEOMETRY, LoadedGeometry, alignment, cosine_bins, mean_cosine, read_sample, uniformity
from senteval.lines import Line
from senteval_tiny import FakeInside

SETTINGS = Settings()


def unit(vector):
    return [x / math.sqrt(sum(y * y for y in vector)) for x in vector]


def squared_distance(one, other):
    return sum((x - y) ** 2 for x, y in zip(unit(one), unit(other), strict=True))


def cosine(one, other):
    return sum(x * y for x, y in zip(unit(one), unit(other), strict=True))


def naive_uniformity(vectors):
    potentials = [
        math.exp(-2 * squared_distance(one, other)) for row, one in enumerate(vectors) for other in vectors[row + 1 :]
    ]
    return math.log(sum(potentials) / len(potentials))


def naive_mean_cosine(vectors):
    cosines = [cosine(one, other) for i, one in enumerate(vectors) for j, other in enumerate(vectors) if i != j]
    return abs(sum(cosines) / len(cosines))


@pytest.fixture
def random():
    return np.random.default_rng(3)


@pytest.fixture
def vectors(random):
    """With a common direction, as the embeddings of a pretrained encoder have."""
    return random.standard_normal((12, 5)) + 0.7


def naive_alignment(first, second):
    return sum(map(squared_distance, first, second)) / len(first)


def test_measures_are_those_of_double_loops(vectors):
    assert alignment(vectors[:6], vectors[6:]) == pytest.approx(naive_alignment(vectors[:6], vectors[6:]))
    assert uniformity(vectors) == pytest.approx(naive_uniformity(vectors))
    assert uniformity(np.array([[1.0, 0], [0, 5]])) == pytest.approx(-4)  # exp(-2 * 2)
    assert 0.1 < mean_cosine(vectors) < 0.9 and mean_cosine(vectors) == pytest.approx(naive_mean_cosine(vectors))
    assert mean_cosine(np.array([[1.0, 0], [-2, 0]])) == pytest.approx(1)  # of -1
    # A row of zeros, as the embedding of a padding token is, has cosine 0 with all: 12 * 11 of 13 * 12 pairs have one.
    expected = naive_mean_cosine(vectors) * (12 * 11) / (13 * 12)
    assert mean_cosine(np.r_[vectors, np.zeros((1, 5))]) == pytest.approx(expected)


@pytest.mark.parametrize("measure", [lambda v: alignment(v[:6], v[6:]), uniformity, mean_cosine])
def test_the_length_of_a_vector_means_nothing(vectors, measure):
    factors = 10.0 ** np.random.default_rng(0).integers(-3, 4, (12, 1))
    assert measure(vectors * factors) == pytest.approx(measure(vectors))
    assert measure(vectors + 1) != pytest.approx(measure(vectors))


def test_half_precision_is_not_summed_in_half_precision(random):
    vectors = (random.standard_normal((2000, 4)) + 2).astype(np.float16)
    wide = vectors.astype(np.float64)
    for measure in (uniformity, mean_cosine):
        assert measure(vectors) == pytest.approx(measure(wide), rel=1e-12)


def test_bins_hold_the_cosines_of_their_scores(random):
    gold = np.r_[0, 0.99, 1, 1.5, 3, 3.999, 4, 4.2, 5, 5]  # none from 2 to 3
    cosines = random.uniform(-1, 1, len(gold))
    bins = cosine_bins(cosines, gold)
    rows = {0: [0, 1], 1: [2, 3], 3: [4, 5], 4: [6, 7, 8, 9]}
    assert [(one.low, one.high, one.pairs) for one in bins] == [(low, low + 1, len(rows[low])) for low in rows]
    for one in bins:
        inside = sorted(cosines[rows[one.low]])
        mean = sum(inside) / len(inside)
        assert one.mean == pytest.approx(mean)
        assert one.std == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in inside) / len(inside)))
        assert list(one.quantiles) == [5, 25, 50, 75, 95]
        for percent, found in one.quantiles.items():
            place = percent / 100 * (len(inside) - 1)
            below, share = int(place), place - int(place)
            expected = inside[below] * (1 - share) + inside[min(below + 1, len(inside) - 1)] * share
            assert found == pytest.approx(expected)


GOLD = [0, 1.5, 4, 4.001, 5, 2.2, 3.3, 4.8]


@pytest.fixture
def loaded():
    """Eight pairs, three of them positive; "s0" occurs twice."""
    first = [f"s{row}" for row in range(8)]
    second = ["s0", *(f"t{row}" for row in range(1, 8))]
    pairs = ScoredPairs("test", first, second, np.array(GOLD), Path("sts.csv"), [*range(1, 9)])
    return LoadedGeometry("Toy", pairs, sample=None)


def sentences_of(loaded):
    return list(dict.fromkeys(loaded.pairs.first + loaded.pairs.second))


@pytest.fixture
def embed(loaded, random):
    sentences = sentences_of(loaded)
    return Embeddings(sentences, random.standard_normal((len(sentences), 4)) + 0.5)


def test_the_split_is_measured_on_its_own_sentences(loaded, embed):
    pairs = loaded.pairs
    first, second = embed(pairs.first), embed(pairs.second)
    positive = [row for row, score in enumerate(GOLD) if score > 4]
    result = loaded.score(embed, SETTINGS)
    assert positive == [3, 4, 7] and result.positive_pairs == 3
    assert result.alignment == pytest.approx(naive_alignment(first[positive], second[positive]))
    # All sentences as they occur, repeated ones included, and for anisotropy different ones only.
    assert result.uniformity == pytest.approx(naive_uniformity(np.r_[first, second]))
    assert result.anisotropy == pytest.approx(naive_mean_cosine(embed.vectors))
    assert (result.sentences, result.sample, result.sample_size) == (16, "Toy test", 15)
    cosines = [cosine(*pair) for pair in zip(first, second, strict=True)]
    assert result.spearman == pytest.approx(100 * spearmanr(cosines, GOLD)[0])
    assert [(one.low, one.pairs) for one in result.bins] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 4)]
    assert result.bins[-1].mean == pytest.approx(np.mean([cosines[row] for row in (2, 3, 4, 7)]))


def test_anisotropy_is_that_of_the_sample_where_there_is_one(loaded, random):
    pairs = loaded.pairs
    sample = [Line(Path("wiki.txt"), number, text) for number, text in enumerate(["w1", " w2  and\tmore ", "s5"], 1)]
    with_sample = replace(loaded, sample=sample)
    sentences = [*sentences_of(loaded), "w1", "w2 and more"]
    embed = Embeddings(sentences, random.standard_normal((len(sentences), 4)) + 0.5)
    result = with_sample.score(embed, SETTINGS)
    assert result.anisotropy == pytest.approx(naive_mean_cosine(embed(["w1", "w2 and more", "s5"])))
    assert (result.sample, result.sample_size) == ("wiki.txt", 3)
    assert result.uniformity == pytest.approx(loaded.score(embed, SETTINGS).uniformity)
    asked = [sentence for sentence, _ in with_sample.located()]
    assert sorted(asked) == sorted([*pairs.first, *pairs.second, "w1", "w2 and more", "s5"])


class Inside(FakeInside):
    """Also with embeddings of tokens; of the same sentences its vectors are zeros."""

    tokens = np.random.default_rng(8).standard_normal((9, 3))

    def token_embeddings(self):
        return self.tokens

    def vector(self, text, count):
        return super().vector(text, count) * (count < self.empty_from)


def score_with(inside, loaded, embed):
    return loaded.score(Embeddings(sentences_of(loaded), embed.vectors, inside), SETTINGS)


def test_an_encoder_at_hand_is_asked_for_tokens_and_for_sentences_without_frequent_ones(loaded, embed):
    inside = Inside()
    result = score_with(inside, loaded, embed)
    assert result.token_anisotropy == pytest.approx(naive_mean_cosine(inside.tokens))
    assert result.tokens == 9
    counted = loaded.pairs.first + loaded.pairs.second
    assert inside.asked == [(sentences_of(loaded), count, counted) for count in (1, 2, 5, 10, 20, 50, 100)]
    assert list(result.without_frequent) == [1, 2, 5, 10, 20, 50, 100]
    for count, found in result.without_frequent.items():
        vectors = [inside.vector(text, count) for text in counted]
        cosines = [cosine(vectors[row], vectors[row + 8]) for row in range(8)]
        assert found == pytest.approx(100 * spearmanr(cosines, GOLD)[0])
    without = loaded.score(embed, SETTINGS)  # the encoder
    only_by_encoder = {"token_anisotropy", "tokens", "without_frequent"}
    assert set(result.as_dict()) - set(without.as_dict()) == only_by_encoder
    assert replace(result, **dict.fromkeys(only_by_encoder)) == without
    found = json.loads(json.dumps(result.as_dict()))
    assert found["positive_above"] == 4 and found["bins"][0]["pairs"] == 1


def test_a_sentence_of_which_nothing_is_left_is_an_error(loaded, embed):
    with pytest.raises(DataError, match=r"sts.csv:1: Toy without 20 tokens.*'s0' is all zeros"):
        score_with(Inside(empty_from=20), loaded, embed)


@pytest.fixture
def sample_file(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text("".join(f"sentence {row}\n" for row in range(40)) + "\n  \nsentence  3\n", encoding="utf-8")
    return path


def test_a_file_is_sampled_at_random_by_the_seed_without_repeated_and_empty_lines(sample_file):
    def texts(size, seed):
        lines = read_sample(sample_file, size, seed)
        assert {line.path for line in lines} == {sample_file} and {line.number for line in lines} <= set(range(1, 44))
        return [" ".join(line.text.split()) for line in lines]

    every = {f"sentence {row}" for row in range(40)}
    assert len(texts(1000, 0)) == 40 and set(texts(40, 0)) == every
    one, again, other = (texts(15, seed) for seed in (0, 0, 1))
    assert len(set(one)) == len(one) == 15 and one == again and set(one) != set(other) and set(one) <= every
    counts = Counter(text for seed in range(200) for text in texts(10, seed))
    # 200 draws of a quarter: 50 times each on average, standard deviation 6.
    assert len(counts) == 40 and all(25 < count < 75 for count in counts.values())


@pytest.mark.parametrize(("split", "positive", "pairs"), [("test", 231, 1379), ("dev", 208, 1500)])
def test_the_real_splits_have_the_known_numbers_of_positive_pairs(real_data, split, positive, pairs):
    settings = replace(SETTINGS, split=split)
    loaded = GEOMETRY["STSBenchmark-geometry"].load(Path(real_data), settings)
    sentences = list(dict.fromkeys(sentence for sentence, _ in loaded.located()))
    embed = Embeddings(sentences, np.random.default_rng(0).standard_normal((len(sentences), 8)))
    result = loaded.score(embed, settings)
    assert (result.positive_pairs, result.sentences) == (positive, 2 * pairs)
    assert sum(one.pairs for one in result.bins) == pairs
