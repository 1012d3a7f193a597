"""Augmentations: what a view changes in a sentence, drawn anew in each epoch (ConSERT, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor


class Augmentation:
    """A random change of a sentence; this one changes nothing.

    It is given the sentence's own tokens, one at least: never special tokens, pads, or the words of a template.
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        """The ids that stand in the place of these, in any number from one on."""
        return list(ids)

    def longest(self, tokens: int) -> int:
        """How many ids `edit` makes of so many, or fewer, at most."""
        return tokens

    def cut(self, tokens: int, width: int, random: Random) -> Tensor | None:
        """Which elements of what the embedding layer gives of the edited tokens (tokens, width) become zero.

        Boolean; (tokens, 1) says it of whole tokens, None of nothing.
        """
        return None


@dataclass(frozen=True)
class TokenShuffling(Augmentation):
    """The tokens in another order.

    ConSERT permutes their position ids instead; each token has the same hidden states either way where positions are
    learned, and its place counts in other encoders too (rotary or relative positions, local attention).
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        return random.sample(list(ids), len(ids))


@dataclass(frozen=True)
class TokenCutoff(Augmentation):
    """This share of the tokens, rounded down, loses its embeddings."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(tokens), int(tokens * self.rate)), tokens).unsqueeze(1)


@dataclass(frozen=True)
class FeatureCutoff(Augmentation):
    """This share of the features, rounded down, is lost in all tokens of the sentence."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(width), int(width * self.rate)), width).expand(tokens, width)


@dataclass(frozen=True)
class ElementDropout(Augmentation):
    """This share of the elements of all its tokens' embeddings, rounded down; the others are not scaled up."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        # Ten thousands of numbers a sentence, which Python's own generator would take milliseconds for.
        order = torch.randperm(tokens * width, generator=torch.Generator().manual_seed(random.getrandbits(63)))
        return _chosen(order[: int(tokens * width * self.rate)], tokens * width).view(tokens, width)


def _chosen(indices: Sequence[int] | Tensor, size: int) -> Tensor:
    """Boolean (size,), true at the indices."""
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[torch.as_tensor(indices, dtype=torch.long)] = True
    return chosen
