"""RankCSE (Liu and others, 2023), which adds two losses to SimCSE.

The first loss makes the rankings by an anchor and by its positive agree. The second loss makes the model learn the
rankings of teachers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.pooling import POOLERS
from dcpcse.losses import Term
from dcpcse.losses.guide import GuideSource
from dcpcse.losses.ranking import RANKINGS, RankConsistency, RankDistillation
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import instance_wise
from dcpcse.methods.registry import Method, register
from dcpcse.utils.errors import OptionError, spell
from dcpcse.utils.option_fields import RATE, Need, Options, needs_value, option

TWO_TEACHERS = Need(lambda: f"two teachers ({spell('teacher')})", lambda args: len(args.teacher or ()) == 2)
LIST_NET = needs_value("ranking", "listnet", voids=True)


@dataclass
class RankCSEOptions(Options):
    """Options of RankCSE, which adds losses of rankings to SimCSE's loss."""

    _argument_group_name = "RankCSE"
    teacher: list[str] | None = option(
        None, "RankCSE: one or two frozen encoders whose rankings are learned (required), as for --guide."
    )
    teacher_pooler: str | None = option(
        None, "RankCSE: representation of teachers that are plain encoders. Default: avg.", choices=list(POOLERS)
    )
    teacher_weight: float | None = option(
        None,
        "RankCSE: weight of the first of two teachers' cosines; the weights of both sum to 1. Default: 1/3.",
        needs=TWO_TEACHERS,
        **RATE,
    )
    ranking: str | None = option(
        None, f"RankCSE: loss that compares rankings: {', '.join(RANKINGS)}. Default: listmle.", choices=list(RANKINGS)
    )
    ranking_temp: float | None = option(None, "RankCSE: temperature of the model's ranking. Default: 0.05.", above=0)
    teacher_temp: float | None = option(
        None,
        "RankCSE: temperature of the teachers' ranking. Default: half of --ranking_temp.",
        needs=LIST_NET,
        above=0,
    )
    ranking_weight: float | None = option(None, "RankCSE: weight of the teachers' rankings. Default: 1.", above=0)
    consistency_weight: float | None = option(
        None, "RankCSE: weight of the consistency of two passes' rankings; 0 leaves it out. Default: 1.", at_least=0
    )

    def check(self) -> None:
        """Raise OptionError if more than two teachers are given."""
        if len(self.teacher or ()) > 2:
            raise OptionError("teacher", self.teacher, "must be one or two encoders")


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    if not args.teacher:
        raise OptionError(
            "teacher",
            reason=f"is missing: {spell('method', 'rankcse')} learns the rankings of one or two encoders",
            remedy="give one or two encoders",
        )
    share = {"teacher_weight": 1 / 3} if TWO_TEACHERS.holds(args) else {}
    of_teachers = {"teacher_temp": (args.ranking_temp or 0.05) / 2} if LIST_NET.holds(args) else {}
    return {"ranking_temp": 0.05, **share, **of_teachers}


CITATION = (
    "Liu, Liu, Wang, Wang, Wu, Xian, Zhao, Chen and Yan, *RankCSE: Unsupervised Sentence Representations Learning via "
    "Learning to Rank*, ACL 2023."
)


@register(
    "rankcse",
    citation=CITATION,
    labels=(CLASS,),
    options=RankCSEOptions,
    defaults=_defaults,
    tuning="full",
    pooler_type="cls",
    ranking="listmle",
    ranking_weight=1.0,
    consistency_weight=1.0,
)
def rankcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build RankCSE: SimCSE's loss, a loss of equal rankings by anchor and positive, and one of teachers' rankings."""
    method = instance_wise(backbone, args, columns)
    sources = [GuideSource(encoder, args.teacher_pooler, spell("teacher")) for encoder in args.teacher]
    shares = [args.teacher_weight, 1 - args.teacher_weight] if len(sources) == 2 else [1.0]
    guides = dict(zip(("teacher", "second_teacher"), sources, strict=False))
    weights = dict(zip(guides, shares, strict=True))
    temperatures = args.ranking_temp, args.teacher_temp or args.ranking_temp
    distillation = RankDistillation(weights, args.ranking, *temperatures, args.gather_gradient)
    terms = {**method.terms, "ranking": Term(distillation, args.ranking_weight)}
    if args.consistency_weight:
        terms["consistency"] = Term(RankConsistency(args.temp, args.gather_gradient), args.consistency_weight)
    return replace(method, terms=terms, guides=guides)
