"""The energy-based hinge of PromCSE (Jiang et al. 2022) as a part of a method: what DCPCSE and SimCSE take of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpcse.losses import Term
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Need, flag, option, require

HINGE = Need("--do_eh_loss", lambda args: args.do_eh_loss)


@dataclass
class HingeOptions:
    """Options of the hinge, under the names of the public PromCSE code."""

    _argument_group_name = "energy-based hinge (PromCSE)"

    do_eh_loss: bool | None = flag(
        "Add the energy-based hinge to the loss of sentence pairs: the positive is to be nearer than the hardest "
        "negative, by a margin."
    )
    eh_loss_margin: float | None = option(None, "That margin, of cosines. Default: 0.2.", needs=HINGE)
    eh_loss_weight: float | None = option(None, "Weight of the hinge. Default: 10.", needs=HINGE)

    def __post_init__(self) -> None:
        margin, weight = self.eh_loss_margin, self.eh_loss_weight
        # Cosines differ by 2 at most.
        require(margin is None or 0 <= margin < 2, "--eh_loss_margin", margin, "in [0, 2)")
        require(weight is None or 0 < weight < math.inf, "--eh_loss_weight", weight, "above 0, and finite")

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """Margin and weight of the paper."""
        return {"eh_loss_margin": 0.2, "eh_loss_weight": 10.0} if self.do_eh_loss else {}


def with_hinge(method: Method, args: ModelArguments) -> Method:
    """The method with the hinge beside its other terms (PromCSE, eq. 12), where it is asked for.

    UserError for sentences alone: a sentence and itself are no pair that anything could come between.
    """
    if not args.do_eh_loss:
        return method
    if "positive" not in {view.column for view in method.views}:
        raise UserError(
            "--do_eh_loss is of pairs of sentences, and the training file has sentences alone; give a file of two or "
            "three columns, or leave it out"
        )
    hinge = EnergyHinge(args.eh_loss_margin, args.gather_gradient)
    return replace(method, terms={**method.terms, "energy_hinge": Term(hinge, args.eh_loss_weight)})
