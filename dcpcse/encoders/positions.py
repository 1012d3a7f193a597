"""Position ids of the text when prompts stand before it, for every way a backbone counts positions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Positions:
    """How a backbone numbers its tokens.

    size: rows of the position table (for rotary models the trained context); first: id of the first token;
    padding_idx: set where pads keep an id of their own and only real tokens are counted (RoBERTa); rotary: only
    distances matter, so an offset changes nothing.
    """

    size: int
    first: int = 0
    padding_idx: int | None = None
    rotary: bool = False

    def room(self, offset: int) -> int:
        """Tokens (special ones included) that fit when the text starts `offset` positions late."""
        return self.size - self.first - offset

    def ids(self, input_ids: Tensor, offset: int) -> Tensor:
        """Position ids (N, L) of `input_ids` (N, L), the text starting `offset` positions late.

        The ids that transformers 4.2.1, the papers' version, gives a text after `offset` cached tokens.
        """
        if self.padding_idx is None:
            steps = torch.arange(input_ids.shape[1], device=input_ids.device)
            return (steps + self.first + offset).expand_as(input_ids)
        real = input_ids.ne(self.padding_idx).long()
        return (real.cumsum(1) + offset) * real + self.padding_idx

    def at(self, index: Tensor, offset: int) -> Tensor:
        """Position ids of real tokens that stand at `index`, from 0, of their rows; the text starts `offset` late."""
        return index + self.first + (0 if self.rotary else offset)


def positions_of(backbone: PreTrainedModel) -> Positions:
    """Read the numbering off the backbone's position table; a backbone without one counts as rotary."""
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return Positions(size=backbone.config.max_position_embeddings, rotary=True)
    if table.padding_idx is None:
        return Positions(size=table.num_embeddings)
    return Positions(table.num_embeddings, first=table.padding_idx + 1, padding_idx=table.padding_idx)
