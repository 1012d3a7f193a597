"""The trained relatedness probe against a plain loop in the published form, in float64 so that both agree closely."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import spearmanr
from senteval import DataError, ScoredPairs, Settings, finetune
from senteval.embeddings import Embeddings
from senteval.finetune import LoadedRelatedness, grade_weights
from senteval.stacked import Classifier
from senteval_oracle import PlainClassifier
from torch import nn

SETTINGS = Settings(dtype=torch.float64)
SEED = SETTINGS.seed
WIDTH = 4
SIZES = {"train": 75, "dev": 40, "test": 50}


def plain_weights(gold):
    rows = np.zeros((len(gold), 7))  # of the grades 0 to 6, of which the first and the last one are left out
    for row, score in enumerate(gold):
        low = math.floor(score)
        rows[row, low : low + 2] = 1 - (score - low), score - low
    return rows[:, 1:6]


class PlainProbe(PlainClassifier):
    """One probe with the published seeds, batches and early stopping; its features are tensors, its scores arrays."""

    def __init__(self, seed=SEED, epochs_a_look=50, max_epochs=1000):
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.settings = Classifier(batch_size=64, tenacity=3, epoch_size=epochs_a_look, max_epoch=max_epochs)
        self.model = nn.Sequential(nn.Linear(2 * WIDTH, 5), nn.Softmax(dim=-1)).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), weight_decay=0)
        self.loss = nn.MSELoss()

    def score(self, features, gold):
        return spearmanr(self.predict(features), gold)[0]

    def predict(self, features):
        with torch.no_grad():
            return np.dot(self.model(features).numpy(), np.arange(1, 6))


class Data:
    """Made-up pairs of all splits whose scores their embeddings tell in part; no two have the same lengths and score.

    features and gold hold what the published code trains and measures on, by split.
    """

    def __init__(self, seed=0, noise=1.0, lowest=0.0):
        random = np.random.default_rng(seed)
        self.splits, self.features, self.gold = {}, {}, {}
        self.sentences, vectors = [], []
        for split, size in SIZES.items():
            first = random.standard_normal((size, WIDTH))
            share = random.random((size, 1))
            second = share * first + (1 - share) * noise * random.standard_normal((size, WIDTH))
            gold = np.round(lowest + (5 - lowest) * share[:, 0], 3)
            gold[:2] = lowest, 5
            texts = [
                [" ".join([f"{side}{split}{row}", *["word"] * random.integers(12)]) for row in range(size)]
                for side in "ab"
            ]
            self.splits[split] = ScoredPairs(split, *texts, gold, Path(split), list(range(1, size + 1)))
            self.sentences += texts[0] + texts[1]
            vectors += [first, second]
            rows = sorted(range(size), key=lambda row: (*(len(side[row].split()) for side in texts), gold[row]))
            self.features[split] = torch.from_numpy(np.c_[np.abs(first - second), first * second][rows])
            self.gold[split] = gold[rows]
        self.embed = Embeddings(self.sentences, np.concatenate(vectors))

    def plain(self, **settings):
        targets = torch.from_numpy(plain_weights(self.gold["train"]))
        return PlainProbe(**settings).fit(self.features["train"], targets, (self.features["dev"], self.gold["dev"]))

    def score(self, settings=SETTINGS, **splits):
        return LoadedRelatedness("Toy-finetune", {**self.splits, **splits}).score(self.embed, settings)


@pytest.fixture(scope="module")
def data():
    return Data()


def assert_is_that_of(result, plain, data):
    predicted, gold = plain.predict(data.features["test"]), data.gold["test"]
    assert_allclose(result.dev_spearman, plain.dev_accuracy, rtol=0, atol=1e-12)
    assert_allclose(np.sort(result.predictions), np.sort(predicted), rtol=0, atol=1e-9)
    assert_allclose(result.pearson, np.corrcoef(predicted, gold)[0, 1], atol=1e-9)
    assert_allclose(result.spearman, spearmanr(predicted, gold)[0], atol=1e-12)
    assert_allclose(result.mse, np.mean((predicted - gold) ** 2))


def test_a_score_is_spread_over_its_two_neighbouring_grades():
    gold = np.array([0, 0.2, 0.999, 1, 1.5, 2, 2.75, 3.0001, 4, 4.999, 5, *np.linspace(0, 5, 41)])
    assert_allclose(grade_weights(gold), plain_weights(gold), rtol=0, atol=1e-15)
    assert grade_weights(np.array([0.25, 5])).tolist() == [[0.25, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert_allclose(grade_weights(gold[gold >= 1]) @ [1, 2, 3, 4, 5], gold[gold >= 1])


def test_the_probe_is_trained_and_stopped_as_the_plain_one(data):
    plain = data.plain()
    assert 4 < plain.epochs / 50 < 21  # of at most 21 looks: it stopped early, and not at once
    assert 0.3 < plain.dev_accuracy < 0.9
    assert_is_that_of(data.score(), plain, data)


@pytest.mark.parametrize(
    ("epochs_a_look", "max_epochs", "looks", "seed"), [(2, 12, 7, SEED), (2, 11, 6, 3), (5, 0, 1, 3)]
)
def test_training_ends_at_the_published_epoch(data, monkeypatch, epochs_a_look, max_epochs, looks, seed):
    monkeypatch.setattr(finetune, "EPOCHS_PER_CHECK", epochs_a_look)
    monkeypatch.setattr(finetune, "MAX_EPOCHS", max_epochs)
    plain = data.plain(epochs_a_look=epochs_a_look, max_epochs=max_epochs, seed=seed)
    assert plain.epochs == looks * epochs_a_look
    assert_is_that_of(data.score(replace(SETTINGS, seed=seed)), plain, data)


@pytest.fixture
def one_look(monkeypatch):
    monkeypatch.setattr(finetune, "EPOCHS_PER_CHECK", 5)
    monkeypatch.setattr(finetune, "MAX_EPOCHS", 0)


def reordered(pairs, order):
    first, second, lines = ([column[row] for row in order] for column in (pairs.first, pairs.second, pairs.lines))
    return replace(pairs, first=first, second=second, gold=pairs.gold[order], lines=lines)


def test_predictions_come_in_the_order_of_the_file_whatever_the_callers_random_numbers(data, one_look):
    plain = data.plain(epochs_a_look=5, max_epochs=0)
    pairs = data.splits["test"]
    expected = []
    for first, second in zip(pairs.first, pairs.second, strict=True):
        u, v = data.embed([first, second])
        expected.append(plain.predict(torch.from_numpy(np.r_[np.abs(u - v), u * v][None]))[0])
    assert_allclose(data.score().predictions, expected, atol=1e-9)
    order = np.random.default_rng(1).permutation(SIZES["test"])
    shuffled = data.score(test=reordered(pairs, order)).predictions
    assert_allclose(shuffled, np.array(expected)[order], atol=1e-9)
    assert not np.allclose(shuffled, expected)
    # Training pairs are taken by length, whatever their order.
    train = reordered(data.splits["train"], np.random.default_rng(1).permutation(SIZES["train"]))
    assert_allclose(data.score(train=train).predictions, expected, atol=1e-9)
    predictions = []
    for seed in (0, 1):
        np.random.seed(seed)
        torch.manual_seed(seed)
        predictions.append(data.score().predictions.tolist())
        drawn = np.random.rand(4), torch.rand(4)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert np.array_equal(drawn[0], np.random.rand(4)) and torch.equal(drawn[1], torch.rand(4))
    assert predictions[0] == predictions[1]


def test_without_a_test_split_dev_spearman_is_the_score(data, one_look):
    splits = {split: data.splits[split] for split in ("train", "dev")}
    result = LoadedRelatedness("Toy-finetune", splits).score(data.embed, replace(SETTINGS, split="dev"))
    assert_allclose(result.points, 100 * data.plain(epochs_a_look=5, max_epochs=0).dev_accuracy)
    assert result.as_dict().keys() == {"task", "split", "dev_spearman", "n_dev", "n_test"}
    whole = data.score()
    assert whole.points == 100 * whole.spearman and whole.dev_spearman == result.dev_spearman
    expected = {"pearson": whole.pearson, "spearman": whole.spearman, "mse": whole.mse, "yhat": whole.predictions}
    assert whole.as_senteval() == {"devspearman": whole.dev_spearman, "ndev": 40, "ntest": 50, **expected}


def test_one_grade_for_all_pairs_is_an_error_not_a_score(data, one_look):
    # Where the published code writes 0. All sentences of the split have one embedding.
    for split in ("dev", "test"):
        pairs, vectors = data.splits[split], data.embed.vectors.copy()
        vectors[[data.sentences.index(text) for text in (*pairs.first, *pairs.second)]] = 1
        with pytest.raises(DataError, match=f"Toy-finetune {split}: all {SIZES[split]} pairs have the same"):
            LoadedRelatedness("Toy-finetune", data.splits).score(Embeddings(data.sentences, vectors), SETTINGS)


def test_a_look_without_a_correlation_counts_as_zero(monkeypatch):
    # As published: better than a negative one, worse than a positive one.
    gold, same = np.arange(9.0), np.ones(9)
    looks = iter([same, -gold, same, same, gold, same])  # best, three misses, best, the last miss
    monkeypatch.setattr(finetune, "EPOCHS_PER_CHECK", 1)
    monkeypatch.setattr(finetune, "_grades", lambda model, features: next(looks))
    features = torch.zeros(3, 2 * WIDTH, dtype=torch.float64)
    finetune._train(features, torch.zeros(3, 5), features, gold, SETTINGS)
    assert next(looks, None) is None
