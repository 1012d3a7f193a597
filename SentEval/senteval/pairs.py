"""Tasks that evaluate the user's own sentence pairs by the cosines of their embeddings."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings
from senteval.lines import Content, record
from senteval.scores import TaskResult, require_different, similarities
from senteval.settings import Settings
from senteval.sts import LoadedSts


@dataclass(frozen=True)
class BinaryPairsResult:
    """The scores of the cosines as predictions of binary labels: 1 (same, similar) or 0.

    Args:
        average_precision, roc_auc: Area under the precision-recall curve (as a step function) and under the ROC curve,
            as fractions.
        best_accuracy: The accuracy × 100 with the best threshold: a pair is predicted as 1 if the cosine is at least
            `threshold`. If no threshold is better than the prediction 0 for all pairs, `threshold` is None.
        gold, cosines: Labels and cosines (N,) of all pairs.
    """

    task: str
    split: str
    average_precision: float
    roc_auc: float
    best_accuracy: float
    threshold: float | None
    nsamples: int
    positives: int
    family: str = "binary-pairs"
    gold: np.ndarray | None = field(default=None, repr=False, compare=False)
    cosines: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def score(self) -> float:
        """The average precision."""
        return self.average_precision

    @property
    def points(self) -> float:
        """The average precision × 100, as in tables."""
        return 100 * self.score

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON-serialisable dict; the accuracy is × 100, the rest are fractions."""
        return {name: value for name, value in vars(self).items() if name not in ("family", "gold", "cosines")}


@dataclass(frozen=True, eq=False)
class PairsTask:
    """A task with the user's sentence pairs.

    If all scores are 0 or 1, the pairs are evaluated by average precision. Otherwise they are evaluated by Spearman
    correlation, and the scores may have any scale.

    Args:
        content: The digest and size of the file of the pairs or, without a file, of their text, for records.
    """

    name: str
    pairs: ScoredPairs
    content: Content

    @property
    def family(self) -> str:
        return "binary-pairs" if set(self.pairs.gold) == {0.0, 1.0} else "pairs"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedPairs":
        """Return the pairs, which are already loaded and checked. data_dir is ignored."""
        record(self.pairs.source, self.content)
        kind = LoadedBinaryPairs if self.family == "binary-pairs" else LoadedPairs
        return kind(self.name, settings.split, (self.pairs,))


class LoadedPairs(LoadedSts):
    """The user's scored pairs."""

    family = "pairs"

    def score(self, embed: Embeddings, settings: Settings) -> TaskResult:
        return replace(super().score(embed, settings), family=self.family)


class LoadedBinaryPairs(LoadedPairs):
    """The user's pairs with the labels 0 and 1."""

    family = "binary-pairs"

    def score(self, embed: Embeddings, settings: Settings) -> BinaryPairsResult:
        """Compute average precision, ROC AUC and the best accuracy of the cosines."""
        (pairs,) = self.subsets
        cosines = similarities(self.task, pairs, embed(pairs.first), embed(pairs.second))
        require_different(self.task, cosines)
        return binary_scores(self.task, self.split, pairs.gold, cosines)


def binary_scores(task: str, split: str, gold: np.ndarray, cosines: np.ndarray) -> BinaryPairsResult:
    """Return the scores of cosines (N,) as predictions of the labels 0 and 1 in gold (N,); both labels must occur."""
    # Imported here because it is slow: see `senteval.tasks`.
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    positives = int(gold.sum())
    negatives = len(gold) - positives
    false_share, true_share, thresholds = roc_curve(gold, cosines, drop_intermediate=False)
    accuracies = (true_share * positives + (1 - false_share) * negatives) / len(gold)
    best = int(np.argmax(accuracies))
    return BinaryPairsResult(
        task=task,
        split=split,
        average_precision=float(average_precision_score(gold, cosines)),
        roc_auc=float(roc_auc_score(gold, cosines)),
        best_accuracy=100 * float(accuracies[best]),
        threshold=float(thresholds[best]) if np.isfinite(thresholds[best]) else None,
        nsamples=len(gold),
        positives=positives,
        gold=gold,
        cosines=cosines,
    )
