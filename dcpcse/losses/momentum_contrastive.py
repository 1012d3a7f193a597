"""Contrastive learning with a queue of negatives that a momentum encoder embeds (ESimCSE, after MoCo)."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import get_ema_multi_avg_fn

from dcpcse.encoders.packing import Packing
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots
from dcpcse.losses.base import EncodedBatch
from dcpcse.losses.contrastive import Contrastive
from dcpcse.utils.devices import send
from dcpcse.utils.distributed import gather_by_rank


class MomentumContrastive(Contrastive):
    """Contrastive loss in which the anchors of earlier batches are further negatives (ESimCSE).

    A queue contains the anchors of all processes. A momentum encoder embeds these anchors. The momentum encoder is the
    encoder without dropout, with moving averages instead of the trained weights, followed by the trained head. At the
    first batch, the averages are equal to the weights. After each optimiser step, they become momentum * average + (1
    - momentum) * weight. False negatives in the queue are not left out.

    Args:
        encoder: The module whose trained weights are averaged.
        width: The dimension H of the embeddings.
        queue: The number of sentences in the queue.
        momentum: Factor of the averages in each update.
        contrastive: Keyword arguments of `Contrastive`.
    """

    leaves_out_false_negatives = False

    def __init__(self, encoder: nn.Module, width: int, queue: int, momentum: float, **contrastive: Any) -> None:
        super().__init__(**contrastive)
        self.momentum = momentum
        self.register_buffer("queue", torch.zeros(queue, width), persistent=False)
        self.filled = torch.zeros((), dtype=torch.long)  # no buffer, because reading it on a GPU would synchronise
        self.average = _Average({n: weight for n, weight in encoder.named_parameters() if weight.requires_grad})

    @torch.compiler.disable
    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return the embeddings (B, H) of the anchors by the momentum encoder, under the name `queued`."""
        model = batch.model
        if not self.filled:
            self.average.update(model.encoder, 1.0)
        ids, mask, slots, packing = _rows_of(batch, "anchor")
        weights = {f"encoder.{name}": weight for name, weight in self.average.weights().items()}
        with _without_dropout(model):
            queued = functional_call(model, weights, (ids, mask, slots), {"packing": packing})
        return {**super().precompute(batch), "queued": queued}

    def forward(self, batch: EncodedBatch) -> Tensor:
        loss = super().forward(batch)
        self._enqueue(batch.precomputed["queued"], batch.counts)
        return loss

    @torch.compiler.disable
    def extra_negatives(self) -> Sequence[Tensor]:
        """Return a list with one tensor: the embeddings in the queue, oldest first. It is empty in the first batch."""
        return [self.queue[len(self.queue) - int(self.filled) :]]

    @torch.compiler.disable
    @torch.no_grad()
    def _enqueue(self, embeddings: Tensor, counts: Sequence[int] | None) -> None:
        """Append embeddings (B, H) to the queue. Call this after the loss, so that no anchor is its own negative."""
        rows = torch.cat([self.queue, gather_by_rank(embeddings, counts).to(self.queue)])
        self.queue.copy_(rows[len(rows) - len(self.queue) :])
        self.filled.add_(len(rows) - len(self.queue)).clamp_(max=len(self.queue))

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Return the number of negatives per anchor when the queue is full."""
        return super().negatives(batch_size, views) + len(self.queue)

    def persistent_state(self) -> Mapping[str, Tensor]:
        averages = {f"average.{name}": weight for name, weight in self.average.weights().items()}
        return {"queue": self.queue, "filled": self.filled, **averages}

    def after_step(self, model: SentenceEncoder) -> None:
        self.average.update(model.encoder, 1 - self.momentum)


class _Average(nn.Module):
    """Exponential moving averages of weights of a module."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "/") for name in weights}  # buffer names must not contain dots
        for name, weight in weights.items():
            self.register_buffer(self.names[name], weight.detach().clone(), persistent=False)

    def weights(self) -> dict[str, Tensor]:
        """Return the moving averages by the names of the weights that are averaged."""
        return {name: self.get_buffer(buffer) for name, buffer in self.names.items()}

    @torch.no_grad()
    def update(self, module: nn.Module, share: float) -> None:
        """Move the moving averages towards a module's weights, by `share` of the difference. 1 copies the weights."""
        weights = dict(module.named_parameters())
        averages = self.weights()
        move = get_ema_multi_avg_fn(1 - share)
        move([*averages.values()], [weights[name] for name in averages], None)


def _rows_of(batch: EncodedBatch, view: str) -> tuple[Tensor, Tensor, Slots | None, Packing | None]:
    """Return the token ids (B, L), the attention mask (B, L), the template slots (or None) and the packing of a view.

    The packing is None if the batch has no packing.
    """
    index, shape = list(batch.embeddings).index(view), batch.input_ids.shape[:2]
    ids, mask = (part[:, index] for part in (batch.input_ids, batch.attention_mask))
    slots = None if batch.slots is None else batch.slots.map(lambda part: part.unflatten(0, shape)[:, index])
    packing = batch.packing and send(Packing.of(batch.on_host("attention_mask")[:, index]), mask.device)
    return ids, mask, slots, packing


@contextlib.contextmanager
def _without_dropout(model: SentenceEncoder) -> Iterator[None]:
    """Switch the submodules of a model to eval mode within the context.

    The model itself stays in train mode, so it uses the settings of training for the head and denoising.
    """
    parts = [part for part in model.modules() if part.training and part is not model]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part in parts:
            part.training = True
