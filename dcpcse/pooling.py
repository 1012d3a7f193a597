"""From hidden states to one vector a sentence: which layers, and how their tokens are reduced."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def first_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """The [CLS] (or <s>) vector: (N, L, H) → (N, H)."""
    return hidden[:, 0]


def mean_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens: (N, L, H), mask (N, L) → (N, H). Special tokens count, pads and prompts do not."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


@dataclass(frozen=True)
class Pooler:
    """Mean of the chosen layers, then a reduction over tokens.

    `layers` index the hidden states: 0 is the embedding output, i the output of layer i, -1 the last layer.
    """

    layers: tuple[int, ...]
    reduce: Callable[[Tensor, Tensor], Tensor]
    help: str

    @property
    def needs_all_layers(self) -> bool:
        return self.layers != (-1,)

    def __call__(self, hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """hidden_states: (N, L, H) per layer, the last one at -1; mask (N, L) of the text → (N, H)."""
        chosen = [hidden_states[layer] for layer in self.layers]
        mean = chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(0)
        return self.reduce(mean, mask)


POOLERS: dict[str, Pooler] = {
    "cls": Pooler((-1,), first_token, "[CLS] of the last layer, then the head (MLP, or the checkpoint's own pooler)"),
    "cls_before_pooler": Pooler((-1,), first_token, "[CLS] of the last layer as it is, without any head"),
    "avg": Pooler((-1,), mean_tokens, "mean over the tokens of the last layer"),
    "avg_top2": Pooler((-1, -2), mean_tokens, "mean over the tokens of the last two layers"),
    "avg_first_last": Pooler(
        (0, -1),
        mean_tokens,
        "mean of embedding output and last layer (DCPCSE's and DiffCSE's code; BERT-base's published 56.70)",
    ),
    "avg_layer1_last": Pooler(
        (1, -1),
        mean_tokens,
        "mean of the first and the last transformer layer (SimCSE's code calls it avg_first_last; 60.73)",
    ),
}


def describe_poolers() -> str:
    """One sentence a pooler, for --help."""
    return "; ".join(f"{name}: {pooler.help}" for name, pooler in POOLERS.items())
