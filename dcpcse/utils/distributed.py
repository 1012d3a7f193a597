"""Several processes train as one would with the joined batch: shared rows, sums and means, and their gradients.

Each process takes the part of the loss that belongs to its own rows. DDP averages the gradients of all; every term is
scaled so that this average is the gradient of the joined batch, however many rows each process has.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache
from itertools import islice, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import BatchSampler

from dcpcse.utils.errors import UserError

_TIMEOUT = timedelta(days=30)
"""A process that died is noticed by its closed connection; one that runs classifiers may be silent for hours."""


def world_size() -> int:
    """Number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Whether this is the process that speaks and writes."""
    return world_size() == 1 or dist.get_rank() == 0


def init_process_group() -> None:
    """Join the processes that a launcher (torchrun) started, to talk between CPUs; alone, do nothing."""
    if launched() > 1 and world_size() == 1:
        dist.init_process_group("gloo", timeout=_TIMEOUT)


def destroy_process_group() -> None:
    """Part from them at the end."""
    if world_size() > 1:
        dist.destroy_process_group()


def launched() -> int:
    """Number of processes that a launcher started, joined or not."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_device(asked: str | None) -> str | None:
    """The device of this process: of several on one machine each has a GPU of its own, where there are GPUs."""
    if launched() == 1 or asked == "cpu" or not torch.cuda.is_available():
        return asked
    if asked not in (None, "cuda"):
        raise UserError(f"--device {asked} is one device for {launched()} processes; leave it out, each takes its own")
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def is_lost_process(error: BaseException) -> bool:
    """Whether an error says that another process is gone."""
    return isinstance(error, dist.DistBackendError) or "gloo/transport" in str(error)


def gather_own_first(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Rows of all processes, each (R, H) → (all R together, H), this process's rows first.

    All tensors have the same R, which may differ between processes. Own rows first keeps "row i belongs to anchor i"
    true on every process. Each process takes the loss of its own anchors against all candidates; the gradient of a
    row is the sum of those that all processes have for it.
    """
    if world_size() == 1:
        return list(tensors)
    counts = all_gather_int(len(tensors[0]))
    gathered = _AllGather.apply(torch.stack(list(tensors), dim=1), counts)
    return list(torch.roll(gathered, -sum(counts[: dist.get_rank()]), dims=0).unbind(1))


@torch.no_grad()
def gather_by_rank(rows: Tensor) -> Tensor:
    """Rows of all processes (R, H), whose number may differ, in the order of ranks: the same in all. No gradient."""
    return rows if world_size() == 1 else _AllGather.apply(rows, all_gather_int(len(rows)))


def global_mean(mean: Tensor, count: int | Tensor) -> Tensor:
    """A mean over `count` things of this process, scaled: averaged over processes, it is the mean over all things.

    With one process, or equal counts, it is the mean as it is.
    """
    if world_size() == 1:
        return mean
    own = torch.as_tensor(count, device=mean.device).detach().to(mean.dtype)
    return mean * (own / mean_count(own))


def mean_count(count: Tensor) -> Tensor:
    """The count of things that a process has on average, at least one in all."""
    total = count.clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total.clamp(min=1) / world_size()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum over all processes, of one shape in all; its gradient is the sum of those of all processes."""
    return tensor if world_size() == 1 else _AllReduce.apply(tensor)


def published_gradient(loss: Tensor) -> Tensor:
    """The same loss with the gradient of the public SimCSE and DCPCSE code.

    There every process takes the loss of the joined batch, and lets the gradient through to its own rows only; the
    average over processes is then the exact gradient divided by their number.
    """
    own = loss / world_size()
    return own + (loss - own).detach()


def all_gather_int(number: int) -> list[int]:
    """A number of each process, by rank. Exchanged between CPUs, so that no device is waited for."""
    numbers = [torch.empty((), dtype=torch.long) for _ in range(world_size())]
    dist.all_gather(numbers, torch.tensor(number), group=cpu_group())
    return [int(number) for number in numbers]


def cpu_group() -> Any:
    """The group of all processes in which CPUs talk (gloo); all call it at the same place the first time."""
    return _cpu_group(dist.group.WORLD)


@cache
def _cpu_group(world: Any) -> Any:
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)


class _AllGather(torch.autograd.Function):
    """All-gather along dim 0, counts[r] rows of process r; backward sums the gradients that all have for a slice."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        start = sum(counts[: dist.get_rank()])
        ctx.own = slice(start, start + len(tensor))
        most = max(counts)
        filled = F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, most - len(tensor))).contiguous()
        parts = [torch.empty_like(filled) for _ in counts]
        dist.all_gather(parts, filled)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[ctx.own], None


class _AllReduce(torch.autograd.Function):
    """Sum over processes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _AllReduce.forward(ctx, gradient)


class DistributedBatchSampler(BatchSampler):
    """Rows of every step, shared out evenly: for each step as many lists as processes, one after another.

    Each row of an epoch is in one list once. The last step may have fewer rows, or up to one more a process: rows that
    would not give one to each process join the step before. With drop_last they are left out.
    """

    batch_size = None
    """accelerate deals out lists of any length when it is told no size, and repeats no row to fill them up."""

    def __init__(self, batches: BatchSampler, processes: int) -> None:
        """batches: those of one process, whose rows, size and drop_last are taken."""
        self.sampler = batches.sampler
        self.drop_last = batches.drop_last
        self.per_process = batches.batch_size
        self.processes = processes

    def __len__(self) -> int:
        return len(self._sizes()) * self.processes

    def __iter__(self) -> Iterator[list[int]]:
        rows = iter(self.sampler)
        for size in self._sizes():
            step = list(islice(rows, size))
            bounds = [size * rank // self.processes for rank in range(self.processes + 1)]
            yield from (step[start:end] for start, end in pairwise(bounds))

    def _sizes(self) -> list[int]:
        return step_sizes(len(self.sampler), self.per_process, self.processes, self.drop_last)


def step_sizes(rows: int, per_process: int, processes: int, drop_last: bool) -> list[int]:
    """Rows of each step of an epoch, of all processes together."""
    batch = per_process * processes
    full, rest = divmod(rows, batch)
    sizes = [batch] * full
    if drop_last or not rest:
        return sizes
    if rest < processes and sizes:
        return [*sizes[:-1], batch + rest]
    return [*sizes, rest]


def all_reduce_max(number: int) -> int:
    """The largest of the numbers that all processes have."""
    return number if world_size() == 1 else max(all_gather_int(number))
