"""How an evaluation is run: which split is scored, and how the classifiers on top are trained."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from senteval.errors import DataError, quote, require_whole
from senteval.stacked import Classifier

IDENTICAL = ("merge", "keep")


@dataclass(frozen=True)
class Settings:
    """Everything that a score depends on besides embeddings and data.

    split: "test" or "dev", the part that gives the score. kfold: folds of the cross-validated tasks. seed: of the
    classifiers, folds, draws and K-means runs. use_torch: SentEval's own classifier; else scikit-learn's logistic
    regression. dtype, device: where the classifiers train. official: ask for the official sizes of all files.
    shots, draws: labelled examples a class, and how often they are drawn, of the few-shot tasks. kmeans_runs,
    kmeans_starts: independent runs of K-means that are averaged, and how many starts each takes its best from.
    identical: what retrieval does with identical sentences (`senteval.retrieval`). sample_file, sample_size: sentences
    on which geometry measures anisotropy, one a line; without a file those of the split.
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
            require_whole(name, getattr(self, name), bound)
        if self.split not in ("test", "dev"):
            raise DataError(f"split is {quote(self.split)}; choose one of test, dev")
        require_whole("seed", self.seed, 0, 2**32 - 1)
        if self.identical not in IDENTICAL:
            raise DataError(f"identical is {quote(self.identical)}; choose one of {', '.join(IDENTICAL)}")

    def require_test(self, task: str) -> None:
        """Raise DataError in dev mode, for a task that has nothing to measure then."""
        if self.split == "dev":
            raise DataError(f"{task} has no dev split; measure it in test mode")

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "dtype": str(self.dtype).removeprefix("torch.")}


_FAST = Classifier(optim="rmsprop", batch_size=128, tenacity=3, epoch_size=2)

MODES: Mapping[str, Settings] = {
    "test": Settings(kfold=10),
    "fasttest": Settings(kfold=5, classifier=_FAST, kmeans_starts=1),
    "dev": Settings(split="dev", kfold=5, classifier=_FAST, kmeans_starts=1),
}
"""SimCSE's three modes. "fasttest" has cheaper classifiers and K-means; for the STS tasks it is the same as test."""


def settings_of_mode(mode: str, **changes: Any) -> Settings:
    """The settings of a mode with some of them changed; raises DataError for an unknown mode."""
    if mode not in MODES:
        raise DataError(f"unknown mode {quote(mode)}; choose one of {', '.join(MODES)}")
    return replace(MODES[mode], **changes)
