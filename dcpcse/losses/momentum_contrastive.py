"""Contrastive learning against a queue of earlier sentences, which a momentum encoder embeds (ESimCSE; after MoCo)."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots
from dcpcse.losses.base import EncodedBatch
from dcpcse.losses.contrastive import Contrastive
from dcpcse.utils.distributed import gather_by_rank


class MomentumContrastive(Contrastive):
    """Anchors are told apart from a queue of earlier ones as well.

    The queue holds the last sentences of earlier batches, of all processes, as the momentum encoder embedded them: the
    encoder with averages of its trained weights, without dropout, behind the head that is being trained. The averages
    begin as the weights of the first batch, and take a share 1 - momentum of them after each optimiser step.
    """

    def __init__(self, encoder: nn.Module, width: int, queue: int, momentum: float, **contrastive: Any) -> None:
        """encoder: whose trained weights are averaged. width: of embeddings. queue: sentences that it holds.

        contrastive: see `Contrastive`.
        """
        super().__init__(**contrastive)
        self.momentum = momentum
        self.register_buffer("queue", torch.zeros(queue, width), persistent=False)
        self.filled = torch.zeros((), dtype=torch.long)  # never on a GPU, which would have to be asked
        self.average = _Average({n: weight for n, weight in encoder.named_parameters() if weight.requires_grad})

    @torch.compiler.disable
    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """The anchors (B, H) as the momentum encoder embeds them."""
        model = batch.model
        if not self.filled:
            self.average.begin(model.encoder)
        ids, mask, slots = _rows_of(batch, "anchor")
        weights = {f"encoder.{name}": weight for name, weight in self.average.weights().items()}
        with _without_dropout(model):
            return {"queued": functional_call(model, weights, (ids, mask, slots))}

    def forward(self, batch: EncodedBatch) -> Tensor:
        loss = super().forward(batch)
        self._remember(batch.precomputed["queued"])
        return loss

    @torch.compiler.disable
    def extra_negatives(self) -> Sequence[Tensor]:
        """What the queue holds: nothing before the first batch; the oldest come first."""
        return [self.queue[len(self.queue) - int(self.filled) :]]

    @torch.compiler.disable
    @torch.no_grad()
    def _remember(self, embeddings: Tensor) -> None:
        """After the loss, so that no anchor meets itself."""
        rows = torch.cat([self.queue, gather_by_rank(embeddings).to(self.queue)])
        self.queue.copy_(rows[len(rows) - len(self.queue) :])
        self.filled.add_(len(rows) - len(self.queue)).clamp_(max=len(self.queue))

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """With those of a full queue."""
        return super().negatives(batch_size, views) + len(self.queue)

    def persistent_state(self) -> Mapping[str, Tensor]:
        averages = {f"average.{name}": weight for name, weight in self.average.weights().items()}
        return {"queue": self.queue, "filled": self.filled, **averages}

    def after_step(self, model: SentenceEncoder) -> None:
        self.average.take(model.encoder, 1 - self.momentum)


class _Average(nn.Module):
    """Exponential moving averages of some weights of a module."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "/") for name in weights}  # of buffers, which take no points
        for name, weight in weights.items():
            self.register_buffer(self.names[name], weight.detach().clone(), persistent=False)

    def weights(self) -> dict[str, Tensor]:
        """The averages by the names of the weights."""
        return {name: self.get_buffer(own) for name, own in self.names.items()}

    def begin(self, module: nn.Module) -> None:
        """Become the module's weights."""
        self.take(module, 1.0)

    @torch.no_grad()
    def take(self, module: nn.Module, share: float) -> None:
        """Go this share of the way to the module's weights."""
        now = dict(module.named_parameters())
        averages = self.weights()
        torch._foreach_lerp_([*averages.values()], [now[name] for name in averages], share)


def _rows_of(batch: EncodedBatch, view: str) -> tuple[Tensor, Tensor, Slots | None]:
    """Ids and mask (B, L) of a view, and its slots where there are templates."""
    number = list(batch.embeddings).index(view)
    ids, mask = (part[:, number] for part in (batch.input_ids, batch.attention_mask))
    if batch.slots is None:
        return ids, mask, None
    return ids, mask, batch.slots.map(lambda part: part.unflatten(0, batch.input_ids.shape[:2])[:, number])


@contextlib.contextmanager
def _without_dropout(model: SentenceEncoder) -> Iterator[None]:
    """For a while the parts of a model are as in evaluation; the model itself takes head and denoising of training."""
    parts = [part for part in model.modules() if part.training and part is not model]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part in parts:
            part.training = True
