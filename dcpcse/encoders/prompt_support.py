"""Which encoders can take prompts, and the check that the prompts really arrive."""

import weakref
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from dcpcse.encoders.attention import PREFIX_ATTENTION, Prefix
from dcpcse.encoders.backbones import evaluating
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.prompts import PromptShape
from dcpcse.utils.errors import UserError

PROMPTABLE = ("bert", "roberta", "xlm-roberta", "electra", "modernbert")
"""Model types whose prompts are tested here; others are tried, and refused if the prompt does not arrive."""

PACKABLE = (*PROMPTABLE, "distilbert")
"""Model types that take batches without padding; others are padded."""

PEFT_SAME = ("bert", "roberta", "xlm-roberta", "electra")
"""Model types for which peft's prefix tuning gives the same vectors."""

_ARRIVED: MutableMapping[PreTrainedModel, set[PromptShape]] = weakref.WeakKeyDictionary()
"""Backbones that prompts were seen to reach, with the prompts' shape but for their number."""


def peft_config(shape: PromptShape, base: str, revision: str | None) -> dict[str, Any]:
    """peft's adapter_config.json for a table of deep prompts (the projected one, where it is projected)."""
    hidden = shape.heads * shape.head_dim
    return {
        "peft_type": "PREFIX_TUNING",
        "task_type": "FEATURE_EXTRACTION",
        "inference_mode": True,
        "base_model_name_or_path": base,
        "revision": revision,
        "num_virtual_tokens": shape.length,
        "token_dim": hidden,
        "num_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_transformer_submodules": 1,
        "encoder_hidden_size": hidden,
        "prefix_projection": False,
    }


def require_room(backbone: PreTrainedModel, room: int, offset: int) -> None:
    """UserError if a position offset leaves no room for text."""
    if room < 3:
        raise UserError(
            f"a text that begins at position {offset} has no room in {backbone.config.model_type}, with positions for "
            f"{room + offset} tokens in all; lower --pre_seq_len or --position_offset"
        )


def use_prefix_attention(backbone: PreTrainedModel) -> None:
    """Let the backbone's attention take a prefix; UserError if it cannot be replaced."""
    if not getattr(backbone, "_supports_attention_backend", False):
        raise _cannot_take_prompts(backbone, "its attention cannot be replaced in transformers")
    backbone.set_attn_implementation(PREFIX_ATTENTION)


def require_prompt_arrives(backbone: PreTrainedModel, shape: PromptShape) -> None:
    """One forward pass over random prefixes: the keys and the values of every layer must reach the output.

    A backbone that never hands `prefix=` to its attention would otherwise train and run without prompts. Done once for
    all prompts of a backbone: with many of them it would take most of the time of loading.
    """
    kind = replace(shape, length=0)
    if kind in _ARRIVED.get(backbone, ()):
        return
    if any(getattr(module, "is_causal", False) for module in backbone.modules()):
        raise _cannot_take_prompts(backbone, "it is a decoder")
    ids = torch.full((2 * shape.layers + 1, 4), 5, device=backbone.device)
    try:
        with evaluating(backbone), torch.no_grad():
            hidden = backbone(
                input_ids=ids, attention_mask=torch.ones_like(ids), prefix=_one_change_a_row(shape, backbone.device)
            ).last_hidden_state
    except (TypeError, RuntimeError) as error:
        raise _cannot_take_prompts(backbone, str(error).splitlines()[0]) from error
    change = (hidden[1:] - hidden[:1]).abs().amax((1, 2)).unflatten(0, (shape.layers, 2)).amin(1)
    arrived = change > 1e-4 * hidden[0].abs().max()  # rows alike differ by rounding alone, some 1e-7
    if not arrived.all():
        blind = (~arrived).nonzero().flatten().tolist()
        raise _cannot_take_prompts(backbone, f"the prompts of layers {blind} do not reach the output")
    _ARRIVED.setdefault(backbone, set()).add(kind)


def require_shallow_prompt_arrives(backbone: PreTrainedModel) -> None:
    """UserError unless input vectors instead of ids reach the output: ids and their vectors must give the same."""
    ids = torch.full((1, 4), 5, device=backbone.device)
    common = {"attention_mask": torch.ones_like(ids), "position_ids": positions_of(backbone).ids(ids, 0)}
    try:
        with evaluating(backbone), torch.no_grad():
            embedded = backbone.get_input_embeddings()(ids)
            wanted, other, found = (
                backbone(**given, **common).last_hidden_state
                for given in ({"input_ids": ids}, {"inputs_embeds": -embedded}, {"inputs_embeds": embedded})
            )
    except (TypeError, RuntimeError, ValueError) as error:
        raise _cannot_take_prompts(backbone, str(error).splitlines()[0], "shallow") from error
    near = 1e-4 * wanted.abs().max()
    if (found - wanted).abs().max() > near or (other - wanted).abs().max() <= near:
        raise _cannot_take_prompts(backbone, "vectors in the places of its tokens do not reach the output", "shallow")


def last_embedding_module(backbone: PreTrainedModel) -> nn.Module:
    """The module whose output is what the first layer reads: embeddings, or ELECTRA's projection of them."""
    module = getattr(backbone, "embeddings_project", None) or getattr(backbone, "embeddings", None)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"{backbone.config.model_type} encoders have no embedding layer to put a condition behind; what works: "
            f"{', '.join(PROMPTABLE)}"
        )
    return module


def _one_change_a_row(shape: PromptShape, device: torch.device) -> Prefix:
    """A prefix of 2 · layers + 1 rows: all alike, but row 1 + 2·i has other keys in layer i, row 2 + 2·i values."""
    # A generator of its own: a check must not move the run's random numbers.
    random = torch.Generator().manual_seed(0)
    prefix = {}
    for layer in range(shape.layers):
        base = torch.randn(2, shape.heads, 2, shape.head_dim, generator=random)
        halves = base.unsqueeze(1).repeat(1, 2 * shape.layers + 1, 1, 1, 1)  # (key or value, rows, heads, 2, head_dim)
        for half in range(2):
            # Large, so that it tells even where queries are small.
            halves[half, 1 + 2 * layer + half] += 30 * torch.randn(base[half].shape, generator=random)
        prefix[layer] = tuple(halves.to(device))
    return prefix


def _cannot_take_prompts(backbone: PreTrainedModel, reason: str, kind: str = "deep") -> UserError:
    return UserError(
        f"{backbone.config.model_type} encoders cannot take {kind} prompts here: {reason}; what works: "
        f"{', '.join(PROMPTABLE)}"
    )
