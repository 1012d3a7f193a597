"""Functions for training in several processes with the same result as in one process on the joined batch.

The functions gather rows and compute sums, means and gradients over processes. Each process computes the part of the
loss that belongs to its rows. DDP averages the gradients of all processes. Every loss term is scaled so that the
average is the gradient of the joined batch, even if processes have different numbers of rows.
"""

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from itertools import islice, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import BatchSampler

from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, spell

_TIMEOUT = timedelta(days=30)
"""Long, since a process that trains classifiers may not answer for hours; a dead process closes its connection."""


def world_size() -> int:
    """Return the number of processes that train together. Without a process group, the result is 1."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Return whether this is the process that logs and writes files."""
    return world_size() == 1 or dist.get_rank() == 0


def init_process_group(backend: str = "gloo", timeout: timedelta = _TIMEOUT) -> None:
    """Form a process group of the processes that a launcher started, if there are several.

    Args:
        backend: As in `torch.distributed.init_process_group`.
        timeout: Maximum duration of later exchanges between processes. At the start, processes wait for each other for
            at most DCPCSE_MEETING_SECONDS (an environment variable; default: two minutes), unless torchrun has started
            them.

    Raises:
        UserError: If two processes have the same rank.
        torch.distributed.DistStoreError: If other processes do not arrive in time.
    """
    if launched() > 1 and world_size() == 1:
        # A store still has the addresses of an earlier group of this program: a prefix keeps the groups apart.
        store = dist.PrefixStore(f"dcpcse/{next(_groups)}", _meet(timeout))
        rank = int(os.environ["RANK"])
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=launched())


_groups = itertools.count()
"""Numbers of the groups that this process has formed; all processes form a group together."""


@cache
def _meet(timeout: timedelta) -> Any:
    """Wait for all processes, and return the store through which they exchange data. torchrun waits itself."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return next(dist.rendezvous("env://", timeout=timeout))[0]
    seconds, rank = float(os.environ.get("DCPCSE_MEETING_SECONDS", "120")), os.environ.get("RANK")
    notice = f"waiting up to {seconds:g} s for all {launched()} processes of WORLD_SIZE"
    timer = threading.Timer(_PATIENCE, notify, [notice])
    timer.start()
    try:
        store = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))[0]
    finally:
        timer.cancel()
    # torch only counts the processes, and would wait forever for a rank that none of them has.
    if store.add(f"dcpcse/rank {rank}", 1) > 1:
        raise UserError(f"two processes have RANK {rank}; number them from 0 to {launched() - 1}")
    store.wait([f"dcpcse/rank {number}" for number in range(launched())])
    store.set_timeout(timeout)
    return store


_PATIENCE = 5
"""Seconds after which a process logs that it is waiting for the others."""


def destroy_process_group() -> None:
    """Leave the process group at the end of the program."""
    if world_size() > 1:
        _cpu_group.cache_clear()  # a group keeps its connections open, and processes would wait for them
        dist.destroy_process_group()


def launched() -> int:
    """Return the number of processes that a launcher started, even if no process group exists yet."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def local_device(asked: str | None) -> str | None:
    """Return the device of this process. If several processes run on a machine with GPUs, each gets one GPU.

    Args:
        asked: The device that the user has given, or None. It is returned unless several processes use GPUs.
    """
    if launched() == 1 or asked == "cpu" or not torch.cuda.is_available():
        return asked
    if asked not in (None, "cuda"):
        raise UserError(
            f"{spell('device', asked)} is one device, but there are {launched()} processes; leave it out, and each "
            "process uses a separate device"
        )
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def is_lost_process(error: BaseException) -> bool:
    """Return whether an error was caused by the end of another process."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def gather_own_first(tensors: Sequence[Tensor], counts: Sequence[int] | None = None) -> list[Tensor]:
    """Concatenate the rows of tensors, such as embeddings, over all processes. The rows of this process come first.

    In each returned tensor, row i therefore belongs to anchor i of this process. Each process computes the loss of its
    own anchors against all candidates. The gradient of a row is the sum of its gradients on all processes.

    Args:
        tensors: Tensors (R, H), with H values per row. On one process, all tensors have the same number of rows R.
            Different processes may have different R. The returned tensors have the sum of all R rows.
        counts: The number R of each process, in the order of ranks, such as `EncodedBatch.counts`. None: the processes
            exchange these numbers.
    """
    if world_size() == 1:
        return list(tensors)
    counts = all_gather_int(len(tensors[0])) if counts is None else list(counts)
    gathered = _AllGather.apply(torch.stack(list(tensors), dim=1), counts)
    return list(torch.roll(gathered, -sum(counts[: dist.get_rank()]), dims=0).unbind(1))


@torch.no_grad()
def gather_by_rank(rows: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    """Return the rows of a tensor of all processes, in the order of ranks, without gradients.

    Args:
        rows: Tensor (R, H), R rows of H values. R may differ between processes.
        counts: As in `gather_own_first`.
    """
    if world_size() == 1:
        return rows
    return _AllGather.apply(rows, all_gather_int(len(rows)) if counts is None else list(counts))


def global_mean(mean: Tensor, count: int | Tensor, gradient: str = "exact") -> Tensor:
    """Scale the mean over the items of this process so that the average over processes is the mean over all items.

    With one process, or if all processes have the same number of items, the mean is unchanged.

    Args:
        mean: The mean.
        count: Number of items of this process.
        gradient: "exact", or "published" for the gradient of the public SimCSE and DCPCSE code. In the public code,
            every process computes the loss of the joined batch and propagates it back only to its own rows. The
            average over processes is then the exact gradient divided by the number of processes.
    """
    if world_size() > 1:
        local_count = count.detach().to(mean) if isinstance(count, Tensor) else mean.new_full((), count)
        mean = mean * (local_count / mean_count(local_count))
    return mean if gradient == "exact" else _published_gradient(mean)


def _published_gradient(loss: Tensor) -> Tensor:
    scaled = loss / world_size()
    return scaled + (loss - scaled).detach()


def mean_count(count: Tensor) -> Tensor:
    """Return the average of a count, such as the number of rows, over all processes.

    If all counts are 0, 1 is used as their sum, to avoid a division by 0.
    """
    total = count.clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total.clamp(min=1) / world_size()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum tensors of the same shape over all processes. In the backward pass, gradients are summed too."""
    return tensor if world_size() == 1 else _AllReduce.apply(tensor)


def all_gather_int(number: int) -> list[int]:
    """Gather one number per process, in the order of ranks.

    The CPUs exchange the numbers, so no process waits for a GPU.
    """
    numbers = [torch.empty((), dtype=torch.long) for _ in range(world_size())]
    dist.all_gather(numbers, torch.tensor(number), group=cpu_group())
    return [int(number) for number in numbers]


def broadcast(content: Any) -> Any:
    """Return, in all processes, the content that the first process passes. The content is sent between CPUs."""
    if world_size() == 1:
        return content
    box = [content]
    dist.broadcast_object_list(box, group=cpu_group())
    return box[0]


def cpu_group() -> Any:
    """Return the group of all processes for CPU tensors (gloo). The first call must be made by all processes."""
    return _cpu_group(dist.group.WORLD)


@cache
def _cpu_group(world: Any) -> Any:
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)


class _AllGather(torch.autograd.Function):
    """All-gather along dim 0, with counts[r] rows of process r. The backward pass sums gradients over processes."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        if len(tensor) != counts[dist.get_rank()]:
            raise ValueError(
                f"process {dist.get_rank()} has {len(tensor)} rows, but counts is {counts}; give the number of rows "
                "of each process"
            )
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
    """A sum over all processes, in the forward and the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _AllReduce.forward(ctx, gradient)


class Share(list[int]):
    """The numbers of the data rows that one process reads for a training step.

    A data loader passes this list of row numbers unchanged to the dataset. Each process therefore knows how many rows
    the other processes have, without an exchange.

    Attributes:
        counts: The number of rows of each process in the step, in the order of ranks.
    """

    counts: tuple[int, ...] = ()

    @classmethod
    def of_step(cls, step: Sequence[int], processes: int) -> "list[Share]":
        """Divide the row numbers of a training step evenly, and return one `Share` per process.

        Args:
            step: The row numbers.
            processes: Number of processes.
        """
        bounds = [len(step) * rank // processes for rank in range(processes + 1)]
        shares = [cls(step[start:end]) for start, end in pairwise(bounds)]
        for share in shares:
            share.counts = tuple(map(len, shares))
        return shares


class DistributedBatchSampler(BatchSampler):
    """A batch sampler that divides the rows of every step evenly: for each step, it yields one `Share` per process.

    Each row of an epoch is in exactly one `Share`. The last step may have fewer rows. If the last step has fewer rows
    than there are processes, its rows are added to the previous step, at most one row per process. With `drop_last`,
    an incomplete step is left out.

    Args:
        batches: The batch sampler of a single process. Its sampler, batch size and `drop_last` are used. If the
            sampler has an attribute `sizes`, these are the numbers of rows of the steps.
        processes: Number of processes.
    """

    batch_size = None
    """Without a batch size, accelerate accepts lists of any length and does not repeat rows to fill them."""

    def __init__(self, batches: BatchSampler, processes: int) -> None:
        self.sampler = batches.sampler
        self.drop_last = batches.drop_last
        self.per_process = batches.batch_size
        self.processes = processes

    def __len__(self) -> int:
        return len(self._sizes()) * self.processes

    def __iter__(self) -> Iterator[Share]:
        rows = iter(self.sampler)
        for size in self._sizes():
            yield from Share.of_step(list(islice(rows, size)), self.processes)

    def _sizes(self) -> Sequence[int]:
        sizes = getattr(self.sampler, "sizes", None)
        return sizes or step_sizes(len(self.sampler), self.per_process, self.processes, self.drop_last)


def step_sizes(rows: int, per_process: int, processes: int, drop_last: bool) -> list[int]:
    """Return the number of rows of each step of an epoch, over all processes.

    Args:
        rows: Number of rows of an epoch.
        per_process: Batch size of a process.
        processes: Number of processes.
        drop_last: Whether an incomplete step is left out.
    """
    batch = per_process * processes
    full, rest = divmod(rows, batch)
    sizes = [batch] * full
    if drop_last or not rest:
        return sizes
    if rest < processes and sizes:
        return [*sizes[:-1], batch + rest]
    return [*sizes, rest]


def all_reduce_max(number: int) -> int:
    """Return the largest number over all processes."""
    return number if world_size() == 1 else max(all_gather_int(number))


def require_same_in_all_processes(inputs: Mapping[str, Any]) -> None:
    """Raise UserError in all processes if an input differs between processes. The message names the first such input.

    Args:
        inputs: JSON-serialisable values by name. The names are the same in all processes.
    """
    if world_size() == 1:
        return
    for name, value in inputs.items():
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
        if len(set(all_gather_int(int.from_bytes(digest[:7])))) > 1:
            raise UserError(
                f"the processes of this run have read different versions of the {name}; it may have changed while "
                "they started: start again"
            )
