"""D2CSE (Lee 2023), which trains deep prompts with a contrastive loss and replaced-token detection."""

from collections.abc import Sequence
from typing import Any

from dcpcse.data.columns import CLASS
from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.hinge import HingeOptions
from dcpcse.methods.shared.labelled_pairs import LABELS, LabelledPairsOptions
from dcpcse.methods.shared.replaced_tokens import CrtdOptions, crtd_defaults, with_crtd


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    # The [CLS] prompt helps with pairs only (Table 6, d), although the RoBERTa column of Table 7 also uses it without
    # pairs.
    cls_prompt = {"cls_prompt": "positive" in columns} if args.tuning in (None, "deep") else {}
    return {**crtd_defaults(args, columns), "tuning": "deep", "discriminator": "self", **cls_prompt}


CITATION = "Lee, *D2CSE: Difference-aware Deep continuous prompts for Contrastive Sentence Embeddings*, 2023."


@register(
    "d2cse",
    citation=CITATION,
    labels=(CLASS, *LABELS),
    defaults=_defaults,
    options=(CrtdOptions, LabelledPairsOptions, HingeOptions),
)
def d2cse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Build D2CSE: the contrastive loss, and replaced-token detection by the trained encoder.

    See equations 1 to 3 of the paper. An MLP with BatchNorm is used in training only. The representation is the [CLS]
    vector before the MLP (appendix, "Pooler Design"). The paper does not use labelled or scored pairs. For them,
    SBERT's loss replaces the contrastive loss.
    """
    return with_crtd(backbone, args, columns)
