"""Attention over packed batches on GPUs: all texts stay in one row, so that no padding is needed.

Each token attends to its own text and its prompts. PyTorch's flex attention skips whole blocks of pairs that do not
attend to each other. Prompts that all texts share are stored once, not once per text. Flex attention has no dropout on
attention weights. If such dropout is active, the texts are padded to rows instead (`dcpcse.encoders.attention`).
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from dcpcse.encoders.packing import Packing


class TextsInOneRow:
    """The texts of one packed batch, in one row. All layers of a forward pass share the attention masks."""

    def __init__(self, packing: Packing) -> None:
        self.texts = len(packing.sizes)
        self.tokens = sum(packing.sizes)
        numbers = torch.arange(self.texts, device=packing.lengths.device)
        # Without output_size, the host would wait for the GPU to compute this size.
        self.text_of = numbers.repeat_interleave(packing.lengths, output_size=self.tokens)
        self._masks: dict[tuple[int, bool, int | None], BlockMask] = {}

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        prefix: tuple[Tensor, Tensor] | None,
        prefix_mask: Tensor | None,
        window: int | None,
        scale: float | None,
    ) -> Tensor:
        """Compute attention within each text, and return the output (1, T, heads, head_dim).

        query, key, value: (1, heads, T, head_dim). prefix: keys and values of the prompts, each (N, heads, P,
        head_dim). prefix_mask and window: see `dcpcse.encoders.attention.prefix_attention`; prefix_mask must be the
        same in all layers of a pass.
        """
        prompts, shared = 0, True
        if prefix is not None:
            prompts, shared = prefix[0].shape[2], prefix[0].stride(0) == 0 and prefix_mask is None
            key, value = (
                torch.cat([_in_one_row(part, shared).to(states), states], dim=2)
                for part, states in zip(prefix, (key, value), strict=True)
            )
        mask = self._mask(prompts, shared, prefix_mask, window)
        attention = _compiled_if(query.is_cuda, flex_attention)
        return attention(query, key, value, block_mask=mask, scale=scale).transpose(1, 2)

    def _mask(self, prompts: int, shared: bool, own: Tensor | None, window: int | None) -> BlockMask:
        case = (prompts, shared, window)
        if case not in self._masks:
            owner, before = self._owners(prompts, shared, own)
            visible = _visible(owner, self.text_of, before, window)
            block_mask = _compiled_if(owner.is_cuda, create_block_mask)
            self._masks[case] = block_mask(visible, None, None, self.tokens, len(owner), device=owner.device)
        return self._masks[case]

    def _owners(self, prompts: int, shared: bool, own: Tensor | None) -> tuple[Tensor, int]:
        """Return the index of the text that each key belongs to (-1: all texts), and the number of prompt keys."""
        if shared:
            of_prompts = self.text_of.new_full((prompts,), -1)
        else:
            numbers = torch.arange(self.texts, device=self.text_of.device)
            of_prompts = numbers.repeat_interleave(prompts)
        if own is not None:
            of_prompts = of_prompts.where(own.flatten(), self.texts)  # the index of no text: nothing attends to it
        return torch.cat([of_prompts, self.text_of]), len(of_prompts)


def _in_one_row(prompts: Tensor, shared: bool) -> Tensor:
    """Convert prompts (N, heads, P, head_dim) to one row: (1, heads, P, head_dim) if shared, else P becomes N · P."""
    return prompts[:1] if shared else prompts.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def _visible(owner: Tensor, text_of: Tensor, before: int, window: int | None) -> Callable[..., Tensor]:
    """Return a function that decides whether a query attends to a key.

    before: number of keys that belong to prompts; they precede the keys of all tokens.
    """

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = (owner[key] < 0) | (owner[key] == text_of[query])
        if window is None:
            return own
        return own & ((key < before) | ((query - key + before).abs() < window))

    return visible


@functools.cache
def _compiled_if(on_gpu: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    # Without compilation, flex attention computes all pairs of tokens: correct, but fast enough for tests only.
    return torch.compile(function, dynamic=True) if on_gpu else function
