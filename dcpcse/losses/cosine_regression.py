"""Regression of the cosine of a pair to its score (SBERT, section 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import precise


class CosineRegression(PerRowLoss):
    """Mean squared distance of the cosine of two sentences from their score, divided by the largest (section 3).

    Examples have their scores in `extras["scores"]`.
    """

    def __init__(self, largest: float) -> None:
        """largest: score of two sentences that mean the same."""
        super().__init__()
        self.largest = largest

    def num_items(self, batch: EncodedBatch, sampled: None) -> int:
        return len(batch.input_ids)

    def mean(self, batch: EncodedBatch, sampled: None) -> Tensor:
        # Half precision has few steps between 0.9 and 1.
        first, second = (precise(batch.embeddings[name]) for name in ("anchor", "positive"))
        distances = F.cosine_similarity(first, second) - batch.extras["scores"].to(first) / self.largest
        number = torch.tensor(len(distances), device=distances.device)
        self.metrics = {"absolute_error": (distances.detach().abs().sum(), number)}
        return distances.square().mean()
