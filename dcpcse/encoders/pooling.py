"""From hidden states to one vector a sentence: which layers, and how their tokens are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch takes over a second, which the names of the poolers in `evaluation.py --help` do not need
    from torch import Tensor

    from dcpcse.encoders.templates import Slots


def first_token(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """The [CLS] (or <s>) vector: (N, L, H) → (N, H)."""
    return hidden[:, 0]


def mean_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Mean over the real tokens: (N, L, H), mask (N, L) → (N, H). Special tokens count, pads and prompts do not."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def mask_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Mean over the template's mask slots, by index: (N, L, H), slots.masks (N, M) → (N, H)."""
    index = slots.masks.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])  # (N, M, H)
    return hidden.gather(1, index).mean(1)


@dataclass(frozen=True)
class Pooler:
    """Mean of the chosen layers, then a reduction over tokens.

    `layers` index the hidden states: 0 is the embedding output, i the output of layer i, -1 the last layer.
    """

    layers: tuple[int, ...]
    reduce: Callable[[Tensor, Tensor, Slots | None], Tensor]
    help: str
    needs_template: bool = False

    @property
    def needs_all_layers(self) -> bool:
        return self.layers != (-1,)

    def __call__(self, hidden_states: Sequence[Tensor], mask: Tensor, slots: Slots | None = None) -> Tensor:
        """hidden_states: (N, L, H) per layer, the last one at -1; mask (N, L) of the text → (N, H)."""
        chosen = [hidden_states[layer] for layer in self.layers]
        mean = chosen[0] if len(chosen) == 1 else sum(chosen) / len(chosen)
        return self.reduce(mean, mask, slots)


POOLERS: dict[str, Pooler] = {
    "cls": Pooler((-1,), first_token, "[CLS] of the last layer; of an encoder as it is, through its own pooler"),
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
    "mask": Pooler((-1,), mask_tokens, "the template's [MASK] of the last layer (--template)", needs_template=True),
}

UNTRAINED: dict[str, str] = {
    "top_k": "static embeddings of the --top_k tokens most probable at the template's [MASK], averaged by probability",
    "static": "mean over the static token embeddings, no layer taking part",
    "static_lm_head": "mean over the rows of the masked-LM head's output matrix",
}
"""Representations that are evaluated and never trained: name → what it is (`untrained.representations`)."""

WITHOUT_TEMPLATE = tuple(name for name, pooler in POOLERS.items() if not pooler.needs_template)
"""Poolers that a method without templates can be trained with."""


def describe_poolers(*, untrained: bool = False) -> str:
    """One sentence a pooler that is trained, for --help; with `untrained` all that evaluation.py knows."""
    trained = {name: POOLERS[name].help for name in WITHOUT_TEMPLATE}
    described = {name: pooler.help for name, pooler in POOLERS.items()} | UNTRAINED if untrained else trained
    return "; ".join(f"{name}: {help}" for name, help in described.items())


BIAS_NAMES = ("frequency", "subword", "case", "punctuation")
"""Kinds of tokens whose static embeddings mislead (PromptBERT, Table 3; `dcpcse.encoders.untrained.static`)."""
