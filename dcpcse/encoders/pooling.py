"""Poolers, which reduce hidden states to one vector per sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `evaluation.py --help` only needs the names of the poolers, and importing torch takes a second
    from torch import Tensor

    from dcpcse.encoders.templates import Slots


def first_token(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the vector of the first token, [CLS] or <s>: (N, L, H) → (N, H).

    Args:
        hidden: Hidden states (N, L, H).
        mask: Not used.
        slots: Not used.
    """
    return hidden[:, 0]


def mean_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the mean over the real tokens: (N, L, H), mask (N, L) → (N, H).

    Special tokens are included. Padding and prompts are left out.

    Args:
        hidden: Hidden states (N, L, H).
        mask: (N, L), 1 for tokens and 0 for padding.
        slots: Not used.
    """
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def max_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the maximum of each dimension over the real tokens: (N, L, H), mask (N, L) → (N, H).

    Args:
        hidden: Hidden states (N, L, H).
        mask: (N, L), 1 for tokens and 0 for padding.
        slots: Not used.
    """
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def mean_sqrt_len_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the sum over the real tokens, divided by the square root of their number: (N, L, H) → (N, H).

    Args:
        hidden: Hidden states (N, L, H).
        mask: (N, L), 1 for tokens and 0 for padding.
        slots: Not used.
    """
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).sqrt()


def weighted_mean_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the mean of the real tokens with weights 1, 2, 3, ... (SGPT): (N, L, H), mask (N, L) → (N, H).

    Args:
        hidden: Hidden states (N, L, H).
        mask: (N, L), 1 for tokens and 0 for padding.
        slots: Not used.
    """
    weights = (mask * mask.cumsum(1)).unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def last_token(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the vector of the last real token, [SEP] or </s>: (N, L, H), mask (N, L) → (N, H).

    Args:
        hidden: Hidden states (N, L, H).
        mask: (N, L), 1 for tokens and 0 for padding.
        slots: Not used.
    """
    last = mask.cumsum(1).argmax(1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])  # the first of its maxima
    return hidden.gather(1, last).squeeze(1)


def mask_tokens(hidden: Tensor, mask: Tensor, slots: Slots | None = None) -> Tensor:
    """Return the mean over the template's mask slots: (N, L, H), slots.masks (N, M) → (N, H).

    Args:
        hidden: Hidden states (N, L, H).
        mask: Not used.
        slots: Slots of the templates.
    """
    index = slots.masks.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])  # (N, M, H)
    return hidden.gather(1, index).mean(1)


@dataclass(frozen=True)
class Pooler:
    """A pooler: the mean over the chosen layers, followed by a reduction over the tokens.

    Args:
        layers: Indices of hidden states: 0 for the output of the embedding layer, i for layer i, and -1 for the last
            layer.
        reduce: The function of hidden states (N, L, H), mask (N, L) and template slots that returns the vectors (N,
            H).
        help: The description for `--help`.
        needs_template: Whether `reduce` needs the slots of a template.
    """

    layers: tuple[int, ...]
    reduce: Callable[[Tensor, Tensor, Slots | None], Tensor]
    help: str
    needs_template: bool = False

    @property
    def reads_cls(self) -> bool:
        """Whether the pooler only uses the vector of the first token, which should be [CLS] or <s>."""
        return self.reduce is first_token

    @property
    def needs_all_layers(self) -> bool:
        return self.layers != (-1,)

    def __call__(self, hidden_states: Sequence[Tensor], mask: Tensor, slots: Slots | None = None) -> Tensor:
        """Return the pooled vectors (N, H).

        Args:
            hidden_states: The hidden states of all layers, each (N, L, H).
            mask: (N, L), 1 for tokens and 0 for padding.
            slots: Slots of the templates, if there are any.
        """
        chosen = [hidden_states[layer] for layer in self.layers]
        mean = chosen[0] if len(chosen) == 1 else sum(chosen) / len(chosen)
        return self.reduce(mean, mask, slots)


POOLERS: dict[str, Pooler] = {
    "cls": Pooler((-1,), first_token, "[CLS] of the last layer; for an untrained encoder, after its own pooler"),
    "cls_before_pooler": Pooler((-1,), first_token, "[CLS] of the last layer without any head"),
    "avg": Pooler((-1,), mean_tokens, "mean over the tokens of the last layer"),
    "avg_top2": Pooler((-1, -2), mean_tokens, "mean over the tokens of the last two layers"),
    "avg_first_last": Pooler(
        (0, -1),
        mean_tokens,
        "mean of embedding output and last layer (as in DCPCSE's and DiffCSE's code; BERT-base: 56.70)",
    ),
    "avg_layer1_last": Pooler(
        (1, -1),
        mean_tokens,
        "mean of the first and the last transformer layer (avg_first_last in SimCSE's code; BERT-base: 60.73)",
    ),
    "max": Pooler((-1,), max_tokens, "maximum over the tokens of the last layer in each dimension"),
    "mean_sqrt_len": Pooler(
        (-1,), mean_sqrt_len_tokens, "sum over the tokens of the last layer, divided by the root of their number"
    ),
    "weighted_mean": Pooler(
        (-1,),
        weighted_mean_tokens,
        "mean over the tokens of the last layer, weighted by their positions: 1 for the first",
    ),
    "last_token": Pooler((-1,), last_token, "last token of the last layer, such as [SEP] or </s>"),
    "mask": Pooler((-1,), mask_tokens, "[MASK] of the template in the last layer (--template)", needs_template=True),
}

UNTRAINED: dict[str, str] = {
    "top_k": "static embeddings of the --top_k most probable tokens at the template's [MASK], weighted by probability",
    "static": "mean of the static token embeddings, without any transformer layer",
    "static_lm_head": "mean of the tokens' rows of the masked-LM head's output matrix",
}
"""Descriptions, by name, of the representations without training (see `dcpcse.encoders.untrained`)."""

WITHOUT_TEMPLATE = tuple(name for name, pooler in POOLERS.items() if not pooler.needs_template)
"""Poolers that can be trained by methods without templates."""


def describe_poolers(*, untrained: bool = False) -> str:
    """Return a text for --help that describes the poolers that need no template.

    Args:
        untrained: Whether to describe all poolers and the representations without training, as for evaluation.py.
    """
    trained = {name: POOLERS[name].help for name in WITHOUT_TEMPLATE}
    described = {name: pooler.help for name, pooler in POOLERS.items()} | UNTRAINED if untrained else trained
    return "; ".join(f"{name}: {help}" for name, help in described.items())


BIAS_NAMES = ("frequency", "subword", "case", "punctuation")
"""Kinds of tokens with biased static embeddings (PromptBERT, Table 3; see `dcpcse.encoders.untrained`)."""
