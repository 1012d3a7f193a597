"""Learning rates and batch sizes for trainings of which the user gives none."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """The learning rate and the batch size of a training.

    Args:
        learning_rate: For an encoder that was not trained for sentences.
        batch_size: Examples per device.
        on_sentence_encoder: The learning rate for an encoder that was trained for sentences before; None for the same
            one.
    """

    learning_rate: float
    batch_size: int = 64
    on_sentence_encoder: float | None = None

    def rate(self, *, sentence_encoder: bool) -> float:
        """Return the learning rate for an encoder of this kind."""
        rate = self.on_sentence_encoder if sentence_encoder else None
        return self.learning_rate if rate is None else rate


RECIPES: Mapping[str, Recipe] = {
    # DCPCSE, Table 3: 3e-2 for three of its four encoders, with batches of 64 and 256.
    "deep": Recipe(3e-2, on_sentence_encoder=1e-2),  # see docs/when-prompts-help.md
    "shallow": Recipe(1e-3),  # SCPCSE (DCPCSE, appendix A)
    "lora": Recipe(1e-3),  # the best of five rates on a small encoder, docs/methods.md
    "full": Recipe(3e-5),  # SimCSE's README, BERT-base
}
"""Tuning → recipe of every method that has none of its own for this tuning (`register(..., recipes=...)`)."""
