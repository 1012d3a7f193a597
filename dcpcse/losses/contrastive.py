"""Contrastive learning with in-batch and hard negatives (SimCSE, eq. 1 and 5; ConPVP, eq. 1)."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from dcpcse.data.columns import negatives_in
from dcpcse.losses import false_negatives
from dcpcse.losses.base import EncodedBatch, Loss, Metrics
from dcpcse.losses.functional import cosines, nt_xent
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, mean_over_anchors
from dcpcse.utils.distributed import gather_own_first, global_mean


class Contrastive(Loss):
    """InfoNCE: the cross entropy of picking each anchor's positive among all positives and hard negatives.

    The candidates come from all processes. See SimCSE, eq. 1 (in-batch negatives) and eq. 5 (with hard negatives).
    With prototypes as positives and negated prototypes as `others`, this is the prototypical loss of ConPVP, eq. 1.
    False negatives among the positives and the hard negatives, and absent hard negatives, are left out
    (`dcpcse.losses.false_negatives`).

    Args:
        temperature: Divides the cosines.
        hard_negative_weight: Logarithm of the weight of an anchor's own hard negatives. 0 means weight 1.
        positive: Name of the view with the positives.
        others: Names of views with negatives. Every row of such a view, including the anchor's own row, is a negative
            of every anchor.
        gather_gradient: The gradient with several processes: "exact", or "published" for the gradient of the public
            code (see `dcpcse.utils.distributed.global_mean`).
    """

    leaves_out_false_negatives = True
    leaves_out_absent = True
    has_row_chunks = True
    has_widths = True

    def __init__(
        self,
        temperature: float = 0.05,
        hard_negative_weight: float = 0.0,
        *,
        positive: str = "positive",
        others: Sequence[str] = (),
        gather_gradient: str = "exact",
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.hard_negative_weight = hard_negative_weight
        self.positive = positive
        self.others = tuple(others)
        self.gather_gradient = gather_gradient

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return the tensors with which `forward` finds false negatives (`dcpcse.losses.false_negatives.marks`)."""
        return false_negatives.marks(batch)

    def forward(self, batch: EncodedBatch) -> Tensor:
        views = batch.embeddings
        hard = negatives_in(views)
        absent = false_negatives.absent_masks(batch.precomputed, hard, batch.counts)
        masks_of = false_negatives.masks_of_rows(batch.precomputed, (self.positive, *hard), batch.counts, absent)
        self.anchors = views["anchor"].detach()
        count = len(self.anchors)

        def of_rows(rows: slice, anchors: Vectors, candidates: Vectors, normalized: bool) -> MeanAndMetrics:
            (anchors,), (positives, *others), excluded = anchors, candidates, masks_of(rows)
            to_positives = cosines(anchors, positives, normalized)
            loss = nt_xent(
                anchors,
                positives,
                self.temperature,
                negatives=others[: len(hard)],
                hard_negative_weight=self.hard_negative_weight,
                others=others[len(hard) :],
                excluded=excluded,
                offset=rows.start,
                normalized=normalized,
                to_positives=to_positives,
            )
            metrics = cosine_metrics(to_positives[:, :count], excluded[0], rows.start)
            return loss, metrics | share_left_out(excluded, absent)

        candidates = gather_own_first([views[name] for name in (self.positive, *hard, *self.others)], batch.counts)
        candidates = [*candidates, *self.extra_negatives()]
        loss, self.metrics = mean_over_anchors(of_rows, [views["anchor"]], candidates, self.row_chunk, self.widths)
        return global_mean(loss, count, self.gather_gradient)

    def extra_negatives(self) -> Sequence[Tensor]:
        """Return tensors (E, H) of negatives from outside the batch, the same in all processes. () by default."""
        return ()

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Return the number of negatives per anchor: all candidates except the anchor's own positive."""
        return (1 + len(self.others) + len(negatives_in(views))) * batch_size - 1


def share_left_out(excluded: Sequence[Tensor | None], absent: Sequence[Tensor] = ()) -> Metrics:
    """Return the metric `left_out`: the share of negatives that are left out. {} without a mask of positives.

    Args:
        excluded: Boolean masks (B, C) or (C,) of the positives and of the hard negatives, true at candidates to leave
            out. One positive in each row is the anchor's own positive.
        absent: Boolean masks (C,) of the absent hard negatives, which do not count here.
    """
    if excluded[0] is None:
        return {}
    rows = len(excluded[0])
    present = [mask.expand(rows, -1) for mask in excluded if mask is not None]
    places = rows * sum(mask.sum() for mask in absent)
    left_out = sum(mask.sum() for mask in present)
    sizes = torch.full((), sum(mask.numel() for mask in present) - rows, device=left_out.device)
    return {"left_out": (left_out - places, sizes - places)}


@torch.no_grad()
def cosine_metrics(of_pairs: Tensor, excluded: Tensor | None = None, offset: int = 0) -> Metrics:
    """Return the metrics `cosine_positive` and `cosine_negative`.

    They are the mean cosines of anchors with their own positives and with other positives. They are logged, and the
    training guards use them to detect a collapse.

    Args:
        of_pairs: The cosines (B, C) of B anchors and C positives. The positive of anchor i is in column offset + i.
        excluded: Boolean mask (B, C or more), true at positives that do not count as negatives. None: all other
            positives count as negatives.
        offset: Column of the first anchor's own positive.
    """
    positive = of_pairs.diagonal(offset).sum()
    pairs = torch.full((), len(of_pairs), device=of_pairs.device)  # torch.tensor would wait for a GPU
    others = pairs * (of_pairs.shape[1] - 1)
    if excluded is None:
        return {"cosine_positive": (positive, pairs), "cosine_negative": (of_pairs.sum() - positive, others)}
    left_out = excluded[:, : of_pairs.shape[1]]
    negatives = of_pairs.masked_fill(left_out, 0).sum() - positive, others - left_out.sum()
    return {"cosine_positive": (positive, pairs), "cosine_negative": negatives}
