"""The energy-based hinge loss of PromCSE (Jiang et al. 2022), an option of several methods with a contrastive loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpcse.data.columns import LABEL, SCORE, Columns
from dcpcse.losses import Term
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Need, flag, option, require

HINGE = Need("--do_eh_loss", lambda args: args.do_eh_loss)


@dataclass
class HingeOptions:
    """Options of the hinge loss, named as in the public PromCSE code."""

    _argument_group_name = "energy-based hinge (PromCSE)"

    do_eh_loss: bool | None = flag(
        "For sentence pairs: add the energy-based hinge loss, which separates the positive from the hardest negative "
        "by a margin."
    )
    eh_loss_margin: float | None = option(
        None, "Margin of the hinge loss, a difference of cosines. Default: 0.2.", needs=HINGE
    )
    eh_loss_weight: float | None = option(None, "Weight of the hinge loss. Default: 10.", needs=HINGE)

    def __post_init__(self) -> None:
        margin, weight = self.eh_loss_margin, self.eh_loss_weight
        # Two cosines differ by at most 2.
        require(margin is None or 0 <= margin < 2, "--eh_loss_margin", margin, "at least 0 and below 2, such as 0.2")
        require(weight is None or 0 < weight < math.inf, "--eh_loss_weight", weight, "above 0, and finite")

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return the margin and the weight of the PromCSE paper.

        Raises UserError for labelled or scored pairs, whose second sentence may contradict the anchor.
        """
        if self.do_eh_loss and (label := Columns.of(columns).label) in (LABEL, SCORE):
            raise UserError(
                f"--do_eh_loss needs pairs of an anchor and its positive, but --train_file has a column {label}; "
                "leave --do_eh_loss out, or remove the column and the rows that are no positives"
            )
        return {"eh_loss_margin": 0.2, "eh_loss_weight": 10.0} if self.do_eh_loss else {}


def with_hinge(method: Method, args: ModelArguments) -> Method:
    """Add the hinge loss to the terms of a method (PromCSE, eq. 12) if --do_eh_loss is set.

    Raises UserError if the data are single sentences, because the positive is then the anchor sentence itself.
    """
    if not args.do_eh_loss:
        return method
    if "positive" not in {view.column for view in method.views}:
        raise UserError(
            "--do_eh_loss needs sentence pairs, but --train_file has one column of sentences; give a file with two or "
            "three columns, or leave --do_eh_loss out"
        )
    hinge = EnergyHinge(args.eh_loss_margin, args.gather_gradient)
    return replace(method, terms={**method.terms, "energy_hinge": Term(hinge, args.eh_loss_weight)})
