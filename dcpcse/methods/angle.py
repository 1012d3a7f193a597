"""AnglE (Li and Li 2024), which trains the similarity order of pairs, by cosines and by angles in a complex space."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.columns import LABEL, SCORE, Columns
from dcpcse.encoders.backbones import Backbone
from dcpcse.losses import Term
from dcpcse.losses.pair_ranking import TARGETS, PairRanking, PairsInBatch, angle_of_pairs, pairs_with_targets
from dcpcse.methods.arguments import ModelArguments, refuse_contrastive_options
from dcpcse.methods.building import pair_method
from dcpcse.methods.registry import Method, register
from dcpcse.methods.tunings import Recipe
from dcpcse.utils.console import notify
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import Options, needs_above_zero, option

WEIGHTS = ("cosine_weight", "in_batch_weight", "angle_weight")

IN_BATCH = needs_above_zero("in_batch_weight")
ANGLES = needs_above_zero("angle_weight")


@dataclass
class AngleOptions(Options):
    """Options of AnglE. The paper and its code call the weights of the three losses w1, w2 and w3."""

    _argument_group_name = "AnglE"

    cosine_weight: float | None = option(None, "AnglE: weight of the order by cosines; 0 leaves it out. Default: 1.")
    in_batch_weight: float | None = option(
        None, "AnglE: weight of in-batch negatives for similar pairs; 0 leaves them out. Default: 1."
    )
    angle_weight: float | None = option(None, "AnglE: weight of the order by angles; 0 leaves it out. Default: 1.")
    angle_temp: float | None = option(None, "AnglE: temperature of the angles. Default: 1.", needs=ANGLES, above=0)
    similar_from: float | None = option(
        None,
        "AnglE: minimum score of pairs for which in-batch negatives are used. Default: the middle of the scores.",
        column=SCORE,
        needs=IN_BATCH,
    )


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    if all(getattr(args, name) == 0 for name in WEIGHTS):
        raise UserError(f"{', '.join(spell(name) for name in WEIGHTS)} are all 0; give at least one above 0")
    if odd := [size for size in args.matryoshka_dims or () if size % 2 and ANGLES.holds(args)]:
        raise OptionError(
            "matryoshka_dims", odd[0], "an angle needs two halves", f"give even sizes, or {spell('angle_weight')} 0"
        )
    if args.cosine_weight == args.in_batch_weight == 0:  # only angles are left, which have a different temperature
        refuse_contrastive_options(args, data=f" with {spell('cosine_weight')} 0 and {spell('in_batch_weight')} 0")
    else:
        refuse_contrastive_options(args, "temp")
    similar = _similar_from(args, Columns.of(columns)) if IN_BATCH.holds(args) else {}
    return {**similar, **({"angle_temp": 1.0} if ANGLES.holds(args) else {})}


def _similar_from(args: ModelArguments, columns: Columns) -> dict[str, Any]:
    """Return the value of --similar_from or its default.

    Raises UserError if in-batch negatives are used for no pair.
    """
    if (scores := columns.scores) and (args.similar_from or 0) > scores[1]:
        raise UserError(
            f"{spell('similar_from')} {args.similar_from:g}: no pair has this score, since the highest is "
            f"{scores[1]:g}; give a lower one"
        )
    if columns.label == LABEL and columns.classes and "entailment" not in columns.classes:
        raise UserError(
            f"{spell('train_file')}: no row has the label entailment, and {spell('method', 'angle')} uses in-batch "
            f"negatives only for such rows; add such rows, or give {spell('in_batch_weight')} 0"
        )
    return {"similar_from": sum(scores) / 2} if scores else {}


CITATION = "Li and Li, *AoE: Angle-optimized Embeddings for Semantic Textual Similarity* (AnglE), ACL 2024."


@register(
    "angle",
    citation=CITATION,
    options=AngleOptions,
    defaults=_defaults,
    labels=(LABEL, SCORE),
    recipes={"full": Recipe(2e-5, batch_size=32)},
    tuning="full",
    pooler_type="cls_before_pooler",
    **dict.fromkeys(WEIGHTS, 1.0),
)
def angle(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build AnglE, the weighted sum of three losses: order by cosines, in-batch negatives, and order by angles."""
    pairs = pairs_with_targets("angle", Columns.of(columns))
    terms: dict[str, Term] = {}
    if args.cosine_weight:
        terms["cosine"] = Term(PairRanking(pairs, args.temp), args.cosine_weight)
    if args.in_batch_weight:
        least = TARGETS["entailment"]
        if args.similar_from is not None:
            least = args.similar_from
            notify(
                f"in-batch negatives are used for pairs with a score of {least:g} or more ({spell('similar_from')})"
            )
        terms["in_batch"] = Term(PairsInBatch(pairs, args.temp, least), args.in_batch_weight)
    if args.angle_weight:
        terms["angle"] = Term(PairRanking(pairs, args.angle_temp, angle_of_pairs), args.angle_weight)
    return pair_method(backbone, args, columns, terms)
