"""Triton kernels for a frozen post-norm layer: dropout, residual and layer normalisation in one pass.

A kernel reads and writes each hidden state once, at the speed of a copy. The layers are frozen, so the backward kernel
computes only the gradients of hidden states. Tensors are contiguous, with a row for each token, in float32, bfloat16
or float16. All arithmetic is in float32. Dropout masks are functions of Philox counters, so the backward pass computes
a mask again instead of reading it.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dcpcse.encoders.philox import ROUNDS

_COMPILED: dict[Hashable, Any] = {}
"""Maps a kernel and a case (see `start`) to the kernel that is compiled for this case."""


def start(kernel: Any, grid: tuple[int, int, int], arguments: Sequence[Any], case: Hashable, **options: Any) -> None:
    """Run a Triton kernel with the given arguments.

    To find the compiled kernel, Triton inspects each argument, which needs more time than many kernels. This function
    finds the kernel by `case` instead. Pointers must be multiples of 16 bytes, as in new tensors.

    Args:
        grid: Numbers of programs in three dimensions, as in Triton.
        arguments: All arguments of the kernel, in the order of its parameters.
        case: Everything for which Triton compiles a separate kernel: the device, the dtypes of tensors, which
            arguments are None, all constants and some integers.
        options: Options with which Triton compiles the kernel.
    """
    key = kernel.__name__, case
    compiled = _COMPILED.get(key)
    if compiled is None:
        _COMPILED[key] = kernel[grid](*arguments, **options)  # None in Triton's interpreter
    else:
        compiled[grid](*arguments)


STREAM = 1 << 30
"""Added to the number of a mask. The counters then differ from the counters of `prefix_kernel` with the same seed."""


@triton.jit
def _kept(seed, row, number, threshold, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Return the mask of the columns of a row that dropout keeps: their 32 random bits are at least the threshold."""
    counters = row * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    zeros = counters * 0
    a, b, c, d = tl.philox(tl.load(seed), counters, zeros, zeros, zeros + number, ROUNDS)
    bits = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK])  # a, b, c, d of the first counter, and so on
    return bits.to(tl.uint32, bitcast=True) >= threshold


@triton.jit(do_not_specialize=["number"])
def _add_norm_forward(
    states,
    residual,
    weight,
    bias,
    output,
    normalized,
    deviations,
    seed,
    number,
    eps,
    scale,
    threshold: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    real = columns < SIZE
    at = row.to(tl.int64) * SIZE + columns
    total = tl.load(states + at, mask=real, other=0.0).to(tl.float32)
    if threshold > 0:
        total = tl.where(_kept(seed, row, number, threshold, BLOCK, ROUNDS), total * scale, 0.0)
    total += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    centred = tl.where(real, total - tl.sum(total, 0) / SIZE, 0.0)
    deviation = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / SIZE + eps)
    normal = centred * deviation
    scaled = normal * tl.load(weight + columns, mask=real, other=0.0) + tl.load(bias + columns, mask=real, other=0.0)
    tl.store(output + at, scaled, mask=real)
    if normalized is not None:
        tl.store(normalized + at, normal, mask=real)
        tl.store(deviations + row, deviation)


@triton.jit(do_not_specialize=["number"])
def _add_norm_backward(
    gradient,
    normalized,
    deviations,
    weight,
    states_gradient,
    residual_gradient,
    seed,
    number,
    scale,
    threshold: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    real = columns < SIZE
    at = row.to(tl.int64) * SIZE + columns
    normal = tl.load(normalized + at, mask=real, other=0.0).to(tl.float32)
    inner = tl.load(gradient + at, mask=real, other=0.0).to(tl.float32)
    inner *= tl.load(weight + columns, mask=real, other=0.0)
    mean, slope = tl.sum(inner, 0) / SIZE, tl.sum(inner * normal, 0) / SIZE
    inner = (inner - mean - normal * slope) * tl.load(deviations + row)
    tl.store(residual_gradient + at, inner, mask=real)
    if threshold > 0:
        keep = _kept(seed, row, number, threshold, BLOCK, ROUNDS)
        tl.store(states_gradient + at, tl.where(keep, inner * scale, 0.0), mask=real)


def add_norm(
    states: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    seed: Tensor,
    number: int,
    *,
    dropout: float = 0.0,
    save: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return LayerNorm(residual + dropout(states)), (T, H), and the two tensors that `add_norm_backward` needs.

    Args:
        states, residual: Hidden states (T, H) of T tokens.
        weight, bias: (H,), float32.
        seed: (1,) int64, the seed of Philox.
        number: Number of the mask. Masks with the same seed and different numbers differ.
        dropout: Dropout rate, below 1.
        save: Whether there will be a backward pass. The two tensors are then the normalised states before weight and
            bias, and the reciprocals of the standard deviations (T,). Without a backward pass, they are None.
    """
    output, normalized, deviations = torch.empty_like(states), None, None
    if save:
        normalized = torch.empty_like(states)
        deviations = torch.empty(len(states), dtype=torch.float32, device=states.device)
    tensors = [states, residual, weight, bias, output, normalized, deviations, seed]
    _launch(_add_norm_forward, tensors, [number + STREAM, eps, 1 / (1 - dropout)], dropout)
    return output, normalized, deviations


def add_norm_backward(
    gradient: Tensor,
    normalized: Tensor,
    deviations: Tensor,
    weight: Tensor,
    seed: Tensor,
    number: int,
    *,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the gradients (T, H) of the states and of the residual. Without dropout, both are the same tensor.

    Args:
        gradient: The gradient (T, H) of the output of `add_norm`.
        normalized, deviations: The two tensors that `add_norm` returned for the backward pass.
        weight, seed, number, dropout: As in `add_norm`.
    """
    of_residual = torch.empty_like(gradient)
    of_states = torch.empty_like(gradient) if dropout else of_residual
    tensors = [gradient, normalized, deviations, weight, of_states, of_residual, seed]
    _launch(_add_norm_backward, tensors, [number + STREAM, 1 / (1 - dropout)], dropout)
    return of_states, of_residual


def _launch(kernel: Any, tensors: Sequence[Tensor | None], numbers: Sequence[float], dropout: float) -> None:
    """Run a kernel with one program for each row of the first tensor."""
    rows, size = tensors[0].shape
    block = triton.next_power_of_2(size)
    constants = round(dropout * 2**32), size, block, ROUNDS
    case = tensors[0].device.index, tensors[0].dtype, tensors[-2] is None, constants
    start(kernel, (rows, 1, 1), [*tensors, *numbers, *constants], case, num_warps=max(1, block // 1024))
