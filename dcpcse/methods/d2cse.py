"""D2CSE (Lee 2023): deep prompts on a frozen encoder, trained with a contrastive and a replaced-token loss."""

from collections.abc import Sequence
from typing import Any

from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.replaced_tokens import CrtdOptions, crtd_defaults, with_crtd


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    # Table 6: the [CLS] prompt helps with pairs only (the RoBERTa column of Table 7 uses it without pairs, too).
    cls_prompt = {"cls_prompt": "positive" in columns} if args.tuning in (None, "deep") else {}
    return {**crtd_defaults(args), "tuning": "deep", "discriminator": "self", **cls_prompt}


CITATION = "Lee, *D2CSE: Difference-aware Deep continuous prompts for Contrastive Sentence Embeddings*, 2023."


@register("d2cse", citation=CITATION, defaults=_defaults, options=CrtdOptions)
def d2cse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Contrastive loss and replaced-token detection with the encoder as its own discriminator (eq. 1 to 3).

    A BatchNorm MLP is used in training only; the representation is [CLS] before it (appendix, "Pooler Design").
    """
    return with_crtd(backbone, args, columns)
