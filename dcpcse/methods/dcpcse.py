"""DCPCSE (Jiang and Wang 2022): deep continuous prompts on a frozen encoder, contrastive loss, decaying MLM loss."""

from collections.abc import Sequence

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


@register("dcpcse", citation=CITATION, options=(PrototypeOptions, HingeOptions), tuning="deep", pooler_type="cls")
def dcpcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Train only the prompts and the MLP head; the representation is [CLS] (sections 2.1 and 2.2).

    The later version of the paper, PromCSE, adds the energy-based hinge for sentence pairs.
    """
    return with_hinge(with_prototypes(backbone, args, columns), args)
