"""Prompt-derived prototypes (ConPVP; Zeng et al. 2022), which several methods can use as positives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.data.views import View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.templates import PROMPT, Template
from dcpcse.losses import Term
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import EMPTY_PART, Part, contrastive, instance_wise
from dcpcse.methods.registry import Method
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import Need, Options, option
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
"""The templates of Table 1 of ConPVP, with the quotation marks that are missing in print."""

CODE = {
    "positive": (
        'Given " {sentence} " , we assume that " [MASK] "',
        '" {sentence} " , Is this review positive ? [MASK] .',
        '" {sentence} " is a [MASK] news',
        '" {sentence} " is a [MASK] one',
        '" {sentence} " . In summary : " [MASK] "',
        'By " {sentence} " they mean [MASK] .',
        'Article " {sentence} " belongs to a [MASK] topic',
        'This sentence : " {sentence} " means [MASK] .',
        '" {sentence} " , is related to " [MASK] "',
    ),
    "negative": (
        '" {sentence} " , Is this review negative ? [MASK] .',
        'Without " {sentence} " they mean [MASK] .',
        '" {sentence} " is inconsistent to " [MASK] "',
        '" {sentence} " is totally different to : " [MASK] "',
        '" {sentence} " which not denotes [MASK] .',
        '" {sentence} " is not a [MASK] one',
        'This sentence : " {sentence} " not means [MASK] .',
        'Article " {sentence} " is definitely not about the [MASK] topic',
    ),
}
"""The nine positive and eight negative templates of the public code, for all encoders.

Spaces inside the quotes matter only for byte-level tokenizers (RoBERTa). For them, the public code tokenises the text
before the sentence separately, so the last space of this text becomes a token, and the sentence begins without a
space. Here, the space belongs to the first word of the sentence, as in plain text. In every template of the public
code, exactly one token follows [MASK] before the end, because the code finds [MASK] by this distance.
"""

TEMPLATE_SETS: Mapping[str, Mapping[str, Sequence[str]]] = {"paper": PAPER, "code": CODE}

PROTOTYPES = Need(
    lambda: f"{spell('prototypes', 'both')} or positive",
    lambda args: getattr(args, "prototypes", None) not in (None, "none"),
    voids="prototypes",
)


@dataclass
class PrototypeOptions(Options):
    """Options of prototypes: [MASK] vectors of a sentence in drawn templates, which several methods use."""

    _argument_group_name = "prototypes (ConPVP)"

    prototypes: str | None = option(
        None,
        "Use prototypes, the [MASK] vectors of a sentence in randomly drawn templates, as positives: both (with "
        "negated prototypes as negatives; default of conpvp), positive (without negated ones: w/o c-) or none "
        "(default of the other methods; conpvp then compares two anchors: w/o c+ & c-).",
        choices=["both", "positive", "none"],
    )
    prototype_templates: str | None = option(
        None,
        "Templates of the prototypes: paper (ConPVP, Table 1; default), code (its public code) or a YAML file with "
        "the lists positive and negative.",
        needs=PROTOTYPES,
    )
    prototype_weight: float | None = option(
        None, "Weight of the prototypical loss. Default: 1.", needs=PROTOTYPES, above=0
    )

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return values for options that were left out.

        Raises UserError if prototypes are used and anchors are not represented by [MASK] vectors.
        """
        if not PROTOTYPES.holds(self):
            return {}
        if self.pooler_type != "mask" or self.template is None:
            raise UserError(
                f"{spell('prototypes', self.prototypes)} needs the [MASK] vector of a template as the anchor; give "
                f'{spell("pooler_type", "mask")} and a {spell("template")}, such as \'This sentence : "{{sentence}}" '
                f"means [MASK].', or {spell('prototypes', 'none')}"
            )
        return {"prototype_templates": "paper"}


def with_prototypes(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build a method with the contrastive loss and, if --prototypes is set, the prototypical loss.

    Args:
        backbone: The loaded encoder.
        args: Options of the method.
        columns: The columns of the training data.
    """
    column = "positive" if "positive" in columns else "anchor"
    return instance_wise(backbone, args, columns, prototypes_of(args, column))


def prototypes_of(args: ModelArguments, column: str) -> Part:
    """Return the templates, views and loss term of prototypes. Without --prototypes, return an empty part.

    The views are `prototype` and `negated`. The positive of each anchor (view `anchor`) is the prototype of the same
    example. The negatives are the other prototypes, all negated prototypes and any hard negatives (ConPVP, eq. 1).

    Args:
        args: Options of the method.
        column: The column whose sentences are put into the prototype templates.

    Raises:
        UserError: If the file given by --prototype_templates is unusable.
    """
    if not PROTOTYPES.holds(args):
        return EMPTY_PART
    sets = TEMPLATE_SETS.get(args.prototype_templates) or _read_sets(Path(args.prototype_templates))
    kinds = {"prototype": sets["positive"], "negated": sets["negative"] if args.prototypes == "both" else ()}
    templates = tuple(map(Template.parse, (*kinds["prototype"], *kinds["negated"])))
    first = len(kinds["prototype"])
    indices = {"prototype": range(first), "negated": range(first, len(templates))}
    views = tuple(View(name, column, tuple(indices[name])) for name, texts in kinds.items() if texts)
    others = ("negated",) if kinds["negated"] else ()
    weight = 1.0 if args.prototype_weight is None else args.prototype_weight
    term = Term(contrastive(args, positive="prototype", others=others), weight)
    return Part(templates, views, {"prototypical": term})


def _read_sets(path: Path) -> Mapping[str, Sequence[str]]:
    allowed = f"a YAML file with the lists positive and negative, or one of {', '.join(TEMPLATE_SETS)}"
    try:
        content = parse_yaml(read_text(path))
    except OSError as error:
        raise OptionError("prototype_templates", path, f"{error.strerror}", f"give {allowed}") from error
    except ValueError as error:
        raise OptionError("prototype_templates", path, "not valid YAML", f"give {allowed}") from error
    lists = content if isinstance(content, dict) else {}
    if set(lists) != {"positive", "negative"} or not all(lists.values()):
        raise OptionError("prototype_templates", path, "expected the keys positive and negative", f"give {allowed}")
    for text in (*lists["positive"], *lists["negative"]):
        if Template.parse(str(text)).prompts:
            raise OptionError(
                "prototype_templates",
                path,
                f"the template {text!r} has {PROMPT} slots, which only the anchor's template can have",
                "remove them",
            )
    return {kind: tuple(map(str, texts)) for kind, texts in lists.items()}
