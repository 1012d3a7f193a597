"""SimCSE (Gao, Yao and Chen, 2021), which trains all weights with two views.

The views are one sentence with two dropout masks, or a pair.
"""

from collections.abc import Sequence

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.hinge import HingeOptions, with_hinge
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes

CITATION = "Gao, Yao and Chen, *SimCSE: Simple Contrastive Learning of Sentence Embeddings*, EMNLP 2021."


@register(
    "simcse",
    citation=CITATION,
    labels=(CLASS,),
    options=(PrototypeOptions, HingeOptions),
    tuning="full",
    pooler_type="cls",
)
def simcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build SimCSE (sections 3 and 4 of its paper): the contrastive loss on [CLS] vectors after a new MLP."""
    return with_hinge(with_prototypes(backbone, args, columns), args)
