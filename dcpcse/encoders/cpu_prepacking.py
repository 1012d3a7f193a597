"""Prepack frozen weights into the memory layout that matrix products on a CPU need.

A matrix product first copies its weight into blocks that fit the registers and caches of the processor. It does so in
every call, since the weight may have changed. Frozen weights do not change, so oneDNN can reuse blocks that are
prepared once. A training step with frozen weights is then faster than one with trained weights.
"""

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dcpcse.encoders.frozen_layers import frozen_linear_layers, using_products
from dcpcse.utils.private.models import pack_weight, packed_linear

LEAST_WEIGHTS = 256 * 256
"""Minimum size of a prepacked matrix. Smaller ones do not benefit: a oneDNN call takes about 20 µs longer than MKL."""

LEAST_ROWS = 64
"""Minimum number of input rows. With fewer rows, the time to read the weights dominates, whatever their layout."""

KEPT_PRODUCTS = "64"
"""Number of matrix products whose execution plans oneDNN and torch cache. Each plan is for one shape and takes 0.5 MB.

The sizes of packed batches keep changing. With the default of more than a thousand plans, a process would grow by
hundreds of megabytes without becoming faster. Each library reads its environment variable once, at its first product.
Values that the user has set are kept.
"""
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, KEPT_PRODUCTS)


@contextlib.contextmanager
def prepacked(module: nn.Module, enabled: bool = True) -> Iterator[int]:
    """Make linear layers of a module multiply by prepacked copies of their weights within the context.

    They are the float32 layers on a CPU whose weights need no gradient (see `frozen_linear_layers`). Their weights
    must not change within the context. The copies double the memory of the weights; a backward pass, which also needs
    copies of the transposed weights, triples it. Contexts that overlap, also in several threads, share the copies,
    which are kept until the last of these contexts ends.

    Args:
        module: The module.
        enabled: False changes nothing.

    Yields:
        The number of layers that it prepacks.
    """
    layers = filter(_is_worth_it, frozen_linear_layers(module)) if enabled and _available() else ()
    with using_products(layers, "prepacked", _Prepacked) as new:
        yield new


class _Prepacked:
    """The product of a linear layer with its prepacked weights."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        self.blocks = pack_weight(self.weight)
        self._transposed: Tensor | None = None

    def takes(self, input: Tensor) -> bool:
        return not (
            torch.compiler.is_compiling()
            or input.dtype != torch.float32
            or torch.is_autocast_enabled("cpu")
            or input.numel() < LEAST_ROWS * input.shape[-1]
        )

    def __call__(self, input: Tensor) -> Tensor:
        return _Product.apply(input, self)

    @property
    def transposed(self) -> Tensor:
        """Blocks of the transposed weight, created by the first backward pass."""
        if self._transposed is None:
            self._transposed = pack_weight(self.weight.t().contiguous())
        return self._transposed


class _Product(torch.autograd.Function):
    """Matrix product (..., in) → (..., out) with a gradient with respect to the input only."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, input: Tensor, layer: _Prepacked) -> Tensor:
        ctx.layer = layer
        return packed_linear(input, layer.blocks, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return packed_linear(gradient, ctx.layer.transposed, None), None


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled


def _is_worth_it(layer: nn.Linear) -> bool:
    return layer.weight.device.type == "cpu" and layer.weight.numel() >= LEAST_WEIGHTS
