"""DiffCSE (Chuang et al. 2022): SimCSE with replaced-token detection by a discriminator trained along with it."""

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
    """Train the encoder with SimCSE's loss and replaced-token detection; the discriminator is not saved."""
    return with_crtd(backbone, args, columns)
