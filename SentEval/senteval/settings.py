"""The settings of an evaluation: the evaluated split, the protocols and the training of classifiers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from senteval.errors import DataError, quote, require_integer
from senteval.stacked import Classifier

IDENTICAL = ("merge", "keep")


@dataclass(frozen=True)
class Settings:
    """All settings of an evaluation. A score depends only on these settings, the embeddings and the data.

    Args:
        split: The evaluated split, "test" or "dev".
        kfold: Number of folds of the cross-validated tasks.
        classifier: Training settings of the torch classifier.
        seed: Seed of classifiers, folds, draws and K-means runs.
        use_torch: Whether the classifier is SentEval's torch classifier; if not, scikit-learn's logistic regression.
        dtype, device: Type and device of the torch classifiers.
        official: Whether all files must have the official sizes.
        shots, draws: Number of labelled examples per class, and number of draws, of the few-shot tasks.
        kmeans_runs: Number of K-means runs that are averaged.
        kmeans_starts: Number of starts of each run. A run uses its best start.
        identical: Treatment of identical sentences in retrieval, "merge" or "keep" (`senteval.retrieval`).
        sample_file, sample_size: File with one sentence per line, and number of sentences to draw from it, for the
            anisotropy of the geometry task. Without a file, the sentences of the split are used.

    Raises:
        DataError: If a value is not allowed.
    """

    split: str = "test"
    kfold: int = 5
    classifier: Classifier = field(default_factory=Classifier)
    seed: int = 1111
    use_torch: bool = True
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    official: bool = True
    shots: int = 16
    draws: int = 10
    kmeans_runs: int = 10
    kmeans_starts: int = 10
    identical: str = "merge"
    sample_file: str | None = None
    sample_size: int = 100_000

    def __post_init__(self) -> None:
        least = {"kfold": 2, "shots": 2, "draws": 2, "kmeans_runs": 2, "kmeans_starts": 1, "sample_size": 2}
        for name, bound in least.items():
            require_integer(name, getattr(self, name), bound)
        if self.split not in ("test", "dev"):
            raise DataError(f"split is {quote(self.split)}; choose one of test, dev")
        require_integer("seed", self.seed, 0, 2**32 - 1)
        if self.identical not in IDENTICAL:
            raise DataError(f"identical is {quote(self.identical)}; choose one of {', '.join(IDENTICAL)}")

    def require_test(self, task: str) -> None:
        """Raise DataError in dev mode.

        Args:
            task: The name of a task that has no dev split.
        """
        if self.split == "dev":
            raise DataError(f"{task} has no dev split; use the mode test or fasttest")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as a JSON-serialisable dict."""
        return {**asdict(self), "dtype": str(self.dtype).removeprefix("torch.")}


_FAST = Classifier(optim="rmsprop", batch_size=128, tenacity=3, epoch_size=2)

MODES: Mapping[str, Settings] = {
    "test": Settings(kfold=10),
    "fasttest": Settings(kfold=5, classifier=_FAST, kmeans_starts=1),
    "dev": Settings(split="dev", kfold=5, classifier=_FAST, kmeans_starts=1),
}
"""SimCSE's three modes. "fasttest" trains faster classifiers and K-means; for STS tasks it is the same as "test"."""


def settings_of_mode(mode: str, **changes: Any) -> Settings:
    """Return the settings of the mode "test", "fasttest" or "dev", with changes. Raises DataError for other modes."""
    if mode not in MODES:
        raise DataError(f"unknown mode {quote(mode)}; choose one of {', '.join(MODES)}")
    return replace(MODES[mode], **changes)
