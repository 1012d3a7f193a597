"""DCPCSE (Jiang and Wang 2022), which trains deep continuous prompts on a frozen encoder.

The losses are a contrastive loss and, optionally, an MLM loss with a decaying weight.
"""

from collections.abc import Sequence

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.hinge import HingeOptions, with_hinge
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes

CITATION = (
    "*Deep Continuous Prompt for Contrastive Learning of Sentence Embeddings*, an anonymous submission, later "
    "extended as: Jiang, Zhang and Wang, *Improved Universal Sentence Embeddings with Prompt-based Contrastive "
    "Learning and Energy-based Learning*, Findings of EMNLP 2022."
)


@register(
    "dcpcse",
    citation=CITATION,
    labels=(CLASS,),
    options=(PrototypeOptions, HingeOptions),
    tuning="deep",
    pooler_type="cls",
)
def dcpcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build DCPCSE (sections 2.1 and 2.2 of the paper), which trains only the prompts and the MLP head.

    The representation is the [CLS] vector. PromCSE, the later version of the paper, adds the energy-based hinge loss
    for sentence pairs.
    """
    return with_hinge(with_prototypes(backbone, args, columns), args)
