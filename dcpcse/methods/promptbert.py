"""PromptBERT (Jiang et al. 2022), which represents a sentence by the denoised [MASK] vector of a template.

The two views of a sentence use two templates. Each further template gives a further view. With `--tuning shallow`, the
method is OptiPrompt (section 4.2 of the paper), which trains only the input vectors of the template's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.columns import CLASS
from dcpcse.data.views import View
from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.templates import PROMPT, Template
from dcpcse.losses import Term
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.building import Part, contrastive, pair_method
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, prototypes_of
from dcpcse.methods.tunings import TUNINGS, Recipe
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, Options, option

FIRST_TEMPLATE = 'This sentence of "{sentence}" means [MASK].'
SECOND_TEMPLATE = 'This sentence : "{sentence}" means [MASK].'
"""The two templates for BERT in Table 14 of the paper. The presets contain the templates for RoBERTa."""


@dataclass
class PromptBERTOptions(Options):
    """Options of PromptBERT, which represents a sentence by the [MASK] vector of a template."""

    _argument_group_name = "PromptBERT"

    further_templates: list[str] | None = option(
        None,
        "PromptBERT: further templates of the positive, besides --second_template. The anchor is compared with the "
        "positive in each of them, and the loss is the mean.",
        text=True,
    )

    def check(self) -> None:
        """Raise UserError if a text in --further_templates is not a template."""
        for text in self.further_templates or ():
            Template.parse(text)

    def defaults(self, columns: Sequence[str]) -> dict[str, Any]:
        """Return {}, since no option has a default. Raises UserError if --further_templates contradicts an option."""
        further = self.further_templates or []
        if further and TUNINGS[self.tuning].needs_template:
            raise UserError(
                f"{spell('further_templates')}: {spell('tuning', self.tuning)} trains the tokens of one template; "
                "leave them out"
            )
        if further and self.positive == "crop":
            raise UserError(
                f"{spell('further_templates')} and {spell('positive', 'crop')} choose different positives; leave one "
                "out"
            )
        used = [self.second_template or self.template, *further]
        for text in further:
            if PROMPT in text:
                raise UserError(
                    f"{spell('further_templates')} {text!r} has {PROMPT} slots, which only {spell('template')} can "
                    "have; remove them"
                )
            if used.count(text) > 1:
                raise UserError(
                    f"{spell('further_templates')} {text!r}: the positive already has this template; leave it out"
                )
        return {}


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    """Return the paper's settings for single sentences and for pairs (section 5 and appendix C).

    One setting comes from the public code: models that are trained on pairs denoise after training too. The paper uses
    denoising "only in our contrastive training objective" (section 6.1).
    """
    optiprompt = args.tuning == "shallow"
    supervised = "positive" in columns
    two = args.template is None and not supervised and not optiprompt
    denoised = not optiprompt and args.pooler_type in (None, "mask")
    return {
        "tuning": "full",
        "pooler_type": "mask",
        "template": SECOND_TEMPLATE if optiprompt else FIRST_TEMPLATE,
        "second_template": SECOND_TEMPLATE if two else None,
        "denoise": denoised,
        # After training, unsupervised models use the plain [MASK] vector (appendix C); supervised models denoise
        # it before the head, as in the public code.
        "denoise_at_inference": denoised and supervised and args.denoise is not False,
        "mlp_only_train": not supervised and args.pooler_type in (None, *POOLERS_WITH_HEAD),
    }


CITATION = (
    "Jiang, Jiao, Huang, Zhang, Wang, Zhuang, Wei, Huang, Deng and Zhang, *PromptBERT: Improving BERT Sentence "
    "Embeddings with Prompts*, EMNLP 2022."
)


# The learning rate comes from the paper's Table 14. OptiPrompt's rate, 3e-5 for five epochs of a million sentences,
# would not move the vectors of a template in a short training; they have the rate of all methods with --tuning
# shallow.
@register(
    "promptbert",
    citation=CITATION,
    labels=(CLASS,),
    options=(PromptBERTOptions, PrototypeOptions),
    defaults=_defaults,
    recipes={"full": Recipe(1e-5)},
)
def promptbert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build PromptBERT (sections 4.1 to 4.3 and eq. 4 of its paper).

    Every sentence is put into a template. The [MASK] vector of the empty template is subtracted from the [MASK] vector
    of the sentence.
    """
    column = "positive" if "positive" in columns else "anchor"
    further = _further_positives(args, column)
    terms = {"contrastive": Term(contrastive(args), 1 / (1 + len(further.views)))}
    return pair_method(backbone, args, columns, terms, further.followed_by(prototypes_of(args, column)))


def _further_positives(args: ModelArguments, column: str) -> Part:
    """Return the templates of --further_templates. Each template has a view of the column and a contrastive loss.

    Each loss has the weight 1 / n, where n is the number of positives, including the first positive. The negatives of
    a loss are the other sentences in the same further template, and all hard negatives.
    """
    templates = tuple(map(Template.parse, args.further_templates or ()))
    names = [f"further_{number}" for number in range(1, 1 + len(templates))]
    views = tuple(View(name, column, (index,)) for index, name in enumerate(names))
    weight = 1 / (1 + len(templates))
    terms = {f"contrastive_{name}": Term(contrastive(args, positive=name), weight) for name in names}
    return Part(templates, views, terms)
