"""Functions that train many small classifiers at once on the same frozen features, as one stack of tensors.

SentEval's protocols fit the same linear or one-hidden-layer classifier hundreds of times: for every fold and every L2
penalty. All fits have the same seed, so fits on training sets of equal size draw the same permutations, and their
batches can be computed together: P folds with L penalties each give one batched product. Early stopping is separate
for each fit, and each fit has the accuracy that it would have if it were trained alone. Source of the protocol:
SentEval (Conneau and Kiela, 2018).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from senteval.errors import DataError, require_integer, shown
from senteval.optimizers import build_optimizer, keep_first, parse_optimizer

BATCH_BYTES = 6 << 20
"""Maximum bytes of the features in one training step over all folds of a stack, so that they fit a CPU's caches."""
BATCH_BYTES_ACCELERATOR = 1 << 30


@dataclass(frozen=True)
class Classifier:
    """Training settings of a classifier, with the defaults of SentEval.

    Args:
        nhid: Number of hidden units; 0 for logistic regression.
        optim: Name and options of the optimiser (see `senteval.optimizers`).
        epoch_size: Number of epochs between two checks of the dev accuracy.
        tenacity: Total number of checks without a new best accuracy after which training stops.
        dropout: Dropout rate of the hidden units.

    Raises:
        DataError: If a value is not allowed.
    """

    nhid: int = 0
    optim: str = "adam"
    batch_size: int = 64
    tenacity: int = 5
    epoch_size: int = 4
    max_epoch: int = 200
    dropout: float = 0.0

    def __post_init__(self) -> None:
        least = {"nhid": 0, "batch_size": 1, "tenacity": 0, "epoch_size": 1, "max_epoch": 0}
        for name, bound in least.items():
            require_integer(name, getattr(self, name), bound)
        if not isinstance(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise DataError(f"dropout is {shown(self.dropout)}; a number from 0 to below 1 is needed")
        _, options = parse_optimizer(self.optim)
        if options:  # only to check the options, since building an optimiser imports torch._dynamo
            build_optimizer(self.optim, [torch.zeros(1, requires_grad=True)])


@dataclass(frozen=True, eq=False)
class Fold:
    """The rows (n,) to train on, the rows (m,) for early stopping, and the penalties to try.

    Args:
        drawn: Length of a permutation that the fold draws from its random numbers before training, or None.
    """

    train: np.ndarray
    dev: np.ndarray
    penalties: tuple[float, ...]
    drawn: int | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained classifier: the best dev accuracy, as a fraction, and the weights with this accuracy."""

    penalty: float
    dev_accuracy: float
    weights: tuple[Tensor, ...]

    def predict(self, features: Tensor) -> np.ndarray:
        """Return the most probable classes (N,) of features (N, H)."""
        with torch.inference_mode():
            logits = _logits([weight[None, None] for weight in self.weights], features[None])
        return logits[0, 0].argmax(0).cpu().numpy()


def fit_folds(
    features: Tensor, labels: Tensor, folds: Sequence[Fold], classes: int, settings: Classifier, seed: int
) -> list[list[Fit]]:
    """Train a classifier per fold and penalty. Return a list of fits for each fold, in the order of the penalties.

    All folds must have the same number of penalties.

    Args:
        features: The features (N, H), on the device and in the dtype that the training uses.
        labels: The labels (N,), on the same device as the features.
    """
    alike = defaultdict(list)
    for index, fold in enumerate(folds):
        alike[len(fold.train), len(fold.dev), fold.drawn].append(index)
    fits: dict[int, list[Fit]] = {}
    for members in alike.values():
        for block in _blocks(members, features, settings):
            stack = _Stack(features, labels, [folds[index] for index in block], classes, settings, seed)
            fits.update(zip(block, stack.fit(), strict=True))
    return [fits[index] for index in range(len(folds))]


def _blocks(members: list[int], features: Tensor, settings: Classifier) -> Iterator[list[int]]:
    bound = BATCH_BYTES if features.device.type == "cpu" else BATCH_BYTES_ACCELERATOR
    size = max(1, bound // (settings.batch_size * features.shape[1] * features.element_size()))
    return (members[start : start + size] for start in range(0, len(members), size))


class _Stack:
    """P folds with L penalties each; all training sets have the same size n, and all dev sets the same size m."""

    def __init__(
        self, features: Tensor, labels: Tensor, folds: Sequence[Fold], classes: int, settings: Classifier, seed: int
    ) -> None:
        self.features, self.labels, self.folds, self.settings = features, labels, folds, settings
        self.train = torch.as_tensor(np.stack([fold.train for fold in folds]), device=features.device)  # (P, n)
        self.dev = torch.as_tensor(np.stack([fold.dev for fold in folds]), device=features.device)  # (P, m)
        # As in SentEval, all random numbers of a fit follow from the seed, so they are the same in every fit.
        self.random = np.random.RandomState(seed)
        if folds[0].drawn is not None:
            self.random.permutation(folds[0].drawn)
        initial, self.noise = _initial_weights(features.shape[1], classes, settings, seed)
        shape = (len(folds), len(folds[0].penalties))
        self.weights = [w.to(features).expand(*shape, *w.shape).clone().requires_grad_() for w in initial]
        self.optimizer = build_optimizer(settings.optim, self.weights)
        self.decay = torch.tensor([fold.penalties for fold in folds], dtype=features.dtype, device=features.device)
        self.slots = torch.arange(len(folds), device=features.device)  # the folds whose training has not stopped
        self.best = torch.full(shape, -1, device=features.device)  # correct dev predictions
        self.best_weights = [weight.detach().clone() for weight in self.weights]
        self.misses = torch.zeros(shape, dtype=torch.long, device=features.device)
        self.active = torch.ones(shape, dtype=torch.bool, device=features.device)

    def fit(self) -> list[list[Fit]]:
        epochs = 0
        while len(self.slots) and epochs <= self.settings.max_epoch:
            for _ in range(self.settings.epoch_size):
                self._train_epoch()
            epochs += self.settings.epoch_size
            self._check_dev()
            self._drop_finished()
        # The fits are on the CPU, because the products of a single classifier are too small for a GPU.
        weights = [weight.cpu() for weight in self.best_weights]
        accuracy = (self.best.cpu().double() / self.dev_size).tolist()
        return [
            [
                Fit(penalty, accuracy[p][i], tuple(weight[p, i] for weight in weights))
                for i, penalty in enumerate(fold.penalties)
            ]
            for p, fold in enumerate(self.folds)
        ]

    @property
    def dev_size(self) -> int:
        return len(self.folds[0].dev)

    def _train_epoch(self) -> None:
        order = torch.from_numpy(self.random.permutation(self.train.shape[1])).to(self.train.device)
        rows = self.train[:, order]
        labels = self.labels[rows]
        for start in range(0, rows.shape[1], self.settings.batch_size):
            stop = start + self.settings.batch_size
            self._step(rows[:, start:stop], labels[:, start:stop])

    def _step(self, rows: Tensor, labels: Tensor) -> None:
        """Do one optimiser step of every fit.

        Args:
            rows, labels: The rows and labels (P, B) of the batch of each fold.
        """
        logits = _logits(self.weights, self._gather(rows), self._drop)
        losses = F.cross_entropy(
            logits.flatten(0, 1),  # (P·L, C, B)
            labels.unsqueeze(1).expand(-1, logits.shape[1], -1).flatten(0, 1),
            reduction="sum",
        )
        # The sum of the mean losses of all fits; the gradient of each fit depends on its own loss only.
        gradients = torch.autograd.grad(losses / rows.shape[1], self.weights)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            decay = self.decay.view(*self.decay.shape, *[1] * (weight.ndim - 2))
            weight.grad = torch.addcmul(gradient, decay, weight.detach())
        self.optimizer.step()

    def _gather(self, rows: Tensor) -> Tensor:
        return self.features.index_select(0, rows.flatten()).view(*rows.shape, -1)

    def _drop(self, hidden: Tensor) -> Tensor:
        """Apply dropout to hidden units (P, L, nhid, B). All fits have the same seed and thus the same dropout."""
        kept = 1 - self.settings.dropout
        if kept == 1:
            return hidden
        noise = torch.empty(hidden.shape[-1], hidden.shape[-2]).bernoulli_(kept, generator=self.noise)
        return hidden * (noise.T.to(hidden) / kept)

    @torch.no_grad()
    def _check_dev(self) -> None:
        """Keep the weights of each fit with a new best dev accuracy, and count a miss for each other fit."""
        predicted = _logits(self.weights, self._gather(self.dev)).argmax(2)  # (P, L, m)
        correct = (predicted == self.labels[self.dev].unsqueeze(1)).sum(-1)
        active, misses, best = self.active[self.slots], self.misses[self.slots], self.best[self.slots]
        better = active & (correct > best)
        self.best[self.slots] = torch.where(better, correct, best)
        for kept, weight in zip(self.best_weights, self.weights, strict=True):
            chosen = better.view(*better.shape, *[1] * (weight.ndim - 2))
            kept[self.slots] = torch.where(chosen, weight, kept[self.slots])
        # As published, a new best does not reset the number of misses.
        self.active[self.slots] = better | (active & (misses < self.settings.tenacity))
        self.misses[self.slots] = misses + ~better

    def _drop_finished(self) -> None:
        training = self.active[self.slots].any(1)
        if training.all():
            return
        keep = training.nonzero().flatten()
        self.slots, self.train, self.dev = self.slots[keep], self.train[keep], self.dev[keep]
        self.decay = self.decay[keep]
        self.weights = keep_first(self.optimizer, self.weights, keep)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU random numbers within the context, and restore the previous state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _initial_weights(
    width: int, classes: int, settings: Classifier, seed: int
) -> tuple[list[Tensor], torch.Generator]:
    """Return torch's initial weights for the seed, and a generator that continues the same random numbers."""
    sizes = (width, settings.nhid, classes) if settings.nhid else (width, classes)
    noise = torch.Generator()
    with seeded(seed):
        layers = [nn.Linear(*pair, dtype=torch.float32) for pair in pairwise(sizes)]
        noise.set_state(torch.get_rng_state())
    return [parameter.detach() for layer in layers for parameter in layer.parameters()], noise


def _logits(weights: Sequence[Tensor], batch: Tensor, drop=lambda hidden: hidden) -> Tensor:  # noqa: ANN001
    """Return the logits (P, L, C, B) of stacked weights (P, L, ...) for a batch of features (P, B, H)."""
    first, bias, *rest = weights
    folds, penalties, units, width = first.shape
    product = torch.baddbmm(
        bias.reshape(folds, penalties * units, 1), first.reshape(folds, penalties * units, width), batch.mT
    ).view(folds, penalties, units, -1)
    if not rest:
        return product
    last, bias = rest
    return last @ torch.sigmoid(drop(product)) + bias.unsqueeze(-1)
