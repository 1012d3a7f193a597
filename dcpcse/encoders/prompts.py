"""Continuous prompts: trainable keys and values for every layer (deep), or input vectors (shallow)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from dcpcse.encoders.attention import Prefix


@dataclass(frozen=True)
class PromptShape:
    """Size of a deep prompt: `length` prompts with a key and a value in each of `layers` layers."""

    length: int
    layers: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Numbers per prompt: keys and values of all layers."""
        return 2 * self.layers * self.heads * self.head_dim

    @classmethod
    def fit(cls, config: PretrainedConfig, length: int) -> "PromptShape":
        """The shape that a backbone of this configuration takes (key-value heads where they are fewer)."""
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(length, config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, head_dim)


class PromptTable(nn.Module):
    """The prompts as one trained table (P, 2·layers·heads·head_dim)."""

    def __init__(self, shape: PromptShape, std: float) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.length, shape.width).normal_(std=std))

    def forward(self) -> Tensor:
        return self.weight


class ProjectedTable(nn.Module):
    """The table computed from a narrow one by a two-layer MLP (`--prefix_projection`; Prefix-Tuning, section 4.3)."""

    def __init__(self, shape: PromptShape, inner: int, std: float) -> None:
        super().__init__()
        hidden = shape.heads * shape.head_dim
        self.embedding = nn.Parameter(torch.empty(shape.length, hidden).normal_(std=std))
        self.trans = nn.Sequential(nn.Linear(hidden, inner), nn.Tanh(), nn.Linear(inner, shape.width))
        for linear in (self.trans[0], self.trans[2]):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self) -> Tensor:
        return self.trans(self.embedding)


class DeepPrompt(nn.Module):
    """Draws the keys and values that stand before every layer's own (DCPCSE, section 2.1).

    A row of the table is layer-major: key then value of layer 0, of layer 1, …; inside each head-major, the
    layout of P-tuning v2, of the published checkpoints and of peft. Initialised N(0, std).
    """

    def __init__(
        self, shape: PromptShape, *, dropout: float = 0.0, projection: int | None = None, std: float = 0.02
    ) -> None:
        """projection: inner size of the MLP that computes the table; None trains the table itself."""
        super().__init__()
        self.shape = shape
        self.projection = projection
        self.table = PromptTable(shape, std) if projection is None else ProjectedTable(shape, projection, std)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: int) -> Prefix:
        """Prefix for `rows` sequences: layer → keys and values, each (rows, heads, P, head_dim)."""
        # Dropped out per row, as the published code does: the two views of a sentence see different prefixes.
        return _by_layer(self.dropout(self.table().expand(rows, -1, -1)), self.shape)

    def record(self) -> dict[str, Any]:
        """What `dcpcse.json` holds of the prompt."""
        return {"kind": "deep", **asdict(self.shape), "projection": self.projection, "dropout": self.dropout.p}

    def without_projection(self) -> "DeepPrompt":
        """The same prompts as a table of their own, without the MLP that computes it."""
        if self.projection is None:
            return self
        plain = DeepPrompt(self.shape, dropout=self.dropout.p)
        plain.table.weight = nn.Parameter(self.table().detach(), requires_grad=False)
        return plain


def _by_layer(tables: Tensor, shape: PromptShape) -> dict[int, tuple[Tensor, Tensor]]:
    """Tables (N, P, width) → layer → keys and values, each (N, heads, P, head_dim)."""
    rows, length = tables.shape[:2]
    tables = tables.reshape(rows, length, 2 * shape.layers, shape.heads, shape.head_dim)
    # At once: taken one by one, each would have a gradient of the size of all in the backward pass.
    halves = tables.permute(2, 0, 3, 1, 4).unbind()  # 2·layers of (N, heads, P, head_dim)
    return {layer: (halves[2 * layer], halves[2 * layer + 1]) for layer in range(shape.layers)}


class MixedPrefix(Mapping[int, tuple[Tensor, Tensor]]):
    """The prefix of a batch whose rows have different prompts, in eval mode: no dropout falls on them.

    A layer's keys and values are put into rows when they are asked for, as those of all layers at once are large.
    mask, boolean (N, P): which prompts are a row's own; P is the length of the longest.
    """

    def __init__(self, prompts: Sequence[DeepPrompt | None], rows: Sequence[int], device: torch.device) -> None:
        """prompts: those of the first rows[0] rows, of the next rows[1], …; None for rows without, not for all."""
        present = [prompt for prompt in prompts if prompt is not None]
        self._layers = _by_layer(torch.cat([prompt.table() for prompt in present]).unsqueeze(0), present[0].shape)
        lengths = torch.tensor([0 if prompt is None else prompt.shape.length for prompt in prompts])
        places = torch.arange(int(lengths.max()))
        mask = places < lengths.unsqueeze(1)
        index = torch.where(mask, places + (lengths.cumsum(0) - lengths).unsqueeze(1), 0)
        self._index, self.mask = (
            part.repeat_interleave(torch.tensor(rows), dim=0).to(device) for part in (index, mask)
        )

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = (half[0].transpose(0, 1)[self._index].transpose(1, 2) for half in self._layers[layer])
        return keys, values

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class ShallowPrompt(nn.Module):
    """Trained vectors that stand in places of the input, before position embeddings and LayerNorm.

    OptiPrompt (PromptBERT, section 4.2), SCPCSE (DCPCSE, section 3.4) and the anchor's prompt of ConPVP.
    """

    def __init__(self, vectors: Tensor) -> None:
        """vectors (n, E): what the prompts begin as, of the width of the encoder's word embeddings."""
        super().__init__()
        self.weight = nn.Parameter(vectors.detach().clone())

    def forward(self, embedded: Tensor, slots: Tensor) -> Tensor:
        """Word embeddings (N, L, E) with prompt i at slots[:, i], (N, n); -1 leaves a row without."""
        rows, prompts = (slots >= 0).nonzero(as_tuple=True)
        return embedded.index_put((rows, slots[rows, prompts]), self.weight[prompts].to(embedded))

    def record(self) -> dict[str, int]:
        """What `dcpcse.json` holds of the prompt."""
        return {"length": self.weight.shape[0], "width": self.weight.shape[1]}
