"""Few-shot transfer: logistic regression on frozen embeddings of 16 labelled examples per class, drawn ten times.

Source: ConPVP, section 5, after Zhang et al. (PairSupCon, 2021), who specify neither classifier nor test set. In this
implementation the classifier is scikit-learn's logistic regression, with C chosen from 0.25, 0.5, 1, 2, 4 and 8 by
cross-validation on the drawn examples. For tasks without a test set, all examples that were not drawn form the test
set.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from senteval.embeddings import Embeddings
from senteval.lines import Located
from senteval.names import TRANSFER_TASKS
from senteval.protocols import SklearnProbe, require_enough
from senteval.settings import Settings
from senteval.transfer import TRANSFER, LoadedTransfer, TransferTask

FOLDS = 4


@dataclass(frozen=True)
class FewShotResult:
    """The result of a few-shot task: the test accuracy × 100 of every draw."""

    task: str
    split: str
    shots: int
    draws: tuple[float, ...]
    n_train: int
    n_test: int
    family = "fewshot"

    @property
    def points(self) -> float:
        """The mean accuracy × 100 over the draws."""
        return float(np.mean(self.draws))

    @property
    def deviation(self) -> float:
        """The sample standard deviation of the accuracies of the draws."""
        return float(np.std(self.draws, ddof=1))

    def as_dict(self) -> dict[str, Any]:
        """Return the accuracies of all draws, and their average, as a JSON-serialisable dict."""
        return {**vars(self), "draws": list(self.draws), "mean": self.points, "std": self.deviation}


@dataclass(frozen=True)
class FewShotTask:
    """A transfer task with few training examples."""

    name: str
    transfer: TransferTask
    family = "fewshot"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedFewShot":
        """Read and check all examples except the dev set.

        Raises DataError if a class has too few examples, or in dev mode, since the task has no dev split.
        """
        settings.require_test(self.name)
        wanted = {split: files for split, files in self.transfer.files.items() if split != "dev"}
        examples = self.transfer.read_splits(data_dir, wanted, settings.official)
        pool = examples.get("all") or examples["train"]
        # If the remaining examples form the test set, one more example per class ensures that it is not empty.
        least = settings.shots + ("all" in examples)
        require_enough(self.name, pool.labels, self.transfer.classes, least, f"drawing {settings.shots} of each")
        return LoadedFewShot(self.name, LoadedTransfer(self.transfer, examples))


@dataclass(frozen=True, eq=False)
class LoadedFewShot:
    """A few-shot task with its checked examples."""

    task: str
    loaded: LoadedTransfer

    def located(self) -> Iterator[Located]:
        return self.loaded.located()

    def files(self) -> list[Path]:
        return self.loaded.files()

    def score(self, embed: Embeddings, settings: Settings) -> FewShotResult:
        """Repeat `settings.draws` times: draw examples, train a classifier on them, and test it on the test set."""
        features, labels, rows = self.loaded.all_features(embed)
        probe = SklearnProbe(features, labels, self.loaded.task.classes, settings)
        pool = rows["all"] if "all" in rows else rows["train"]
        accuracies = []
        for draw in range(settings.draws):
            train = draw_examples(pool, labels, settings.shots, np.random.default_rng([settings.seed, draw]))
            test = rows["test"] if "test" in rows else np.setdiff1d(pool, train)
            predicted = probe.predict(_fit(probe, train, labels, settings), test)
            accuracies.append(100 * float(np.mean(predicted == labels[test])))
        return FewShotResult(self.task, "test", settings.shots, tuple(accuracies), len(train), len(test))


def draw_examples(pool: np.ndarray, labels: np.ndarray, shots: int, random: np.random.Generator) -> np.ndarray:
    """Draw `shots` row numbers per class from the row numbers in `pool`, without replacement.

    Args:
        labels: The labels of all rows.
    """
    of_class = [pool[labels[pool] == label] for label in np.unique(labels[pool])]
    return np.concatenate([random.choice(rows, shots, replace=False) for rows in of_class])


def _fit(probe: SklearnProbe, train: np.ndarray, labels: np.ndarray, settings: Settings) -> Any:
    from sklearn.model_selection import StratifiedKFold  # imported here because it is slow: see `senteval.tasks`

    splitter = StratifiedKFold(min(FOLDS, settings.shots), shuffle=True, random_state=settings.seed)
    folds = [(train[part], train[held_out]) for part, held_out in splitter.split(train, labels[train])]
    fits = probe.fit(folds, probe.grid)
    mean = np.mean([[fit.dev_accuracy for fit in of_fold] for of_fold in fits], axis=0)
    (fit,) = probe.fit_alone([train], [probe.grid[int(np.argmax(mean))]])
    return fit


FEWSHOT: dict[str, FewShotTask] = {
    f"{name}-fewshot": FewShotTask(f"{name}-fewshot", TRANSFER[name]) for name in TRANSFER_TASKS
}
