"""Auxiliary masked language modelling (DCPCSE, section 2.2): keeps the prompts associated with the text."""

from collections.abc import Callable

from torch import Tensor

from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.template_denoising import sentence_tokens
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import masked_ce
from dcpcse.losses.token_masking import TokenMasking


class MaskedLM(PerRowLoss):
    """Predicts masked tokens of all views through the same prompts, prompt dropout included.

    In a template only tokens of the sentence are masked. The head is frozen by default, as the paper says of all
    language-model weights; the published code trains an untied copy at the prompts' learning rate (`train_head`).
    """

    def __init__(
        self, lm_head: LMHead, masking: TokenMasking, *, train_head: bool = False, apart: bool = False
    ) -> None:
        """apart: the head gets weights of its own although it is frozen, for an encoder that is trained itself."""
        super().__init__()
        if train_head or apart:
            lm_head.untie()
        self.lm_head = lm_head.requires_grad_(train_head)
        self.masking = masking

    def sample(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Masked token ids and the places to predict, both (B·V, L)."""
        input_ids, mask = batch.input_ids.flatten(0, 1), batch.attention_mask.flatten(0, 1)
        candidates = None if batch.slots is None else sentence_tokens(batch.model.templates, batch.slots, mask)
        return self.masking(input_ids, candidates)

    def num_items(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor]) -> Tensor:
        return sampled[1].sum()

    def mean(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor]) -> Tensor:
        (masked_ids, chosen), mask = sampled, batch.attention_mask.flatten(0, 1)
        again = {"slots": batch.slots, "prefix": batch.prefix, "packing": batch.packing}
        hidden = batch.model.encoder(masked_ids, mask, **again)[-1]
        return masked_ce(self.lm_head(hidden[chosen]), batch.input_ids.flatten(0, 1)[chosen])


def exponential_decay(rate: float, steps: float) -> Callable[[int], float]:
    """Factor rate^(step / steps), the exponent real-valued (DCPCSE, section 2.2: 0.95 and 100)."""
    return lambda step: rate ** (step / steps)
