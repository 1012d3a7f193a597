"""Weights that stay the same, laid out once as the matrix products of a CPU want them.

A product first copies its weight into blocks that fit the processor's registers and caches, each time anew, as the
weight may have changed. Frozen ones have not: oneDNN takes them in blocks made before, which lets a step with frozen
weights be faster than the same products with trained ones.
"""

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEAST_WEIGHTS = 256 * 256
"""Smaller matrices gain nothing: a call of oneDNN costs some 20 µs more than one of MKL."""

LEAST_ROWS = 64
"""With fewer rows a product waits for its weights, however they lie."""

KEPT_PRODUCTS = "64"
"""Products whose plan oneDNN and torch's layer over it keep; a plan is of one shape, and takes half a megabyte.

Packed batches are of ever other sizes: with the thousand and more plans that are kept by default a process grows by
hundreds of megabytes, and is no faster for it. Both read this once, at their first product; a user's setting stands.
"""
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, KEPT_PRODUCTS)


@contextlib.contextmanager
def prepacked(module: nn.Module, enabled: bool = True) -> Iterator[int]:
    """While it lasts, linear layers of a module multiply with a second copy of their weights, laid out for oneDNN.

    Gives their number. These are the layers in float32 on a CPU whose weights take no gradient here: all of them under
    `torch.no_grad` and `torch.inference_mode`, else the frozen ones. Nothing may write to these weights meanwhile. The
    copy doubles their memory, a backward pass, which needs the transposed ones, triples it.
    """
    layers = [layer for layer in module.modules() if _fits(layer)] if enabled and _available() else []
    for layer in layers:
        layer.forward = _Prepacked(layer)
    try:
        yield len(layers)
    finally:
        for layer in layers:
            del layer.forward


class _Prepacked:
    """A layer's forward, in the place of `nn.Linear`'s."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        self.blocks = _blocks(self.weight)
        self._transposed: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        if (
            torch.compiler.is_compiling()
            or input.dtype != torch.float32
            or torch.is_autocast_enabled("cpu")
            or input.numel() < LEAST_ROWS * input.shape[-1]
        ):
            return F.linear(input, self.weight, self.bias)
        return _Product.apply(input, self)

    @property
    def transposed(self) -> Tensor:
        """Blocks of the transposed weight; not made before a backward pass asks for them."""
        if self._transposed is None:
            self._transposed = _blocks(self.weight.t().contiguous())
        return self._transposed


class _Product(torch.autograd.Function):
    """input (..., in) → (..., out), and the gradient with respect to the input alone."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, input: Tensor, layer: _Prepacked) -> Tensor:
        ctx.layer = layer
        return _product(input, layer.blocks, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return _product(gradient, ctx.layer.transposed, None), None


def _available() -> bool:
    return torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled


def _fits(layer: nn.Module) -> bool:
    # A forward of its own is somebody else's (accelerate's hooks), or of a scope around this one.
    if type(layer) is not nn.Linear or "forward" in vars(layer):
        return False
    parameters = list(layer.parameters())
    return layer.weight.numel() >= LEAST_WEIGHTS and all(
        type(parameter) is nn.Parameter  # not a shard of one
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and not (parameter.requires_grad and torch.is_grad_enabled())
        for parameter in parameters
    )


def _blocks(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _product(input: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(input.contiguous(), blocks, bias, "none", [], "")
