"""Masking tokens at random, for masked language modelling and for generators."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dcpcse.utils.errors import UserError


class TokenMasking(nn.Module):
    """BERT's masking: of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay (BERT, section 3.1).

    Works on the device with the training's own random numbers, which checkpoints keep: a resumed run masks as
    the uninterrupted one. (Masks drawn in the data loader would depend on how far it had read ahead.)
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float) -> None:
        super().__init__()
        if tokenizer.mask_token_id is None:
            raise UserError("masking needs a tokenizer with a mask token; this one has none")
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
