"""SentEval's three protocols against plain loops over folds and penalties, to the last digit that they report."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import senteval_oracle as oracle
import torch
from senteval import DataError, Settings
from senteval.embeddings import Embeddings
from senteval.labelled import LabelledTexts
from senteval.lines import Line
from senteval.optimizers import parse_optimizer
from senteval.protocols import SklearnProbe, TorchProbe, fixed_split, kfold, nested_kfold
from senteval.stacked import Classifier
from senteval.transfer import TRANSFER, LoadedTransfer, TransferTask
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

WIDTH = 5
CLASSIFIER = Classifier(0, "adam,lr=0.03", batch_size=16, tenacity=2, epoch_size=2)
SETTINGS = Settings(kfold=3, classifier=CLASSIFIER, dtype=torch.float64)


def noisy(count, classes, seed=0, noise=0.8):
    return oracle.noisy_data(count, WIDTH, classes, noise, seed)


def as_tensors(features, labels):
    return torch.from_numpy(features), torch.from_numpy(labels)


def between_chance_and_perfect(classes, *accuracies):
    """Otherwise any two ways to train would agree."""
    return all(120 / classes < accuracy < 95 for accuracy in accuracies)


def sklearn_fit(train, strength, **_):
    return LogisticRegression(C=strength, max_iter=10_000).fit(*train)


SEARCHED = [0.25, 0.5, 1, 2, 4, 8]
SEARCHED_BY_KFOLD = [0.5, 1, 2, 4, 8, 16, 32]


def test_nested_cross_validation_of_sklearn_is_the_plain_loops():
    features, labels = noisy(83, 3, noise=0.4)
    outcome = nested_kfold(SklearnProbe(features, labels, 3, SETTINGS), labels, 3)
    expected = oracle.nested_kfold(features, labels, 3, sklearn_fit, SEARCHED)
    assert (outcome.dev_accuracy, outcome.accuracy, outcome.folds, outcome.penalties) == expected
    assert len(set(outcome.penalties)) > 1 and between_chance_and_perfect(3, *expected[:2], *outcome.folds)


def test_cross_validation_and_a_fixed_split_of_sklearn_are_the_plain_loops():
    chosen = set()
    for seed in range(4):
        features, labels = noisy(150, 3, seed, noise=0.05 if seed % 2 else 1)
        probe, rows = SklearnProbe(features, labels, 3, SETTINGS), np.split(np.arange(150), [70, 110])
        train, dev, test = ((features[part], labels[part]) for part in rows)
        by_folds = kfold(probe, labels, rows[0], rows[2], 4, seed=5)
        found = (by_folds.dev_accuracy, by_folds.accuracy, *by_folds.penalties)
        assert found == oracle.kfold(train, test, 4, sklearn_fit, SEARCHED_BY_KFOLD, seed=5)[:3]
        by_split = fixed_split(probe, labels, *rows)
        found = (by_split.dev_accuracy, by_split.accuracy, *by_split.penalties)
        assert found == oracle.split(train, dev, test, sklearn_fit, SEARCHED)
        chosen |= {("folds", *by_folds.penalties), ("split", *by_split.penalties)}
    assert {("folds", 0.5), ("folds", 32), ("split", 0.25), ("split", 8)} <= chosen  # both ends of the grids


@dataclass
class Scored:
    dev_accuracy: float
    right: int = 0


class ProbeWithScores:
    """Stands in for trained classifiers: dev accuracies by fold and penalty, and how many test rows are right."""

    grid = grid_kfold = (0.1, 0.2, 0.3)

    def __init__(self, labels, dev_accuracies, right=()):
        self.labels, self.dev_accuracies, self.right = labels, dev_accuracies, list(right)

    def fit(self, folds, grid):
        assert len(folds) == len(self.dev_accuracies)
        return [[Scored(accuracy) for accuracy in of_fold] for of_fold in self.dev_accuracies]

    def fit_alone(self, train, penalties):
        self.asked = list(penalties)
        return [Scored(0, right) for _, right in zip(train, self.right, strict=True)]

    def predict(self, fit, rows):
        return np.where(np.arange(len(rows)) < fit.right, self.labels[rows], 1 - self.labels[rows])


def test_the_first_of_penalties_with_equal_rounded_means_is_chosen():
    labels = np.tile([0, 1], 20)
    rows = np.arange(40)
    # 50.001, 70.001 and 70.004: the last is best, but not after rounding.
    devs = [[0.40001, 0.60001, 0.60004], [0.60001, 0.80001, 0.80004]]
    outcome = kfold(ProbeWithScores(labels, devs, [5]), labels, rows, rows[:10], 2, seed=1)
    assert (outcome.penalties, outcome.dev_accuracy, outcome.accuracy) == ((0.2,), 70.0, 50.0)


def test_the_smallest_penalty_is_chosen_where_all_are_perfect():
    labels = np.tile([0, 1], 40)
    features = np.where(labels == 1, 1.0, -1.0)[:, None] * np.ones((1, WIDTH)) * 10
    train, dev, test = np.split(np.arange(80), [40, 60])
    probe = TorchProbe(features, labels, 2, SETTINGS)
    outcome = fixed_split(probe, labels, train, dev, test)
    assert (outcome.dev_accuracy, outcome.accuracy, outcome.penalties) == (100.0, 100.0, (1e-5,))
    outcome = nested_kfold(SklearnProbe(features, labels, 2, SETTINGS), labels, 2)
    assert (outcome.dev_accuracy, outcome.accuracy, outcome.penalties) == (100.0, 100.0, (0.25, 0.25))


@pytest.mark.parametrize(("right", "published"), [((601, 602), 75.18), ((650, 651), 81.32), ((698, 699), 87.32)])
def test_means_over_folds_round_halves_as_the_published_code_does(right, published):
    labels = np.tile([0, 1], 800)  # two test folds of 800 rows: accuracies are eighths of a per cent
    devs = [[count / 800] * 3 for count in right for _ in range(2)]
    outcome = nested_kfold(ProbeWithScores(labels, devs, right), labels, 2)
    assert outcome.folds == tuple(round(100 * count / 800, 2) for count in right)
    # The published mean is a numpy number, which its own round brings to an even last digit; Python's does not.
    assert outcome.accuracy == outcome.dev_accuracy == published == round(np.mean(outcome.folds), 2)
    assert round(float(np.mean(outcome.folds)), 2) != published


def texts_of(features, labels, sides=1, name="t"):
    """Made-up texts with those labels."""
    texts = tuple([f"{name}{side} {row}" for row in range(len(labels))] for side in range(sides))
    return LabelledTexts(texts, labels, [Line(Path(name), row + 1, "") for row in range(len(labels))])


def test_tasks_of_one_set_give_the_nested_figures_and_predict_every_example_once_in_the_order_of_the_file():
    features, labels = noisy(83, 3)
    examples, places = texts_of(features, labels), np.random.default_rng(1).permutation(83)
    examples = replace(examples, lines=[Line(Path("t"), int(place) + 1, "") for place in places])
    loaded = LoadedTransfer(TransferTask("Toy", "toy", 3, {}, "nested"), {"all": examples})
    embed = Embeddings(examples.texts[0], features)
    for classifier, seed in ((CLASSIFIER, 7), (replace(CLASSIFIER, optim="rmsprop", nhid=4, dropout=0.2), 1111)):
        result = loaded.score(embed, replace(SETTINGS, kfold=2, seed=seed, classifier=classifier))
        fit = oracle.torch_fit(3, classifier, seed)
        dev, test, *_ = oracle.nested_kfold(*as_tensors(features, labels), 2, fit)
        assert result.as_senteval() == {"devacc": dev, "acc": test, "ndev": 83, "ntest": 83}
        assert result.points == test and dev != test and between_chance_and_perfect(3, dev, test)
        assert len(result.folds) == len(result.penalties) == 2
    in_rows = result.correct[places]
    assert result.gold[places].tolist() == labels.tolist()
    outer = StratifiedKFold(2, shuffle=True, random_state=1111).split(features, labels)
    assert [round(100 * float(np.mean(in_rows[test])), 2) for _, test in outer] == list(result.folds)
    assert not {"gold", "correct"} & set(result.as_dict())
    plain = loaded.score(embed, replace(SETTINGS, kfold=2, use_torch=False))
    expected = nested_kfold(SklearnProbe(features, labels, 3, SETTINGS), labels, 2)
    assert (plain.dev_accuracy, plain.accuracy) == (expected.dev_accuracy, expected.accuracy)


@pytest.fixture
def paraphrases():
    """MRPC with made-up pairs, their embeddings, and the published features of train and test."""
    random = np.random.default_rng(0)
    first = random.standard_normal((150, WIDTH))
    same = random.random(150) < 0.6
    second = np.where(same[:, None], first, 0) + 1.2 * random.standard_normal((150, WIDTH))
    features = np.c_[np.abs(first - second), first * second]
    labels = same.astype(np.int64)
    train, test = (texts_of(None, labels[part], 2, name) for name, part in (("a", slice(100)), ("b", slice(100, 150))))
    sentences = [*train.texts[0], *test.texts[0], *train.texts[1], *test.texts[1]]
    embed = Embeddings(sentences, np.concatenate([first, second]))
    loaded = LoadedTransfer(TRANSFER["MRPC"], {"train": train, "test": test})
    rows, targets = as_tensors(features, labels)
    return loaded, embed, ((rows[:100], targets[:100]), (rows[100:], targets[100:]))


def test_the_f1_of_mrpc_is_that_of_the_plain_classifiers_predictions(paraphrases):
    loaded, embed, parts = paraphrases
    result = loaded.score(embed, replace(SETTINGS, seed=5))
    dev, test, _, predictions = oracle.kfold(*parts, 3, oracle.torch_fit(2, CLASSIFIER, 5), seed=5)
    gold = parts[1][1]
    f1 = round(100 * f1_score(gold, predictions), 2)
    assert result.as_senteval() == {"devacc": dev, "acc": test, "f1": f1, "ndev": 100, "ntest": 50}
    assert between_chance_and_perfect(2, dev, test) and f1 != test
    assert result.gold.tolist() == gold.tolist() and result.correct.tolist() == (predictions == gold).tolist()
    # Without a test set, the dev accuracy is the score.
    without = replace(loaded, examples={"train": loaded.examples["train"]})
    result = without.score(embed, replace(SETTINGS, split="dev", seed=5))
    assert (result.points, result.accuracy, result.f1, result.correct) == (dev, None, None, None)
    assert result.as_senteval() == {"devacc": dev, "ndev": 100, "ntest": 0}


def test_tasks_of_three_splits_are_measured_on_their_own_dev_and_test_set():
    features, labels = noisy(170, 5)
    cut = dict(zip(("train", "dev", "test"), np.split(np.arange(170), [90, 130]), strict=True))
    examples = {split: texts_of(None, labels[rows], name=split) for split, rows in cut.items()}
    sentences = [text for split in examples.values() for text in split.texts[0]]
    loaded = LoadedTransfer(TransferTask("Toy", "toy", 5, {}, "split"), examples)
    rows, targets = as_tensors(features, labels)
    for classifier in (CLASSIFIER, replace(CLASSIFIER, nhid=6, dropout=0.2)):
        parts = [(rows[part], targets[part]) for part in cut.values()]
        dev, test, _ = oracle.split(*parts, oracle.torch_fit(5, classifier))
        result = loaded.score(Embeddings(sentences, features), replace(SETTINGS, classifier=classifier))
        assert result.as_senteval() == {"devacc": dev, "acc": test, "ndev": 40, "ntest": 40}
        assert between_chance_and_perfect(5, dev, test)


NOT_SETTINGS = [
    ({"optim": "adan"}, "unknown optimiser 'adan'; choose one of adadelta, adagrad, adam"),
    ({"optim": "adam,weight_decay=0.1"}, "leave weight_decay out"),
    ({"optim": "sgd,lr=fast"}, "'lr=fast' does not have the form"),
    ({"optim": "adam,momentum=0.9"}, "momentum"),
    ({"optim": "sgd,lr=-1"}, "learning rate"),
    *(({name: 1}, f"{name} is 1; .* 2") for name in ("kfold", "shots", "draws", "kmeans_runs", "sample_size")),
    ({"kmeans_starts": 0}, "kmeans_starts is 0; .* 1"),
    ({"identical": "drop"}, "identical is 'drop'; choose one of merge, keep"),
]


def test_settings_that_cannot_be_are_data_errors():
    for changes, complaint in NOT_SETTINGS:
        with pytest.raises(DataError, match=complaint):
            replace(CLASSIFIER if "optim" in changes else SETTINGS, **changes)
    kind, options = parse_optimizer("sgd,lr=0.1, momentum=0.9")
    assert (kind, options) == (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
