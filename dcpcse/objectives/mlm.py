"""Auxiliary masked language modelling (DCPCSE, section 2.2): keeps the prompts associated with the text."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ..backbones import LMHead
from ..denoising import sentence_tokens
from ..errors import UserError
from ..losses import masked_ce
from .base import Objective, Step


class TokenMasking(nn.Module):
    """BERT's masking: of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay (BERT, section 3.1).

    Works on the device with the training's own random numbers, which checkpoints keep: a resumed run masks as
    the uninterrupted one. (Masks drawn in the data loader would depend on how far it had read ahead.)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float) -> None:
        super().__init__()
        if tokenizer.mask_token_id is None:
            raise UserError("--do_mlm needs a tokenizer with a mask token; this one has none")
        self.probability = probability
        self.mask_id = tokenizer.mask_token_id
        self.vocab_size = len(tokenizer)
        self.register_buffer("special_ids", torch.tensor(tokenizer.all_special_ids), persistent=False)

    def forward(self, input_ids: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """input_ids of any shape → masked copy and the boolean positions to predict, of the same shape.

        Special tokens, pads among them, are never chosen. candidates: boolean, of the same shape: what may be chosen.
        """
        ordinary = ~torch.isin(input_ids, self.special_ids)
        candidates = ordinary if candidates is None else ordinary & candidates
        chosen = candidates & (torch.rand(input_ids.shape, device=input_ids.device) < self.probability)
        fate = torch.rand(input_ids.shape, device=input_ids.device)
        random_ids = torch.randint_like(input_ids, self.vocab_size)
        masked = torch.where(chosen & (fate < 0.8), self.mask_id, input_ids)
        return torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random_ids, masked), chosen


class MaskedLM(Objective):
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

    def forward(self, step: Step) -> Tensor:
        input_ids, mask = step.input_ids.flatten(0, 1), step.attention_mask.flatten(0, 1)  # (B·V, L)
        candidates = None if step.slots is None else sentence_tokens(step.model.templates, step.slots, mask)
        masked_ids, chosen = self.masking(input_ids, candidates)
        hidden = step.model.encoder(masked_ids, mask, slots=step.slots, prefix=step.prefix)[-1]
        return masked_ce(self.lm_head(hidden[chosen]), input_ids[chosen])


def exponential_decay(rate: float, steps: float) -> Callable[[int], float]:
    """Factor rate^(step / steps), the exponent real-valued (DCPCSE, section 2.2: 0.95 and 100)."""
    return lambda step: rate ** (step / steps)
