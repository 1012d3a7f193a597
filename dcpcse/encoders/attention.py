"""An attention function for transformers: prompts before each layer's keys and values, and texts without padding.

The prefix travels as a keyword argument of the backbone's forward down to this function. It appears in no
mask, length or position outside this file. `past_key_values`, the route of the published code and of peft, is
not taken: transformers sets the cache to None under activation checkpointing, which drops the prompt without
an error, and a cache grows with every pass that uses it.

Packed batches travel the same way: the backbone sees one row of all real tokens, and where each text ends is known
here alone. No mask then means that nothing is padded, never that texts may look at each other.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from dcpcse.encoders.flex_attention import TextsInOneRow
from dcpcse.encoders.packing import Packing

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
    prefix_mask: Tensor | None = None,
    packing: Packing | None = None,
    one_row: TextsInOneRow | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention over the layer's own prefix and its tokens (P-tuning v2, section 3.2).

    query, key, value (N, heads, L, head_dim); attention_mask boolean (N, 1, L, L) or None for "all". Prompts
    have neither a query nor a position; every token sees all of them, whatever the mask or window says.
    prefix_mask: boolean (N, P), which prompts are a row's own where rows have different numbers; None for "all".
    packing: query, key and value are (1, heads, T, head_dim), the texts one after another, without a mask.
    one_row: the same packed texts, to be left in one row where no dropout falls on attention weights.
    sliding_window: the least distance at which tokens of a text no longer see each other; a mask holds it already.
    """
    layer = getattr(module, "layer_idx", None)
    own = None if prefix is None else prefix.get(layer)
    if one_row is not None and not kwargs.get("dropout"):
        return one_row.attend(query, key, value, own, prefix_mask, sliding_window, kwargs.get("scaling")), None
    if packing is not None:
        query, key, value = (_to_rows(states, packing) for states in (query, key, value))
        attention_mask = packing.real[:, None, None]
    if sliding_window is not None and (packing is not None or attention_mask is None):
        attention_mask = _within(sliding_window, query.shape[2], attention_mask, query.device)
    if own is not None:
        prefix_key, prefix_value = own
        # The prompts stay in fp32 when the backbone, or autocast, works in half precision.
        key = _prepend(prefix_key, key)
        value = _prepend(prefix_value, value)
        attention_mask = _with_prompts(attention_mask, prefix_mask, prefix_key.shape[2], query.shape[2])
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)  # (N, L, heads, head_dim)
    return (output if packing is None else packing.from_rows(output).unsqueeze(0)), None


def _to_rows(states: Tensor, packing: Packing) -> Tensor:
    """(1, heads, T, head_dim) → (N, heads, width, head_dim)."""
    return packing.to_rows(states.squeeze(0).transpose(0, 1)).transpose(1, 2)


def _within(window: int, length: int, mask: Tensor | None, device: torch.device) -> Tensor | None:
    """The mask, broadcast to (N, 1, length, length), without what lies outside the window of a token."""
    if window >= length:
        return mask
    place = torch.arange(length, device=device)
    near = ((place.unsqueeze(1) - place).abs() < window)[None, None]
    return near if mask is None else mask & near


def _with_prompts(mask: Tensor | None, own: Tensor | None, prompts: int, length: int) -> Tensor | None:
    """The mask, broadcast to (N, 1, length, length), the prompts before it: all of them, or a row's own."""
    if own is None:
        return None if mask is None else F.pad(mask, (prompts, 0), value=True)
    if mask is None:
        mask = own.new_ones(len(own), 1, 1, length)
    of_prompts = own[:, None, None].expand(-1, 1, mask.shape[2], -1)
    return torch.cat([of_prompts, mask.expand(len(own), -1, -1, -1)], dim=3)


def _prepend(prefix: Tensor, states: Tensor) -> Tensor:
    return torch.cat([prefix.to(states), states], dim=2)


def _mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """The mask of a padded batch; None without one, where transformers would build that of a window over all texts."""
    return None if attention_mask is None else sdpa_mask(*args, attention_mask=attention_mask, **kwargs)


AttentionInterface.register(PREFIX_ATTENTION, prefix_attention)
# Without a mask function of the same name transformers builds no mask at all and padding is attended to.
AttentionMaskInterface.register(PREFIX_ATTENTION, _mask)
