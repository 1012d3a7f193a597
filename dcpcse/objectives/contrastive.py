"""Contrastive learning with in-batch and hard negatives (SimCSE, eq. 1 and 5)."""

from torch import Tensor

from ..distributed import gather_own_first
from ..losses import nt_xent
from .base import Objective, Step


class Contrastive(Objective):
    """Picks each anchor's positive among all positives, and hard negatives, of all processes."""

    def __init__(self, temperature: float = 0.05, hard_negative_weight: float = 0.0) -> None:
        """hard_negative_weight: logarithm of the weight of an anchor's own hard negative; 0 weighs it as 1."""
        super().__init__()
        self.temperature = temperature
        self.hard_negative_weight = hard_negative_weight

    def forward(self, step: Step) -> Tensor:
        negatives = step.embeddings.get("negative")
        return nt_xent(
            step.embeddings["anchor"],
            gather_own_first(step.embeddings["positive"]),
            self.temperature,
            negatives=None if negatives is None else gather_own_first(negatives),
            hard_negative_weight=self.hard_negative_weight,
        )
