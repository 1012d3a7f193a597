"""Deep prompts with one trained vector for every layer, from which the frozen layer computes keys and values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders.prompts import DeepPrompt
from dcpcse.utils.errors import UserError, spell

Projection = Callable[[Tensor], Sequence[Tensor]]
"""Function from hidden states (N, P, H) at the input of a layer to the layer's keys and values, each (N, P, H)."""


class VectorPrompt(DeepPrompt):
    """Trained vectors that are the hidden states of the prompts at the input of every layer (DCPCSE, section 2.1).

    The paper describes "trainable dense vectors" with the dimensions of the input embeddings, trained in every layer;
    its code trains a key and a value (`DeepPrompt`). The keys and values are those that the frozen layer
    computes from the vectors. The vectors are replaced in every layer, and the prompts have no queries, so the output
    of a layer at the prompts is not used. A row of the table is layer-major: the vector of layer 0, of layer 1, and so
    on. Dropout is applied to the vectors.
    """

    kind: ClassVar[str] = "deep_vectors"

    @property
    def width(self) -> int:
        return self.shape.width // 2  # one vector instead of a key and a value

    def forward(self, rows: int, backbone: PreTrainedModel | None = None) -> "VectorPrefix":
        """Return the prefix of `rows` sequences for the backbone, whose layers compute it from the vectors.

        Args:
            rows: Number of sequences.
            backbone: The encoder that takes the prefix.

        Raises:
            UserError: If the keys and values of this kind of encoder are not known.
        """
        return self._projected(self._drawn(rows), backbone)

    def for_kernels(self, rows: int, backbone: PreTrainedModel | None = None) -> "VectorPrefix":
        return self(rows, backbone)  # the layers compute keys and values for each row

    def as_keys_values(self, backbone: PreTrainedModel) -> DeepPrompt:
        with torch.no_grad():
            prefix = self._projected(self.table().unsqueeze(0), backbone)
            parts = [part for layer in prefix for part in prefix[layer]]  # 2·layers of (1, heads, P, head_dim)
        return self._plain(torch.cat([part[0].transpose(0, 1).flatten(1).float() for part in parts], dim=1))

    def _projected(self, tables: Tensor, backbone: PreTrainedModel) -> "VectorPrefix":
        vectors = tables.unflatten(2, (self.shape.layers, -1)).permute(2, 0, 1, 3).unbind()  # layers of (N, P, H)
        return VectorPrefix(vectors, layer_projections(backbone), self.shape.heads)


class VectorPrefix(Mapping[int, tuple[Tensor, Tensor]]):
    """A prefix whose keys and values are computed from vectors when a layer uses them.

    Args:
        vectors: The vectors of each layer, each (N, P, H).
        projections: The function of each layer.
        heads: Number of key-value heads.
    """

    def __init__(self, vectors: Sequence[Tensor], projections: Sequence[Projection], heads: int) -> None:
        self._vectors, self._projections, self._heads = vectors, projections, heads

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        if layer not in range(len(self)):
            raise KeyError(layer)
        vectors = self._vectors[layer]
        # Without dropout all rows are equal, and are computed once.
        distinct = vectors[:1] if vectors.stride(0) == 0 else vectors
        keys, values = (
            part.unflatten(2, (self._heads, -1)).transpose(1, 2).expand(vectors.shape[0], -1, -1, -1)
            for part in self._projections[layer](distinct)
        )
        return keys, values

    def get(self, layer: int, default: object = None) -> object:
        """Return the keys and values of a layer. A KeyError of a projection does not mean that there are none.

        Args:
            layer: Number of the layer.
            default: What is returned for a layer that the encoder does not have.
        """
        return self[layer] if layer in range(len(self)) else default

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._vectors)


def layer_projections(backbone: PreTrainedModel) -> list[Projection]:
    """Return, for each layer of a backbone, the function that computes its keys and values.

    Raises UserError if this kind of encoder is not supported.
    """
    kind = backbone.config.model_type
    if kind not in _PROJECTIONS:
        raise UserError(
            f"{spell('prompt_form', 'vectors')} does not support {kind} encoders; use "
            f"{spell('prompt_form', 'keys_values')}, or one of: {', '.join(_PROJECTIONS)}"
        )
    return _PROJECTIONS[kind](backbone)


def _linear(layers: Callable[[PreTrainedModel], Sequence[Sequence[nn.Linear]]]) -> Callable[..., list[Projection]]:
    """Return the entry of encoders whose keys and values are linear in the hidden states.

    layers: returns, for each layer of a backbone, the linear layers of its keys and of its values.
    """
    return lambda backbone: [partial(_keys_values, *pair) for pair in layers(backbone)]


def _keys_values(key: nn.Linear, value: nn.Linear, hidden: Tensor) -> list[Tensor]:
    hidden = hidden.to(key.weight.dtype)
    return [key(hidden), value(hidden)]


def _of_bert(backbone: PreTrainedModel) -> list[tuple[nn.Linear, nn.Linear]]:
    attentions = [layer.attention.self for layer in backbone.encoder.layer]
    return [(attention.key, attention.value) for attention in attentions]


def _of_distilbert(backbone: PreTrainedModel) -> list[tuple[nn.Linear, nn.Linear]]:
    attentions = [layer.attention for layer in backbone.transformer.layer]
    return [(attention.k_lin, attention.v_lin) for attention in attentions]


def _of_albert(backbone: PreTrainedModel) -> list[tuple[nn.Linear, nn.Linear]]:
    """The layers of a group are one module, which projects the vectors of each of these layers."""
    groups, layers = backbone.encoder.albert_layer_groups, backbone.config.num_hidden_layers
    attentions = [groups[layer * len(groups) // layers].albert_layers[0].attention for layer in range(layers)]
    return [(attention.key, attention.value) for attention in attentions]


def _of_mpnet(backbone: PreTrainedModel) -> list[tuple[nn.Linear, nn.Linear]]:
    attentions = [layer.attention.attn for layer in backbone.encoder.layer]
    return [(attention.k, attention.v) for attention in attentions]


def _of_deberta(backbone: PreTrainedModel) -> list[tuple[nn.Linear, nn.Linear]]:
    attentions = [layer.attention.self for layer in backbone.encoder.layer]
    return [(attention.key_proj, attention.value_proj) for attention in attentions]


def _of_modernbert(backbone: PreTrainedModel) -> list[Projection]:
    return [partial(_modernbert_keys_values, layer) for layer in backbone.layers]


def _modernbert_keys_values(layer: nn.Module, hidden: Tensor) -> Sequence[Tensor]:
    """The layer normalises its input first. The keys of prompts are not rotated, since prompts have no positions."""
    linear = layer.attn.Wqkv
    return linear(layer.attn_norm(hidden.to(linear.weight.dtype))).chunk(3, dim=-1)[1:]


_PROJECTIONS: Mapping[str, Callable[[PreTrainedModel], list[Projection]]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _linear(_of_bert)),
    "modernbert": _of_modernbert,
    "distilbert": _linear(_of_distilbert),
    "albert": _linear(_of_albert),
    "mpnet": _linear(_of_mpnet),
    "deberta-v2": _linear(_of_deberta),
}
"""Model type → function that returns the projections of its layers."""

PROMPT_FORMS: Mapping[str, type[DeepPrompt]] = {"keys_values": DeepPrompt, "vectors": VectorPrompt}
"""Value of `--prompt_form` → class of the deep prompts."""

PROMPT_KINDS: Mapping[str, type[DeepPrompt]] = {prompt.kind: prompt for prompt in PROMPT_FORMS.values()}
"""Kind of deep prompts in `dcpcse.json` → their class."""
