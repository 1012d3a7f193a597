"""The auxiliary masked language modelling loss (DCPCSE, section 2.2), which ties the prompts to the text."""

from collections.abc import Callable

from torch import Tensor

from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.template_denoising import sentence_tokens
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import masked_ce
from dcpcse.losses.token_masking import TokenMasking


class MaskedLM(PerRowLoss):
    """Masked language modelling on all views, with the prompts (and prompt dropout) of the first pass.

    In a template, only the tokens of the sentence are masked. The LM head is frozen by default, like all
    language-model weights in the paper. The published code trains an untied copy of it at the prompts' learning rate.
    """

    def __init__(
        self, lm_head: LMHead, masking: TokenMasking, *, train_head: bool = False, apart: bool = False
    ) -> None:
        """Create the loss.

        train_head: train an untied copy of lm_head. apart: untie the weights of a frozen head as well, which is
        necessary if the encoder is trained.
        """
        super().__init__()
        if train_head or apart:
            lm_head.untie()
        self.lm_head = lm_head.requires_grad_(train_head)
        self.masking = masking

    def sample(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return the masked token ids and the boolean positions to predict, both (B·V, L)."""
        input_ids, mask = batch.input_ids.flatten(0, 1), batch.attention_mask.flatten(0, 1)
        candidates = None if batch.slots is None else sentence_tokens(batch.model.templates, batch.slots, mask)
        return self.masking(input_ids, candidates)

    def num_items(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor]) -> Tensor:
        return sampled[1].sum()

    def mean(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor]) -> Tensor:
        (masked_ids, chosen), mask = sampled, batch.attention_mask.flatten(0, 1)
        first_pass = {"slots": batch.slots, "prefix": batch.prefix, "packing": batch.packing}
        hidden = batch.model.encoder(masked_ids, mask, **first_pass)[-1]
        return masked_ce(self.lm_head(hidden[chosen]), batch.input_ids.flatten(0, 1)[chosen])


def exponential_decay(rate: float, steps: float) -> Callable[[int], float]:
    """Return the schedule step → rate^(step / steps), with a real-valued exponent.

    DCPCSE, section 2.2, uses rate 0.95 and steps 100.
    """
    return lambda step: rate ** (step / steps)
