"""Process the rows of encoders that share a backbone in one forward pass, with different prompts for each encoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.packing import Packing, TensorGroup
from dcpcse.encoders.prompts import MixedPrefix
from dcpcse.encoders.templates import Slots


@dataclass(frozen=True)
class EncoderBatch(TensorGroup):
    """The rows of a batch that belong to one encoder.

    Args:
        encoder: The encoder.
        input_ids: Token ids (n, l), padded to the longest row.
        attention_mask: Mask (n, l): 1 for tokens, 0 for padding.
        slots: Indices of the template slots, such as [MASK], in the rows. None: the rows have no template.
    """

    encoder: Encoder
    input_ids: Tensor
    attention_mask: Tensor
    slots: Slots | None = None

    def map(self, change: Callable[[Any], Any]) -> "EncoderBatch":
        """Return a copy in which every tensor is replaced by the result of `change` for this tensor."""
        slots = None if self.slots is None else change(self.slots)
        return EncoderBatch(self.encoder, change(self.input_ids), change(self.attention_mask), slots)


def joint_mask(parts: Sequence[EncoderBatch]) -> Tensor:
    """Return one attention mask (N, L) for all N rows of several encoders, padded to the longest row."""
    return _stacked([part.attention_mask for part in parts])


def hidden_states(
    parts: Sequence[EncoderBatch], *, packing: Packing | None = None, all_layers: bool = False
) -> list[tuple[Tensor, ...]]:
    """Return the hidden states (n, l, H) of each part, equal to those of `Encoder.forward` in eval mode.

    All encoders share one backbone, which processes the rows of all parts at once.

    Args:
        parts: The rows of each encoder.
        packing: The places of tokens and padding in `joint_mask(parts)`. None: compute the places.
        all_layers: As in `Encoder.forward`.

    Raises:
        UserError: If a part is too long for its encoder.
    """
    lead = parts[0].encoder  # arranges the rows; all encoders would give the same values
    inputs = _joined([_inputs(part) for part in parts], lead.backbone)
    how = {"packing": packing, "all_layers": all_layers}
    states = lead.states(inputs, joint_mask(parts), _prompts(parts), **how)
    of_parts = zip(*(state.split([len(part.input_ids) for part in parts]) for state in states), strict=True)
    return [
        tuple(state[:, : part.input_ids.shape[1]] for state in layers)
        for part, layers in zip(parts, of_parts, strict=True)
    ]


def _inputs(part: EncoderBatch) -> dict[str, Tensor]:
    """Return the inputs of a part, always with position ids: those of other parts may differ from the default."""
    inputs = part.encoder.inputs(part.input_ids, part.slots)
    if "position_ids" not in inputs:
        inputs["position_ids"] = part.encoder.positions.ids(part.input_ids, part.encoder.position_offset)
    return inputs


def _joined(inputs: Sequence[Mapping[str, Tensor]], backbone: nn.Module) -> dict[str, Tensor]:
    """Join the inputs of all parts. The result has embeddings if a part has embeddings, and token ids otherwise."""
    if any("inputs_embeds" in part for part in inputs):
        inputs = [_as_vectors(part, backbone) for part in inputs]
    return {name: _stacked([part[name] for part in inputs]) for name in set().union(*inputs)}


def _as_vectors(inputs: Mapping[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    if "inputs_embeds" in inputs:
        return dict(inputs)
    rest = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
    return {**rest, "inputs_embeds": backbone.get_input_embeddings()(inputs["input_ids"])}


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors (n, l, ...) to (N, L, ...). The padding is 0, because position ids must be valid indices."""
    width = max(tensor.shape[1] for tensor in rows)
    return torch.cat([F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, width - tensor.shape[1])) for tensor in rows])


def _prompts(parts: Sequence[EncoderBatch]) -> dict[str, Any]:
    """Return the prefix of all rows for `prefix_attention`, or an empty dict if no encoder has deep prompts."""
    prompts = [part.encoder.prompt for part in parts]
    if not any(prompt is not None for prompt in prompts):
        return {}
    prefix = MixedPrefix(prompts, [len(part.input_ids) for part in parts], parts[0].input_ids.device)
    return {"prefix": prefix, "prefix_mask": prefix.mask}
