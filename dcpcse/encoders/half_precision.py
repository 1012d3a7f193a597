"""Keep frozen weights in half precision while autocast computes with them.

Autocast casts the weight of a linear layer to half precision in every pass. It keeps the result for further passes
only if the weight is trained. Frozen weights do not change, so they are cast once here. Autocast does not cast the
weights of layer normalisation and of embeddings, and neither does this module.
"""

import contextlib
import functools
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpcse.encoders.frozen_layers import Product, frozen_linear_layers, using_products
from dcpcse.encoders.half_layers import HALF, HalfStack, frozen_stacks
from dcpcse.utils.private.models import version_of

_KEPT: WeakKeyDictionary[nn.Linear, "_HalfPrecision"] = WeakKeyDictionary()
"""Layer → its product of the last context with `keep`."""


@contextlib.contextmanager
def in_half_precision(
    module: nn.Module, dtype: torch.dtype | None, *, keep: bool = False, whole: bool = False
) -> Iterator[int]:
    """Make the frozen linear layers of a module multiply by copies of their weights in a dtype under autocast.

    The results are those of autocast, bit for bit, and without autocast those of the float32 weights, which are
    unchanged and must not change within the context. The copies need half the memory of these weights. See
    `frozen_linear_layers` for which layers are frozen.

    Args:
        module: The module.
        dtype: The type to which autocast casts; None changes nothing.
        keep: Keep the copies for the next context with `keep`, which makes new ones if the weights were changed in
            between.
        whole: With bfloat16, also compute the frozen layers of encoders that use kernels as one function
            (`dcpcse.encoders.half_layers`), whose results differ from autocast by rounding.

    Yields:
        The number of layers that no other context of this dtype had in half precision.
    """
    if dtype is None:
        yield 0
        return

    stacks = [*frozen_stacks(module)] if whole and dtype == HALF else []

    def make(layer: nn.Module) -> Product:
        if not isinstance(layer, nn.Linear):
            return HalfStack(layer)
        product = _KEPT.get(layer) if keep else None
        if product is None or product.made_of != _state(layer, dtype):
            product = _HalfPrecision(layer, dtype)
        if keep:
            _KEPT[layer] = product
        return product

    with using_products([*stacks, *frozen_linear_layers(module)], ("half precision", dtype), make) as layers:
        yield layers


class _HalfPrecision:
    """The product of a linear layer with its weights in half precision, which are cast when they are first used.

    made_of: state of the weights.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self.made_of = _state(layer, dtype)
        self._dtype, self._original = dtype, (layer.weight.detach(), layer.bias)

    @functools.cached_property
    def _weights(self) -> list[Tensor | None]:
        with torch.inference_mode(False), torch.no_grad():  # a training pass may use them after `encode`
            return [None if weight is None else weight.to(self._dtype) for weight in self._original]

    def takes(self, input: Tensor) -> bool:
        kind = input.device.type
        return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == self._dtype

    def __call__(self, input: Tensor) -> Tensor:
        return F.linear(input, *self._weights)


def _state(layer: nn.Linear, dtype: torch.dtype) -> object:
    """Return a value that changes with the weights of a layer. Writing through `.data` does not change it."""
    if any(weight.is_inference() for weight in layer.parameters()):
        return object()  # inference tensors have no version counter; a new object differs from every earlier state
    return dtype, [(weight.data_ptr(), weight.device, version_of(weight)) for weight in layer.parameters()]
