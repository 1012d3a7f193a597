"""ConPVP (Zeng et al. 2022): anchors with a continuous prompt against virtual prototypes that templates call forth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..arguments import ModelArguments
from ..backbones import Backbone
from ..errors import UserError
from ..objectives import Term
from ..options import option, require, require_count
from ..parsing import parse_yaml, read_text
from ..templates import MASK, PROMPT, SENTENCE, Template
from ..views import View, require_anchor
from .parts import contrastive, mlm_terms, parse_template, sentence_encoder
from .registry import HEADED, Method, register

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


@dataclass
class Options:
    """Options of ConPVP alone."""

    _argument_group_name = "ConPVP"

    prompt_len: int | None = option(None, "ConPVP: continuous prompts between sentence and [MASK]. Default: 4.")
    prototypes: str | None = option(
        None,
        "ConPVP: both (default), positive (without negated prototypes: w/o c-) or none (two anchors instead: w/o c+ & "
        "c-).",
        choices=["both", "positive", "none"],
    )
    prototype_templates: str | None = option(
        None, "ConPVP: paper (default), code (those of the public code) or a YAML file with lists positive, negative."
    )
    instance_weight: float | None = option(
        None, "ConPVP: weight of an additional contrastive loss between two passes of the anchor. Default: 0, none."
    )

    def __post_init__(self) -> None:
        require_count("prompt_len", self.prompt_len)
        require((self.instance_weight or 0) >= 0, "--instance_weight", self.instance_weight, "0 or more")


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    if args.second_template is not None:
        raise UserError("--second_template: ConPVP has --prototype_templates for its other views; leave it out")
    prompts = [PROMPT] * (4 if args.prompt_len is None else args.prompt_len)
    if None not in (args.template, args.prompt_len) and Template.parse(args.template).prompts != len(prompts):
        raise UserError(
            f"--prompt_len {args.prompt_len}: --template has another number of {PROMPT} slots; leave one out"
        )
    return {
        "tuning": "full",
        "pooler_type": "mask",
        "template": " ".join([SENTENCE, *prompts, MASK]),
        "mlp_only_train": args.pooler_type in (None, *HEADED),
        "denoise": args.pooler_type in (None, "mask"),
        "prototypes": "both",
        "prototype_templates": "paper" if args.prototypes != "none" else None,
        "instance_weight": 0.0,
    }


CITATION = (
    "Zeng, Yin, Jiang, Wu and Cao, *Contrastive Learning with Prompt-derived Virtual Semantic Prototypes for "
    "Unsupervised Sentence Embedding*, Findings of EMNLP 2022."
)


@register("conpvp", citation=CITATION, defaults=_defaults, options=Options)
def conpvp(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Eq. 1: the anchor's [MASK] is near its own prototype, far from the others' and from all negated ones.

    A prototype is the [MASK] of the sentence in a template drawn from a set; where the data have pairs, of the
    positive sentence. A hard negative stands in the anchor's template.
    """
    require_anchor(columns)
    sets = _template_sets(args)
    templates = [parse_template(args.template, args), *map(Template.parse, (*sets["positive"], *sets["negative"]))]
    model = sentence_encoder(backbone, args, templates)
    terms = {**_terms(args, sets), **mlm_terms(backbone, args)}
    return Method(model, _views(args, columns, sets), terms)


def _template_sets(args: ModelArguments) -> Mapping[str, Sequence[str]]:
    """The sets that prototypes are drawn from; empty for a kind that is left out (Table 4)."""
    if args.prototypes == "none":
        if args.prototype_templates or args.instance_weight:
            raise UserError(
                "--prototypes none compares two anchors; --prototype_templates and --instance_weight have no effect "
                "beside it; leave them out"
            )
        return {"positive": (), "negative": ()}
    sets = TEMPLATE_SETS.get(args.prototype_templates) or _read_sets(Path(args.prototype_templates))
    return {**sets, "negative": sets["negative"] if args.prototypes == "both" else ()}


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


def _views(args: ModelArguments, columns: Sequence[str], sets: Mapping[str, Sequence[str]]) -> tuple[View, ...]:
    positive = "positive" if "positive" in columns else "anchor"
    first = 1 + len(sets["positive"])
    views = [View("anchor", "anchor", (0,))]
    if not sets["positive"] or args.instance_weight:
        views.append(View("positive", positive, (0,)))
    if sets["positive"]:
        views.append(View("prototype", positive, tuple(range(1, first))))
    if sets["negative"]:
        views.append(View("negated", positive, tuple(range(first, first + len(sets["negative"])))))
    if "negative" in columns:
        views.append(View("negative", "negative", (0,)))
    return tuple(views)


def _terms(args: ModelArguments, sets: Mapping[str, Sequence[str]]) -> dict[str, Term]:
    instance_wise = contrastive(args)
    if not sets["positive"]:
        return {"contrastive": Term(instance_wise)}
    others = ("negated",) if sets["negative"] else ()
    terms = {"prototypical": Term(contrastive(args, positive="prototype", others=others))}
    if args.instance_weight:
        terms["contrastive"] = Term(instance_wise, args.instance_weight)
    return terms
