"""Start Triton kernels with little work for the CPU, which is as much of a training step as the kernels themselves."""

from collections.abc import Hashable, Sequence
from typing import Any

_COMPILED: dict[Hashable, Any] = {}
"""Kernel and what it is compiled for → compiled kernel."""


def start(kernel: Any, grid: tuple[int, int, int], arguments: Sequence[Any], case: Hashable, **options: Any) -> None:
    """Run a kernel with all its arguments in order.

    Triton looks at each argument to find the compiled kernel, which takes longer than many kernels run. Here, the
    caller says what the kernel is compiled for. Pointers must be multiples of 16 bytes, as those of new tensors.
    case: the device, the types of tensors, which arguments are None, all constants, and the integers for which Triton
    compiles another kernel. options: how Triton compiles the kernel.
    """
    key = kernel.__name__, case
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel[grid](*arguments, **options)  # None in Triton's interpreter
    else:
        compiled[grid](*arguments)
