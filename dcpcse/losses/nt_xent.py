"""The NT-Xent loss over the two copies of every sentence (ConSERT, eq. 1; SimCLR)."""

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
    """Cross entropy of picking the other copy of the same sentence among all other copies of all processes.

    See ConSERT, eq. 1. If there are several columns of sentences, one loss per column is computed, and the losses are
    summed.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], temperature: float, gather_gradient: str = "exact") -> None:
        """Create the loss.

        pairs: for each column of sentences, the names of the two views that are its copies. temperature: divides the
        cosines. gather_gradient: `exact` or `published` (see `Contrastive`).
        """
        super().__init__()
        self.pairs = tuple(pairs)
        self.temperature = temperature
        self.gather_gradient = gather_gradient

    def forward(self, batch: EncodedBatch) -> Tensor:
        copies = [(batch.embeddings[first], batch.embeddings[second]) for first, second in self.pairs]
        self.anchors = copies[0][0].detach()
        self.metrics = cosine_metrics(*copies[0])
        everywhere = gather_own_first([view for pair in copies for view in pair], batch.counts)
        losses = [
            two_way_nt_xent(*pair, *both, self.temperature)
            for pair, both in zip(copies, zip(everywhere[::2], everywhere[1::2], strict=True), strict=True)
        ]
        loss = global_mean(sum(losses), len(self.anchors))
        return loss if self.gather_gradient == "exact" else published_gradient(loss)

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Return the number of negatives of each copy: all copies of the other sentences."""
        return 2 * (batch_size - 1)


def two_way_nt_xent(
    first: Tensor, second: Tensor, all_first: Tensor, all_second: Tensor, temperature: float
) -> Tensor:
    """Return the cross entropy of picking the other copy of a sentence by cosine, in nats, averaged over 2 B copies.

    See ConSERT, eq. 1. first, second: the copies (B, H) of this process's sentences. all_first, all_second: the copies
    (C, H) of all sentences, which begin with first and second. temperature: divides the cosines.
    """
    own = torch.arange(len(first), device=first.device)

    def one_way(anchors: Tensor, others: Tensor, same: Tensor) -> Tensor:
        self_pairs = F.one_hot(own, num_classes=len(same)).bool()
        logits = torch.cat(
            [cosines(anchors, others), cosines(anchors, same).masked_fill(self_pairs, -math.inf)], dim=1
        )
        return F.cross_entropy(logits / temperature, own)

    return (one_way(first, all_second, all_first) + one_way(second, all_first, all_second)) / 2
