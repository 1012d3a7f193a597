"""The energy-based hinge loss of PromCSE (Jiang et al. 2022), an option of several methods."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dcpcse.data.columns import LABEL, SCORE, Columns
from dcpcse.losses import Term
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import OptionError, spell
from dcpcse.utils.option_fields import Options, flag, needs_value, option

HINGE = needs_value("do_eh_loss", True)


@dataclass
class HingeOptions(Options):
    """Options of the hinge loss, with the names of the public PromCSE code."""

    _argument_group_name = "energy-based hinge (PromCSE)"

    do_eh_loss: bool | None = flag(
        "For sentence pairs: add the energy-based hinge loss, which separates the positive from the hardest negative "
        "by a margin."
    )
    eh_loss_margin: float | None = option(
        None, "Margin of the hinge loss, a difference of cosines. Default: 0.2.", needs=HINGE, at_least=0, below=2
    )
    eh_loss_weight: float | None = option(None, "Weight of the hinge loss. Default: 10.", needs=HINGE, above=0)

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return the margin and the weight of the hinge loss in the PromCSE paper.

        Raises UserError if the data are labelled or scored pairs, since the second sentence may contradict the anchor.
        """
        if self.do_eh_loss and (label := Columns.of(columns).label) in (LABEL, SCORE):
            raise OptionError(
                "do_eh_loss",
                reason=f"needs pairs of an anchor and its positive, but {spell('train_file')} has a column {label}",
                remedy=f"leave {spell('do_eh_loss', True)} out, or remove the column and the rows that are not "
                "positives",
            )
        return {"eh_loss_margin": 0.2, "eh_loss_weight": 10.0} if self.do_eh_loss else {}


def with_hinge(method: Method, args: ModelArguments) -> Method:
    """Add the hinge loss to the terms of a method (PromCSE, eq. 12) if --do_eh_loss is set.

    Args:
        method: The method.
        args: Options of the method.

    Raises:
        UserError: If --do_eh_loss is set and the data are single sentences. The positive is then the anchor sentence
            itself.
    """
    if not HINGE.holds(args):
        return method
    if "positive" not in {view.column for view in method.views}:
        raise OptionError(
            "do_eh_loss",
            reason=f"needs sentence pairs, but {spell('train_file')} has one column of sentences",
            remedy=f"give a file with two or three columns, or leave {spell('do_eh_loss', True)} out",
        )
    hinge = EnergyHinge(args.eh_loss_margin, args.gather_gradient)
    return replace(method, terms={**method.terms, "energy_hinge": Term(hinge, args.eh_loss_weight)})
