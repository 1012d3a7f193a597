"""Let frozen linear layers multiply by copies of their weights. The copies are made once.

`prepacked` makes copies in the memory layout that matrix products on a CPU need. The module `half_precision` makes
copies in half precision. Both kinds can be used at the same time. Their contexts may overlap in any order, also in
several threads.

A matrix product on a CPU first copies the weight into blocks that fit the registers and caches of the processor. This
happens in every call, since the weight may have changed. Frozen weights do not change, so oneDNN can reuse blocks that
are prepared once. A training step with frozen weights is then faster than a step with trained weights.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dcpcse.utils.locks import thread_lock
from dcpcse.utils.private.models import pack_weight, packed_linear


class Product(Protocol):
    """A replacement for a layer's forward method that computes the output from a copy of the weights."""

    def takes(self, input: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Return whether this function can compute the output for this input under the current autocast."""
        ...

    def __call__(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of the layer. The arguments are the arguments of the layer's forward method."""
        ...


_LOCK = thread_lock()


class _Forward:
    """Replacement for a layer's forward method.

    It calls the first product that supports the input. If no product does, it calls the original method.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.otherwise = layer.forward
        self.users: dict[Hashable, int] = {}
        self.products: dict[Hashable, Product] = {}

    def __call__(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for product in self.products.values():
            if product.takes(input, *args, **kwargs):
                return product(input, *args, **kwargs)
        return self.otherwise(input, *args, **kwargs)

    def hold(self, kind: Hashable, make: Callable[[], Product]) -> bool:
        """Count a context that uses the product of this kind. If it is the first, make the product and return True."""
        self.users[kind] = self.users.get(kind, 0) + 1
        if self.users[kind] > 1:
            return False
        # The dict is replaced and never changed, since other threads may be reading it.
        self.products = {**self.products, kind: make()}
        return True

    def release(self, kind: Hashable) -> None:
        self.users[kind] -= 1
        if not self.users[kind]:
            self.products = {other: product for other, product in self.products.items() if other != kind}


@contextlib.contextmanager
def using_products(layers: Iterable[nn.Module], kind: Hashable, make: Callable[[nn.Module], Product]) -> Iterator[int]:
    """Within the context, let layers compute their outputs from copies of their weights (see `Product`).

    Contexts with the same `kind` share the products. The last context that ends frees them.

    Args:
        layers: Layers whose weights do not change.
        kind: Any hashable value that names the kind of copies, such as "prepacked".
        make: A function that makes the product of a layer.

    Yields:
        The number of products that this context made.
    """
    held: list[tuple[nn.Module, _Forward]] = []
    new = 0
    try:
        with _LOCK:
            for layer in layers:
                if "forward" not in vars(layer):
                    layer.forward = _Forward(layer)
                held.append((layer, layer.forward))
                new += layer.forward.hold(kind, lambda layer=layer: make(layer))
        yield new
    finally:
        with _LOCK:
            for layer, forward in held:
                forward.release(kind)
                if not forward.products:
                    del layer.forward


def frozen_linear_layers(module: nn.Module) -> Iterator[nn.Linear]:
    """Yield the linear layers of a module whose float32 weights need no gradient.

    Under `torch.no_grad` and `torch.inference_mode`, no weight needs a gradient, so all float32 linear layers are
    frozen.
    """
    return (layer for layer in module.modules() if type(layer) is nn.Linear and is_frozen(layer, (nn.Linear,)))


def is_frozen(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Return whether all weights of a module are float32, need no gradient and belong to modules of these kinds."""
    return all(
        # A part with a different forward method was changed by other code, such as accelerate's hooks.
        isinstance(vars(part).get("forward"), _Forward | None)
        and all(_is_frozen(part, parameter, kinds) for parameter in part.parameters(recurse=False))
        for part in module.modules()
    )


def _is_frozen(part: nn.Module, parameter: nn.Parameter, kinds: Collection[type[nn.Module]]) -> bool:
    return (
        type(part) in kinds
        and type(parameter) is nn.Parameter  # excludes shards of a parameter
        and parameter.dtype == torch.float32
        and not (parameter.requires_grad and torch.is_grad_enabled())
    )


LEAST_WEIGHTS = 256 * 256
"""Minimum size of a prepacked matrix. Smaller matrices gain nothing: a call of oneDNN needs 20 µs more than MKL."""

LEAST_ROWS = 64
"""Minimum number of input rows. With fewer rows, most of the time is spent on reading the weights in any layout."""

KEPT_PRODUCTS = "64"
"""Number of matrix products whose execution plans oneDNN and torch cache. Each plan is for one shape and needs 0.5 MB.

The sizes of packed batches keep changing. With the default of more than a thousand plans, a process would grow by
hundreds of megabytes without becoming faster. Each library reads its environment variable once, at its first product.
Values that the user has set are not changed.
"""
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, KEPT_PRODUCTS)


@contextlib.contextmanager
def prepacked(module: nn.Module, enabled: bool = True) -> Iterator[int]:
    """Make linear layers of a module multiply by prepacked copies of their weights within the context.

    These are the float32 layers on a CPU whose weights need no gradient (see `frozen_linear_layers`). The weights must
    not change within the context.

    The copies double the memory of the weights. A backward pass also needs copies of the transposed weights, which
    triples the memory. Contexts that overlap, also in several threads, share the copies. The last context that ends
    frees them.

    Args:
        module: The module.
        enabled: Whether to prepack the layers. False: the context does nothing.

    Yields:
        The number of layers that this context prepacks.
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
        """The prepacked transposed weight, created by the first backward pass."""
        if self._transposed is None:
            self._transposed = pack_weight(self.weight.t().contiguous())
        return self._transposed


class _Product(torch.autograd.Function):
    """Matrix product from (..., in) to (..., out), with a gradient for the input only."""

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
