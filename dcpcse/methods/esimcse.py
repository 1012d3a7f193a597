"""ESimCSE (Wu et al. 2022): repeated words make the second view, a momentum encoder fills a queue of negatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from dcpcse.data.augmentations import Augmentation
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Contrastive, Term
from dcpcse.losses.momentum_contrastive import MomentumContrastive
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import contrastive
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, Need, option, require

LARGEST_QUEUE = 1_000_000
"""Sentences: a slip of the keyboard should not cost the memory of a machine."""

QUEUE = Need("a queue of negatives (--neg_size 0)", lambda args: args.neg_size != 0)


@dataclass
class ESimCSEOptions:
    """Options of ESimCSE, by the names of its public code."""

    _argument_group_name = "method esimcse"

    dup_rate: float | None = option(
        None, "ESimCSE: share of a sentence's tokens that are repeated in the second view, at most. Default: 0.32."
    )
    neg_size: int | None = option(
        None, "ESimCSE: sentences in the queue of negatives; 0 for none. Default: 160, 2.5 batches of 64."
    )
    momentum: float | None = option(
        None,
        "ESimCSE: share of its weights that the momentum encoder keeps in a step. Default: 0.995.",
        needs=QUEUE,
    )

    def __post_init__(self) -> None:
        require(0 <= (self.dup_rate or 0) < 1, "--dup_rate", self.dup_rate, "in [0, 1)")
        require(0 <= (self.neg_size or 0) <= LARGEST_QUEUE, "--neg_size", self.neg_size, f"in 0 .. {LARGEST_QUEUE:,}")
        require(0 <= (self.momentum or 0) < 1, "--momentum", self.momentum, "in [0, 1)")


@dataclass(frozen=True)
class WordRepetition(Augmentation):
    """Some tokens twice, side by side, as the public code repeats them (`--dup_type bpe`).

    Of a text of n tokens, the two special ones included, fewer than min(10, ⌊rate · n⌋), each number as likely as
    another. (The paper, as others quote it: any number up to max(2, ⌊rate · n⌋).)
    """

    rate: float

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        twice = set(random.sample(range(len(ids)), random.randrange(self._below(len(ids)))))
        return [token for place, token in enumerate(ids) for token in [token] * (1 + (place in twice))]

    def longest(self, tokens: int) -> int:
        return tokens + self._below(tokens) - 1

    def _below(self, tokens: int) -> int:
        """Fewer than so many tokens are repeated, of so many that stand between two special ones."""
        return max(1, min(10, int(self.rate * (tokens + 2))))


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    return {
        "tuning": "full",
        "pooler_type": "cls",
        # As in SimCSE: in training only where there are sentences alone.
        "mlp_only_train": "positive" not in columns and args.pooler_type in (None, *POOLERS_WITH_HEAD),
        "dup_rate": 0.32,
        "neg_size": 160,
        "momentum": None if args.neg_size == 0 else 0.995,
    }


CITATION = (
    "Wu, Gao, Zang, Han, Wang and Hu, *ESimCSE: Enhanced Sample Building Method for Contrastive Learning of "
    "Unsupervised Sentence Embedding*, COLING 2022."
)


@register("esimcse", citation=CITATION, options=(PrototypeOptions, ESimCSEOptions), defaults=_defaults)
def esimcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """SimCSE whose positives have some tokens twice, and whose anchors are told apart from earlier ones as well."""
    method = with_prototypes(backbone, args, columns)
    repetition = WordRepetition(args.dup_rate) if args.dup_rate else None
    views = [replace(view, augmentation=repetition) if view.name == "positive" else view for view in method.views]
    terms = {**method.terms, "contrastive": Term(_contrastive(method, args))}
    return replace(method, views=tuple(views), terms=terms)


def _contrastive(method: Method, args: ModelArguments) -> Contrastive:
    if not args.neg_size:
        return contrastive(args)
    model, how = method.model, {"gather_gradient": args.gather_gradient}
    how |= {"temperature": args.temp, "hard_negative_weight": args.hard_negative_weight}
    return MomentumContrastive(model.encoder, model.dimension, args.neg_size, args.momentum, **how)
