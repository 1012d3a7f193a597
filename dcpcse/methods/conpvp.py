"""ConPVP (Zeng et al. 2022), which contrasts anchors with virtual prototypes that are derived from prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.columns import CLASS, negatives_in
from dcpcse.data.views import View, require_anchor
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.templates import MASK, PROMPT, SENTENCE, Template
from dcpcse.losses import Term
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import contrastive, mlm_terms, own_templates, sentence_encoder
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, prototypes_of
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import COUNT, POOLERS_WITH_HEAD, Options, option


@dataclass
class ConPVPOptions(Options):
    """Options of ConPVP, which contrasts anchors with prototypes that are derived from prompts."""

    _argument_group_name = "ConPVP"

    prompt_len: int | None = option(
        None,
        "ConPVP: number of continuous prompt vectors between the sentence and [MASK]. Default: 4.",
        replaces=("template",),
        **COUNT,
    )
    instance_weight: float | None = option(
        None,
        "ConPVP: weight of an additional contrastive loss between two passes of the anchor. Default: 0 (off).",
        at_least=0,
    )


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    if args.second_template is not None:
        raise UserError(
            f"{spell('second_template')}: {spell('method', 'conpvp')} uses {spell('prototype_templates')} instead; "
            "leave it out"
        )
    prompts = [PROMPT] * (4 if args.prompt_len is None else args.prompt_len)
    if None not in (args.template, args.prompt_len) and Template.parse(args.template).prompts != len(prompts):
        raise OptionError(
            "prompt_len",
            args.prompt_len,
            f"{spell('template')} has a different number of {PROMPT} slots",
            "leave one of the two options out",
        )
    if args.prototypes == "none" and args.instance_weight:
        raise UserError(
            f"{spell('instance_weight')} {args.instance_weight:g} has no effect with {spell('prototypes', 'none')}, "
            "where the contrastive loss between two passes of the anchor is the only loss; leave it out"
        )
    return {
        "tuning": "full",
        "pooler_type": "mask",
        "template": " ".join([SENTENCE, *prompts, MASK]),
        "mlp_only_train": args.pooler_type in (None, *POOLERS_WITH_HEAD),
        "denoise": args.pooler_type in (None, "mask"),
        "prototypes": "both",
        "instance_weight": 0.0,
    }


CITATION = (
    "Zeng, Yin, Jiang, Wu and Cao, *Contrastive Learning with Prompt-derived Virtual Semantic Prototypes for "
    "Unsupervised Sentence Embedding*, Findings of EMNLP 2022."
)


@register("conpvp", citation=CITATION, labels=(CLASS,), defaults=_defaults, options=(ConPVPOptions, PrototypeOptions))
def conpvp(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build ConPVP (eq. 1 and Table 4 of its paper).

    A prototype is the [MASK] vector of a sentence in a template that is drawn from a set. For pairs, this sentence is
    the positive sentence. Otherwise, it is the anchor. The positive of an anchor is the prototype of the same example.
    The negatives are the other prototypes and all negated prototypes. Hard negatives are put into the anchor's
    template. Without prototypes (Table 4), the loss compares two passes of the anchor.
    """
    require_anchor(columns)
    positive = "positive" if "positive" in columns else "anchor"
    prototypes = prototypes_of(args, positive)
    model = sentence_encoder(backbone, args, [*own_templates(args), *prototypes.templates])
    views = [View("anchor", "anchor", (0,)), *prototypes.views_after(1)]
    terms = dict(prototypes.terms)
    if not terms or args.instance_weight:
        views.insert(1, View("positive", positive, (0,)))
        terms["contrastive"] = Term(contrastive(args), args.instance_weight if terms else 1.0)
    views += [View(name, name, (0,)) for name in negatives_in(columns)]
    return Method(model, tuple(views), {**terms, **mlm_terms(backbone, args)})
