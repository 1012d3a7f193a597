"""Functions that choose the device, move tensors to and from it, release free memory, and use the threads of a CPU."""

import contextlib
import ctypes
import functools
import importlib.util
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dcpcse.utils.console import notify
from dcpcse.utils.errors import OptionError, UserError, spell

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


class Movable(Protocol):
    """A tensor, or an object such as a batch, whose tensors are moved to a device together."""

    def pin_memory(self) -> Any:
        """Return a copy in pinned memory."""
        ...

    def to(self, device: torch.device, *, non_blocking: bool) -> Any:
        """Return a copy on a device."""
        ...


MovableT = TypeVar("MovableT", bound=Movable)


def pick_device(device: str | torch.device | None) -> torch.device:
    """Return the given device. None: cuda if available, otherwise cpu.

    Raises UserError if the given device is not available.
    """
    try:
        if isinstance(device, bool) or not isinstance(device, str | int | torch.device | None):
            raise TypeError  # torch would read True as the number of a GPU
        picked = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
        torch.empty(0, device=picked)
        if picked.type == "meta":
            raise RuntimeError("it holds no values")
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise UserError(
            f"device {str(device)!r} is not available; choose cpu, or cuda if torch finds a GPU"
        ) from error
    return picked


def has_bfloat16_units(device: torch.device) -> bool:
    """Return whether a device is a GPU with bfloat16 units; other devices emulate bfloat16, which is slow."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def send(movable: MovableT, device: torch.device) -> MovableT:
    """Copy CPU tensors to a device without waiting for a GPU, and return the copy.

    If the device is a CPU, the tensors themselves are returned. Otherwise, the tensors are copied through pinned
    memory. From other memory, the CPU would have to wait for the copy.

    Args:
        movable: The tensors, or an object that contains them.
        device: The device.
    """
    return movable if device.type == "cpu" else _queue_copy(pinned(movable, device), device)


def pinned(movable: MovableT, device: torch.device) -> MovableT:
    """Return a copy in pinned memory, from which tensors are sent to a GPU without waiting.

    If the device is not a GPU, the tensors themselves are returned.

    Args:
        movable: The tensors, or an object that contains them.
        device: The device to which they will be copied.
    """
    return movable.pin_memory() if device.type == "cuda" else movable


def _queue_copy(movable: MovableT, device: torch.device) -> MovableT:
    # Other devices may copy later, when the memory is already free again.
    return movable.to(device, non_blocking=device.type == "cuda")


class Returning:
    """A tensor that is being copied to the CPU.

    From a GPU, the tensor is copied in the background, and only `read` waits for it. From other devices, the tensor is
    copied immediately.
    """

    def __init__(self, tensor: Tensor) -> None:
        # torch copies from a GPU to new pinned memory if it need not wait.
        self._copy = tensor.to("cpu", non_blocking=tensor.is_cuda)
        self._copied = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    @property
    def is_immediate(self) -> bool:
        """Whether `read` returns at once, because the tensor does not come from a GPU."""
        return self._copied is None

    def read(self) -> Tensor:
        """Return the tensor on the CPU."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy


def uses_kernels(attention: str | None, device: torch.device, packing: bool, *, compiled: bool = False) -> bool:
    """Return whether attention is computed by Triton kernels, and log which attention a run on a GPU uses.

    Args:
        attention: The value of `--attention`. None: kernels are used if possible.
        device: The device that computes attention.
        packing: Whether the sentences of a batch are concatenated instead of padded.
        compiled: Whether `--torch_compile` compiles the step.

    Raises:
        UserError: If `attention` requests the kernels and they cannot be used.
    """
    reasons = ["it is not used with --torch_compile"] if compiled else []
    if device.type != "cuda":
        reasons.append(f"it needs a GPU, but the device of this run is {device.type}")
    elif importlib.util.find_spec("triton") is None:
        reasons.append("the package triton is not installed")
    elif torch.cuda.get_device_capability(device) < (8, 0):
        reasons.append("it needs a GPU of compute capability 8.0 or higher")
    if not packing:
        reasons.append(f"it needs {spell('packing', True)}")
    if attention == "triton" and reasons:
        raise OptionError("attention", "triton", reasons[0], "leave it out")
    kernels = attention != "torch" and not reasons
    if device.type == "cuda":
        program = "Triton kernels in half precision, PyTorch in float32" if kernels else "PyTorch"
        notify(f"attention is computed by {program}")
    return kernels


RELEASE_EVERY = 8
"""Number of passes between two releases of memory. Releasing after every pass would cost a tenth of a step."""


def release_memory(device: torch.device, passes: int = 0) -> None:
    """Return free memory to the system after every 8 batches, if the C library supports it (glibc).

    The C library keeps the memory of deleted tensors in pieces. Packed batches differ in size, so the tensors of the
    next batch do not fit into these pieces. Without this function, the memory of a process on a CPU would grow with
    every step, by some 40 MB with all-MiniLM-L6-v2.

    Args:
        device: The device of the tensors. If it is not the CPU, this function does nothing, since torch manages the
            memory of devices.
        passes: Number of batches computed so far. 0: the memory is returned now.
    """
    if device.type != "cpu" or passes % RELEASE_EVERY:
        return
    if trim := _malloc_trim():
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def run_jobs(jobs: Sequence[JobT], work: Callable[[JobT], object], done: Callable[[JobT], object]) -> None:
    """Run jobs on a CPU. The first error is raised.

    If there are many jobs, each thread of torch computes one job alone. This is faster for small batches: the
    operations of an encoder are then short, and cores that share an operation wait for each other after each
    operation.

    Args:
        jobs: The jobs.
        work: A function that is called for every job.
        done: A function that is called for each finished job, in order.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(jobs) < 2 * threads:
        for job in jobs:
            work(job)
            done(job)
        return
    executor = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for job, _ in zip(jobs, executor.map(work, jobs), strict=True):
            done(job)
    finally:
        executor.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # new threads of torch use the number that was set last in any thread


def run_pipeline(
    jobs: Sequence[JobT],
    collate: Callable[[JobT], Movable],
    compute: Callable[[Any], Tensor],
    done: Callable[[JobT, Tensor], object],
    device: torch.device,
) -> None:
    """Compute a tensor of every job on a device.

    The result of a job is read only after the next job has been queued, so the device is always busy. If a thread
    raises an error, the first error is raised here.

    Args:
        jobs: The jobs.
        collate: A function that returns the CPU tensors of a job. A thread calls this function for the next job while
            the device computes, and moves the tensors to pinned memory.
        compute: A function that gets the collated tensors on the device, and returns a tensor on the device.
        done: A function that is called with each job and its tensor on the CPU, in order.
        device: The device.
    """
    before: tuple[JobT, Returning] | None = None
    with contextlib.closing(_prepared_ahead(jobs, lambda job: pinned(collate(job), device))) as batches:
        for job, batch in zip(jobs, batches, strict=True):
            now = job, Returning(compute(_queue_copy(batch, device)))
            if before is not None:
                done(before[0], before[1].read())
            before = now
    if before is not None:
        done(before[0], before[1].read())


def _prepared_ahead(jobs: Sequence[JobT], prepare: Callable[[JobT], ResultT]) -> Iterator[ResultT]:
    """Yield the result of `prepare` for every job, in order, while a thread prepares the next one."""
    executor = ThreadPoolExecutor(1)
    try:
        waiting: deque[Future[ResultT]] = deque()
        for job in jobs:
            waiting.append(executor.submit(prepare, job))
            if len(waiting) == 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)
