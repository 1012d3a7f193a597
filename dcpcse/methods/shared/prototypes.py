"""Prototypes as a part of a method (ConPVP; Zeng et al. 2022): positives that templates call forth of a sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.data.views import View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.templates import PROMPT, Template
from dcpcse.losses import Term
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import NOTHING, Part, contrastive, instance_wise
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Need, option, require
from dcpcse.utils.parsing import parse_yaml, read_text

PAPER = {
    "positive": (
        'Given "{sentence}", we assume that "[MASK]"',
        '"{sentence}", is this review positive ? [MASK] .',
        '"{sentence}", is [MASK] news',
        '"{sentence}", is a [MASK] one',
        '"{sentence}" . In summary : "[MASK]"',
        'By "{sentence}" they mean [MASK] .',
        'Article "{sentence}" belongs to a [MASK] topic',
        'This sentence : "{sentence}" means [MASK] .',
    ),
    "negative": (
        '"{sentence}", is this review negative ? [MASK] .',
        'Without "{sentence}", they mean [MASK] .',
        '"{sentence}" is inconsistent with "[MASK]"',
        '"{sentence}" is totally different from : "[MASK]"',
        '"{sentence}" which does not denote [MASK]',
        '"{sentence}" is not a [MASK] one',
        'This sentence : "{sentence}" does not mean [MASK] .',
        'Article "{sentence}" is definitely not about the [MASK] topic',
    ),
}
"""Table 1, its quotes put right where the print lost them."""

CODE = {
    "positive": (*PAPER["positive"], '"{sentence}" , is related to "[MASK]"'),
    "negative": (
        '"{sentence}", is this review negative ? [MASK] .',
        'Without "{sentence}", they mean [MASK] .',
        '"{sentence}" is inconsistent to "[MASK]"',
        '"{sentence}" is totally different to : "[MASK]"',
        '"{sentence}" which not denotes [MASK] .',
        '"{sentence}" is not a [MASK] one',
        'This sentence : "{sentence}" not means [MASK] .',
        'Article "{sentence}" is definitely not about the [MASK] topic',
    ),
}
"""The public code's nine and eight, as far as its wording is known to differ."""

TEMPLATE_SETS: Mapping[str, Mapping[str, Sequence[str]]] = {"paper": PAPER, "code": CODE}

PROTOTYPES = Need(
    "--prototypes both or positive", lambda args: args.prototypes not in (None, "none"), voids="prototypes"
)


@dataclass
class PrototypeOptions:
    """Options of prototypes, for every method that takes them."""

    _argument_group_name = "prototypes (ConPVP)"

    prototypes: str | None = option(
        None,
        "Prototypes, the [MASK] of a sentence in drawn templates, as positives: both (with negated prototypes as "
        "negatives of all; default of conpvp), positive (without them: w/o c-) or none (default elsewhere; in conpvp "
        "two anchors instead: w/o c+ & c-).",
        choices=["both", "positive", "none"],
    )
    prototype_templates: str | None = option(
        None,
        "Their templates: paper (ConPVP's; default), code (those of its public code) or a YAML file with lists "
        "positive, negative.",
        needs=PROTOTYPES,
    )
    prototype_weight: float | None = option(None, "Weight of the prototypical loss. Default: 1.", needs=PROTOTYPES)

    def __post_init__(self) -> None:
        weight = self.prototype_weight
        require(weight is None or 0 < weight < math.inf, "--prototype_weight", weight, "above 0, and finite")

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """What stands for options that are left out; UserError for an anchor that is no [MASK]."""
        if not PROTOTYPES.holds(self):
            return {}
        if self.pooler_type != "mask" or self.template is None:
            raise UserError(
                f"--prototypes {self.prototypes}: prototypes are [MASK] vectors, and the anchor has to be one; "
                "give --pooler_type mask and a --template, such as 'This sentence : \"{sentence}\" means [MASK].', "
                "or --prototypes none"
            )
        return {"prototype_templates": "paper"}


def with_prototypes(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """An instance-wise method, with prototypes beside its positives where they are asked for."""
    column = "positive" if "positive" in columns else "anchor"
    return instance_wise(backbone, args, columns, prototypes_of(args, column))


def prototypes_of(args: ModelArguments, column: str) -> Part:
    """What prototypes add to a method, of the sentences of a column; nothing where none are asked for.

    The views are `prototype` and `negated`. The term wants each anchor (view `anchor`) near its own prototype, far
    from the others', from all negated ones and from the hard negatives, if there are any (ConPVP, eq. 1).
    """
    if not PROTOTYPES.holds(args):
        return NOTHING
    sets = TEMPLATE_SETS.get(args.prototype_templates) or _read_sets(Path(args.prototype_templates))
    kinds = {"prototype": sets["positive"], "negated": sets["negative"] if args.prototypes == "both" else ()}
    templates = tuple(map(Template.parse, (*kinds["prototype"], *kinds["negated"])))
    first = len(kinds["prototype"])
    numbers = {"prototype": range(first), "negated": range(first, len(templates))}
    views = tuple(View(name, column, tuple(numbers[name])) for name, texts in kinds.items() if texts)
    others = ("negated",) if kinds["negated"] else ()
    weight = 1.0 if args.prototype_weight is None else args.prototype_weight
    term = Term(contrastive(args, positive="prototype", others=others), weight)
    return Part(templates, views, {"prototypical": term})


def _read_sets(path: Path) -> Mapping[str, Sequence[str]]:
    wanted = f"a YAML file with the lists positive and negative, or one of {', '.join(TEMPLATE_SETS)}"
    try:
        content = parse_yaml(read_text(path))
    except OSError as error:
        raise UserError(f"--prototype_templates {path}: {error.strerror}; give {wanted}") from error
    except ValueError as error:
        raise UserError(f"--prototype_templates {path} is not readable YAML; give {wanted}") from error
    lists = content if isinstance(content, dict) else {}
    if set(lists) != {"positive", "negative"} or not all(lists.values()):
        raise UserError(f"--prototype_templates {path} holds other things; give {wanted}")
    for text in (*lists["positive"], *lists["negative"]):
        if Template.parse(str(text)).prompts:
            raise UserError(f"{path}: the template {text!r} has {PROMPT} slots; only the anchor's may have some")
    return {kind: tuple(map(str, texts)) for kind, texts in lists.items()}
