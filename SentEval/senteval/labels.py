"""A task that evaluates the user's own labelled texts by classification or retrieval with frozen embeddings."""

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
from senteval.names import LABELS_METRICS
from senteval.scores import unit_rows
from senteval.settings import Settings

FOLDS = 5

QUERIES_AT_ONCE = 256
"""Number of queries whose cosines with all texts are in memory at once."""


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
        """Return the scores (× 100) as a JSON-serialisable dict."""
        return {**{name: value for name, value in vars(self).items() if name != "correct"}, "classes": [*self.classes]}


@dataclass(frozen=True)
class LabelsRetrievalResult:
    """The mean average precision of a retrieval of texts by texts of the same class.

    Each text whose class has another text is a query, and the other texts of its class are relevant.

    Args:
        map: Mean over the queries, × 100.
        classes: Names of the classes.
        n_texts: Number of texts.
        n_queries: Number of queries.
        query_average_precision: The average precision of each query (n,).
        query_class: The class of each query (n,), as an index of `classes`.
    """

    task: str
    split: str
    map: float
    classes: tuple[str, ...]
    n_texts: int
    n_queries: int
    query_average_precision: np.ndarray | None = field(default=None, repr=False, compare=False)
    query_class: np.ndarray | None = field(default=None, repr=False, compare=False)
    family = "labels-map"

    @property
    def points(self) -> float:
        """The mean average precision × 100."""
        return self.map

    def as_dict(self) -> dict[str, Any]:
        """Return the mean (× 100) and the numbers as a JSON-serialisable dict."""
        arrays = ("query_average_precision", "query_class")
        values = {name: value for name, value in vars(self).items() if name not in arrays}
        return {**values, "classes": [*self.classes]}


@dataclass(frozen=True, eq=False)
class LabelsTask:
    """A task with the user's labelled texts.

    Args:
        examples: Single texts, whose labels are indices (N,) of `classes`; if texts have several classes or none, the
            labels (N, classes) are 1 for each class of a text and 0 for others.
        classes: The names of the classes.
        source: The file that contains the texts, or the name for the texts in messages if they are not from a file.
        content: See `senteval.pairs.PairsTask`.
        metric: "accuracy" of a classifier (`LabelsResult`), or "map" (`LabelsRetrievalResult`).

    Raises:
        DataError: If there are fewer than 2 classes. For "accuracy", if a class has fewer texts than there are folds.
            For "map", if no class has 2 texts.
    """

    name: str
    examples: LabelledTexts
    classes: tuple[str, ...]
    source: Path
    content: Content
    metric: str = LABELS_METRICS[0]

    @property
    def family(self) -> str:
        """The family of the result, which selects its table."""
        return LabelsRetrievalResult.family if self.metric == "map" else LabelsResult.family

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
        if self.metric == "map":
            if labels.ndim == 2:
                raise DataError(f"{self.source}: map needs one class for each text; use the metric accuracy")
            if counts.max() < 2:
                raise DataError(f"{self.source}: every text has a different class; give texts that share classes")
        elif counts[rarest] < FOLDS:
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

    @property
    def family(self) -> str:
        return self.task.family

    def located(self) -> Iterator[Located]:
        return zip(self.task.examples.texts[0], self.task.examples.lines, strict=True)

    def files(self) -> list[Path]:
        return [self.task.source]

    def score(self, embed: Embeddings, settings: Settings) -> LabelsResult | LabelsRetrievalResult:
        """Predict the class of each text by logistic regression, or rank the texts for each text ("map").

        The classifier of a text is trained on the folds without the text. The folds are drawn with `settings.seed`.
        """
        return self._retrieved(embed) if self.task.metric == "map" else self._classified(embed, settings)

    def _retrieved(self, embed: Embeddings) -> LabelsRetrievalResult:
        examples = self.task.examples
        queries, values = average_precisions(embed(examples.texts[0]), examples.labels)
        facts = {"classes": self.task.classes, "n_texts": len(examples), "n_queries": len(queries)}
        arrays = {"query_average_precision": values, "query_class": examples.labels[queries]}
        return LabelsRetrievalResult(self.task.name, self.split, 100 * float(values.mean()), **facts, **arrays)

    def _classified(self, embed: Embeddings, settings: Settings) -> LabelsResult:
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


def average_precisions(embeddings: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers (n,) of the queries, and the average precision (n,) of each query.

    Each text whose class has another text is a query. All other texts are ranked by their cosine with the query, and
    the texts of its class are relevant. Among texts with the same cosine, texts of other classes rank first.

    Args:
        embeddings: The embedding of each text (N, H).
        classes: The class of each text (N,), as whole numbers from 0.
    """
    queries = np.flatnonzero(np.bincount(classes)[classes] > 1)
    directions, values = unit_rows(embeddings), np.empty(len(queries))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        rows = queries[start : start + QUERIES_AT_ONCE]
        cosines = np.round(directions[rows] @ directions.T, 12)
        for i, (query, similarities) in enumerate(zip(rows, cosines, strict=True), start):
            similarities[query] = -np.inf  # ranked last, where it is left out
            relevant = classes == classes[query]
            hits = relevant[np.lexsort((relevant, -similarities))[:-1]]
            values[i] = np.mean(np.cumsum(hits)[hits] / (1 + np.flatnonzero(hits)))
    return queries, values


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
