"""One forward pass through a backbone for rows of several encoders that share it, each with its own prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.prompts import MixedPrefix
from dcpcse.encoders.templates import Slots


@dataclass(frozen=True)
class EncoderBatch:
    """The rows of one encoder: ids and mask (n, l), where l is the longest length, and positions of template slots."""

    encoder: Encoder
    input_ids: Tensor
    attention_mask: Tensor
    slots: Slots | None = None

    def to(self, device: torch.device) -> "EncoderBatch":
        slots = None if self.slots is None else self.slots.to(device)
        return EncoderBatch(self.encoder, self.input_ids.to(device), self.attention_mask.to(device), slots)


def joint_mask(parts: Sequence[EncoderBatch]) -> Tensor:
    """Return the attention mask (N, L) of the rows of all parts."""
    return _stacked([part.attention_mask for part in parts])


def hidden_states(
    parts: Sequence[EncoderBatch], *, packing: Packing | None = None, all_layers: bool = False
) -> list[tuple[Tensor, ...]]:
    """Return the hidden states (n, l, H) of each part, as `Encoder.forward` of its encoder returns them in eval mode.

    All encoders share one backbone, which processes the rows of all parts at once. packing: that of the joint mask,
    computed here by default. Raises UserError if a part is too long for its encoder.
    """
    lead = parts[0].encoder  # it arranges the rows; the choice of the encoder does not change any value
    given = _joined([part.encoder.inputs(part.input_ids, part.slots) for part in parts], lead.backbone)
    how = {"packing": packing, "all_layers": all_layers}
    states = lead.states(given, joint_mask(parts), _prompts(parts), **how)
    of_parts = zip(*(state.split([len(part.input_ids) for part in parts]) for state in states), strict=True)
    return [
        tuple(state[:, : part.input_ids.shape[1]] for state in own) for part, own in zip(parts, of_parts, strict=True)
    ]


def _joined(given: Sequence[Mapping[str, Tensor]], backbone: nn.Module) -> dict[str, Tensor]:
    """Join the inputs of all parts: as embeddings if any part has embeddings, otherwise as ids."""
    if any("inputs_embeds" in own for own in given):
        given = [_as_vectors(own, backbone) for own in given]
    return {name: _stacked([own[name] for own in given]) for name in set().union(*given)}


def _as_vectors(given: Mapping[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    if "inputs_embeds" in given:
        return dict(given)
    rest = {name: tensor for name, tensor in given.items() if name != "input_ids"}
    return {**rest, "inputs_embeds": backbone.get_input_embeddings()(given["input_ids"])}


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Join tensors (n, l, ...) to (N, L, ...). Padding is zero: masked, and a valid index into any position table."""
    width = max(own.shape[1] for own in rows)
    return torch.cat([F.pad(own, (0, 0) * (own.dim() - 2) + (0, width - own.shape[1])) for own in rows])


def _prompts(parts: Sequence[EncoderBatch]) -> dict[str, Any]:
    """Return the prefix of all rows for `prefix_attention`, or an empty dict if no encoder has deep prompts."""
    prompts = [part.encoder.prompt for part in parts]
    if not any(prompt is not None for prompt in prompts):
        return {}
    prefix = MixedPrefix(prompts, [len(part.input_ids) for part in parts], parts[0].input_ids.device)
    return {"prefix": prefix, "prefix_mask": prefix.mask}
