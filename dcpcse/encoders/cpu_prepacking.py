"""Prepack frozen weights into the memory layout that matrix products on a CPU need.

A matrix product first copies its weight into blocks that fit the registers and caches of the processor. It does so in
every call, since the weight may have changed. Frozen weights do not change, so oneDNN can reuse blocks that are
prepared once. A training step with frozen weights is then faster than one with trained weights.
"""

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dcpcse.utils.locks import thread_lock

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

_LOCK = thread_lock()


@contextlib.contextmanager
def prepacked(module: nn.Module, enabled: bool = True) -> Iterator[int]:
    """Make linear layers of a module multiply by prepacked copies of their weights within the context.

    Yields the number of layers that it prepacks. They are the float32 layers on a CPU whose weights need no gradient:
    under `torch.no_grad` and `torch.inference_mode`, all layers; otherwise, the frozen ones. Their weights must not
    change within the context. The copies double the memory of the weights; a backward pass, which also needs copies
    of the transposed weights, triples it. Contexts that overlap, also in several threads, share the copies, which are
    kept until the last of these contexts ends.
    """
    held: list[tuple[nn.Linear, _Prepacked]] = []
    new = 0
    try:
        with _LOCK:
            for layer in filter(_fits, module.modules()) if enabled and _available() else ():
                if "forward" not in vars(layer):
                    layer.forward, new = _Prepacked(layer), new + 1
                layer.forward.users += 1
                held.append((layer, layer.forward))
        yield new
    finally:
        with _LOCK:
            for layer, product in held:
                product.users -= 1
                if not product.users:
                    del layer.forward


class _Prepacked:
    """Replacement for the forward method of an `nn.Linear`. users: number of contexts that use it."""

    users = 0

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
        """Blocks of the transposed weight, created by the first backward pass."""
        if self._transposed is None:
            self._transposed = _blocks(self.weight.t().contiguous())
        return self._transposed


class _Product(torch.autograd.Function):
    """Matrix product (..., in) → (..., out) with a gradient with respect to the input only."""

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
    # A layer with another forward method of its own was changed by other code, such as accelerate's hooks.
    if type(layer) is not nn.Linear or not isinstance(vars(layer).get("forward"), _Prepacked | None):
        return False
    parameters = list(layer.parameters())
    return layer.weight.numel() >= LEAST_WEIGHTS and all(
        type(parameter) is nn.Parameter  # excludes shards of a parameter
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and not (parameter.requires_grad and torch.is_grad_enabled())
        for parameter in parameters
    )


def _blocks(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _product(input: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(input.contiguous(), blocks, bias, "none", [], "")
