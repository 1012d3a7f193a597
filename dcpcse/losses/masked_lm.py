"""The auxiliary masked language modelling loss (DCPCSE, section 2.2)."""

from collections.abc import Callable

import torch
from torch import Tensor

from dcpcse.encoders.backbones import LMHead
from dcpcse.encoders.packing import indices_of
from dcpcse.encoders.template_denoising import sentence_tokens
from dcpcse.losses.base import EncodedBatch, PerRowLoss
from dcpcse.losses.functional import masked_ce
from dcpcse.losses.token_masking import TokenMasking
from dcpcse.utils.devices import send


class MaskedLM(PerRowLoss):
    """Masked language modelling on all views, with the prompts (after dropout) that computed the embeddings.

    In a template, only the tokens of the sentence are masked. The LM head is frozen by default, like all
    language-model weights in the paper. The published code trains an untied copy of the LM head at the prompts'
    learning rate.

    Args:
        lm_head: The LM head of the encoder.
        masking: The module that chooses and masks tokens.
        train_head: Whether to train the LM head. It then gets its own copy of the weights it shares with the encoder.
        apart: Whether a frozen head gets such a copy, too. This is necessary if the encoder is trained.
    """

    leaves_out_absent = True  # no token of an absent sentence is masked

    def __init__(
        self, lm_head: LMHead, masking: TokenMasking, *, train_head: bool = False, apart: bool = False
    ) -> None:
        super().__init__()
        if train_head or apart:
            lm_head.untie()
        self.lm_head = lm_head.requires_grad_(train_head)
        self.masking = masking

    def sample(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return the masked token ids (B · V, L), and the indices (n,) of the tokens to predict among all tokens."""
        ids, slots = batch.on_host("input_ids").flatten(0, 1), batch.slots
        candidates = None
        if slots is not None:
            candidates = sentence_tokens(batch.model.templates, slots.on_host, ids.shape[1])
        masked_ids, chosen = self.masking(ids, candidates)
        device = batch.input_ids.device
        return send(masked_ids, device), send(indices_of(chosen), device)

    def num_items(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor]) -> Tensor:
        return torch.full((), len(sampled[1]), device=sampled[1].device)

    def mean(self, batch: EncodedBatch, sampled: tuple[Tensor, Tensor]) -> Tensor:
        (masked_ids, chosen), mask = sampled, batch.attention_mask.flatten(0, 1)
        first_pass = {"slots": batch.slots, "prefix": batch.prefix, "packing": batch.packing}
        hidden = batch.model.encoder(masked_ids, mask, **first_pass)[-1]
        labels = batch.input_ids.flatten().index_select(0, chosen)
        return masked_ce(self.lm_head(hidden.flatten(0, 1).index_select(0, chosen)), labels)


def exponential_decay(rate: float, steps: float) -> Callable[[int], float]:
    """Return a schedule of a weight: a function of the step that returns rate^(step / steps), with a real exponent.

    DCPCSE, section 2.2, uses rate 0.95 and steps 100.

    Args:
        rate: Factor by which the weight decays in `steps` optimiser steps.
        steps: Number of optimiser steps.
    """
    return lambda step: rate ** (step / steps)
