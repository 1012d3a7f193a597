"""Contrastive learning with in-batch and hard negatives (SimCSE, eq. 1 and 5; ConPVP, eq. 1)."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from dcpcse.data.columns import negatives_in
from dcpcse.losses import false_negatives
from dcpcse.losses.base import EncodedBatch, Loss, Metrics
from dcpcse.losses.functional import cosines, nt_xent
from dcpcse.utils.distributed import gather_own_first, global_mean, published_gradient


class Contrastive(Loss):
    """InfoNCE: cross entropy of picking each anchor's positive among all positives and hard negatives.

    The candidates come from all processes. See SimCSE, eq. 1 (in-batch negatives) and eq. 5 (with hard negatives).
    With prototypes as positives and negated prototypes as `others`, this is the prototypical loss of ConPVP, eq. 1.
    False negatives among the positives and the hard negatives are left out (`dcpcse.losses.false_negatives`).
    """

    leaves_out_false_negatives = True

    def __init__(
        self,
        temperature: float = 0.05,
        hard_negative_weight: float = 0.0,
        *,
        positive: str = "positive",
        others: Sequence[str] = (),
        gather_gradient: str = "exact",
    ) -> None:
        """Create the loss.

        temperature: divides the cosines. hard_negative_weight: logarithm of the weight of an anchor's own hard
        negatives; 0 means weight 1. positive: name of the view with the positives. others: names of views whose rows
        are negatives of every anchor, including the anchor's own row. gather_gradient: `exact`, or `published` for
        the gradient of the public code with several processes (see `dcpcse.utils.distributed.published_gradient`).
        """
        super().__init__()
        self.temperature = temperature
        self.hard_negative_weight = hard_negative_weight
        self.positive = positive
        self.others = tuple(others)
        self.gather_gradient = gather_gradient

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return the marks of false negatives."""
        return false_negatives.marks(batch)

    def forward(self, batch: EncodedBatch) -> Tensor:
        views = batch.embeddings
        hard = negatives_in(views)
        excluded = false_negatives.masks(batch.precomputed, (self.positive, *hard), batch.counts)
        self.anchors = views["anchor"].detach()
        self.metrics = cosine_metrics(views["anchor"], views[self.positive], excluded[0]) | share_left_out(excluded)
        names = (self.positive, *hard, *self.others)
        gathered = gather_own_first([views[name] for name in names], batch.counts)
        candidates = dict(zip(names, gathered, strict=True))
        loss = nt_xent(
            views["anchor"],
            candidates[self.positive],
            self.temperature,
            negatives=[candidates[name] for name in hard],
            hard_negative_weight=self.hard_negative_weight,
            others=[*(candidates[name] for name in self.others), *self.extra_negatives()],
            excluded=excluded,
        )
        loss = global_mean(loss, len(views["anchor"]))
        return loss if self.gather_gradient == "exact" else published_gradient(loss)

    def extra_negatives(self) -> Sequence[Tensor]:
        """Return negatives (E, H) from outside the batch, the same in all processes; none by default."""
        return ()

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Return the number of candidates per anchor, not counting the anchor's own positive."""
        return (1 + len(self.others) + len(negatives_in(views))) * batch_size - 1


def share_left_out(excluded: Sequence[Tensor | None]) -> Metrics:
    """Return the share of negatives that are left out, as a metric; none without masks.

    excluded: boolean masks (B, C) of the positives, of which one each is the anchor's own, and of hard negatives.
    """
    present = [mask for mask in excluded if mask is not None]
    if not present:
        return {}
    sizes = sum(mask.numel() for mask in present) - len(present[0])
    left_out = sum(mask.sum() for mask in present)
    return {"left_out": (left_out, torch.full((), sizes, device=left_out.device))}


@torch.no_grad()
def cosine_metrics(anchors: Tensor, positives: Tensor, excluded: Tensor | None = None) -> Metrics:
    """Return the mean cosines of anchors (B, H) with their own positives and with other positives (B, H), as metrics.

    excluded: boolean mask (B, at least B) of positives that are not negatives. The metrics are logged, and the
    training guards use them to detect a collapse.
    """
    of_pairs = cosines(anchors, positives)
    own = of_pairs.diagonal().sum()
    pairs = torch.full((), len(anchors), device=of_pairs.device)  # torch.tensor would wait for a GPU
    if excluded is None:
        return {"cosine_positive": (own, pairs), "cosine_negative": (of_pairs.sum() - own, pairs * (pairs - 1))}
    left_out = excluded[:, : len(anchors)]
    negatives = of_pairs.masked_fill(left_out, 0).sum() - own, pairs * (pairs - 1) - left_out.sum()
    return {"cosine_positive": (own, pairs), "cosine_negative": negatives}
