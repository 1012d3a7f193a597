"""D2CSE (Lee 2023): one frozen encoder with deep prompts tells sentences apart and finds replaced tokens."""

from collections.abc import Sequence
from typing import Any

from dcpcse.encoders.backbones import Backbone
from dcpcse.methods.arguments import ModelArguments
from dcpcse.methods.registry import Method, register
from dcpcse.methods.shared.replaced_tokens import CrtdOptions, crtd_defaults, with_crtd


def _defaults(args: ModelArguments, columns: Sequence[str]) -> dict[str, Any]:
    # Table 6: the [CLS] prompt helps with pairs only (its RoBERTa column of Table 7 has it without pairs, too).
    cls_prompt = {"cls_prompt": "positive" in columns} if args.tuning in (None, "deep") else {}
    return {**crtd_defaults(args), "tuning": "deep", "discriminator": "self", **cls_prompt}


CITATION = "Lee, *D2CSE: Difference-aware Deep continuous prompts for Contrastive Sentence Embeddings*, 2023."


@register("d2cse", citation=CITATION, defaults=_defaults, options=CrtdOptions)
def d2cse(backbone: Backbone, args: ModelArguments, columns: Sequence[str]) -> Method:
    """Eq. 1 to 3; BatchNorm MLP in training, [CLS] before it afterwards (appendix, "Pooler Design")."""
    return with_crtd(backbone, args, columns)
