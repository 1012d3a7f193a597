"""Augmentations: random changes of a sentence in a view, drawn again in each epoch (ConSERT, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor


class Augmentation:
    """A random change of a sentence; the base class changes nothing.

    It receives the sentence's own tokens, at least one: no special tokens, padding or tokens of a template.
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return the token ids that replace `ids`, at least one."""
        return list(ids)

    def longest(self, tokens: int) -> int:
        """Return the maximum number of ids that `edit` returns for at most `tokens` ids."""
        return tokens

    def cut(self, tokens: int, width: int, random: Random) -> Tensor | None:
        """Choose the elements of the embedding layer's output for the edited tokens, (tokens, width), to set to zero.

        Returns a boolean mask, or one of shape (tokens, 1) for whole tokens, or None for no elements.
        """
        return None


@dataclass(frozen=True)
class TokenShuffling(Augmentation):
    """Shuffle the tokens.

    ConSERT permutes the position ids instead. With learned absolute positions, both give each token the same hidden
    states. Shuffling tokens also works for encoders with rotary or relative positions, or with local attention.
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        return random.sample(list(ids), len(ids))


@dataclass(frozen=True)
class TokenCutoff(Augmentation):
    """Set the embeddings of a share `rate` of the tokens, rounded down, to zero."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(tokens), int(tokens * self.rate)), tokens).unsqueeze(1)


@dataclass(frozen=True)
class FeatureCutoff(Augmentation):
    """Set a share `rate` of the features, rounded down, to zero in all tokens of the sentence."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(width), int(width * self.rate)), width).expand(tokens, width)


@dataclass(frozen=True)
class ElementDropout(Augmentation):
    """Set a share `rate` of the elements of all token embeddings, rounded down, to zero; others are not rescaled."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        # Tens of thousands of numbers per sentence, for which Python's own generator would take milliseconds.
        order = torch.randperm(tokens * width, generator=torch.Generator().manual_seed(random.getrandbits(63)))
        return _chosen(order[: int(tokens * width * self.rate)], tokens * width).view(tokens, width)


def _chosen(indices: Sequence[int] | Tensor, size: int) -> Tensor:
    """Return a boolean tensor (size,) that is true at the indices."""
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.as_tensor(indices, dtype=torch.long)] = True
    return chosen
