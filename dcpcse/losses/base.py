"""The interface of training losses: their input (`EncodedBatch`), their base classes, and weighted terms."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dcpcse.data.collator import on_host
from dcpcse.encoders.attention import Prefix
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots
from dcpcse.losses.guide import Guide
from dcpcse.utils.distributed import global_mean
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class EncodedBatch:
    """The input of a loss: the tokens and the embeddings of a batch.

    A view is one of the V texts that the method makes of each of the B examples, such as the positive. Losses that
    encode these texts a second time need `prefix`, `slots` and `packing`.

    Args:
        model: The model that is trained.
        input_ids: Token ids (B, V, L).
        attention_mask: (B, V, L), 1 for tokens and 0 for padding.
        embeddings: The embeddings (B, H) of each view after the head, by the name of the view.
        prefix: The deep prompts, after dropout, that gave the embeddings. None without deep prompts.
        slots: The indices of masks and prompts in the templates of the texts. None without templates.
        packing: The indices of all tokens except padding. None: the encoder computes them.
        extras: Other tensors of the batch, such as labels.
        pooled: The pooled vectors (B, H) of each view before the head, by the name of the view.
        precomputed: The tensors that the method `precompute` of the loss returned.
        guides: The guides of the method by name. A loss may call them in `precompute`. The encoder of --guide has the
            name `guide`.
        counts: The batch sizes B of all processes, in the order of ranks, for `gather_own_first`. None: not known.
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
    guides: Mapping[str, Guide] = field(default_factory=dict)
    counts: Sequence[int] | None = None

    def on_host(self, name: str) -> Tensor:
        """Return `input_ids` or `attention_mask` on the CPU.

        Only batches of `ViewCollator` have CPU copies. For other batches, this method waits for the GPU.
        """
        return on_host({**self.extras, name: getattr(self, name)}, name)


Metrics = Mapping[str, tuple[Tensor, Tensor]]
"""Metrics by name, as (sum, count). Added over batches and processes, sums and counts give the overall mean."""


Widths = Sequence[tuple[int, float]]


class Loss(nn.Module):
    """Base class of losses. A loss may have parameters, such as an LM head or a discriminator.

    Attributes:
        metrics: Metrics of the last batch for the training log, without gradients.
        anchors: Anchor embeddings (B, H) of the last batch, without gradients. The training guards check them. None:
            no check.
        max_tokens: Maximum number of tokens of a text that the loss accepts. None if only the encoder limits the
            number.
        leaves_out_false_negatives: Whether the loss leaves out the negatives that `dcpcse.losses.false_negatives`
            masks, or has no negatives.
        leaves_out_absent: Whether rows may have fewer hard negatives than others: the loss leaves out the absent ones,
            or uses no hard negatives.
        has_row_chunks: Whether the loss uses `row_chunk` (see `dcpcse.losses.row_chunks`) or does not need it.
        row_chunk: Number of anchors that the loss compares with all candidates at a time (--loss_chunk). None: all
            anchors. It is set before training.
        has_widths: Whether the loss uses `widths`, by calling `over_widths`.
        widths: The numbers of first values to which the embeddings are shortened (--matryoshka_dims), each with the
            weight of its loss. The full width is the last one. () means only the full width. They are set before
            training.
    """

    max_tokens: int | None = None
    leaves_out_false_negatives: bool = False
    leaves_out_absent: bool = False
    has_row_chunks: bool = False
    row_chunk: int | None = None
    has_widths: bool = False
    widths: Widths = ()

    def __init__(self) -> None:
        super().__init__()
        self.metrics: Metrics = {}
        self.anchors: Tensor | None = None

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Return the unweighted loss of the batch, a scalar tensor."""
        raise NotImplementedError(f"{type(self).__name__}.forward(batch) is missing; write this method")

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return tensors (B, ...) that `forward` needs besides the embeddings, by name. {} by default.

        This method is called without gradients before `forward`. The tensors are then in `batch.precomputed`. With the
        gradient cache, the method is called once per chunk, and the results are concatenated.
        """
        return {}

    def persistent_state(self) -> Mapping[str, Tensor]:
        """Return the tensors, except parameters, that the loss keeps from batch to batch, by name. {} by default.

        The tensors must be equal in all processes. They are saved to checkpoints and restored in place, but are not
        saved to the model folder. If a tensor is a buffer, register it with persistent=False.
        """
        return {}

    def after_step(self, model: SentenceEncoder) -> None:
        """Update what the loss keeps, such as moving averages, after an optimiser step. The default does nothing."""

    def negatives(self, batch_size: int, views: Collection[str]) -> int | None:
        """Return the number of negatives per anchor. None if the loss has no negatives.

        Args:
            batch_size: Number of examples of all processes together.
            views: Names of the method's views.
        """


def with_precomputed(batch: EncodedBatch, loss_fn: Loss) -> EncodedBatch:
    """Return the batch with `precomputed` set to the tensors that `precompute` of the loss returns.

    Args:
        batch: The batch.
        loss_fn: The loss.
    """
    with torch.no_grad():
        precomputed = {name: tensor.detach() for name, tensor in loss_fn.precompute(batch).items()}
    return replace(batch, precomputed=precomputed) if precomputed else batch


class PerRowLoss(Loss):
    """Base class of losses that are a mean over items, such as masked tokens. Each item belongs to one of B · V rows.

    Since no row depends on another row, the gradient cache can compute the loss in chunks of a batch. Subclasses
    implement `num_items` and `mean`. If they draw random numbers, they also implement `sample` instead of
    `precompute`.
    """

    def sample(self, batch: EncodedBatch) -> Any:
        """Return the random draws of the loss, such as masked positions, without gradients. None by default."""

    def num_items(self, batch: EncodedBatch, sampled: Any) -> int | Tensor:
        """Return the number of items, such as masked tokens, in this batch.

        Args:
            batch: The batch.
            sampled: The result of `sample`.
        """
        raise NotImplementedError(f"{type(self).__name__}.num_items(batch, sampled) is missing; write this method")

    def mean(self, batch: EncodedBatch, sampled: Any) -> Tensor:
        """Return the mean of the loss over the items, a scalar tensor. 0 if there are no items.

        Args:
            batch: The batch.
            sampled: The result of `sample`.
        """
        raise NotImplementedError(f"{type(self).__name__}.mean(batch, sampled) is missing; write this method")

    def forward(self, batch: EncodedBatch) -> Tensor:
        sampled = self.sample(batch)
        return global_mean(self.mean(batch, sampled), self.num_items(batch, sampled))


@dataclass(frozen=True)
class Term:
    """A loss and its weight in the sum that training minimises.

    Args:
        loss: The loss.
        weight: Factor of the loss.
        schedule: A function of the number of finished optimiser steps that returns a factor of the weight. None: the
            factor is 1.

    Raises:
        UserError: If `loss` is not an initialised `Loss` or the weight is not a finite number.
    """

    loss: Loss
    weight: float = 1.0
    schedule: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        # UserError, not TypeError: the authors of plugins see these messages, without a traceback.
        kind = type(self.loss).__name__
        if not isinstance(self.loss, Loss):
            raise UserError(f"Term({kind}): this is not a loss; give an instance of a subclass of Loss or PerRowLoss")
        if not hasattr(self.loss, "metrics"):
            raise UserError(f"Term({kind}): the loss is not initialised; call super().__init__() first in __init__")
        if not isinstance(self.weight, (int, float)) or not math.isfinite(self.weight):
            raise UserError(f"Term({kind}, {self.weight}): the weight must be a finite number")

    def weight_at(self, step: int) -> float:
        """Return the weight after `step` finished optimiser steps."""
        return self.weight * (1.0 if self.schedule is None else self.schedule(step))
