"""SBERT (Reimers and Gurevych 2019), which trains the encoder on labelled or scored sentence pairs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.columns import LABEL, SCORE, Columns
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Classification, PerRowLoss, Term
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.losses.pair_classification import classified_pairs
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import pair_method
from dcpcse.methods.recipes import Recipe
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.contrastive_options import refuse_contrastive_options
from dcpcse.methods.shared.prototypes import PROTOTYPES, PrototypeOptions, prototypes_of
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option, require

LABELS = (LABEL, SCORE)
"""The columns that SBERT uses besides the sentences."""


@dataclass
class SBERTOptions:
    """Options of SBERT."""

    _argument_group_name = "SBERT"

    largest_score: float | None = option(
        None,
        "SBERT: the score that corresponds to a cosine of 1. Default: the largest score of the training file.",
        column=SCORE,
    )

    def __post_init__(self) -> None:
        largest = self.largest_score
        require(largest is None or 0 < largest < math.inf, "--largest_score", largest, "above 0, and finite")


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    return {} if PROTOTYPES.holds(args) else refuse_contrastive_options(args)


CITATION = "Reimers and Gurevych, *Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks*, EMNLP 2019."


@register(
    "sbert",
    citation=CITATION,
    options=(SBERTOptions, PrototypeOptions),
    defaults=_defaults,
    labels=LABELS,
    recipes={"full": Recipe(2e-5, batch_size=16)},  # section 3.1 of the paper
    tuning="full",
    pooler_type="avg",
)
def sbert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build SBERT (section 3 of its paper).

    Labelled pairs and triplets are classified. For scored pairs the cosine is trained to match the score.
    """
    name, loss_fn = _loss(backbone.source.hidden_size, args, Columns.of(columns))
    # The second sentence of a labelled pair may contradict the anchor, so the prototypes are built from the anchor.
    prototypes = prototypes_of(args, "positive" if Columns.of(columns).negatives else "anchor")
    return pair_method(backbone, args, columns, {name: Term(loss_fn)}, prototypes)


def _loss(hidden_size: int, args: ModelArguments, columns: Columns) -> tuple[str, PerRowLoss]:
    """Return the name of the loss term and its loss. Raises UserError if the data fit neither loss."""
    if columns.label == SCORE:
        return "regression", CosineRegression(_largest_score(args, columns))
    return "classification", Classification(hidden_size, *classified_pairs("sbert", columns, labels=LABELS))


def _largest_score(args: ModelArguments, columns: Columns) -> float:
    """Return the score that corresponds to a cosine of 1.

    Raises UserError if all scores are equal, or if a score is negative or above the returned score.
    """
    lowest, highest = columns.scores or (0.0, args.largest_score or 1.0)
    largest = highest if args.largest_score is None else args.largest_score
    if lowest < 0 or highest > largest or lowest == highest:
        remedy = "add rows with other scores" if lowest == highest else "rescale them"
        if lowest >= 0 and highest > largest:
            remedy = "give a larger --largest_score, or leave it out"
        allowed = f"between 0 and --largest_score {largest:g}" if args.largest_score else "0 or more"
        raise UserError(
            f"the scores of --train_file range from {lowest:g} to {highest:g}; they must differ and be {allowed}; "
            f"{remedy}"
        )
    return largest
