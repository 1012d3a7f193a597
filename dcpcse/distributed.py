"""Sharing negatives between processes, with the gradient that one process would have."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _AllGather(torch.autograd.Function):
    """All-gather along dim 0 whose backward sums the gradients that every process has for a slice."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.rows = len(tensor)
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        start = dist.get_rank() * ctx.rows
        return gradient[start : start + ctx.rows]


def world_size() -> int:
    """Number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_own_first(tensor: Tensor) -> Tensor:
    """Rows of all processes, (R, H) → (world · R, H), this process's rows first.

    Own rows first keeps "row i belongs to anchor i" true on every process. Each process takes the loss of its
    own anchors against all candidates; DDP's mean over processes is then the loss of the joint batch, and the
    summed backward makes its gradient exact (the published gather keeps the own slice's gradient only, which
    shrinks it by the number of processes). All processes must hold equally many rows.
    """
    if world_size() == 1:
        return tensor
    gathered = _AllGather.apply(tensor)
    return torch.roll(gathered, -dist.get_rank() * len(tensor), dims=0)
