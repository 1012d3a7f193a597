"""Cosine regression on scored sentence pairs (SBERT, section 3, "Regression Objective Function")."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import precise
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, over_widths


class CosineRegression(PerRowLoss):
    """Mean squared error between the cosine of two sentences and their score (SBERT, section 3).

    The scores (B,) of the examples are in `extras["scores"]`. The loss scales them to [0, 1].

    Args:
        largest: The score of two sentences with the same meaning. All scores are divided by this number.
    """

    has_widths = True

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest = largest

    def num_items(self, batch: EncodedBatch, sampled: None) -> int:
        return len(batch.input_ids)

    def mean(self, batch: EncodedBatch, sampled: None) -> Tensor:
        # In float32, since half precision has few values between 0.9 and 1.
        pair = [precise(batch.embeddings[name]) for name in ("anchor", "positive")]
        wanted = batch.extras["scores"].to(pair[0]) / self.largest

        def of_width(pair: Vectors) -> MeanAndMetrics:
            errors = F.cosine_similarity(*pair) - wanted
            count = torch.full((), len(errors), device=errors.device)
            return errors.square().mean(), {"absolute_error": (errors.detach().abs().sum(), count)}

        loss, self.metrics = over_widths(of_width, pair, self.widths)
        return loss
