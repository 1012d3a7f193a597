"""Heads: layers after the pooler, which are applied before the loss and, for some methods, also at inference."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from dcpcse.encoders.backbones import LMHead
from dcpcse.utils.distributed import all_reduce_sum, world_size
from dcpcse.utils.errors import OptionError, UserError, spell


def apply_head(head: nn.Module, pooled: Tensor) -> Tensor:
    """Return the output of a head for pooled vectors, computed in the dtype of the head's weights.

    Pooled vectors are float32 or wider, whatever the dtype of the encoder's weights. The head's weights may have
    another dtype, for example after `model.half()`. The output always has the dtype of the pooled vectors.

    Args:
        head: The head.
        pooled: Pooled vectors (N, H).
    """
    dtype = next(head.parameters(), pooled).dtype
    return head(pooled) if dtype == pooled.dtype else head(pooled.to(dtype)).to(pooled.dtype)


class TanhMLP(nn.Module):
    """One dense layer with tanh, from (N, H) to (N, H): the `mlp` of SimCSE and DCPCSE.

    The weights are initialised from N(0, std). They are not copied from the checkpoint's pooler of the same shape.

    Args:
        hidden_size: The dimension H.
        std: Standard deviation of the initial weights.
    """

    def __init__(self, hidden_size: int, std: float = 0.02) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = nn.Tanh()
        nn.init.normal_(self.dense.weight, std=std)
        nn.init.zeros_(self.dense.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.activation(self.dense(pooled))


class JointBatchNorm(nn.BatchNorm1d):
    """Batch normalisation over the rows (N, H) of all processes in training, on GPUs and CPUs.

    torch's SyncBatchNorm supports GPUs only. Here, the number of rows may differ between processes. The running
    statistics are the same in all processes, and the same as in one process that computes the joined batch.
    """

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training or world_size() == 1:
            return super().forward(rows)
        with torch.autocast(rows.device.type, enabled=False):
            return self._normalized(rows.to(self.running_mean.dtype)).to(rows.dtype)

    def _normalized(self, rows: Tensor) -> Tensor:
        own_count = rows.new_full((1,), len(rows))
        count, total = all_reduce_sum(torch.cat([own_count, rows.sum(0)])).split([1, rows.shape[1]])
        mean = total / count
        # Computed from deviations from the mean, since a sum of squares would lose the digits of a small variance.
        variance = all_reduce_sum((rows - mean).square().sum(0)) / count
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        normal = (rows - mean) * torch.rsqrt(variance + self.eps)
        return normal * self.weight + self.bias if self.affine else normal


class BatchNormMLP(nn.Module):
    """Two dense layers with batch normalisation, from (N, H) to (N, H) (D2CSE, appendix, and DiffCSE).

    In training, at least two rows are required. The batch statistics are computed over all rows: all views of all
    sentences in all processes.

    Args:
        hidden_size: The dimension H.
        std: Standard deviation of the initial weights.
    """

    def __init__(self, hidden_size: int, std: float = 0.02) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size, bias=False),
            JointBatchNorm(2 * hidden_size),
            nn.ReLU(),
            nn.Linear(2 * hidden_size, hidden_size, bias=False),
            JointBatchNorm(hidden_size, affine=False),
        )
        for layer in (self.layers[0], self.layers[3]):
            nn.init.normal_(layer.weight, std=std)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.layers(pooled)


class PretrainedPooler(nn.Module):
    """The checkpoint's pooler of [CLS] vectors (N, H): dense and tanh, trained with next-sentence prediction."""

    def __init__(self, pooler: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, pooled: Tensor) -> Tensor:
        # The pooler of transformers selects the first token of a sequence itself.
        return self.pooler(pooled.unsqueeze(1))


class DenseLayers(nn.Module):
    """The Dense modules of a sentence-transformers folder, from (N, H) to (N, D): linear layers with activations.

    The layers are used at inference and are not saved.

    Args:
        layers: The linear layers.
        activations: For each layer, the name of the torch.nn class of its activation.
    """

    def __init__(self, layers: Sequence[nn.Linear], activations: Sequence[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activations = list(activations)

    @property
    def dimension(self) -> int:
        """Size D of the output."""
        return self.layers[-1].out_features

    def forward(self, pooled: Tensor) -> Tensor:
        for layer, activation in zip(self.layers, self.activations, strict=True):
            pooled = getattr(nn, activation)()(layer(pooled))
        return pooled


class MLMTransform(nn.Module):
    """The layers of a masked-LM head before the decoder (dense, activation, LayerNorm), from (N, H) to (N, H).

    PromptBERT's code (`org_mlp`) applies the checkpoint's transform to two [MASK] vectors: of the sentence in its
    template, and of the template alone. It then subtracts the second result from the first, and it trains the
    transform. The published score of 81.97 for supervised BERT-base requires this head.

    Args:
        hidden_size: The dimension H.
        activation: Name of the activation in transformers' `ACT2FN`.
        eps: Epsilon of the LayerNorm.
    """

    def __init__(self, hidden_size: int, activation: str = "gelu", eps: float = 1e-12) -> None:
        super().__init__()
        self.activation = activation
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=eps)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.norm(ACT2FN[self.activation](self.dense(pooled)))

    @classmethod
    def of(cls, lm_head: LMHead) -> "MLMTransform":
        """Copy the transform of a masked-LM head. Raise UserError if the head has a different structure."""
        masked_lm = lm_head.masked_lm
        decoder = masked_lm.get_output_embeddings()
        dense = [m for m in masked_lm.modules() if isinstance(m, nn.Linear) and m is not decoder]
        norms = [m for m in masked_lm.modules() if isinstance(m, nn.LayerNorm)]
        if (len(dense), len(norms)) != (1, 1) or dense[0].in_features != dense[0].out_features:
            raise _no_transform(masked_lm)
        for activation in dict.fromkeys((getattr(masked_lm.config, "hidden_act", "gelu"), "gelu")):
            head = cls(decoder.in_features, activation, norms[0].eps)
            head.dense, head.norm = copy.deepcopy(dense[0]), copy.deepcopy(norms[0])
            if None not in (head.dense.bias, head.norm.bias) and _reproduces(head, lm_head, decoder):
                return head.requires_grad_(True)
        raise _no_transform(masked_lm)


@torch.no_grad()
def _reproduces(head: MLMTransform, lm_head: LMHead, decoder: nn.Linear) -> bool:
    """Return whether the transform followed by the decoder computes the same logits as the LM head."""
    # A separate generator: this check must not change the random numbers of the run.
    hidden = torch.randn(4, decoder.in_features, generator=torch.Generator().manual_seed(0)).to(decoder.weight)
    return torch.allclose(decoder(head(hidden)), lm_head(hidden), atol=1e-4, rtol=1e-4)


def _no_transform(masked_lm: nn.Module) -> UserError:
    return OptionError(
        "org_mlp",
        True,
        f"the masked-LM head of {masked_lm.config.model_type} is not a dense layer, an activation and a LayerNorm "
        "of the encoder's size before its decoder, as in BERT and RoBERTa",
        f"leave out {spell('org_mlp', True)}",
    )


HEADS: dict[str, type[nn.Module]] = {"tanh_mlp": TanhMLP, "batchnorm_mlp": BatchNormMLP, "mlm_transform": MLMTransform}
"""Heads that a model folder can contain. Maps the name in `dcpcse.json` to the class of the head."""


def head_record(head: nn.Module) -> dict[str, Any]:
    """Return the entry of a head in `dcpcse.json`. Raise KeyError if a model folder cannot contain this head."""
    kind = {cls: name for name, cls in HEADS.items()}[type(head)]
    settings = {"activation": head.activation, "eps": head.norm.eps} if isinstance(head, MLMTransform) else {}
    return {"kind": kind, **settings}


def build_head(record: Mapping[str, Any], hidden_size: int) -> nn.Module:
    """Build the head that a record describes. The weights are loaded later.

    Args:
        record: The entry of the head in `dcpcse.json`.
        hidden_size: The dimension H.
    """
    settings = {name: value for name, value in record.items() if name not in ("kind", "at_inference")}
    return HEADS[record["kind"]](hidden_size, **settings)
