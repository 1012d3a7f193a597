"""SBERT (Reimers and Gurevych 2019): an encoder learns from what pairs of sentences are said to be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.labels import LABEL, SCORE, Columns
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Classification, PerRowLoss, Term
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.losses.pair_classification import classified_pairs
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import of_pairs
from dcpcse.methods.registry import DEFAULTS, Method, register
from dcpcse.methods.shared.prototypes import PROTOTYPES, PrototypeOptions, prototypes_of
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option, require

LABELS = (LABEL, SCORE)
"""What it reads besides sentences."""


@dataclass
class SBERTOptions:
    """Options of SBERT alone."""

    _argument_group_name = "SBERT"

    largest_score: float | None = option(
        None, "SBERT: score that stands for a cosine of 1. Default: the largest of the training file."
    )

    def __post_init__(self) -> None:
        largest = self.largest_score
        require(largest is None or 0 < largest < math.inf, "--largest_score", largest, "above 0, and finite")


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    """Nothing; UserError for options of a contrastive loss where there is none."""
    for name in ("temp", "hard_negative_weight", "gather_gradient"):
        if not PROTOTYPES.holds(args) and getattr(args, name) != DEFAULTS[name]:
            raise UserError(f"--{name} is of contrastive losses, and --method sbert has none; leave it out")
    return {}


CITATION = "Reimers and Gurevych, *Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks*, EMNLP 2019."


@register(
    "sbert",
    citation=CITATION,
    options=(SBERTOptions, PrototypeOptions),
    defaults=_defaults,
    labels=LABELS,
    tuning="full",
    pooler_type="avg",
)
def sbert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Classification of labelled pairs, or of a pair and a hard negative; regression of scored ones (section 3)."""
    name, loss_fn = _loss(backbone.source.hidden_size, args, Columns.of(columns))
    # The second sentence of a labelled pair may say the contrary: prototypes are then of the first one itself.
    prototypes = prototypes_of(args, "positive" if "negative" in columns else "anchor")
    return of_pairs(backbone, args, columns, {name: Term(loss_fn)}, prototypes)


def _loss(hidden_size: int, args: ModelArguments, columns: Columns) -> tuple[str, PerRowLoss]:
    """The name of the term and its loss; UserError for data that tell no pairs apart."""
    if columns.label == SCORE:
        return "regression", CosineRegression(_largest(args, columns))
    if args.largest_score is not None:
        raise UserError("--largest_score has no effect without a column score in the training file; leave it out")
    return "classification", Classification(hidden_size, *classified_pairs("sbert", columns, labels=LABELS))


def _largest(args: ModelArguments, columns: Columns) -> float:
    """The score of a cosine of 1; UserError for scores on no scale from 0 to it."""
    least, most = columns.scores or (0.0, args.largest_score or 1.0)
    largest = most if args.largest_score is None else args.largest_score
    if least < 0 or most > largest or least == most:
        remedy = "give rows of several" if least == most else "give scores from 0 on"
        if least >= 0 and most > largest:
            remedy = "give a larger one, or leave it out"
        limit = f"--largest_score {largest:g}" if args.largest_score else "the largest"
        raise UserError(
            f"the scores of --train_file go from {least:g} to {most:g}; they must differ, and lie between 0 and "
            f"{limit}: {remedy}"
        )
    return largest
