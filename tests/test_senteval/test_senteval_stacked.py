"""Stacked fits against one plain classifier after another (senteval_oracle), in float64 so that both agree closely."""

from itertools import chain

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from senteval import stacked
from senteval.stacked import Classifier, Fold, fit_folds
from senteval_oracle import noisy_data, torch_fit

COUNT, WIDTH, SEED = 90, 6, 1111
PENALTIES = (1e-5, 1e-2, 0.1)
QUICK = {"batch_size": 16, "epoch_size": 2, "tenacity": 3}


def data_of(classes):
    return *map(torch.from_numpy, noisy_data(COUNT, WIDTH, classes, noise=0.5)), classes


@pytest.fixture
def three_classes():
    return data_of(3)


def cut(dev_sizes, seed=3):
    """Folds of random rows with dev sets of those sizes."""
    random = np.random.default_rng(seed)
    orders = [random.permutation(COUNT) for _ in dev_sizes]
    return [Fold(order[size:], order[:size], PENALTIES) for order, size in zip(orders, dev_sizes, strict=True)]


def fit_plainly(data, folds, settings):
    features, labels, classes = data
    fit, parts = torch_fit(classes, settings, SEED), [(fold, fold.train, fold.dev) for fold in folds]
    parts = [(fold, *((features[rows], labels[rows]) for rows in both)) for fold, *both in parts]
    return [[fit(train, penalty, dev=dev) for penalty in fold.penalties] for fold, train, dev in parts]


def assert_same_fits(fits, plain, features):
    assert [len(of_fold) for of_fold in fits] == [len(of_fold) for of_fold in plain]
    for fit, expected in zip(chain(*fits), chain(*plain), strict=True):
        assert fit.dev_accuracy == expected.dev_accuracy
        for weight, parameter in zip(fit.weights, expected.model.parameters(), strict=True):
            assert_allclose(weight, parameter.detach(), rtol=0, atol=1e-9)
        assert fit.predict(features).tolist() == expected.predict(features).tolist()


def assert_like_plain_ones(data, folds, settings):
    """Returns the plain classifiers."""
    plain = fit_plainly(data, folds, settings)
    assert_same_fits(fit_folds(*data[:2], folds, data[2], settings, SEED), plain, data[0])
    return plain


def stopping_early(optimizer, nhid=0, dropout=0.0):
    return Classifier(nhid, optimizer, dropout=dropout, **QUICK)


@pytest.mark.parametrize(
    ("classes", "optimizer", "nhid", "dropout"),
    [(2, "adam,lr=0.05", 0, 0.0), (6, "sgd,lr=0.5", 5, 0.0), (2, "rmsprop", 5, 0.3)],
)
def test_every_fit_is_that_of_a_plain_classifier(classes, optimizer, nhid, dropout):
    data = data_of(classes)
    plain = assert_like_plain_ones(data, cut([30, 30, 23]), stopping_early(optimizer, nhid, dropout))
    accuracies = [classifier.dev_accuracy for of_fold in plain for classifier in of_fold]
    # Neither guessing nor perfect, and not alike: otherwise equal accuracies would say little.
    assert 1 / data[2] < np.mean(accuracies) and max(accuracies) < 1 and len(set(accuracies)) > 2


@pytest.mark.parametrize(
    "optimizer", ["adadelta", "adagrad,lr=0.1", "adamax", "asgd,lr=0.1", "sgd,lr=0.1,momentum=0.9", "adam,lr=0.03"]
)
def test_every_optimizer_works_on_stacks_as_it_does_alone(three_classes, optimizer):
    plain = assert_like_plain_ones(three_classes, cut([30, 30, 30]), stopping_early(optimizer))
    # Folds that have stopped leave the stack, and take their moments with them.
    assert len({max(classifier.epochs for classifier in of_fold) for of_fold in plain}) > 1


def test_each_fit_stops_when_it_would_alone(three_classes):
    published = Classifier(0, "adam", batch_size=64, tenacity=5, epoch_size=4, max_epoch=200, dropout=0.0)
    assert Classifier() == published
    assert_like_plain_ones(three_classes, cut([30]), Classifier())
    for settings in (stopping_early("adam,lr=0.05"), Classifier(0, "adam,lr=0.05", 16, tenacity=0, epoch_size=2)):
        plain = assert_like_plain_ones(three_classes, cut([30] * 5), settings)
        epochs = [[classifier.epochs for classifier in of_fold] for of_fold in plain]
        assert len({max(of_fold) for of_fold in epochs}) > 1 and any(len(set(of_fold)) > 1 for of_fold in epochs)
    # As published: after 8 epochs there is one more look.
    for epoch_size, max_epoch, last in ((4, 10, 12), (4, 8, 12), (1, 0, 1)):
        settings = Classifier(0, "adam,lr=0.05", 16, tenacity=100, epoch_size=epoch_size, max_epoch=max_epoch)
        plain = assert_like_plain_ones(three_classes, cut([30] * 3), settings)
        assert all(classifier.epochs == last for of_fold in plain for classifier in of_fold)


def test_a_last_batch_that_is_not_full_counts_what_it_has(three_classes):
    for nhid, dev in ((0, 25), (4, 27)):  # 65 and 63 rows, in batches of 16
        assert_like_plain_ones(three_classes, cut([dev, dev]), stopping_early("adam", nhid, dropout=0.3))
    settings = Classifier(batch_size=1000, epoch_size=2, tenacity=2, optim="rmsprop")  # more than there are
    assert_like_plain_ones(three_classes, cut([30, 31]), settings)


def test_a_held_out_share_is_drawn_before_the_permutations_of_training(three_classes):
    features, labels, classes = three_classes
    order = np.random.RandomState(SEED).permutation(COUNT)
    cut_at = int(0.05 * COUNT)
    settings = Classifier(**QUICK)
    folds = [Fold(order[cut_at:], order[:cut_at], (penalty,), drawn=COUNT) for penalty in PENALTIES]
    fit = torch_fit(classes, settings, SEED)
    plain = [[fit((features, labels), penalty, share=0.05)] for penalty in PENALTIES]
    # The last one has the same rows, but nothing was drawn: its permutations are others.
    folds.append(Fold(order[cut_at:], order[:cut_at], PENALTIES[:1]))
    plain += fit_plainly(three_classes, folds[-1:], settings)
    assert_same_fits(fit_folds(features, labels, folds, classes, settings, SEED), plain, features)
    assert not np.allclose(*(fits[0].model[0].weight.detach() for fits in (plain[0], plain[-1])), atol=1e-3)


@pytest.mark.parametrize(("at_once", "nhid"), [(1, 0), (2, 5)])
def test_fits_are_the_same_in_smaller_blocks(three_classes, monkeypatch, at_once, nhid):
    features, labels, classes = three_classes
    folds, settings = cut([30] * 5), stopping_early("adam", nhid, dropout=0.3)
    together = fit_folds(features, labels, folds, classes, settings, SEED)
    sizes = []

    class Recording(stacked._Stack):
        def __init__(self, features, labels, folds, *rest):
            sizes.append(len(folds))
            super().__init__(features, labels, folds, *rest)

    monkeypatch.setattr(stacked, "_Stack", Recording)
    monkeypatch.setattr(stacked, "BATCH_BYTES", at_once * settings.batch_size * WIDTH * 8)
    in_blocks = fit_folds(features, labels, folds, classes, settings, SEED)
    assert sizes == {1: [1] * 5, 2: [2, 2, 1]}[at_once]
    for fit, other in zip(chain(*in_blocks), chain(*together), strict=True):
        assert (fit.penalty, fit.dev_accuracy) == (other.penalty, other.dev_accuracy)
        for weight, expected in zip(fit.weights, other.weights, strict=True):
            assert_allclose(weight, expected, rtol=0, atol=1e-10)


def test_the_callers_random_numbers_go_on_and_have_no_part(three_classes):
    features, labels, classes = three_classes
    folds, settings = cut([30, 23]), stopping_early("adam", nhid=5, dropout=0.3)
    fits = []
    for seed in (0, 1):
        np.random.seed(seed)
        torch.manual_seed(seed)
        fits.append(fit_folds(features, labels, folds, classes, settings, SEED))
        drawn = np.random.rand(4), torch.rand(4)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert np.array_equal(drawn[0], np.random.rand(4)) and torch.equal(drawn[1], torch.rand(4))
    for one, other in zip(chain(*fits[0]), chain(*fits[1]), strict=True):
        assert all(map(torch.equal, one.weights, other.weights))


def test_fits_have_the_precision_of_the_features(three_classes):
    features, labels, classes = three_classes
    single, double = (
        fit_folds(rows, labels, cut([30]), classes, stopping_early("adam"), SEED)[0][0]
        for rows in (features.float(), features)
    )
    assert {weight.dtype for weight in single.weights} == {torch.float32}
    assert_allclose(single.weights[0], double.weights[0], atol=1e-4)
