"""DiffCSE (Chuang et al. 2022): a trained encoder, and a trained discriminator that is given the sentence's vector."""

from collections.abc import Sequence
from typing import Any

from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.replaced_tokens import CrtdOptions, crtd_defaults, with_crtd


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    return {**crtd_defaults(args), "tuning": "full", "discriminator": "trained"}


CITATION = (
    "Chuang, Dangovski, Luo, Zhang, Chang, Soljačić, Li, Yih, Kim and Glass, *DiffCSE: Difference-based "
    "Contrastive Learning for Sentence Embeddings*, NAACL 2022."
)


@register("diffcse", citation=CITATION, defaults=_defaults, options=CrtdOptions)
def diffcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """SimCSE with replaced-token detection beside it; the discriminator is not part of the result."""
    return with_crtd(backbone, args, columns)
