"""SimCSE (Gao et al. 2021): the whole encoder is trained; dropout, or a labelled pair, makes the two views."""

from collections.abc import Sequence

from ..arguments import ModelArguments
from ..backbones import Backbone
from .hinge import HingeOptions, with_hinge
from .prototypes import PrototypeOptions, with_prototypes
from .registry import Method, register

CITATION = "Gao, Yao and Chen, *SimCSE: Simple Contrastive Learning of Sentence Embeddings*, EMNLP 2021."


@register("simcse", citation=CITATION, options=(PrototypeOptions, HingeOptions), tuning="full", pooler_type="cls")
def simcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """[CLS] through a fresh MLP is told apart from all others of the batch (sections 3 and 4)."""
    return with_hinge(with_prototypes(backbone, args, columns), args)
