"""A task that evaluates the user's own labelled texts by classification of their frozen embeddings."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from senteval.embeddings import Embeddings
from senteval.errors import DataError, quote
from senteval.labelled import LabelledTexts
from senteval.lines import Content, Located, record
from senteval.settings import Settings

FOLDS = 5


@dataclass(frozen=True)
class LabelsResult:
    """The cross-validated scores of a classifier on labelled texts.

    Accuracy and macro F1 are computed from the predictions of all folds together.

    Args:
        accuracy: Share of texts whose class is predicted correctly, × 100. If texts have several classes, exactly
            these classes must be predicted.
        macro_f1: Mean of F1 over the classes, × 100.
        classes: Names of the classes.
        folds: Number of folds.
        correct: Whether the class of each text is predicted correctly (N,).
    """

    task: str
    split: str
    accuracy: float
    macro_f1: float
    classes: tuple[str, ...]
    n_texts: int
    folds: int = FOLDS
    correct: np.ndarray | None = field(default=None, repr=False, compare=False)
    family = "labels"

    @property
    def points(self) -> float:
        """The accuracy × 100."""
        return self.accuracy

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; scores are × 100."""
        return {**{name: value for name, value in vars(self).items() if name != "correct"}, "classes": [*self.classes]}


@dataclass(frozen=True, eq=False)
class LabelsTask:
    """A task with the user's labelled texts.

    Args:
        examples: Single texts, whose labels are indices (N,) of `classes`; if texts have several classes or none, the
            labels (N, classes) are 1 for each class of a text and 0 for others.
        classes: The names of the classes.
        source: The file that contains the texts, or the name for the texts in messages if they are not from a file.
        content: See `senteval.pairs.PairsTask`.

    Raises:
        DataError: If there are fewer than 2 classes, or if a class has fewer texts than there are folds.
    """

    name: str
    examples: LabelledTexts
    classes: tuple[str, ...]
    source: Path
    content: Content
    family = "labels"

    def __post_init__(self) -> None:
        remedy = self.examples.lines[0].remedy
        if len(self.classes) < 2:
            raise DataError(
                f"{self.source}: every text has the class {quote(self.classes[0])}; at least two classes are needed; "
                f"{remedy}"
            )
        labels = self.examples.labels
        counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(self.classes))
        rarest = int(np.argmin(counts))
        if counts[rarest] < FOLDS:
            first = self.examples.lines[int(np.argmax(labels[:, rarest] if labels.ndim == 2 else labels == rarest))]
            found = "1 text" if counts[rarest] == 1 else f"{counts[rarest]} texts"
            raise DataError(
                f"{first.place}: the class {quote(self.classes[rarest])} has {found}, but cross-validation in {FOLDS} "
                f"folds needs at least {FOLDS} of each class; add texts, or remove the class; {remedy}"
            )

    def load(self, data_dir: Path, settings: Settings) -> "LoadedLabels":
        """Return the texts, which are already loaded and checked. data_dir is ignored."""
        record(self.source, self.content)
        return LoadedLabels(self, settings.split)


@dataclass(frozen=True, eq=False)
class LoadedLabels:
    """The user's labelled texts."""

    task: LabelsTask
    split: str
    family = "labels"

    def located(self) -> Iterator[Located]:
        return zip(self.task.examples.texts[0], self.task.examples.lines, strict=True)

    def files(self) -> list[Path]:
        return [self.task.source]

    def score(self, embed: Embeddings, settings: Settings) -> LabelsResult:
        """Predict the class of each text by logistic regression, trained on the folds without the text.

        The folds are drawn with `settings.seed`.
        """
        from sklearn.metrics import f1_score  # imported here because it is slow: see `senteval.tasks`

        examples = self.task.examples
        predicted = cross_validated(embed(examples.texts[0]), examples.labels, settings.seed)
        correct = (predicted == examples.labels).reshape(len(examples), -1).all(axis=1)
        return LabelsResult(
            task=self.task.name,
            split=self.split,
            accuracy=100 * float(correct.mean()),
            macro_f1=100 * float(f1_score(examples.labels, predicted, average="macro", zero_division=0)),
            classes=self.task.classes,
            n_texts=len(examples),
            correct=correct,
        )


def cross_validated(features: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Return the class (N,) that scikit-learn's logistic regression predicts for each row of features (N, H).

    The classifier for a row (C = 1, trained to convergence) is trained on the folds that do not contain the row. The
    folds are stratified by class. For labels (N, classes) of texts with several classes, each class has its own
    classifier, and the folds are random. Raises DataError if a classifier does not converge.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
    from sklearn.multiclass import OneVsRestClassifier

    # scikit-learn's default of 100 iterations stops before the optimum, at a point that depends on the solver.
    classifier, kind = LogisticRegression(max_iter=10_000), StratifiedKFold
    if labels.ndim == 2:
        classifier, kind = OneVsRestClassifier(classifier), KFold
    folds = kind(FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            return cross_val_predict(classifier, features.astype(np.float64), labels, cv=folds)
        except ConvergenceWarning as error:
            raise DataError(
                "logistic regression on your labelled texts does not converge; check the scale of the embeddings"
            ) from error
