"""The energy-based hinge of PromCSE (Jiang et al. 2022): a margin between the positive and the hardest negative."""

import torch
from torch import Tensor

from dcpcse.losses.base import EncodedBatch, Loss
from dcpcse.losses.functional import cosines
from dcpcse.utils.distributed import gather_own_first, global_mean, published_gradient


class EnergyHinge(Loss):
    """Wants each anchor's positive above the hardest negative among the rows of all processes, by a margin."""

    def __init__(self, margin: float, gather_gradient: str = "exact") -> None:
        """margin: of cosines. gather_gradient: as in `Contrastive`."""
        super().__init__()
        self.margin = margin
        self.gather_gradient = gather_gradient

    def forward(self, batch: EncodedBatch) -> Tensor:
        names = [name for name in ("positive", "negative") if name in batch.embeddings]
        anchors = batch.embeddings["anchor"]
        own, hardest = own_and_hardest(anchors, *gather_own_first([batch.embeddings[name] for name in names]))
        short = (self.margin - (own - hardest)).clamp(min=0)
        self._set_metrics(hardest, short)
        loss = global_mean(short.mean(), len(anchors))
        return loss if self.gather_gradient == "exact" else published_gradient(loss)

    @torch.no_grad()
    def _set_metrics(self, hardest: Tensor, short: Tensor) -> None:
        there = hardest > float("-inf")
        self.metrics = {
            "cosine_hardest": (torch.where(there, hardest, 0).sum(), there.sum()),
            "within_margin": ((short > 0).sum(), torch.tensor(len(short), device=short.device)),
        }


def own_and_hardest(anchors: Tensor, positives: Tensor, negatives: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cosine of each anchor to its own positive, and to the nearest of all other positives and all negatives.

    anchors (B, H); positives (C, H) and hard negatives (D, H), the i-th of both belonging to anchor i. Both (B,); the
    second is minus infinity where there is nothing else.
    """
    to_positives = cosines(anchors, positives)
    own = torch.eye(*to_positives.shape, dtype=torch.bool, device=anchors.device)
    others = to_positives.masked_fill(own, float("-inf"))
    if negatives is not None:
        others = torch.cat([others, cosines(anchors, negatives)], dim=1)
    # One of equals takes the gradient, as in the public code.
    return to_positives.diagonal(), others.max(dim=1).values
