"""Let frozen linear layers multiply by copies of their weights that are made once.

`cpu_prepacking` and `half_precision` make such copies. Both may be in use at the same time, in contexts that overlap
in any order, also in several threads.
"""

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dcpcse.utils.locks import thread_lock


class Product(Protocol):
    """What a layer computes, from a copy of its weights."""

    def takes(self, input: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Return whether the product can be computed for this input, in the present state of autocast."""
        ...

    def __call__(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of the layer for the arguments of its forward method."""
        ...


_LOCK = thread_lock()


class _Forward:
    """Replacement for the forward method of a layer: the first product that takes the input, or its own."""

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
        """Count a user of a kind of product, which is made for the first one. Return whether it was made."""
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
    """Make layers compute their outputs with products of a kind within the context.

    Contexts of the same kind share the products, which are kept until the last of these contexts ends.

    Args:
        layers: Layers whose weights do not change.
        kind: The kind.
        make: Makes the product of a layer.

    Yields:
        The number of products that this context has made.
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

    Under `torch.no_grad` and `torch.inference_mode`, these are all linear layers; otherwise, the frozen ones.
    """
    return (layer for layer in module.modules() if type(layer) is nn.Linear and is_frozen(layer, (nn.Linear,)))


def is_frozen(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """Return whether the weights of a module are float32, need no gradient and belong to modules of these kinds."""
    return all(
        # A part with another forward method of its own was changed by other code, such as accelerate's hooks.
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
