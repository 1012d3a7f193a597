"""Relatedness tasks with a trained probe: a softmax classifier of the grades 1 to 5 on |u − v| and u * v.

u and v are the embeddings of the two sentences. Source: Tai, Socher and Manning (2015). These tasks are SentEval's
original STSBenchmark and SICKRelatedness. SimCSE adds `-finetune` to their names. Early stopping here uses Spearman
instead of Pearson.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings, pair_features
from senteval.lines import Located
from senteval.scores import correlate
from senteval.settings import Settings
from senteval.stacked import seeded
from senteval.sts import STS, StsTask

GRADES = 5
BATCH_SIZE = 64
EPOCHS_PER_CHECK = 50
MAX_EPOCHS = 1000
TENACITY = 3
"""Total number of dev checks without a new best score before training stops."""


@dataclass(frozen=True, eq=False)
class RelatednessResult:
    """Correlations (as fractions) and mean squared error of the predicted grades.

    In dev mode everything except dev_spearman is None.

    Args:
        predictions: The predicted grades (n_test,) from 1 to 5, in the order of the file.
    """

    task: str
    split: str
    dev_spearman: float
    n_dev: int
    pearson: float | None = None
    spearman: float | None = None
    mse: float | None = None
    n_test: int = 0
    predictions: np.ndarray | None = None
    family = "finetune"

    @property
    def points(self) -> float:
        """Spearman × 100 on the evaluated split."""
        return 100 * (self.dev_spearman if self.split == "dev" else self.spearman)

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON-serialisable dict, without the predictions and values that are None."""
        return {name: value for name, value in vars(self).items() if name != "predictions" and value is not None}

    def as_senteval(self) -> dict[str, Any]:
        """Return the result under SentEval's own keys."""
        return {
            "devspearman": self.dev_spearman,
            "pearson": self.pearson,
            "spearman": self.spearman,
            "mse": self.mse,
            "yhat": self.predictions,
            "ndev": self.n_dev,
            "ntest": self.n_test,
        }


@dataclass(frozen=True)
class RelatednessTask:
    """A similarity task with train, dev and test splits, on which a probe (a small classifier) is trained."""

    name: str
    pairs: StsTask
    family = "finetune"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedRelatedness":
        """Read and check the train, dev and, in test mode, test splits. Raises DataError if a file is faulty."""
        wanted = ("train", "dev") if settings.split == "dev" else ("train", "dev", "test")
        splits = {split: self.pairs.read_split(data_dir, split, settings.official)[0] for split in wanted}
        return LoadedRelatedness(self.name, splits)


@dataclass(frozen=True, eq=False)
class LoadedRelatedness:
    """A relatedness task with its checked pairs by split."""

    task: str
    splits: Mapping[str, ScoredPairs]

    def located(self) -> Iterator[Located]:
        return chain.from_iterable(pairs.located() for pairs in self.splits.values())

    def files(self) -> list[Path]:
        return [path for pairs in self.splits.values() for path in pairs.files]

    def score(self, embed: Embeddings, settings: Settings) -> RelatednessResult:
        """Train a classifier of grades on the train split, stop early on dev, and evaluate on the test split."""
        features = {split: _featurize(pairs, embed, settings) for split, pairs in self.splits.items()}
        train, dev = self.splits["train"], self.splits["dev"]
        # The published permutations apply to pairs sorted by length.
        order = _by_length(train)
        targets = torch.as_tensor(grade_weights(train.gold), dtype=settings.dtype, device=settings.device)
        model = _train(features["train"][order], targets[order], features["dev"], dev.gold, settings)
        dev_spearman = correlate(f"{self.task} dev", _grades(model, features["dev"]), dev.gold).spearman
        if "test" not in features:
            return RelatednessResult(self.task, settings.split, dev_spearman, len(dev))
        predicted, gold = _grades(model, features["test"]), self.splits["test"].gold
        found = correlate(f"{self.task} test", predicted, gold)
        return RelatednessResult(
            task=self.task,
            split=settings.split,
            dev_spearman=dev_spearman,
            n_dev=len(dev),
            pearson=found.pearson,
            spearman=found.spearman,
            mse=float(np.mean((predicted - gold) ** 2)),
            n_test=len(gold),
            predictions=predicted,
        )


def grade_weights(gold: np.ndarray) -> np.ndarray:
    """Return, for each of N gold scores, weights (N, 5) of the grades 1 to 5 whose weighted mean is the score.

    Source: Tai et al., eq. 15. As in the published code, a score below 1 (STSBenchmark has some) has only a weight for
    grade 1, so the row sums to the score instead of 1.
    """
    below = np.floor(gold)
    rows = np.zeros((len(gold), GRADES + 1))
    index = np.arange(len(gold))
    lower, upper = below.astype(int) - 1, below.astype(int)
    has_lower, has_upper = lower >= 0, upper < GRADES
    rows[index[has_lower], lower[has_lower]] = (below - gold + 1)[has_lower]
    rows[index[has_upper], upper[has_upper]] = (gold - below)[has_upper]
    return rows[:, :GRADES]


def _by_length(pairs: ScoredPairs) -> list[int]:
    def key(row: int) -> tuple[int, int, float]:
        return len(pairs.first[row].split()), len(pairs.second[row].split()), pairs.gold[row]

    return sorted(range(len(pairs)), key=key)


def _featurize(pairs: ScoredPairs, embed: Embeddings, settings: Settings) -> Tensor:
    features = pair_features(embed(pairs.first), embed(pairs.second))
    return torch.as_tensor(features, dtype=settings.dtype, device=settings.device)


def _train(features: Tensor, targets: Tensor, dev: Tensor, dev_gold: np.ndarray, settings: Settings) -> nn.Module:
    """Train a probe and return its state with the best dev Spearman."""
    random = np.random.RandomState(settings.seed)
    from scipy import stats  # imported here because it is slow: see `senteval.tasks`

    with seeded(settings.seed):
        model = nn.Sequential(nn.Linear(features.shape[1], GRADES, dtype=torch.float32), nn.Softmax(dim=-1))
    model.to(features)
    optimizer = torch.optim.Adam(model.parameters())
    best, best_model, misses = -1.0, model, 0
    for _ in range(0, MAX_EPOCHS + 1, EPOCHS_PER_CHECK):
        for _ in range(EPOCHS_PER_CHECK):
            _train_epoch(model, optimizer, features, targets, random.permutation(len(features)))
        grades = _grades(model, dev)
        # If all grades are equal, the correlation is undefined. As published, it counts as 0 and training continues.
        spearman = stats.spearmanr(grades, dev_gold)[0] if np.ptp(grades) else 0.0
        if spearman > best:
            best, best_model = spearman, deepcopy(model)
        elif misses >= TENACITY:
            break
        else:
            misses += 1
    return best_model


def _train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, features: Tensor, targets: Tensor, order: np.ndarray
) -> None:
    rows = torch.from_numpy(order).to(features.device)
    for batch in rows.split(BATCH_SIZE):
        loss = nn.functional.mse_loss(model(features[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _grades(model: nn.Module, features: Tensor) -> np.ndarray:
    """Return the expected grades (N,) of features (N, F)."""
    with torch.inference_mode():
        probabilities = model(features)
    return probabilities.double().cpu().numpy() @ np.arange(1, GRADES + 1)


FINETUNE: dict[str, RelatednessTask] = {
    f"{name}-finetune": RelatednessTask(f"{name}-finetune", STS[name]) for name in ("STSBenchmark", "SICKRelatedness")
}
