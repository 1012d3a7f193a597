"""Continuous prompts: trainable keys and values for every layer (deep), or trainable input vectors (shallow).

`dcpcse.encoders.vector_prompts` contains the other form of deep prompts, one trainable vector for every layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from dcpcse.encoders import philox
from dcpcse.encoders.attention import Prefix, TablePrefix
from dcpcse.utils.devices import send
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class PromptShape:
    """Size of a deep prompt, which has a key and a value in each layer.

    Args:
        length: Number of prompts P.
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
        """Number of parameters per prompt: keys and values of all layers."""
        return 2 * self.layers * self.heads * self.head_dim

    @classmethod
    def fit(cls, config: PretrainedConfig, length: int) -> "PromptShape":
        """Return the shape of deep prompts for a backbone with this configuration.

        Args:
            config: The configuration.
            length: Number of prompts P.

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
    """A table computed from a narrower one by a two-layer MLP (`--prefix_projection`; Prefix-Tuning, section 4.3).

    All weights are initialised from N(0, std), biases with zeros.

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
    """Trained keys and values that are prepended to those of every layer (DCPCSE, section 2.1).

    A row of the table is layer-major: key and value of layer 0, key and value of layer 1, and so on, each head-major.
    This is the layout of P-tuning v2, of the published checkpoints and of peft. Weights start from N(0, std).

    Args:
        shape: Size of the prompt.
        dropout: Dropout rate of the table in train mode.
        projection: Size of the hidden layer of the MLP that computes the table; None trains the table itself.
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
        """Return the prefix of `rows` sequences: layer → keys and values, each (rows, heads, P, head_dim).

        Args:
            rows: Number of sequences.
            backbone: The encoder that takes the prefix; other forms of prompts need it.
        """
        return _by_layer(self._drawn(rows), self.shape)

    def for_kernels(self, rows: int, backbone: PreTrainedModel | None = None) -> Prefix:
        """Return the prefix of `forward`, as a table if kernels can read it: nothing is copied for each row.

        Args:
            rows: As in `forward`.
            backbone: As in `forward`.
        """
        rate = self.dropout.p if self.dropout.training else 0.0
        return SharedPrefix(self.table(), self.shape, rows, rate)

    def _drawn(self, rows: int) -> Tensor:
        """Return the table with dropout for each row, (rows, P, width)."""
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
    """Split tables (N, P, width) by layer: layer → keys and values, each (N, heads, P, head_dim)."""
    rows, length = tables.shape[:2]
    tables = tables.reshape(rows, length, 2 * shape.layers, shape.heads, shape.head_dim)
    # Unbound in one operation: separate indexing would create a gradient of full size for each part.
    halves = tables.permute(2, 0, 3, 1, 4).unbind()  # 2·layers of (N, heads, P, head_dim)
    return {layer: (halves[2 * layer], halves[2 * layer + 1]) for layer in range(shape.layers)}


class SharedPrefix(TablePrefix):
    """The prefix of a batch whose rows have the same prompts, with dropout that is drawn for each row when it is used.

    The masks are a function of a seed, so that kernels, which compute them inside, and other attention functions,
    which take the keys and values of each row, use the same prompts.

    Args:
        table: The table (P, width) of the prompts.
        shape: Size of the prompt.
        rows: Number of rows.
        rate: Dropout rate.
    """

    def __init__(self, table: Tensor, shape: PromptShape, rows: int, rate: float) -> None:
        self.table, self.rate, self.most_prompts = table, rate, shape.length
        self.seed = torch.randint(2**62, (1,), device=table.device) if rate else None
        self._rows, self._layers = rows, _by_layer(table.unsqueeze(0), shape)

    def tables(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[layer]
        return keys[0].transpose(0, 1), values[0].transpose(0, 1)

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

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class MixedPrefix(TablePrefix):
    """The prefix of a batch whose rows have different prompts; for eval mode, without dropout.

    The prompts are tables of keys and values (`DeepPrompt.as_keys_values`). The keys and values of a layer are
    gathered into rows on access, since all layers together would be large.

    Args:
        prompts: The prompt of each group of rows, or None if the group has no prompts. At least one prompt must not be
            None.
        rows: Number of rows of each group; the groups follow one another.
        device: Device of the prefix.

    Attributes:
        mask: Boolean (N, P), whether a prompt belongs to a row; P is the length of the longest prompt.
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

    def tables(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = (half[0].transpose(0, 1) for half in self._layers[layer])
        return keys, values

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = (half[0].transpose(0, 1)[self._index].transpose(1, 2) for half in self._layers[layer])
        return keys, values

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class ShallowPrompt(nn.Module):
    """Trained vectors that replace word embeddings of the input, before position embeddings and LayerNorm.

    Used by OptiPrompt (PromptBERT, section 4.2), SCPCSE (DCPCSE, section 3.3) and the anchor's prompt of ConPVP.

    Args:
        vectors: The initial values (n, E) of the n prompts; E is the size of the encoder's word embeddings.
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(vectors.detach().clone())

    def forward(self, embedded: Tensor, slots: Tensor) -> Tensor:
        """Replace the word embeddings at the indices slots[:, i] by prompt i.

        Args:
            embedded: Word embeddings (N, L, E).
            slots: (N, n), on the CPU, so that their number can be read without waiting for a GPU; the index -1 leaves
                a row unchanged.
        """
        rows, prompts = (slots >= 0).nonzero(as_tuple=True)
        places = torch.stack([rows, slots[rows, prompts], prompts])
        rows, columns, prompts = send(places, embedded.device).unbind()
        return embedded.index_put((rows, columns), self.weight[prompts].to(embedded))

    def record(self) -> dict[str, int]:
        """Return the prompt's entry in `dcpcse.json`."""
        return {"length": self.weight.shape[0], "width": self.weight.shape[1]}
