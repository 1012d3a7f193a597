"""Continuous prompts: deep prompts (trained keys and values, or vectors, in every layer) and trained input vectors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from dcpcse.encoders import philox
from dcpcse.encoders.attention import Prefix, TablePrefix
from dcpcse.utils.devices import send
from dcpcse.utils.errors import UserError, spell


@dataclass(frozen=True)
class PromptShape:
    """The size of a deep prompt. It consists of P positions, each with a key and a value in each layer.

    Args:
        length: Number of positions P.
        layers: Number of layers.
        heads: Number of key-value heads.
        head_dim: Size of a head.
    """

    length: int
    layers: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Number of parameters per position: the keys and values of all layers."""
        return 2 * self.layers * self.heads * self.head_dim

    @classmethod
    def fit(cls, config: PretrainedConfig, length: int) -> "PromptShape":
        """Return the shape of deep prompts for a backbone with this configuration.

        Args:
            config: The configuration.
            length: Number of positions P.

        Raises:
            UserError: If the configuration has no attention heads.
        """
        heads = getattr(config, "num_attention_heads", None)
        if heads is None:
            raise UserError(
                f"{config.model_type} encoders cannot take deep prompts: their configuration has no attention heads, "
                "and prompts are keys and values of attention; give an encoder such as BERT or RoBERTa"
            )
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(length, config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, head_dim)


class PromptTable(nn.Module):
    """The prompts as one trained table (P, width), initialised from N(0, std).

    Args:
        shape: Size of the prompt.
        width: Number of columns of the table.
        std: Standard deviation of the initial weights.
    """

    def __init__(self, shape: PromptShape, width: int, std: float) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.length, width).normal_(std=std))

    def forward(self) -> Tensor:
        return self.weight


class ProjectedTable(nn.Module):
    """A prompt table that a two-layer MLP computes (`--prefix_projection`; Prefix-Tuning, section 4.3).

    The input of the MLP is a trained table (P, H).

    Weights are initialised from N(0, std), and biases with zeros.

    Args:
        shape: Size of the prompt.
        width: Number of columns of the table.
        inner: Size of the hidden layer of the MLP.
        std: Standard deviation of the initial weights.
    """

    def __init__(self, shape: PromptShape, width: int, inner: int, std: float) -> None:
        super().__init__()
        hidden = shape.heads * shape.head_dim
        self.embedding = nn.Parameter(torch.empty(shape.length, hidden).normal_(std=std))
        self.trans = nn.Sequential(nn.Linear(hidden, inner), nn.Tanh(), nn.Linear(inner, width))
        for linear in (self.trans[0], self.trans[2]):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self) -> Tensor:
        return self.trans(self.embedding)


class DeepPrompt(nn.Module):
    """Trained keys and values that are prepended to the keys and values of every layer (DCPCSE, section 2.1).

    A row of the table contains the key and the value of layer 0, then the key and the value of layer 1, and so on. A
    key or value contains the numbers of head 0, then of head 1, and so on. P-tuning v2, the published checkpoints and
    peft have the same layout. Weights are initialised from N(0, std).

    Args:
        shape: Size of the prompt.
        dropout: Dropout rate of the table in train mode.
        projection: Size of the hidden layer of the MLP that computes the table. None: no MLP, the table itself is
            trained.
        std: Standard deviation of the initial weights.
    """

    kind: ClassVar[str] = "deep"
    """Name of this form of prompts in `dcpcse.json`."""

    def __init__(
        self, shape: PromptShape, *, dropout: float = 0.0, projection: int | None = None, std: float = 0.02
    ) -> None:
        super().__init__()
        self.shape = shape
        self.projection = projection
        self.table = (
            PromptTable(shape, self.width, std)
            if projection is None
            else ProjectedTable(shape, self.width, projection, std)
        )
        self.dropout = nn.Dropout(dropout)

    @property
    def width(self) -> int:
        """Number of columns of the table: the trained numbers per prompt, in all layers."""
        return self.shape.width

    def forward(self, rows: int, backbone: PreTrainedModel | None = None) -> Prefix:
        """Return the prefix for a batch: a mapping from layer to keys and values, each (rows, heads, P, head_dim).

        Args:
            rows: Number of sequences in the batch.
            backbone: The encoder that uses the prefix. Only `VectorPrompt` needs this argument.
        """
        return _by_layer(self._drawn(rows), self.shape)

    def for_kernels(self, rows: int, backbone: PreTrainedModel | None = None) -> Prefix:
        """Return a prefix as `forward` does, but in the form that attention kernels need (`TablePrefix`).

        In this form, the prompts are not copied for each sequence. `VectorPrompt` has no such form.

        Args:
            rows, backbone: As in `forward`.
        """
        rate = self.dropout.p if self.dropout.training else 0.0
        return SharedPrefix(self.table(), self.shape, rows, rate)

    def _drawn(self, rows: int) -> Tensor:
        """Return the table with a separate dropout mask for each row, (rows, P, width)."""
        # Dropout is drawn per row, as in the published code: the two views of a sentence see different prefixes.
        return self.dropout(self.table().expand(rows, -1, -1))

    def record(self) -> dict[str, Any]:
        """Return the prompt's entry in `dcpcse.json`."""
        return {"kind": self.kind, **asdict(self.shape), "projection": self.projection, "dropout": self.dropout.p}

    def as_keys_values(self, backbone: PreTrainedModel) -> "DeepPrompt":
        """Return the same prompts as a plain table of keys and values, for inference.

        Args:
            backbone: As in `forward`.
        """
        return self if self.projection is None else self._plain(self.table())

    def _plain(self, table: Tensor) -> "DeepPrompt":
        plain = DeepPrompt(self.shape, dropout=self.dropout.p)
        plain.table.weight = nn.Parameter(table.detach(), requires_grad=False)
        return plain.train(self.training)


def _by_layer(tables: Tensor, shape: PromptShape) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the keys and values of each layer in tables (N, P, width), each (N, heads, P, head_dim)."""
    rows, length = tables.shape[:2]
    tables = tables.reshape(rows, length, 2 * shape.layers, shape.heads, shape.head_dim)
    # Unbound in one operation: separate indexing would create a gradient of full size for each part.
    halves = tables.permute(2, 0, 3, 1, 4).unbind()  # 2·layers of (N, heads, P, head_dim)
    return {layer: (halves[2 * layer], halves[2 * layer + 1]) for layer in range(shape.layers)}


class SharedPrefix(TablePrefix):
    """The prefix of a batch whose rows have the same prompts with different dropout masks.

    The masks are a function of a seed and are computed when the prefix is used. Kernels compute the masks themselves.
    Attention without kernels gets the keys and values of each row from this class. Both use the same masks.

    Args:
        table: The table (P, width) of the prompts.
        shape: Size of the prompt.
        rows: Number of rows.
        rate: Dropout rate of the prompts.
    """

    def __init__(self, table: Tensor, shape: PromptShape, rows: int, rate: float) -> None:
        self.table, self.rate, self.most_prompts = table, rate, shape.length
        self.seed = torch.randint(2**62, (1,), device=table.device) if rate else None
        self._rows, self._layers = rows, _by_layer(table.unsqueeze(0), shape)

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[layer]
        return self._dropped(keys, philox.PROMPT_KEYS, layer), self._dropped(values, philox.PROMPT_VALUES, layer)

    def _dropped(self, part: Tensor, kind: int, layer: int) -> Tensor:
        """Return the keys or values of all rows, (rows, heads, P, head_dim)."""
        part = part.expand(self._rows, -1, -1, -1)
        if self.seed is None:
            return part
        mask = philox.kept(self.seed, self.rate, kind, layer, part.shape[1], self._rows, part.shape[2:])
        return part * mask / (1 - self.rate)


class MixedPrefix(TablePrefix):
    """The prefix of a batch whose rows have different prompts, for eval mode (without dropout).

    The prompts are tables of keys and values (`DeepPrompt.as_keys_values`). The keys and values of each row are copied
    for one layer at a time, when the layer is accessed, since copies for all layers would need much memory.

    Args:
        prompts: The prompt of each group of rows. None for a group without prompts. At least one prompt must not be
            None.
        rows: Number of rows of each group. The groups follow one another.
        device: Device of the prefix.

    Attributes:
        mask: Boolean (N, P), true at the prompts of each row. P is the length of the longest prompt.
    """

    def __init__(self, prompts: Sequence[DeepPrompt | None], rows: Sequence[int], device: torch.device) -> None:
        present = [prompt for prompt in prompts if prompt is not None]
        self._layers = _by_layer(torch.cat([prompt.table() for prompt in present]).unsqueeze(0), present[0].shape)
        lengths = torch.tensor([0 if prompt is None else prompt.shape.length for prompt in prompts])
        columns, first = torch.arange(int(lengths.max())), lengths.cumsum(0) - lengths
        mask = columns < lengths.unsqueeze(1)
        index = torch.where(mask, columns + first.unsqueeze(1), 0)
        self.most_prompts = len(columns)
        self._index, self.mask, self.first_prompts, self.prompt_counts = (
            send(part.repeat_interleave(torch.tensor(rows), dim=0), device)
            for part in (index, mask, first.int(), lengths.int())
        )

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = (table[self._index].transpose(1, 2) for table in self.tables(layer))
        return keys, values


class ShallowPrompt(nn.Module):
    """Trained vectors that replace word embeddings of the input, before position embeddings and LayerNorm.

    OptiPrompt (PromptBERT, section 4.2), SCPCSE (DCPCSE, section 3.3) and the anchor's prompt in ConPVP use this
    class.

    Args:
        vectors: The initial values (n, E) of the n prompts. E is the size of the encoder's word embeddings.
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(vectors.detach().clone())

    def forward(self, embedded: Tensor, slots: Tensor) -> Tensor:
        """Replace the word embeddings at the indices slots[:, i] by prompt i.

        Args:
            embedded: Word embeddings (N, L, E).
            slots: (N, n), on the CPU, so that reading them does not wait for a GPU. The index -1 leaves a row
                unchanged.
        """
        rows, prompts = (slots >= 0).nonzero(as_tuple=True)
        places = torch.stack([rows, slots[rows, prompts], prompts])
        rows, columns, prompts = send(places, embedded.device).unbind()
        return embedded.index_put((rows, columns), self.weight[prompts].to(embedded))

    def record(self) -> dict[str, int]:
        """Return the prompt's entry in `dcpcse.json`."""
        return {"length": self.weight.shape[0], "width": self.weight.shape[1]}


Projection = Callable[[Tensor], Sequence[Tensor]]
"""Function of hidden states (N, P, H) at the input of a layer. Returns the layer's keys and values, each (N, P, H)."""


class VectorPrompt(DeepPrompt):
    """Trained vectors that are the hidden states of the prompts at the input of every layer (DCPCSE, section 2.1).

    The paper describes "trainable dense vectors" with the dimensions of the input embeddings, trained in every layer.
    The published code trains a key and a value instead (`DeepPrompt`).

    In this class, the frozen layer computes the keys and values from the vectors. Every layer has new vectors, and the
    prompts have no queries, so the outputs of a layer for the prompts are not used. A row of the table contains the
    vector of layer 0, then the vector of layer 1, and so on. Dropout is applied to the vectors.
    """

    kind: ClassVar[str] = "deep_vectors"

    @property
    def width(self) -> int:
        return self.shape.width // 2  # one vector instead of a key and a value

    def forward(self, rows: int, backbone: PreTrainedModel | None = None) -> "VectorPrefix":
        """Return the prefix of `rows` sequences. The layers of the backbone compute it from the vectors.

        Args:
            rows: Number of sequences.
            backbone: The encoder that uses the prefix.

        Raises:
            UserError: If it is not known how encoders of this type compute keys and values.
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
    """A prefix that computes the keys and values of a layer from vectors when the layer uses them.

    Args:
        vectors: The vectors of each layer, each (N, P, H).
        projections: For each layer, the function that computes keys and values from vectors.
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
        """Return the keys and values of a layer.

        Unlike `Mapping.get`, do not hide a KeyError that a projection raises.

        Args:
            layer: Number of the layer.
            default: The result for a layer that the encoder does not have.
        """
        return self[layer] if layer in range(len(self)) else default

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._vectors)


def layer_projections(backbone: PreTrainedModel) -> list[Projection]:
    """Return, for each layer of a backbone, the function that computes keys and values from vectors.

    Raises UserError if the type of the encoder is not supported.
    """
    kind = backbone.config.model_type
    if kind not in _PROJECTIONS:
        raise UserError(
            f"{spell('prompt_form', 'vectors')} does not support {kind} encoders; use "
            f"{spell('prompt_form', 'keys_values')}, or an encoder of one of these types: {', '.join(_PROJECTIONS)}"
        )
    return _PROJECTIONS[kind](backbone)


def _linear(layers: Callable[[PreTrainedModel], Sequence[Sequence[nn.Linear]]]) -> Callable[..., list[Projection]]:
    """Return the entry of `_PROJECTIONS` for encoders in which linear layers compute keys and values.

    Args:
        layers: A function of a backbone that returns the linear layers of the keys and values of each layer.
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
    """Return the module of each layer. The layers of a group share one module."""
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
    """Return keys and values.

    The layer normalises its input first. Keys of prompts are not rotated, since prompts have no positions.
    """
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
"""For each model type, the function that returns the projections of the layers of a backbone."""

PROMPT_FORMS: Mapping[str, type[DeepPrompt]] = {"keys_values": DeepPrompt, "vectors": VectorPrompt}
"""For each value of `--prompt_form`, the class of the deep prompts."""

PROMPT_KINDS: Mapping[str, type[DeepPrompt]] = {prompt.kind: prompt for prompt in PROMPT_FORMS.values()}
"""For each kind of deep prompts in `dcpcse.json`, their class."""
