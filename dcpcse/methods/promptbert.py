"""PromptBERT (Jiang et al. 2022), which represents a sentence by the [MASK] vector of a template and denoises it.

The two views of a sentence use two templates. With `--tuning shallow` the method is OptiPrompt (section 4.2 of the
paper), which trains only the input vectors of the template's tokens.
"""

from collections.abc import Sequence
from typing import Any

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.recipes import Recipe
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD

FIRST_TEMPLATE = 'This sentence of "{sentence}" means [MASK].'
SECOND_TEMPLATE = 'This sentence : "{sentence}" means [MASK].'
"""The templates for BERT in Table 14 of the paper. The presets contain the templates for RoBERTa."""


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    """Return the paper's settings for single sentences and for pairs (section 5 and appendix C).

    One setting is that of the public code: models of pairs denoise after training, too. The paper uses denoising "only
    in our contrastive training objective" (section 6.1).
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


# The learning rate is that of the paper's Table 14. OptiPrompt's, 3e-5 for five epochs of a million sentences, would
# not move the vectors of a template in a short training; they have the rate of all methods with --tuning shallow.
@register(
    "promptbert",
    citation=CITATION,
    labels=(CLASS,),
    options=PrototypeOptions,
    defaults=_defaults,
    recipes={"full": Recipe(1e-5)},
)
def promptbert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build PromptBERT (sections 4.1 to 4.3 and eq. 4 of its paper).

    Every sentence is put into a template, and the [MASK] vector of the template alone is subtracted.
    """
    return with_prototypes(backbone, args, columns)
