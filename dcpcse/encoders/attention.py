"""An attention function for transformers that supports prompts in every layer and batches without padding.

The prefix (the keys and values of the prompts) is passed to this function as a keyword argument of the backbone's
forward pass. Masks, lengths and positions outside this file do not include the prefix.

The published code and peft pass the prefix as `past_key_values` instead. This module avoids this cache for two
reasons. Under activation checkpointing, transformers sets the cache to None, which silently drops the prompt. In
addition, the cache grows with every pass that uses it.

The packing of a batch is also passed as a keyword argument. The backbone receives one row with all real tokens, and
only this function uses the boundaries of the sequences. A packed batch has no mask because it contains no padding. Its
sequences do not attend to each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from dcpcse.encoders.packing import Packing

Prefix = Mapping[int, tuple[Tensor, Tensor]]
"""Maps the index of a layer to its keys and values, each (N, heads, P, head_dim)."""

PREFIX_ATTENTION = "prefix_sdpa"


class TablePrefix(Mapping[int, tuple[Tensor, Tensor]]):
    """A prefix (layer → keys and values) in which one table per layer contains the prompts of all N texts of a batch.

    Attention kernels read this table, so prompts are not copied for each text.

    Attributes:
        rate: Dropout rate of the prompts. A mask is drawn for each text.
        seed: (1,) int64, the seed of the dropout masks (`dcpcse.encoders.philox`). None without dropout.
        first_prompts: (N,) int32, the index of the first prompt of each text in the table. None if every text has all
            prompts of the table.
        prompt_counts: (N,) int32, the number of prompts of each text. None if every text has all prompts of the table.
        most_prompts: Largest number of prompts of a text.
    """

    rate: float = 0.0
    seed: Tensor | None = None
    first_prompts: Tensor | None = None
    prompt_counts: Tensor | None = None
    most_prompts: int
    _layers: Mapping[int, tuple[Tensor, Tensor]]  # keys and values, each (1, heads, rows of the table, head_dim)

    def tables(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer before dropout, each (rows of its table, heads, head_dim)."""
        keys, values = self._layers[layer]
        return keys[0].transpose(0, 1), values[0].transpose(0, 1)

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class PackedAttention(Protocol):
    """Interface of the GPU kernels that compute attention over the T packed tokens of a batch.

    `dcpcse.encoders.prefix_kernel` implements it.
    """

    def takes(self, query: Tensor, prefix: Prefix | None) -> bool:
        """Return whether the kernels support these queries and this prefix.

        Args:
            query: Queries (1, heads, T, head_dim).
            prefix: The keys and values of all layers. None without prompts.
        """
        ...

    def attend(
        self,
        states: Sequence[Tensor],
        prefix: TablePrefix | None,
        layer: int,
        *,
        window: int | None,
        scale: float | None,
        dropout: float,
    ) -> Tensor:
        """Compute the attention of a layer, and return its output (1, T, heads, head_dim).

        Args:
            states: Queries, keys and values, each (1, heads, T, head_dim).
            prefix: The keys and values of all layers. None without prompts.
            layer: Number of the layer.
            window: As `sliding_window` of `prefix_attention`.
            scale: Factor of the attention scores. None: 1 / sqrt(head_dim).
            dropout: Dropout rate of the attention weights.
        """
        ...


Bias = Callable[[Tensor, Tensor], Tensor]
"""Function of queries and keys, each (N, heads, L, head_dim), that returns numbers to add to the attention scores.

The returned tensor broadcasts to (N, heads, L, L).
"""


class ForwardPass:
    """The state of one forward pass, which its layers share: attention masks, and the number of layers called so far.

    Attributes:
        unnumbered: The attention modules without a layer number, in the order of their calls. Layers with shared
            weights (ALBERT) are one module that is called several times.
    """

    def __init__(self) -> None:
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}
        self.unnumbered: list[nn.Module] = []

    def layer_of(self, module: nn.Module) -> int:
        """Return the number of the layer that an attention module computes. Call this method once in each layer."""
        if (number := getattr(module, "layer_idx", None)) is None:
            number = len(self.unnumbered)
            self.unnumbered.append(module)
        return number

    def mask(self, prompts: int, window: int | None, make: Callable[[], Tensor | None]) -> Tensor | None:
        """Return the attention mask of the layers with this number of prompts and this window.

        The first of these layers computes the mask, and the others reuse it.

        Args:
            prompts: Number of prompts P.
            window: As `sliding_window` of `prefix_attention`.
            make: Function that computes the mask.
        """
        case = (prompts, window)
        if case not in self._masks:
            self._masks[case] = make()
        return self._masks[case]


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
    kernels: PackedAttention | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    forward_pass: ForwardPass | None = None,
    bias: Bias | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute scaled dot-product attention over a layer's prefix and its tokens (P-tuning v2, section 3.2).

    Prompts have neither queries nor positions. Every token attends to all prompts, whatever the mask and the window.
    A batch is padded (N texts of L tokens) or packed (one row with all T tokens).

    Args:
        module: The attention module, which contains the number of its layer.
        query: (N, heads, L, head_dim), or (1, heads, T, head_dim) if packed.
        key: As `query`, possibly with fewer heads, each of which serves several heads of the queries.
        value: As `key`.
        attention_mask: Boolean (N, 1, L, L), true where a token attends to another token. None if there is no padding.
        prefix: The keys and values of all layers. None without prompts.
        prefix_mask: Boolean (N, P), true at the prompts of each text. None if every text has all P prompts.
        packing: The boundaries of the texts in a packed batch, which has no `attention_mask`. None if padded.
        kernels: Kernels for attention over packed texts. They are used if they support the inputs.
        sliding_window: Two tokens attend to each other only if their distance is below this number. A given
            `attention_mask` already includes the window.
        is_causal: Whether tokens attend only to themselves and to earlier tokens. A given `attention_mask` already
            includes this. None: the setting of the module.
        forward_pass: State of the forward pass, in which layers share masks. Required with a prefix if the modules
            have no layer numbers.
        bias: Function that computes the numbers that relative positions add to the scores of tokens. Nothing is added
            to the scores of prompts.
        kwargs: Arguments of transformers' `sdpa_attention_forward`, such as `scaling` and `dropout`.

    Returns:
        The output (N, L, heads, head_dim), or (1, T, heads, head_dim) if packed. The second value is None, instead of
        the attention weights.
    """
    if kernels is not None and bias is None and kernels.takes(query, prefix):
        how = {"window": sliding_window, "scale": kwargs.get("scaling"), "dropout": kwargs.get("dropout") or 0.0}
        return kernels.attend((query, key, value), prefix, _layer_of(module, forward_pass), **how), None
    layer_prefix = None if prefix is None else prefix.get(_layer_of(module, forward_pass))
    if packing is not None:
        query, key, value = (_to_rows(states, packing) for states in (query, key, value))
    prompts, length, device = 0 if layer_prefix is None else layer_prefix[0].shape[2], query.shape[2], query.device
    causal = getattr(module, "is_causal", False) if is_causal is None else is_causal

    def make_mask() -> Tensor | None:
        mask = attention_mask
        if packing is not None:  # a row ends with its padding, to which no earlier token attends if causal
            mask = None if causal else packing.real[:, None, None]
        window = length if sliding_window is None else min(sliding_window, length)
        # Without prompts and a window, torch computes causal attention without a mask.
        restricted = window < length or (causal and layer_prefix is not None)
        if restricted and (packing is not None or mask is None):
            mask = _within(window, causal, length, mask, device)
        return mask if layer_prefix is None else _with_prompts(mask, prefix_mask, prompts, length)

    mask = (forward_pass or ForwardPass()).mask(prompts, sliding_window, make_mask)
    if bias is not None:
        added = F.pad(bias(query, key), (prompts, 0))
        mask = added if mask is None else added.masked_fill(~mask, -torch.inf)
    if layer_prefix is not None:
        # The prompts stay in float32 when the backbone or autocast computes in half precision.
        key, value = _prepend(layer_prefix[0], key), _prepend(layer_prefix[1], value)
    # The output is (N, L, heads, head_dim).
    output, _ = sdpa_attention_forward(module, query, key, value, mask, is_causal=causal, **kwargs)
    return (output if packing is None else packing.from_rows(output).unsqueeze(0)), None


def _layer_of(module: nn.Module, forward_pass: ForwardPass | None) -> int:
    return module.layer_idx if forward_pass is None else forward_pass.layer_of(module)


def _to_rows(states: Tensor, packing: Packing) -> Tensor:
    """Convert packed states (1, heads, T, head_dim) to rows (N, heads, width, head_dim)."""
    return packing.to_rows(states.squeeze(0).transpose(0, 1)).transpose(1, 2)


def _within(window: int, causal: bool, length: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Return the mask, broadcastable to (N, 1, length, length), restricted to the window around each token.

    If `causal` is set, the window ends at the token.
    """
    positions = torch.arange(length, device=device)
    distance = positions.unsqueeze(1) - positions
    near = (distance.abs() < window)[None, None]
    near = near & (distance >= 0) if causal else near
    return near if mask is None else mask & near


def _with_prompts(mask: Tensor | None, prefix_mask: Tensor | None, prompts: int, length: int) -> Tensor | None:
    """Prepend columns for the prompts to a mask that broadcasts to (N, 1, length, length).

    Args:
        prefix_mask: Boolean (N, prompts), true at the prompts of each row. None if every row has all prompts.
    """
    if prefix_mask is None:
        return None if mask is None else F.pad(mask, (prompts, 0), value=True)
    if mask is None:
        mask = prefix_mask.new_ones(len(prefix_mask), 1, 1, length)
    of_prompts = prefix_mask[:, None, None].expand(-1, 1, mask.shape[2], -1)
    return torch.cat([of_prompts, mask.expand(len(prefix_mask), -1, -1, -1)], dim=3)


def _prepend(prefix: Tensor, states: Tensor) -> Tensor:
    return torch.cat([prefix.to(states), states], dim=2)


def _mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """Return the mask of a padded batch, or None for a packed batch.

    For a packed batch, transformers would build a sliding-window mask that spans all sequences.
    """
    if attention_mask is None:
        return None
    if not attention_mask.is_cpu:
        # Checking whether anything is masked would wait for the GPU.
        kwargs |= dict.fromkeys(("allow_is_bidirectional_skip", "allow_is_causal_skip"), False)
    return sdpa_mask(*args, attention_mask=attention_mask, **kwargs)


AttentionInterface.register(PREFIX_ATTENTION, prefix_attention)
# Without a mask function of the same name, transformers builds no mask, and tokens attend to padding.
AttentionMaskInterface.register(PREFIX_ATTENTION, _mask)
