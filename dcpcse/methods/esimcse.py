"""ESimCSE (Wu et al. 2022), which extends SimCSE by word repetition and a queue of momentum-encoded negatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from dcpcse.data.columns import CLASS
from dcpcse.data.views import Augmentation
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Contrastive, Term
from dcpcse.losses.momentum_contrastive import MomentumContrastive
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import contrastive
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, SHARE, Need, Options, option

LARGEST_QUEUE = 1_000_000
"""Maximum of --neg_size, in sentences. It prevents a typo from exhausting the memory."""

QUEUE = Need(lambda: f"a queue of negatives ({spell('neg_size')} above 0)", lambda args: args.neg_size != 0)


@dataclass
class ESimCSEOptions(Options):
    """Options of ESimCSE: word repetition, and a queue of negatives. The names are those of the public code."""

    _argument_group_name = "ESimCSE"

    dup_rate: float | None = option(
        None,
        "ESimCSE: maximum share of a sentence's tokens that are repeated in the second view. Default: 0.32.",
        **SHARE,
    )
    neg_size: int | None = option(
        None,
        "ESimCSE: number of sentences in the queue of negatives; 0: no queue. Default: 160 (2.5 batches of 64).",
        at_least=0,
        at_most=LARGEST_QUEUE,
    )
    momentum: float | None = option(
        None,
        "ESimCSE: coefficient of the moving average of the momentum encoder's weights, per step. Default: 0.995.",
        needs=QUEUE,
        **SHARE,
    )


@dataclass(frozen=True)
class WordRepetition(Augmentation):
    """An augmentation that repeats some tokens of a sentence, like `--dup_type bpe` of the public code.

    The number of repeated tokens is drawn uniformly from 0 to min(10, ⌊rate · n⌋) - 1. n is the number of tokens,
    including two special tokens. In the paper, as quoted by others, the maximum is max(2, ⌊rate · n⌋).

    Args:
        rate: Maximum share of repeated tokens.
    """

    rate: float

    def edit(self, ids: Sequence[int], random: Random) -> list[int]:
        repeated = set(random.sample(range(len(ids)), random.randrange(self._limit(len(ids)))))
        return [token for i, token in enumerate(ids) for token in [token] * (1 + (i in repeated))]

    def longest(self, tokens: int) -> int:
        return tokens + self._limit(tokens) - 1

    def _limit(self, tokens: int) -> int:
        """Return the upper limit of the number of repeated tokens. The number is always below the limit.

        Args:
            tokens: Number of tokens without special tokens.
        """
        return max(1, min(10, int(self.rate * (tokens + 2))))


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    unknown = {f"{spell('train_file')} has classes": CLASS in columns, spell("guide"): args.guide is not None}
    for reason, applies in unknown.items():
        if applies and args.neg_size != 0:
            raise UserError(
                f"{reason}: {spell('method', 'esimcse')} cannot tell which sentences in its queue are false "
                f"negatives; give {spell('neg_size')} 0"
            )
    return {
        "tuning": "full",
        "pooler_type": "cls",
        # As in SimCSE, the MLP is used in training only if the data are single sentences.
        "mlp_only_train": "positive" not in columns and args.pooler_type in (None, *POOLERS_WITH_HEAD),
        "dup_rate": 0.32,
        "neg_size": 160,
        "momentum": None if args.neg_size == 0 else 0.995,
    }


CITATION = (
    "Wu, Gao, Zang, Han, Wang and Hu, *ESimCSE: Enhanced Sample Building Method for Contrastive Learning of "
    "Unsupervised Sentence Embedding*, COLING 2022."
)


@register(
    "esimcse", citation=CITATION, labels=(CLASS,), options=(PrototypeOptions, ESimCSEOptions), defaults=_defaults
)
def esimcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build ESimCSE: words are repeated in the positives, and anchors of earlier batches are additional negatives."""
    method = with_prototypes(backbone, args, columns)
    repetition = WordRepetition(args.dup_rate) if args.dup_rate else None
    views = [replace(view, augmentation=repetition) if view.name == "positive" else view for view in method.views]
    terms = {**method.terms, "contrastive": Term(_contrastive(method, args))}
    return replace(method, views=tuple(views), terms=terms)


def _contrastive(method: Method, args: ModelArguments) -> Contrastive:
    if not args.neg_size:
        return contrastive(args)
    return MomentumContrastive(
        method.model.encoder,
        method.model.dimension,
        args.neg_size,
        args.momentum,
        temperature=args.temp,
        hard_negative_weight=args.hard_negative_weight,
        gather_gradient=args.gather_gradient,
    )
