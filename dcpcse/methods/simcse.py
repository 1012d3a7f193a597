"""SimCSE (Gao et al. 2021): trains all weights of the encoder; the views come from dropout or from a labelled pair."""

from collections.abc import Sequence

from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.hinge import HingeOptions, with_hinge
from dcpcse.methods.shared.prototypes import PrototypeOptions, with_prototypes

CITATION = "Gao, Yao and Chen, *SimCSE: Simple Contrastive Learning of Sentence Embeddings*, EMNLP 2021."


@register("simcse", citation=CITATION, options=(PrototypeOptions, HingeOptions), tuning="full", pooler_type="cls")
def simcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Contrast [CLS], followed by a new MLP, with that of the other sentences of the batch (sections 3 and 4)."""
    return with_hinge(with_prototypes(backbone, args, columns), args)
