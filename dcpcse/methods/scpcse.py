"""SCPCSE (DCPCSE, section 3.3 and appendix A), which trains only the input vectors of a template's tokens."""

from collections.abc import Sequence

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes

CITATION = (
    "*Deep Continuous Prompt for Contrastive Learning of Sentence Embeddings*, an anonymous submission, later "
    "extended as: Jiang, Zhang and Wang, *Improved Universal Sentence Embeddings with Prompt-based Contrastive "
    "Learning and Energy-based Learning*, Findings of EMNLP 2022."
)

TEMPLATE = 'This sentence : "{sentence}" means [MASK]'
"""The template that initialises the prompts.

As in the paper, it does not end with a period, unlike PromptBERT's template.
"""


@register(
    "scpcse",
    citation=CITATION,
    labels=(CLASS,),
    options=PrototypeOptions,
    tuning="shallow",
    pooler_type="mask",
    template=TEMPLATE,
    mlp_only_train=True,
)
def scpcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build SCPCSE, which trains the prompts p_i in `[p_1 … p_m] sentence [p_m+1 … p_l] [MASK]`.

    The representation is the [MASK] vector. The paper does not say whether the MLP head is used at inference. This
    implementation uses the head in training only, as the paper does in the unsupervised setting.
    """
    return with_prototypes(backbone, args, columns)
