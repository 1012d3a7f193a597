"""Position ids of texts that prompts shift, and attention of the two architectures with relative positions.

transformers computes the attention of MPNet and DeBERTa-v2, including the scores of relative positions, inside the
modules of these models. The classes here have the same names and weights as in transformers and compute the same
results. They call `dcpcse.encoders.attention`, which accepts prompts and batches without padding.

Prompts have no positions, so relative positions add nothing to their scores. In MPNet, the learned bias is 0 for
prompts. In DeBERTa-v2, the content-to-position and position-to-content scores are left out for prompts. DeBERTa-v2
divides the scores of prompts and of tokens by the same number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.mpnet import modeling_mpnet

from dcpcse.encoders.attention import Bias, prefix_attention
from dcpcse.encoders.packing import Packing

DECODERS = ("qwen2", "qwen3", "llama", "mistral", "gemma", "gemma3_text")
"""Model types of decoders that are supported as encoders. Some of them attend in both directions (EmbeddingGemma)."""


@dataclass(frozen=True)
class Positions:
    """How a backbone numbers its tokens.

    Args:
        size: Number of rows of the position table. For rotary models, the context length in training.
        first: Position id of the first token.
        padding_idx: The position id of padding in backbones that count only real tokens (RoBERTa). None for other
            backbones.
        rotary: Whether positions are rotary (RoPE) and texts always begin at 0. Shifting the texts would have the same
            effect as rotating the keys of the prompts, which are trained anyway.
    """

    size: int
    first: int = 0
    padding_idx: int | None = None
    rotary: bool = False

    def room(self, offset: int) -> int:
        """Return how many tokens, including special tokens, a text may have if it is shifted by `offset` positions."""
        return self.size - self.first - offset

    def ids(self, input_ids: Tensor, offset: int) -> Tensor:
        """Return the position ids (N, L) of the tokens of N texts that are shifted.

        transformers 4.2.1, which the papers use, assigns the same ids to a text after `offset` cached tokens.

        Args:
            input_ids: Token ids (N, L).
            offset: Number of positions by which the texts are shifted.
        """
        if self.padding_idx is None:
            steps = torch.arange(input_ids.shape[1], device=input_ids.device)
            return (steps + self.first + offset).expand_as(input_ids)
        real = input_ids.ne(self.padding_idx).long()
        return (real.cumsum(1) + offset) * real + self.padding_idx

    def at(self, index: Tensor, offset: int) -> Tensor:
        """Return the position ids of real tokens of a text that is shifted.

        Args:
            index: Indices of the tokens in the text, from 0.
            offset: Number of positions by which the text is shifted.
        """
        return index + self.first + offset


def positions_of(backbone: PreTrainedModel) -> Positions:
    """Return how a backbone numbers its tokens.

    A backbone without a table of position embeddings has rotary positions. For decoders, `rotary` is False
    nevertheless, since their texts can be shifted: in transformers, positions continue those of the cached keys.
    """
    if backbone.config.model_type in DECODERS:
        return Positions(size=backbone.config.max_position_embeddings)
    table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return Positions(size=backbone.config.max_position_embeddings, rotary=True)
    if table.padding_idx is None:
        return Positions(size=table.num_embeddings)
    return Positions(table.num_embeddings, first=table.padding_idx + 1, padding_idx=table.padding_idx)


class MPNetSelfAttention(modeling_mpnet.MPNetSelfAttention):
    """MPNet's attention, which adds a learned bias for each distance and head to the attention scores."""

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, position_bias: Tensor, **options: Any) -> Tensor:
        """Return the output of the attention for hidden states, both (N, L, H).

        Args:
            position_bias: (1, heads, width, width), the bias for each pair of positions in the longest text. It is the
                same in all layers.
        """
        states = _heads(hidden, (self.q, self.k, self.v), self.num_attention_heads)
        return self.o(_attend(self, states, attention_mask, lambda query, key: position_bias, **options))


class MPNetLayer(modeling_mpnet.MPNetLayer):
    """A layer of MPNet that passes the options of `prefix_attention` on to its attention."""

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Tensor:
        attention = self.attention
        attended = attention.LayerNorm(attention.dropout(attention.attn(hidden, *args, **options)) + hidden)
        return self.output(self.intermediate(attended), attended)


class MPNetModel(modeling_mpnet.MPNetModel):
    """An MPNet model that passes the options of `prefix_attention` on to its layers."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        **options: Any,
    ) -> BaseModelOutputWithPooling:
        hidden = self.embeddings(input_ids=input_ids, position_ids=position_ids, inputs_embeds=inputs_embeds)
        states = [hidden]
        # Positions are counted from the start of each text, also in a packed batch.
        position_bias = self.encoder.compute_position_bias(hidden.new_empty(1, _width(hidden, options)))
        for layer in self.encoder.layer:
            states.append(layer(states[-1], _of_keys(attention_mask), position_bias, **options))
        return BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if output_hidden_states else None,
        )


class DisentangledSelfAttention(modeling_deberta_v2.DisentangledSelfAttention):
    """DeBERTa-v2's attention, which adds scores between contents and relative positions."""

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None,
        relative_pos: Tensor | None,
        rel_embeddings: Tensor | None,
        **options: Any,
    ) -> Tensor:
        """Return the output of the attention for hidden states, both (N, L, H).

        Args:
            relative_pos, rel_embeddings: As in transformers. None without relative positions.
        """
        projections = self.query_proj, self.key_proj, self.value_proj
        states = _heads(hidden, projections, self.num_attention_heads)
        factor = 1 + len({"c2p", "p2c"}.intersection(self.pos_att_type))
        relative = None
        if self.relative_attention and factor > 1:
            relative = partial(self._relative, relative_pos, self.pos_dropout(rel_embeddings), factor)
        divisor = np.sqrt(np.float32(states[0].shape[-1] * factor))  # rounded to float32, as in transformers
        return _attend(self, states, attention_mask, relative, scaling=1 / float(divisor), **options)

    def _relative(
        self, relative_pos: Tensor, rel_embeddings: Tensor, factor: int, query: Tensor, key: Tensor
    ) -> Tensor:
        flat = query.flatten(0, 1), key.flatten(0, 1)
        scores = self.disentangled_attention_bias(*flat, relative_pos, rel_embeddings, factor)
        return scores.unflatten(0, query.shape[:2])


class DebertaV2Layer(modeling_deberta_v2.DebertaV2Layer):
    """A layer of DeBERTa-v2 that passes the options of `prefix_attention` on to its attention."""

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Tensor:
        attended = self.attention.output(self.attention.self(hidden, *args, **options), hidden)
        return self.output(self.intermediate(attended), attended)


class DebertaV2Model(modeling_deberta_v2.DebertaV2Model):
    """A DeBERTa-v2 model that passes the options of `prefix_attention` on to its layers."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        **options: Any,
    ) -> BaseModelOutput:
        encoder, packing = self.encoder, options.get("packing")
        hidden = self.embeddings(input_ids, token_type_ids, position_ids, attention_mask, inputs_embeds)
        states = [hidden]
        relative_pos = encoder.get_rel_pos(hidden.new_empty(_width(hidden, options), 1))
        positions = relative_pos, encoder.get_rel_embedding()
        for number, layer in enumerate(encoder.layer):
            output = layer(states[-1], _of_keys(attention_mask), *positions, **options)
            if number == 0 and encoder.conv is not None:
                output = _convolved(encoder.conv, hidden, output, attention_mask, packing)
            states.append(output)
        return BaseModelOutput(
            last_hidden_state=states[-1], hidden_states=tuple(states) if output_hidden_states else None
        )


def _convolved(
    convolution: nn.Module, embedded: Tensor, hidden: Tensor, mask: Tensor | None, packing: Packing | None
) -> Tensor:
    """Return the output of DeBERTa's convolution over neighbouring tokens of the same text."""
    if packing is None:
        return convolution(embedded, hidden, hidden.new_ones(hidden.shape[:2]) if mask is None else mask)
    embedded, hidden = (packing.to_rows(states.squeeze(0)) for states in (embedded, hidden))
    return packing.from_rows(convolution(embedded, hidden, packing.real.long())).unsqueeze(0)


def _width(hidden: Tensor, options: Mapping[str, Any]) -> int:
    """Return the length of the longest text of a batch of hidden states, padded or packed."""
    packing = options.get("packing")
    return hidden.shape[1] if packing is None else packing.real.shape[1]


def _of_keys(attention_mask: Tensor | None) -> Tensor | None:
    return None if attention_mask is None else attention_mask.bool()[:, None, None]


def _heads(hidden: Tensor, projections: tuple[nn.Module, ...], heads: int) -> list[Tensor]:
    """Return query, key and value of hidden states (N, L, H), each (N, heads, L, head_dim)."""
    return [linear(hidden).unflatten(2, (heads, -1)).transpose(1, 2) for linear in projections]


def _attend(
    module: nn.Module, states: list[Tensor], attention_mask: Tensor | None, bias: Bias | None, **options: Any
) -> Tensor:
    """Return the attended values (N, L, H).

    Args:
        options: The options of `prefix_attention`.
    """
    dropout = module.dropout.p if module.training else 0.0
    how = {"bias": bias, "dropout": dropout, "is_causal": False, **options}
    return prefix_attention(module, *states, attention_mask, **how)[0].flatten(2)


_REPLACEMENTS: Mapping[type, type] = {
    own.__base__: own
    for own in (
        *(MPNetModel, MPNetLayer, MPNetSelfAttention),
        *(DebertaV2Model, DebertaV2Layer, DisentangledSelfAttention),
    )
}
"""Maps a class of transformers to its replacement in this module. Other encoders keep their classes."""


def adds_to_scores(backbone: PreTrainedModel) -> bool:
    """Return whether a backbone adds scores of relative positions to its attention scores."""
    return type(backbone) in _REPLACEMENTS.values()


def replace_attention(backbone: PreTrainedModel) -> bool:
    """Let a backbone compute attention by `prefix_attention`.

    Return False if this Python module has no class for the type of the backbone.
    """
    if type(backbone) not in (*_REPLACEMENTS, *_REPLACEMENTS.values()):
        return False
    for module in backbone.modules():
        module.__class__ = _REPLACEMENTS.get(type(module), type(module))
    return True
