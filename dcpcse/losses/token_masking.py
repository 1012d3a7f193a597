"""Random token masking, for masked language modelling and for generators."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dcpcse.utils.errors import UserError


class TokenMasking(nn.Module):
    """BERT's masking: of the chosen tokens, 80 % become [MASK], 10 % become random tokens, and 10 % are unchanged.

    See BERT, section 3.1. The random numbers come from torch's CPU generator. Checkpoints contain the state of this
    generator, so a resumed run masks the same tokens. The data loader does not draw the masks, since they would depend
    on the number of prefetched batches. A GPU does not draw them, since each step would have to wait for the number of
    masked tokens.

    Args:
        tokenizer: The tokenizer of the encoder.
        probability: Share of the tokens to choose.

    Raises:
        UserError: If the tokenizer has no mask token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float) -> None:
        super().__init__()
        if tokenizer.mask_token_id is None:
            raise UserError("the tokenizer has no mask token, which masking needs; choose an encoder that has one")
        self.probability = probability
        self.mask_id = tokenizer.mask_token_id
        self.vocab_size = len(tokenizer)
        self.special_ids = torch.tensor(tokenizer.all_special_ids)  # not a buffer: it stays on the CPU

    def forward(self, input_ids: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a masked copy of `input_ids` and the boolean positions to predict, in the shape of `input_ids`.

        All tensors are on the CPU. Special tokens, including padding, are never chosen.

        Args:
            input_ids: Token ids of any shape.
            candidates: Boolean, in the shape of `input_ids`, true at the positions that may be chosen. None: all
                positions.
        """
        ordinary = ~torch.isin(input_ids, self.special_ids)
        candidates = ordinary if candidates is None else ordinary & candidates
        chosen = candidates & (torch.rand(input_ids.shape) < self.probability)
        action = torch.rand(input_ids.shape)
        random_ids = torch.randint_like(input_ids, self.vocab_size)
        masked = torch.where(chosen & (action < 0.8), self.mask_id, input_ids)
        return torch.where(chosen & (action >= 0.8) & (action < 0.9), random_ids, masked), chosen
