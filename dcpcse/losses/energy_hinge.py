"""The energy-based hinge loss of PromCSE (Jiang et al. 2022): a margin between positive and hardest negative."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dcpcse.data.columns import negatives_in
from dcpcse.losses import false_negatives
from dcpcse.losses.base import EncodedBatch, Loss, Metrics
from dcpcse.losses.functional import cosines, own_pairs
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, mean_over_anchors
from dcpcse.utils.distributed import gather_own_first, global_mean


class EnergyHinge(Loss):
    """Hinge loss max(0, margin - cos(anchor, positive) + cos(anchor, hardest negative)), averaged over the anchors.

    An anchor's hardest negative is the nearest vector among the other positives and all hard negatives of all
    processes (PromCSE). False negatives and absent hard negatives are left out (`dcpcse.losses.false_negatives`).

    Args:
        margin: The required difference between the two cosines.
        gather_gradient: "exact" or "published" (see `Contrastive`).
    """

    leaves_out_false_negatives = True
    leaves_out_absent = True
    has_row_chunks = True
    has_widths = True

    def __init__(self, margin: float, gather_gradient: str = "exact") -> None:
        super().__init__()
        self.margin = margin
        self.gather_gradient = gather_gradient

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return the tensors with which `forward` finds false negatives (`dcpcse.losses.false_negatives.marks`)."""
        return false_negatives.marks(batch)

    def forward(self, batch: EncodedBatch) -> Tensor:
        views, anchors = batch.embeddings, batch.embeddings["anchor"]
        names = ("positive", *negatives_in(views))
        candidates = gather_own_first([views[name] for name in names], batch.counts)
        absent = false_negatives.absent_masks(batch.precomputed, names[1:], batch.counts)
        masks_of = false_negatives.masks_of_rows(batch.precomputed, names, batch.counts, absent)

        def of_rows(rows: slice, anchors: Vectors, candidates: Vectors, normalized: bool) -> MeanAndMetrics:
            (anchors,), (positives, *negatives) = anchors, candidates
            kwargs = {"offset": rows.start, "normalized": normalized}
            paired, hardest = own_and_hardest(anchors, positives, negatives, masks_of(rows), **kwargs)
            hinge = (self.margin - (paired - hardest)).clamp(min=0)
            return hinge.mean(), _metrics(hardest, hinge)

        loss, self.metrics = mean_over_anchors(of_rows, [anchors], candidates, self.row_chunk, self.widths)
        return global_mean(loss, len(anchors), self.gather_gradient)


@torch.no_grad()
def _metrics(hardest: Tensor, hinge: Tensor) -> Metrics:
    has_negative = hardest > float("-inf")
    return {
        "cosine_hardest": (torch.where(has_negative, hardest, 0).sum(), has_negative.sum()),
        "within_margin": ((hinge > 0).sum(), torch.full((), len(hinge), device=hinge.device)),
    }


def own_and_hardest(
    anchors: Tensor,
    positives: Tensor,
    negatives: Sequence[Tensor] = (),
    excluded: Sequence[Tensor | None] = (),
    *,
    offset: int = 0,
    normalized: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the cosines (B,) of the anchors with their own positives and with their hardest negatives.

    The hardest negative of an anchor is the nearest of all other positives and all hard negatives. For an anchor
    without negatives, the cosine is minus infinity.

    Args:
        anchors: (B, H).
        positives: (C, H). Row offset + i is the positive of anchor i.
        negatives: Any number of tensors (D, H) of hard negatives. Row offset + i of each tensor belongs to anchor i.
        excluded: Boolean masks, true at candidates to leave out: a mask (B, C) of the positives, then a mask (B, D) of
            each tensor of hard negatives. A mask None leaves out no candidate.
        offset: As in `dcpcse.losses.functional.nt_xent`.
        normalized: As in `dcpcse.losses.functional.nt_xent`.
    """
    to_positives = cosines(anchors, positives, normalized)
    candidates = [to_positives.masked_fill(own_pairs(to_positives, offset), float("-inf"))]
    candidates += [cosines(anchors, hard, normalized) for hard in negatives]
    for i, mask in enumerate(excluded):
        candidates[i] = candidates[i] if mask is None else candidates[i].masked_fill(mask, float("-inf"))
    others = torch.cat(candidates, dim=1)
    # Of several equal maxima, only one receives the gradient, as in the public code.
    return to_positives.diagonal(offset), others.max(dim=1).values
