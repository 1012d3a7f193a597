"""The architectures that support prompts, and checks that prompts affect the output of an encoder."""

import contextlib
import weakref
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders.attention import PREFIX_ATTENTION, ForwardPass, Prefix
from dcpcse.encoders.backbones import evaluating
from dcpcse.encoders.positions import DECODERS, positions_of, replace_attention
from dcpcse.encoders.prompts import PromptShape
from dcpcse.utils.errors import UserError, first_line, spell
from dcpcse.utils.private.models import attention_can_be_replaced

PROMPTABLE = (
    *("bert", "roberta", "xlm-roberta", "electra", "modernbert", "distilbert", "albert", "mpnet", "deberta-v2"),
    *DECODERS,
)
"""Model types for which prompts are tested.

For other types, an error is raised if prompts do not affect the output.
"""

PACKABLE = PROMPTABLE
"""Model types that accept batches without padding. Batches of other models are padded."""

PEFT_SAME = ("bert", "roberta", "xlm-roberta", "electra", *DECODERS)
"""Model types for which peft's prefix tuning computes the same vectors."""

_ARRIVED: MutableMapping[PreTrainedModel, set[PromptShape]] = weakref.WeakKeyDictionary()
"""Maps a backbone to the shapes of prompts, with length 0, for which `require_prompt_arrives` has succeeded."""


def peft_config(shape: PromptShape, base: str, revision: str | None) -> dict[str, Any]:
    """Return peft's adapter_config.json for a table of deep prompts. A projection that computes the table is left out.

    Args:
        shape: Size of the deep prompt.
        base: Folder or hub id of the frozen encoder.
        revision: Revision of the encoder on the hub.
    """
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
    """Raise UserError if a position offset leaves no room for text.

    Args:
        backbone: The encoder.
        room: Number of tokens for which there are positions after the shift.
        offset: Number of positions by which the text is shifted.
    """
    if room < 3:
        raise UserError(
            f"a text that starts at position {offset} does not fit into {backbone.config.model_type}, which has "
            f"positions for {room + offset} tokens in total; lower {spell('pre_seq_len')} or "
            f"{spell('position_offset')}"
        )


def use_prefix_attention(backbone: PreTrainedModel) -> None:
    """Make the backbone's attention accept a prefix. Raise UserError if the attention cannot be replaced.

    This function also switches cuDNN's attention off in this process, since cuDNN makes a new execution plan for every
    shape of a batch.
    """
    if not replace_attention(backbone):
        if not attention_can_be_replaced(backbone):
            raise _cannot_take_prompts(backbone, "its attention cannot be replaced in transformers")
        backbone.set_attn_implementation(PREFIX_ATTENTION)
    torch.backends.cuda.enable_cudnn_sdp(False)


def is_causal(backbone: PreTrainedModel) -> bool:
    """Return whether a token of a backbone attends only to itself and to earlier tokens."""
    configured = getattr(backbone.config, "is_causal", None)  # with it, transformers overrides the modules
    return any(getattr(module, "is_causal", False) for module in backbone.modules()) and configured is not False


def number_layers(backbone: PreTrainedModel) -> None:
    """Number the attention modules of the layers if transformers has not numbered them (DistilBERT).

    A forward pass finds the layers in the order in which they compute attention. If layers share a module, the module
    gets no number, and every forward pass counts the layers. Raises UserError if a layer does not compute attention
    exactly once.
    """
    if any(getattr(module, "layer_idx", None) is not None for module in backbone.modules()):
        return
    forward_pass = ForwardPass()
    _run(backbone, torch.full((1, 1), 5), prefix={}, forward_pass=forward_pass)
    modules, layers = forward_pass.unnumbered, backbone.config.num_hidden_layers
    if len(modules) != layers:
        reason = f"its {layers} layers compute attention {len(modules)} times through transformers' interface"
        raise _cannot_take_prompts(backbone, reason)
    if len(set(modules)) == layers:
        for number, module in enumerate(modules):
            module.layer_idx = number


def require_prompt_arrives(backbone: PreTrainedModel, shape: PromptShape) -> None:
    """Raise UserError if the prompts' keys or values of a layer do not affect the output of the backbone.

    The check makes one forward pass with random prefixes. Without the check, a backbone that does not pass `prefix=`
    on to its attention would silently train and run without prompts. The check runs once per backbone and prompt
    shape. With many adapters, repeated checks would need most of the loading time.

    Args:
        backbone: The encoder.
        shape: Size of the deep prompt.
    """
    kind = replace(shape, length=0)
    if kind in _ARRIVED.get(backbone, ()):
        return
    if is_causal(backbone) and backbone.config.model_type not in DECODERS:
        raise _cannot_take_prompts(backbone, "it is a decoder")
    ids = torch.full((2 * shape.layers + 1, 4), 5)
    prefix = _one_change_per_row(shape, backbone.device)
    hidden = _run(backbone, ids, prefix=prefix, forward_pass=ForwardPass())
    change = (hidden[1:] - hidden[:1]).abs().amax((1, 2)).unflatten(0, (shape.layers, 2)).amin(1)
    arrived = change > 1e-4 * hidden[0].abs().max()  # equal rows differ only by rounding, about 1e-7
    if not arrived.all():
        blind = (~arrived).nonzero().flatten().tolist()
        raise _cannot_take_prompts(backbone, f"the prompts of layers {blind} do not reach the output")
    _ARRIVED.setdefault(backbone, set()).add(kind)


def _run(backbone: PreTrainedModel, ids: Tensor, **options: Any) -> Tensor:
    """Return the last hidden state (N, L, H) of token ids, without dropout.

    Raise UserError if the backbone cannot run.

    Args:
        options: Keyword arguments of `prefix_attention`.
    """
    ids = ids.to(backbone.device)
    try:
        with evaluating(backbone), torch.no_grad():
            return backbone(input_ids=ids, attention_mask=torch.ones_like(ids), **options).last_hidden_state
    except (TypeError, RuntimeError) as error:
        raise _cannot_take_prompts(backbone, first_line(error)) from error


def require_shallow_prompt_arrives(backbone: PreTrainedModel) -> None:
    """Raise UserError if input embeddings do not affect the output of the backbone.

    The embeddings of token ids must give the same output as the token ids. Other embeddings must give a different
    output.
    """
    ids = torch.full((1, 4), 5, device=backbone.device)
    common = {"attention_mask": torch.ones_like(ids), "position_ids": positions_of(backbone).ids(ids, 0)}
    try:
        with evaluating(backbone), torch.no_grad():
            embedded = backbone.get_input_embeddings()(ids)
            wanted, other, actual = (
                backbone(**inputs, **common).last_hidden_state
                for inputs in ({"input_ids": ids}, {"inputs_embeds": -embedded}, {"inputs_embeds": embedded})
            )
    except (TypeError, RuntimeError, ValueError) as error:
        raise _cannot_take_prompts(backbone, first_line(error), "shallow") from error
    near = 1e-4 * wanted.abs().max()
    if (actual - wanted).abs().max() > near or (other - wanted).abs().max() <= near:
        raise _cannot_take_prompts(backbone, "input embeddings at its tokens do not reach the output", "shallow")


def last_embedding_module(backbone: PreTrainedModel) -> nn.Module:
    """Return the module that computes the input of the first layer.

    This module is the embedding layer. In ELECTRA and ALBERT, it may be a projection of the embeddings. Raises
    UserError if the backbone has no such module.
    """
    # Looked up by name, since this runs in every forward pass: listing all modules of a backbone takes longer.
    for name in ("embeddings_project", "encoder.embedding_hidden_mapping_in", "embeddings"):
        with contextlib.suppress(AttributeError):  # the backbone has no such module
            return backbone.get_submodule(name)
    supported = (kind for kind in PROMPTABLE if kind not in DECODERS)
    raise UserError(
        f"{backbone.config.model_type} encoders have no embedding layer whose output can be changed, which this "
        f"method needs; supported encoders: {', '.join(supported)}"
    )


def _one_change_per_row(shape: PromptShape, device: torch.device) -> Prefix:
    """Return a prefix of 2 · layers + 1 rows, each of which differs from row 0 in one layer.

    Row 1 + 2·i has different keys in layer i. Row 2 + 2·i has different values in layer i.
    """
    # A separate generator: this check must not change the random numbers of the run.
    random = torch.Generator().manual_seed(0)
    prefix = {}
    for layer in range(shape.layers):
        base = torch.randn(2, shape.heads, 2, shape.head_dim, generator=random)
        halves = base.unsqueeze(1).repeat(1, 2 * shape.layers + 1, 1, 1, 1)  # (key or value, rows, heads, 2, head_dim)
        for half in range(2):
            # The change is large, so that it is detectable even if the queries are small.
            halves[half, 1 + 2 * layer + half] += 30 * torch.randn(base[half].shape, generator=random)
        prefix[layer] = tuple(halves.to(device))
    return prefix


def _cannot_take_prompts(backbone: PreTrainedModel, reason: str, kind: str = "deep") -> UserError:
    return UserError(
        f"{backbone.config.model_type} encoders cannot take {kind} prompts: {reason}; supported encoders: "
        f"{', '.join(PROMPTABLE)}"
    )
