"""Few-shot transfer: what is drawn, and the accuracy against scikit-learn used directly."""

import statistics
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from senteval import Settings, fewshot
from senteval.embeddings import Embeddings
from senteval.fewshot import LoadedFewShot, draw_examples
from senteval.labelled import LabelledTexts
from senteval.lines import Line
from senteval.transfer import LoadedTransfer, TransferTask
from senteval_oracle import noisy_data
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

WIDTH = 5
SETTINGS = Settings()


class Task:
    """A made-up task of those splits and sizes, with its embeddings; rows: of each split among all."""

    def __init__(self, classes, noise=0.5, **sizes):
        ends = np.cumsum(list(sizes.values()))
        self.features, self.labels = noisy_data(ends[-1], WIDTH, classes, noise)
        self.rows = dict(zip(sizes, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        sentences = [f"sentence {row}" for row in range(ends[-1])]
        lines = [Line(Path("toy"), 1 + row, "") for row in range(ends[-1])]
        every = LabelledTexts((sentences,), self.labels, lines)
        examples = {split: every.take(rows) for split, rows in self.rows.items()}
        transfer = TransferTask("Toy", "toy", classes, {}, "nested")
        self.loaded = LoadedFewShot("Toy-fewshot", LoadedTransfer(transfer, examples))
        self.embed = Embeddings(sentences, self.features)

    def score(self, **settings):
        return self.loaded.score(self.embed, replace(SETTINGS, **settings))


@pytest.fixture
def drawn(monkeypatch):
    """The rows of every draw from here on."""
    rows = []

    def recording(*arguments):
        rows.append(draw_examples(*arguments))
        return rows[-1]

    monkeypatch.setattr(fewshot, "draw_examples", recording)
    return rows


def test_a_draw_has_as_many_different_examples_of_each_class():
    labels = np.random.default_rng(0).integers(0, 3, 300)
    pool = np.flatnonzero(np.arange(300) % 2)
    for shots in (4, 16):
        rows = draw_examples(pool, labels, shots, np.random.default_rng(1))
        assert len(set(rows)) == len(rows) == 3 * shots and set(rows) <= set(pool)
        assert np.bincount(labels[rows]).tolist() == [shots] * 3
    labels, random = np.repeat([0, 1], [6, 9]), np.random.default_rng(0)
    draws = [draw_examples(np.arange(15), labels, 4, random) for _ in range(60)]
    counts = np.bincount(np.concatenate(draws), minlength=15)
    # 60 draws of 4: of 6 each comes 40 times on average, of 9 each 26.7 times; four standard deviations around.
    assert (abs(counts[:6] - 40) < 15).all() and (abs(counts[6:] - 26.7) < 16).all()


def test_ten_different_draws_of_sixteen_a_class_are_the_default_and_a_seed_gives_the_same_again(drawn):
    one_set = Task(2, all=120)
    result = one_set.score()
    assert len(drawn) == len(result.draws) == 10
    assert all(np.bincount(one_set.labels[rows]).tolist() == [16, 16] for rows in drawn)
    assert all(set(one) != set(other) for one, other in combinations(drawn, 2))
    assert (result.shots, result.n_train) == (16, 32)
    drawn.clear()
    first, again, other = (one_set.score(draws=3, seed=seed, shots=6) for seed in (1, 1, 2))
    assert first == again and np.array_equal(drawn[:3], drawn[3:6])
    assert not any(set(one) == set(two) for one in drawn[:3] for two in drawn[6:])
    assert first.draws != other.draws
    assert one_set.score(draws=2, seed=1, shots=6).draws == first.draws[:2]
    assert one_set.score(draws=2, shots=2).n_train == 4  # fewer shots than folds are enough


def plain_accuracy(task, train, test, seed):
    """Of the best C by four shuffled folds of the drawn examples, in the grid of SentEval's logistic regression."""
    search = GridSearchCV(
        LogisticRegression(max_iter=10_000),
        {"C": [0.25, 0.5, 1, 2, 4, 8]},
        cv=StratifiedKFold(4, shuffle=True, random_state=seed),
    ).fit(task.features[train], task.labels[train])
    return 100 * search.score(task.features[test], task.labels[test]), search.best_params_["C"]


def test_tasks_of_one_set_are_tested_on_all_that_was_not_drawn(drawn):
    task = Task(2, noise=1.0, all=120)
    result = task.score(draws=3, seed=3)
    expected = [plain_accuracy(task, rows, sorted({*range(120)} - {*rows}), seed=3)[0] for rows in drawn]
    assert result.draws == pytest.approx(expected, abs=1e-10)
    assert result.n_test == 120 - 32
    assert all(50 < accuracy < 98 for accuracy in expected) and len(set(expected)) > 1


def test_tasks_with_a_test_set_are_tested_on_it(drawn):
    task = Task(3, train=110, test=60)
    result = task.score(draws=4, shots=8)
    found = [plain_accuracy(task, rows, task.rows["test"], SETTINGS.seed) for rows in drawn]
    assert result.draws == pytest.approx([accuracy for accuracy, _ in found], abs=1e-10)
    assert len({strength for _, strength in found}) > 1
    assert all(set(rows) <= set(task.rows["train"]) for rows in drawn)
    assert (result.n_train, result.n_test) == (24, 60)
    assert result.points == pytest.approx(statistics.mean(result.draws))
    assert result.deviation == pytest.approx(statistics.stdev(result.draws))
    shown = result.as_dict()
    assert (shown["mean"], shown["std"], shown["draws"]) == (result.points, result.deviation, [*result.draws])
