"""ConPVP (Zeng et al. 2022): anchors with a continuous prompt against virtual prototypes that templates call forth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.views import View, require_anchor
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.templates import MASK, PROMPT, SENTENCE, Template
from dcpcse.losses import Term
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import contrastive, mlm_terms, own_templates, sentence_encoder
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, prototypes_of
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, option, require, require_count


@dataclass
class ConPVPOptions:
    """Options of ConPVP alone."""

    _argument_group_name = "ConPVP"

    prompt_len: int | None = option(
        None, "ConPVP: continuous prompts between sentence and [MASK]. Default: 4.", replaces=("template",)
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
    if args.prototypes == "none" and args.instance_weight:
        raise UserError("--prototypes none compares two anchors, and --instance_weight has no effect; leave it out")
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


@register("conpvp", citation=CITATION, defaults=_defaults, options=(ConPVPOptions, PrototypeOptions))
def conpvp(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Eq. 1: the anchor's [MASK] is near its own prototype, far from the others' and from all negated ones.

    A prototype is the [MASK] of the sentence in a template drawn from a set; where the data have pairs, of the
    positive sentence. A hard negative stands in the anchor's template. Without prototypes (Table 4) two anchors are
    compared.
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
    if "negative" in columns:
        views.append(View("negative", "negative", (0,)))
    return Method(model, tuple(views), {**terms, **mlm_terms(backbone, args)})
