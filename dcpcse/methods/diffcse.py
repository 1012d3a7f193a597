"""DiffCSE (Chuang et al. 2022), which extends SimCSE by replaced-token detection with a trained discriminator."""

from collections.abc import Sequence
from typing import Any

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.hinge import HingeOptions
from dcpcse.methods.shared.labelled_pairs import LABELS, LabelledPairsOptions
from dcpcse.methods.shared.replaced_tokens import CrtdOptions, crtd_defaults, with_crtd
from dcpcse.methods.tunings import Recipe


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    return {**crtd_defaults(args, columns), "tuning": "full", "discriminator": "trained"}


CITATION = (
    "Chuang, Dangovski, Luo, Zhang, Chang, Soljačić, Li, Yih, Kim and Glass, *DiffCSE: Difference-based "
    "Contrastive Learning for Sentence Embeddings*, NAACL 2022."
)


# The learning rate comes from the public script for single sentences.
@register(
    "diffcse",
    citation=CITATION,
    labels=(CLASS, *LABELS),
    defaults=_defaults,
    options=(CrtdOptions, LabelledPairsOptions, HingeOptions),
    recipes={"full": Recipe(7e-6)},
)
def diffcse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build DiffCSE: SimCSE's loss and replaced-token detection. The discriminator is not saved.

    The paper does not use labelled or scored pairs. For them, SBERT's loss replaces the contrastive loss.
    """
    return with_crtd(backbone, args, columns)
