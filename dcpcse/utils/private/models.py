"""The private names of torch and of encoders."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from dcpcse.utils.private import require_names

require_names(torch, "_foreach_norm")
require_names(Tensor, "_version")
require_names(PreTrainedModel, "_supports_attention_backend", "_hf_peft_config_loaded")
require_names(PretrainedConfig(), "_attn_implementation")
if torch.backends.mkldnn.is_available():
    require_names(torch.ops.mkldnn, "_reorder_linear_weight", "_linear_pointwise")


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each tensor; a GPU computes them together."""
    return list(torch._foreach_norm(tensors))


def version_of(tensor: Tensor) -> int:
    """Return how many times a tensor was changed in place. The tensor must not be an inference tensor."""
    return tensor._version


def pack_weight(weight: Tensor) -> Tensor:
    """Return the float32 weight (out, in) of a linear layer as blocks for oneDNN."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def packed_linear(input: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    """Return the output (..., out) of a linear layer with packed weights for an input (..., in).

    Args:
        input: The input (..., in).
        blocks: The packed weights.
        bias: The bias (out,), or None.
    """
    return torch.ops.mkldnn._linear_pointwise(input.contiguous(), blocks, bias, "none", [], "")


def attention_can_be_replaced(model: PreTrainedModel) -> bool:
    """Return whether a model computes attention by the function that is set in its configuration."""
    return model._supports_attention_backend


def holds_peft_adapter(model: nn.Module) -> bool:
    """Return whether transformers has loaded an adapter of peft into a model."""
    return getattr(model, "_hf_peft_config_loaded", False)  # also for modules that are not a PreTrainedModel


def attention_of(config: PretrainedConfig) -> str | None:
    """Return the implementation of attention that a configuration requires; None if it requires none."""
    return config._attn_implementation
