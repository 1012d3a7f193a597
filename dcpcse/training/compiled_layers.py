"""Compile the layers of a frozen encoder one by one (`--compile_layers`).

The number of texts and of tokens changes in every batch and is dynamic in the compiled code. All layers have the same
code, so PyTorch compiles them once for the first layer, whose input needs no gradient, and once for the others; with
windows, once for each kind of layer. Passes without gradients, such as those of an evaluation, are not compiled.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from dcpcse.encoders.attention import Prefix
from dcpcse.training.sharding import layers_of
from dcpcse.utils.errors import UserError, first_line

OPTION = "--compile_layers"


@contextlib.contextmanager
def compiled_layers(backbone: nn.Module, enabled: bool = True) -> Iterator[None]:
    """Compile the layers of a backbone within the context, for passes with gradients. Names of weights do not change.

    Raises UserError if the layers are not in one list, or if PyTorch cannot compile on this machine.
    """
    layers = layers_of(backbone, OPTION) if enabled else []
    if layers:
        require_compiler(next(backbone.parameters()).device)
    for number, layer in enumerate(layers):
        layer.forward = _compiled(layer.forward, number)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _compiled(forward: Callable[..., Any], number: int) -> Callable[..., Any]:
    compiled = torch.compile(forward, dynamic=True)

    def call(*args: Any, prefix: Prefix | None = None, **options: Any) -> Any:
        if prefix is not None:
            # Compiled code that reads the number of its layer would be compiled for every layer.
            options["prefix"] = prefix.get(number)
        return (compiled if torch.is_grad_enabled() else forward)(*args, **options)

    return call


def require_compiler(device: torch.device) -> None:
    """Raise UserError if PyTorch cannot compile for a device on this machine."""
    try:
        torch.compile(lambda tensor: tensor.sin() + 1)(torch.zeros(64, device=device))
    except Exception as error:  # compilers raise errors of many classes
        raise UserError(
            f"{OPTION}: PyTorch cannot compile on this machine ({first_line(error)}); leave it out"
        ) from error
