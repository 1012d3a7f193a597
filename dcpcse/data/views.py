"""Views (the texts of an example that a loss compares) and augmentations (random changes of a text)."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch
from torch import Tensor

from dcpcse.data.columns import negatives_in
from dcpcse.utils.errors import UserError


class Augmentation:
    """A random change of a sentence; the base class changes nothing.

    The methods receive at least one token: the tokens of a sentence without special tokens, padding or template
    tokens.

    Args:
        whole_text: Whether `edit` receives all tokens of a text instead of the first --max_seq_length tokens. If
            `edit` returns more than --max_seq_length tokens, a random span of adjacent tokens is used.
    """

    whole_text: ClassVar[bool] = False

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return the token ids that replace `ids`. The result must contain at least one id."""
        return list(ids)

    def longest(self, tokens: int) -> int:
        """Return the maximum number of token ids that `edit` returns for at most `tokens` token ids."""
        return tokens

    def cut(self, tokens: int, width: int, random: Random) -> Tensor | None:
        """Choose which elements of the token embeddings (tokens, width) are set to zero after `edit`.

        Returns a boolean mask of shape (tokens, width), or of shape (tokens, 1) if the mask is the same for all
        elements of a token. Returns None if no elements are set to zero.
        """
        return None


@dataclass(frozen=True)
class TokenShuffling(Augmentation):
    """Shuffle the tokens.

    ConSERT shuffles the position ids instead. With learned absolute positions, shuffling the tokens gives each token
    the same hidden states as shuffling the position ids. Shuffling the tokens also works for encoders with rotary or
    relative positions, or with local attention.
    """

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        return random.sample(list(ids), len(ids))


@dataclass(frozen=True)
class Crop(Augmentation):
    """Keep a random span of adjacent tokens. Its length is `share` times the number of tokens, rounded up.

    In Contriever (Izacard et al. 2022), an anchor and its positive are two such spans of one text. The paper calls
    this independent cropping.
    """

    share: float
    whole_text: ClassVar[bool] = True

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        return random_span(ids, math.ceil(self.share * len(ids)), random)


def random_span(ids: Sequence[int], length: int, random: Random) -> list[int]:
    """Return a random span of `length` adjacent token ids, or all if there are fewer; any start is equally likely."""
    if len(ids) <= length:
        return list(ids)
    start = random.randrange(len(ids) - length + 1)
    return list(ids[start : start + length])


@dataclass(frozen=True)
class TokenCutoff(Augmentation):
    """Set the embeddings of randomly chosen tokens to zero. `rate` is the share of chosen tokens, rounded down."""

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(tokens), int(tokens * self.rate)), tokens).unsqueeze(1)


@dataclass(frozen=True)
class FeatureCutoff(Augmentation):
    """Set randomly chosen features to zero in all tokens of a sentence.

    `rate` is the share of chosen features, rounded down.
    """

    rate: float

    def cut(self, tokens: int, width: int, random: Random) -> Tensor:
        return _chosen(random.sample(range(width), int(width * self.rate)), width).expand(tokens, width)


@dataclass(frozen=True)
class ElementDropout(Augmentation):
    """Set randomly chosen elements of the token embeddings to zero.

    `rate` is the share of chosen elements, rounded down. The remaining elements are not rescaled.
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


@dataclass(frozen=True)
class View:
    """One view of an example, which a loss compares with others: its name, column, templates and augmentation.

    Args:
        templates: Indices of the templates. If the list is empty, the sentence is encoded without a template. If there
            are several templates, one of them is drawn for each text.
        augmentation: A random change of the sentence.
        blank: Whether the space before the sentence in a template is tokenised with the first word of the sentence, as
            in plain text. If False, the space is left out, as in the training of PromptBERT's public code.
    """

    name: str
    column: str
    templates: tuple[int, ...] = ()
    augmentation: Augmentation | None = None
    blank: bool = True

    def template_for(self, text: str, seed: int) -> int:
        """Return the index of a text's template, drawn uniformly.

        The index is the same in every epoch, process and resumed run.
        """
        drawn = hashlib.blake2b(f"{seed} {self.name} {text}".encode(), digest_size=8).digest()
        return self.templates[int.from_bytes(drawn) % len(self.templates)]

    def random(self, seed: int, epoch: int, row: int) -> Random:
        """Return the random generator for the augmentation of a row.

        The random numbers are the same in every process and resumed run, and for every batch size.
        """
        return Random(f"{seed} {epoch} {row} {self.name}")


def columns_of(views: Iterable[View]) -> tuple[str, ...]:
    """Return the columns that the views use, each once."""
    return tuple(dict.fromkeys(view.column for view in views))


def present_views(names: Sequence[str], number: int) -> list[str]:
    """Return the names of the `number` views in a batch: the last hard negatives may be absent.

    Args:
        names: The names of all views of the method.
        number: The number of views of the batch. It is lower if the data of the batch have fewer hard negatives.
    """
    absent = negatives_in(names)[::-1][: len(names) - number]
    return [name for name in names if name not in absent]


def max_added_tokens(views: Iterable[View], tokens: int) -> int:
    """Return the maximum number of tokens that augmentations add to a sentence of `tokens` tokens."""
    return max((view.augmentation.longest(tokens) - tokens for view in views if view.augmentation), default=0)


def sentence_pair_views(columns: Sequence[str], templates: int = 0) -> tuple[View, ...]:
    """Return the views of SimCSE: anchor and positive, and the hard negatives if the data have any.

    If the data have one column, the training is unsupervised: the anchor and the positive are the same sentence, and
    dropout makes their embeddings differ.

    Args:
        columns: The columns of the data.
        templates: Number of templates. The anchor uses the first template, and all other views use the last template
            (PromptBERT, section 4.3).
    """
    require_anchor(columns)
    first, last = ((0,), (templates - 1,)) if templates else ((), ())
    positive = "positive" if "positive" in columns else "anchor"
    views = (View("anchor", "anchor", first), View("positive", positive, last))
    return (*views, *(View(name, name, last) for name in negatives_in(columns)))


def require_anchor(columns: Sequence[str]) -> None:
    """Raise UserError unless the data have the column `anchor`, which every method needs."""
    if "anchor" not in columns:
        raise UserError(f"the training data have the columns {list(columns)}; add the missing column 'anchor'")
