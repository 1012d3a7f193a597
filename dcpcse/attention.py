"""Prefix injection: an attention function for transformers that puts prompts before each layer's keys and values.

The prefix travels as a keyword argument of the backbone's forward down to this function. It appears in no
mask, length or position outside this file. `past_key_values`, the route of the published code and of peft, is
not taken: transformers sets the cache to None under activation checkpointing, which drops the prompt without
an error, and a cache grows with every pass that uses it.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

Prefix = Mapping[int, tuple[Tensor, Tensor]]
"""Layer index → (keys, values), each (N, heads, P, head_dim)."""

PREFIX_ATTENTION = "prefix_sdpa"


def prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix: Prefix | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention over the layer's own prefix and its tokens (P-tuning v2, section 3.2).

    query, key, value (N, heads, L, head_dim); attention_mask boolean (N, 1, L, L) or None for "all". Prompts
    have neither a query nor a position; every token sees all of them, whatever the mask or window says.
    """
    layer = getattr(module, "layer_idx", None)
    if prefix is not None and layer in prefix:
        prefix_key, prefix_value = prefix[layer]
        # The prompts stay in fp32 when the backbone, or autocast, works in half precision.
        key = _prepend(prefix_key, key)
        value = _prepend(prefix_value, value)
        if attention_mask is not None:
            attention_mask = F.pad(attention_mask, (prefix_key.shape[2], 0), value=True)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def _prepend(prefix: Tensor, states: Tensor) -> Tensor:
    return torch.cat([prefix.to(states), states], dim=2)


AttentionInterface.register(PREFIX_ATTENTION, prefix_attention)
# Without a mask function of the same name transformers builds no mask at all and padding is attended to.
AttentionMaskInterface.register(PREFIX_ATTENTION, sdpa_mask)
