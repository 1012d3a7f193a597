"""PromptBERT (Jiang et al. 2022): the [MASK] of a template, two templates as views, and template denoising.

With `--tuning shallow` it is OptiPrompt as section 4.2 uses it: the template's tokens are trained, all else is frozen.
"""

from collections.abc import Sequence
from typing import Any

from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD

FIRST_TEMPLATE = 'This sentence of "{sentence}" means [MASK].'
SECOND_TEMPLATE = 'This sentence : "{sentence}" means [MASK].'
"""Table 14, BERT. RoBERTa has its own there; the presets name them."""


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    """What the paper does with sentences alone, and with pairs (section 5 and appendix C)."""
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
        # At test time: the plain [MASK] vector if unsupervised, denoised and through the head if supervised.
        "denoise_at_inference": denoised and supervised and args.denoise is not False,
        "mlp_only_train": not supervised and args.pooler_type in (None, *POOLERS_WITH_HEAD),
    }


CITATION = (
    "Jiang, Jiao, Huang, Zhang, Wang, Zhuang, Wei, Huang, Deng and Zhang, *PromptBERT: Improving BERT Sentence "
    "Embeddings with Prompts*, EMNLP 2022."
)


@register("promptbert", citation=CITATION, options=PrototypeOptions, defaults=_defaults)
def promptbert(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """The template is put around every sentence, and its own vector is subtracted (sections 4.1 to 4.3, eq. 4)."""
    return with_prototypes(backbone, args, columns)
