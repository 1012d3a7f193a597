"""The NT-Xent loss over the two copies of every sentence (ConSERT, eq. 1; SimCLR)."""

import math
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses.base import EncodedBatch, Loss
from dcpcse.losses.contrastive import cosine_metrics
from dcpcse.losses.functional import cosines, own_pairs
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, mean_over_anchors
from dcpcse.utils.distributed import gather_own_first, global_mean


class NTXent(Loss):
    """The cross entropy of picking the other copy of the same sentence among all other copies of all processes.

    See ConSERT, eq. 1. With several columns of sentences, the loss is the sum of the losses of the columns.

    Args:
        pairs: For each column of sentences, the names of the two views that are its copies.
        temperature: Divides the cosines.
        gather_gradient: "exact" or "published" (see `Contrastive`).
    """

    has_row_chunks = True
    has_widths = True

    def __init__(self, pairs: Sequence[tuple[str, str]], temperature: float, gather_gradient: str = "exact") -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        self.temperature = temperature
        self.gather_gradient = gather_gradient

    def forward(self, batch: EncodedBatch) -> Tensor:
        copies = [batch.embeddings[view] for pair in self.pairs for view in pair]
        self.anchors = copies[0].detach()
        count = len(self.anchors)

        def of_rows(rows: slice, anchors: Vectors, candidates: Vectors, normalized: bool) -> MeanAndMetrics:
            kwargs = {"offset": rows.start, "normalized": normalized}
            pairs, both = (zip(views[::2], views[1::2], strict=True) for views in (anchors, candidates))
            losses = [
                two_way_nt_xent(*pair, *everywhere, self.temperature, **kwargs)
                for pair, everywhere in zip(pairs, both, strict=True)
            ]
            of_pairs = cosines(anchors[0].detach(), candidates[1][:count].detach(), normalized)
            return sum(losses), cosine_metrics(of_pairs, offset=rows.start)

        candidates = gather_own_first(copies, batch.counts)
        loss, self.metrics = mean_over_anchors(of_rows, copies, candidates, self.row_chunk, self.widths)
        return global_mean(loss, count, self.gather_gradient)

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Return the number of negatives of each copy, which are all copies of the other sentences."""
        return 2 * (batch_size - 1)


def two_way_nt_xent(
    first: Tensor,
    second: Tensor,
    all_first: Tensor,
    all_second: Tensor,
    temperature: float,
    *,
    others: Sequence[Tensor] = (),
    weights: Tensor | None = None,
    offset: int = 0,
    normalized: bool = False,
) -> Tensor:
    """Return the cross entropy of picking the other copy of a sentence by cosine, in nats, averaged over 2 · B copies.

    See ConSERT, eq. 1.

    Args:
        first: First copies (B, H) of this process's sentences.
        second: Second copies (B, H) of the same sentences.
        all_first: First copies (C, H) of the sentences of all processes. Row offset + i is row i of `first`.
        all_second: Second copies (C, H) of the sentences of all processes. Row offset + i is row i of `second`.
        temperature: Divides the cosines.
        others: Tensors (E, H) of further candidates.
        weights: Factors (B,) of the losses of the sentences. None: all factors are 1.
        offset: As in `dcpcse.losses.functional.nt_xent`.
        normalized: As in `dcpcse.losses.functional.nt_xent`.
    """
    labels = torch.arange(offset, offset + len(first), device=first.device)

    def one_way(anchors: Tensor, copies: Tensor, same: Tensor) -> Tensor:
        to_copies, to_same, *to_others = (cosines(anchors, rows, normalized) for rows in (copies, same, *others))
        to_same = to_same.masked_fill(own_pairs(to_same, offset), -math.inf)
        logits = torch.cat([to_copies, to_same, *to_others], dim=1) / temperature
        if weights is None:
            return F.cross_entropy(logits, labels)
        return (F.cross_entropy(logits, labels, reduction="none") * weights).mean()

    return (one_way(first, all_second, all_first) + one_way(second, all_first, all_second)) / 2
