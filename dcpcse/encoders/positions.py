"""Compute the position ids of a text that is shifted by prompts, for each way in which backbones count positions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Positions:
    """How a backbone numbers its tokens.

    Args:
        size: Number of rows of the position table (for rotary models, the context length in training).
        first: Id of the first token.
        padding_idx: The position id of padding in backbones that count only real tokens (RoBERTa), else None.
        rotary: Whether only the distances between tokens matter, so that an offset has no effect.
    """

    size: int
    first: int = 0
    padding_idx: int | None = None
    rotary: bool = False

    def room(self, offset: int) -> int:
        """Return the number of tokens, including special tokens, that fit if the text is shifted by `offset`."""
        return self.size - self.first - offset

    def ids(self, input_ids: Tensor, offset: int) -> Tensor:
        """Return the position ids (N, L) of a text that is shifted.

        They are the ids that transformers 4.2.1, the version of the papers, assigns to a text after `offset` cached
        tokens.

        Args:
            input_ids: Token ids (N, L).
            offset: Number of positions by which the text is shifted.
        """
        if self.padding_idx is None:
            steps = torch.arange(input_ids.shape[1], device=input_ids.device)
            return (steps + self.first + offset).expand_as(input_ids)
        real = input_ids.ne(self.padding_idx).long()
        return (real.cumsum(1) + offset) * real + self.padding_idx

    def at(self, index: Tensor, offset: int) -> Tensor:
        """Return the position ids of real tokens of a text that is shifted.

        Args:
            index: Indices of the tokens in the text, from 0.
            offset: Number of positions by which the text is shifted.
        """
        return index + self.first + (0 if self.rotary else offset)


def positions_of(backbone: PreTrainedModel) -> Positions:
    """Read the numbering from a backbone's position table; a backbone without a table is assumed to be rotary."""
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return Positions(size=backbone.config.max_position_embeddings, rotary=True)
    if table.padding_idx is None:
        return Positions(size=table.num_embeddings)
    return Positions(table.num_embeddings, first=table.padding_idx + 1, padding_idx=table.padding_idx)
