"""SCPCSE (Jiang and Wang 2022, section 3.4): shallow prompts in the places of a template's tokens, all else frozen."""

from collections.abc import Sequence

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
"""The manual template whose embeddings the prompts begin as; the paper's has no full stop, PromptBERT's has one."""


@register(
    "scpcse",
    citation=CITATION,
    options=PrototypeOptions,
    tuning="shallow",
    pooler_type="mask",
    template=TEMPLATE,
    mlp_only_train=True,
)
def scpcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """[p_1 … p_m] sentence [p_m+1 … p_l] [MASK]: [MASK] is the representation.

    The paper does not say where the MLP stands; as in its unsupervised form it is used in training only.
    """
    return with_prototypes(backbone, args, columns)
