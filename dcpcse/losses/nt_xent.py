"""Contrastive learning among two copies of every sentence (NT-Xent over 2N; ConSERT, eq. 1)."""

import math
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses.base import EncodedBatch, Loss
from dcpcse.losses.contrastive import cosine_metrics
from dcpcse.losses.functional import cosines
from dcpcse.utils.distributed import gather_own_first, global_mean, published_gradient


class NTXent(Loss):
    """Each copy of a sentence picks the other one among all copies of all sentences, but itself (eq. 1).

    Of all processes; the sum over the columns of sentences.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], temperature: float, gather_gradient: str = "exact") -> None:
        """pairs: the views that are copies of one sentence, of each column. gather_gradient: see `Contrastive`."""
        super().__init__()
        self.pairs = tuple(pairs)
        self.temperature = temperature
        self.gather_gradient = gather_gradient

    def forward(self, batch: EncodedBatch) -> Tensor:
        copies = [(batch.embeddings[first], batch.embeddings[second]) for first, second in self.pairs]
        self.anchors = copies[0][0].detach()
        self.metrics = cosine_metrics(*copies[0])
        everywhere = gather_own_first([view for pair in copies for view in pair])
        losses = [
            two_way_nt_xent(*pair, *both, self.temperature)
            for pair, both in zip(copies, zip(everywhere[::2], everywhere[1::2], strict=True), strict=True)
        ]
        loss = global_mean(sum(losses), len(self.anchors))
        return loss if self.gather_gradient == "exact" else published_gradient(loss)

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Both copies of every other sentence."""
        return 2 * (batch_size - 1)


def two_way_nt_xent(
    first: Tensor, second: Tensor, all_first: Tensor, all_second: Tensor, temperature: float
) -> Tensor:
    """Mean over 2 B copies of the cross entropy of picking the other copy by cosine, in nats (ConSERT, eq. 1).

    first, second (B, H); all_first, all_second (C, H), which begin with these: the copies of all sentences.
    """
    own = torch.arange(len(first), device=first.device)

    def one_way(anchors: Tensor, others: Tensor, same: Tensor) -> Tensor:
        itself = F.one_hot(own, num_classes=len(same)).bool()
        logits = torch.cat([cosines(anchors, others), cosines(anchors, same).masked_fill(itself, -math.inf)], dim=1)
        return F.cross_entropy(logits / temperature, own)

    return (one_way(first, all_second, all_first) + one_way(second, all_first, all_second)) / 2
