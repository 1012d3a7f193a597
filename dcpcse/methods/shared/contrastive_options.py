"""Options of the contrastive loss, which methods without one refuse."""

from typing import Any

from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import DEFAULTS
from dcpcse.utils.errors import OptionError, spell

CONTRASTIVE_OPTIONS = ("temp", "hard_negative_weight", "gather_gradient", "guide")


def refuse_contrastive_options(args: ModelArguments, *used: str, data: str = "") -> dict[str, Any]:
    """Return no defaults, or raise UserError for an option of the contrastive loss that has no effect.

    Args:
        args: Options of the method.
        used: Options of the contrastive loss that the method uses.
        data: The data for which the method has no such loss, for the message.
    """
    for name in CONTRASTIVE_OPTIONS:
        if name not in used and getattr(args, name) != DEFAULTS[name]:
            raise OptionError(
                name,
                reason=f"has no effect: {spell('method', args.method)} has no contrastive loss{data}",
                remedy="leave it out",
            )
    return {}
