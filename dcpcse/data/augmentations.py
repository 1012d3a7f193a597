"""Augmentations, which change a sentence at random and differently in each epoch (ConSERT, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor


class Augmentation:
    """A random change of a sentence; the base class changes nothing.

    The methods receive the tokens of a sentence, at least one, without special tokens, padding or template tokens.
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return the token ids that replace `ids`; there must be at least one."""
        return list(ids)

    def longest(self, tokens: int) -> int:
        """Return the maximum number of ids that `edit` can return if it receives at most `tokens` ids."""
        return tokens

    def cut(self, tokens: int, width: int, random: Random) -> Tensor | None:
        """Choose which elements of the edited tokens' embeddings, (tokens, width), are set to zero.

        Returns a boolean mask of shape (tokens, width), or of shape (tokens, 1) if all elements of a token are treated
        alike. Returns None if no elements are set to zero.
        """
        return None


@dataclass(frozen=True)
class TokenShuffling(Augmentation):
    """Shuffle the tokens.

    ConSERT permutes the position ids instead. With learned absolute positions, both ways give each token the same
    hidden states. Shuffling tokens also works for encoders with rotary or relative positions, or with local attention.
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        return random.sample(list(ids), len(ids))


@dataclass(frozen=True)
class TokenCutoff(Augmentation):
    """Set the embeddings of randomly chosen tokens to zero; `rate` is the share of these tokens, rounded down."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(tokens), int(tokens * self.rate)), tokens).unsqueeze(1)


@dataclass(frozen=True)
class FeatureCutoff(Augmentation):
    """Set randomly chosen features to zero in all tokens of a sentence; `rate` is their share, rounded down."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(width), int(width * self.rate)), width).expand(tokens, width)


@dataclass(frozen=True)
class ElementDropout(Augmentation):
    """Set randomly chosen elements of the token embeddings to zero; `rate` is their share, rounded down.

    The other elements are not rescaled.
    """

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        # torch draws them, since Python's generator would take milliseconds for tens of thousands of numbers.
        order = torch.randperm(tokens * width, generator=torch.Generator().manual_seed(random.getrandbits(63)))
        return _chosen(order[: int(tokens * width * self.rate)], tokens * width).view(tokens, width)


def _chosen(indices: Sequence[int] | Tensor, size: int) -> Tensor:
    """Return a boolean tensor (size,) that is true at the indices."""
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.as_tensor(indices, dtype=torch.long)] = True
    return chosen
