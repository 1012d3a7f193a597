"""Heads between the pooled vector and the loss (and, for some methods, the sentence embedding)."""

from torch import Tensor, nn


class TanhMLP(nn.Module):
    """One dense layer with tanh, (N, H) → (N, H): the `mlp` of SimCSE and DCPCSE.

    Drawn fresh from N(0, std), not the checkpoint's pretrained pooler, which has the same shape.
    """

    def __init__(self, hidden_size: int, std: float = 0.02) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = nn.Tanh()
        nn.init.normal_(self.dense.weight, std=std)
        nn.init.zeros_(self.dense.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.activation(self.dense(pooled))


class PretrainedPooler(nn.Module):
    """The checkpoint's own pooler (dense and tanh trained with next-sentence prediction) on a [CLS] vector."""

    def __init__(self, pooler: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, pooled: Tensor) -> Tensor:
        # transformers' pooler picks the first token of a sequence itself.
        return self.pooler(pooled.unsqueeze(1))


HEADS: dict[str, type[nn.Module]] = {"tanh_mlp": TanhMLP}
"""Heads that a model folder can hold, by the name written into it; each is built from the hidden size."""


def head_name(head: nn.Module) -> str:
    """The name of a head in `HEADS`; KeyError for a head that no folder can hold."""
    return {cls: name for name, cls in HEADS.items()}[type(head)]
