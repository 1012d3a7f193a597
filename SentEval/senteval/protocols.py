"""SentEval's three protocols for classifiers: nested cross-validation, cross-validation and fixed split.

All accuracies are × 100. They are rounded to two decimals where the published code rounds. The published code chooses
the penalty with the best rounded mean; among equal means, it chooses the first penalty in the grid.

Source: SentEval (Conneau and Kiela, 2018), as in SimCSE.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from senteval.errors import DataError
from senteval.settings import Settings
from senteval.stacked import Fit, Fold, fit_folds

if TYPE_CHECKING:  # imported where it is used: see `senteval.tasks`
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

FOLD_SEED = 1111
"""The seed of the folds of nested cross-validation. SentEval uses its option `seed` only in the other protocols."""

HELD_OUT = 0.05
"""Share of the training set that is held out for early stopping of the final fit."""

PENALTIES = tuple(10.0**power for power in range(-5, -1))
"""L2 penalties of the torch classifier."""
STRENGTHS = tuple(2.0**power for power in range(-2, 4))
"""Values of scikit-learn's C, the inverse of a penalty."""
STRENGTHS_KFOLD = tuple(2.0**power for power in range(-1, 6))

Rows = np.ndarray
"""Row numbers (n,)."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Dev and test accuracy × 100 of a task.

    Args:
        penalties: The chosen L2 penalties.
        folds: The test accuracy of each outer fold, for nested cross-validation.
        predictions: The predicted classes (n,) of the test rows; None without a test set. For nested cross-validation,
            the predicted classes of all rows: each row is predicted by the classifier of the outer fold that does not
            train on the row.
    """

    dev_accuracy: float
    accuracy: float | None
    penalties: tuple[float, ...]
    folds: tuple[float, ...] = ()
    predictions: np.ndarray | None = None


class Probe(Protocol):
    """A kind of classifier, with the feature matrix on which it is trained. All row numbers refer to this matrix."""

    grid: tuple[float, ...]
    grid_kfold: tuple[float, ...]

    def fit(self, folds: Sequence[tuple[Rows, Rows]], grid: Sequence[float]) -> list[list[Any]]:
        """Train a classifier per fold and penalty.

        A fold consists of the rows to train on and the rows on which the dev accuracy is computed.
        """
        ...

    def fit_alone(self, train: Sequence[Rows], penalties: Sequence[float]) -> list[Any]:
        """Train one classifier per pair of training rows and penalty, without a dev set."""
        ...

    def predict(self, fit: Any, rows: Rows) -> np.ndarray:
        """Return the classes (n,) that a trained classifier predicts for rows (n,)."""
        ...


class TorchProbe:
    """The classifier of SentEval in torch. All fits are trained at once (see `senteval.stacked`)."""

    grid = grid_kfold = PENALTIES

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int, settings: Settings) -> None:
        self.seed = settings.seed
        self.features = torch.as_tensor(features, dtype=settings.dtype, device=settings.device)
        targets = torch.as_tensor(labels, device=settings.device)
        self._fit = partial(
            fit_folds, self.features, targets, classes=classes, settings=settings.classifier, seed=settings.seed
        )

    def fit(self, folds: Sequence[tuple[Rows, Rows]], grid: Sequence[float]) -> list[list[Fit]]:
        return self._fit([Fold(train, dev, tuple(grid)) for train, dev in folds])

    def fit_alone(self, train: Sequence[Rows], penalties: Sequence[float]) -> list[Fit]:
        """Train a classifier for each penalty, with a random twentieth of the rows held out for early stopping."""
        folds = [self._hold_out(rows, penalty) for rows, penalty in zip(train, penalties, strict=True)]
        return [fit for (fit,) in self._fit(folds)]

    def predict(self, fit: Fit, rows: Rows) -> np.ndarray:
        return fit.predict(self.features[torch.as_tensor(rows)].cpu())

    def _hold_out(self, rows: Rows, penalty: float) -> Fold:
        order = np.random.RandomState(self.seed).permutation(len(rows))
        cut = int(HELD_OUT * len(rows))
        return Fold(rows[order[cut:]], rows[order[:cut]], (penalty,), drawn=len(rows))


@dataclass(frozen=True)
class SklearnFit:
    """A trained logistic regression, and its dev accuracy as a fraction (None without a dev set)."""

    model: "LogisticRegression"
    dev_accuracy: float | None


class SklearnProbe:
    """scikit-learn's logistic regression (`usepytorch=False`), trained to convergence without early stopping."""

    grid, grid_kfold = STRENGTHS, STRENGTHS_KFOLD

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int, settings: Settings) -> None:
        self.features, self.labels, self.seed = features.astype(np.float64), labels, settings.seed

    def fit(self, folds: Sequence[tuple[Rows, Rows]], grid: Sequence[float]) -> list[list[SklearnFit]]:
        return [[self._scored(self._fit(train, strength), dev) for strength in grid] for train, dev in folds]

    def fit_alone(self, train: Sequence[Rows], penalties: Sequence[float]) -> list[SklearnFit]:
        together = zip(train, penalties, strict=True)
        return [SklearnFit(self._fit(rows, strength), None) for rows, strength in together]

    def predict(self, fit: SklearnFit, rows: Rows) -> np.ndarray:
        return fit.model.predict(self.features[rows])

    def _scored(self, model: "LogisticRegression", dev: Rows) -> SklearnFit:
        return SklearnFit(model, float(model.score(self.features[dev], self.labels[dev])))

    def _fit(self, rows: Rows, strength: float) -> "LogisticRegression":
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        # scikit-learn's default of 100 iterations stops before the optimum, at a point that depends on the solver.
        model = LogisticRegression(C=strength, max_iter=10_000, random_state=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            try:
                return model.fit(self.features[rows], self.labels[rows])
            except ConvergenceWarning as error:
                raise DataError(
                    f"logistic regression with C={strength:g} does not converge; check the scale of the embeddings, "
                    "or use classifier='torch'",
                    "classifier='torch'",
                ) from error


def build_probe(features: np.ndarray, labels: np.ndarray, classes: int, settings: Settings) -> Probe:
    """Return the classifier that the settings choose, for features (N, H) with labels (N,)."""
    return (TorchProbe if settings.use_torch else SklearnProbe)(features, labels, classes, settings)


def _splitter(k: int, seed: int) -> "StratifiedKFold":
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(k, shuffle=True, random_state=seed)


def nested_kfold(probe: Probe, labels: np.ndarray, k: int) -> Outcome:
    """Evaluate by nested cross-validation with k outer folds, and k inner folds per outer fold.

    The outer folds give the accuracy. The inner folds choose the penalty of their outer fold.

    Args:
        probe: The classifier, with the features of N rows.
        labels: The labels (N,).
        k: Number of folds.
    """
    splitter = _splitter(k, FOLD_SEED)
    outer = list(splitter.split(labels, labels))
    inner = [
        (train[part], train[held_out]) for train, _ in outer for part, held_out in splitter.split(train, labels[train])
    ]
    fits = probe.fit(inner, probe.grid)
    choices = [_choose(fits[start : start + k], probe.grid) for start in range(0, k * k, k)]
    penalties = tuple(penalty for penalty, _ in choices)
    last = probe.fit_alone([train for train, _ in outer], penalties)
    predictions = np.empty_like(labels)
    for fit, (_, test) in zip(last, outer, strict=True):
        predictions[test] = probe.predict(fit, test)
    folds = [_accuracy(predictions[test], labels[test]) for _, test in outer]
    return Outcome(
        dev_accuracy=_round(np.mean([score for _, score in choices])),
        accuracy=_round(np.mean(folds)),
        penalties=penalties,
        folds=tuple(folds),
        predictions=predictions,
    )


def kfold(probe: Probe, labels: np.ndarray, train: Rows, test: Rows, k: int, seed: int) -> Outcome:
    """Choose the penalty by k-fold cross-validation on the training rows. Evaluate on the test rows, if any.

    Args:
        probe: The classifier, with the features of N rows.
        labels: The labels (N,).
        train: The training rows.
        test: The test rows; empty in dev mode.
        k: Number of folds.
        seed: Seed of the folds.
    """
    splitter = _splitter(k, seed)
    folds = [(train[part], train[held_out]) for part, held_out in splitter.split(train, labels[train])]
    penalty, best = _choose(probe.fit(folds, probe.grid_kfold), probe.grid_kfold)
    if not len(test):
        return Outcome(best, None, (penalty,))
    (fit,) = probe.fit_alone([train], [penalty])
    predictions = probe.predict(fit, test)
    return Outcome(best, _accuracy(predictions, labels[test]), (penalty,), predictions=predictions)


def fixed_split(probe: Probe, labels: np.ndarray, train: Rows, dev: Rows, test: Rows) -> Outcome:
    """Choose penalty and stopping point on the dev rows of a fixed split. Evaluate on the test rows, if any.

    The published code trains again with the chosen penalty. Here the first fit is used, since both fits are exactly
    equal.

    Args:
        probe: The classifier, with the features of N rows.
        labels: The labels (N,).
        train, dev, test: The rows of each split. `test` is empty in dev mode.
    """
    (fits,) = probe.fit([(train, dev)], probe.grid)
    scores = [round(100 * fit.dev_accuracy, 2) for fit in fits]
    best = int(np.argmax(scores))
    outcome = Outcome(scores[best], None, (probe.grid[best],))
    if not len(test):
        return outcome
    predictions = probe.predict(fits[best], test)
    return replace(outcome, accuracy=_accuracy(predictions, labels[test]), predictions=predictions)


def require_enough(task: str, labels: np.ndarray, classes: int, least: int, why: str) -> None:
    """Raise DataError unless every class has `least` examples.

    Args:
        why: The reason for this minimum, for the message.
    """
    counts = np.bincount(labels, minlength=classes)
    rarest = int(np.argmin(counts))
    if counts[rarest] < least:
        raise DataError(
            f"{task}: class {rarest} has {counts[rarest]} of the {len(labels)} examples, but {why} needs at least "
            f"{least}; add examples, or use fewer folds or shots"
        )


def _choose(fits: Sequence[Sequence[Any]], grid: Sequence[float]) -> tuple[float, float]:
    """Return the penalty with the best mean dev accuracy over folds, and this mean accuracy.

    Args:
        fits: A list for each fold, with a fit for each penalty.
    """
    means = [100 * np.mean([fit.dev_accuracy for fit in of_penalty]) for of_penalty in zip(*fits, strict=True)]
    scores = [_round(mean) for mean in means]
    return grid[int(np.argmax(scores))], max(scores)


def _accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return round(100 * float(np.mean(predictions == labels)), 2)


def _round(mean: np.floating) -> float:
    """Round to two decimals with numpy, as published; Python rounds halves, which are frequent, differently."""
    return float(np.round(mean, 2))
