"""The interface of losses: what a training step hands to them, and what they give back."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcpcse.encoders.attention import Prefix
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots
from dcpcse.utils.distributed import global_mean
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class EncodedBatch:
    """All that a loss may look at.

    input_ids, attention_mask (B, V, L): V views of B examples. embeddings: view name → (B, H); pooled: the same
    before the head. For losses that encode again, of B·V rows: prefix, the one that gave the embeddings; packing,
    that of the mask; slots, of their templates, if any. extras: further tensors of the batch. precomputed:
    what the loss's own `precompute` returned.
    """

    model: SentenceEncoder
    input_ids: Tensor
    attention_mask: Tensor
    embeddings: Mapping[str, Tensor]
    prefix: Prefix | None = None
    slots: Slots | None = None
    packing: Packing | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    pooled: Mapping[str, Tensor] = field(default_factory=dict)
    precomputed: Mapping[str, Tensor] = field(default_factory=dict)


Metrics = Mapping[str, tuple[Tensor, Tensor]]
"""Name → sum and number of what is averaged: a mean that can be joined over batches and processes."""


class Loss(nn.Module):
    """A part of the loss; may own parameters (an LM head, a discriminator).

    metrics: figures of the last batch for the log, without gradients. anchors (B, H): embeddings of that batch that
    the guards look at, without gradients; None of one that shows none. max_tokens: longest text that it can take,
    where that is not the encoder's.
    """

    max_tokens: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.metrics: Metrics = {}
        self.anchors: Tensor | None = None

    def forward(self, batch: EncodedBatch) -> Tensor:
        """The unweighted scalar of this batch."""
        raise NotImplementedError(f"{type(self).__name__}.forward(batch) is missing")

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Tensors (B, ...) of these rows that it needs besides embeddings: `batch.precomputed`; none by default.

        Asked without a gradient before `forward`; of a batch that is taken apart chunk by chunk, and joined again.
        """
        return {}

    def persistent_state(self) -> Mapping[str, Tensor]:
        """What it remembers from batch to batch besides parameters, by name; nothing by default.

        The same in all processes. It is part of checkpoints, which are read into these very tensors, and never of a
        result. Buffers of it are registered with persistent=False.
        """
        return {}

    def after_step(self, model: SentenceEncoder) -> None:
        """Called once after each optimiser step, without gradients; nothing by default."""

    def negatives(self, batch_size: int, views: Collection[str]) -> int | None:
        """How many negatives an anchor has in a batch of all processes, with these views.

        None of a loss that tells nothing apart in a batch.
        """


def with_precomputed(batch: EncodedBatch, loss_fn: Loss) -> EncodedBatch:
    """The batch as a loss takes it, with what the loss precomputes of it."""
    with torch.no_grad():
        precomputed = {name: tensor.detach() for name, tensor in loss_fn.precompute(batch).items()}
    return replace(batch, precomputed=precomputed) if precomputed else batch


class PerRowLoss(Loss):
    """A mean over things that each belong to one row (of B·V), such as its masked tokens.

    Batches can be taken apart for it: it sees nothing but the rows that it is given, and has `sample` in the place of
    `precompute`.
    """

    def sample(self, batch: EncodedBatch) -> Any:
        """What is drawn at random before any pass, without a gradient; nothing by default."""

    def num_items(self, batch: EncodedBatch, sampled: Any) -> int | Tensor:
        """Number of things in this batch."""
        raise NotImplementedError(f"{type(self).__name__}.num_items(batch, sampled) is missing")

    def mean(self, batch: EncodedBatch, sampled: Any) -> Tensor:
        """The mean over them; 0 of none."""
        raise NotImplementedError(f"{type(self).__name__}.mean(batch, sampled) is missing")

    def forward(self, batch: EncodedBatch) -> Tensor:
        sampled = self.sample(batch)
        return global_mean(self.mean(batch, sampled), self.num_items(batch, sampled))


@dataclass(frozen=True)
class Term:
    """A loss with its weight; `schedule` maps the finished optimiser steps to a factor of the weight."""

    loss: Loss
    weight: float = 1.0
    schedule: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        """UserError for what is no loss, or none that is whole: methods of strangers are told in a line."""
        kind = type(self.loss).__name__
        if not isinstance(self.loss, Loss):
            raise UserError(f"Term({kind}): give an instance of a class that inherits from Loss or PerRowLoss")
        if not hasattr(self.loss, "metrics"):
            raise UserError(f"Term({kind}): its __init__ must begin with super().__init__()")
        if not isinstance(self.weight, (int, float)) or not math.isfinite(self.weight):
            raise UserError(f"Term({kind}, {self.weight}): the weight must be a finite number")

    def weight_at(self, step: int) -> float:
        """Weight after `step` finished optimiser steps."""
        return self.weight * (1.0 if self.schedule is None else self.schedule(step))
