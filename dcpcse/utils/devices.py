"""Where computing happens: the device, and the threads of a CPU."""

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from dcpcse.utils.errors import UserError

JobT = TypeVar("JobT")


def pick_device(device: str | torch.device | None) -> torch.device:
    """The device asked for; by default cuda if there is one. UserError for one that is not there."""
    try:
        picked = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=picked)
        if picked.type == "meta":
            raise RuntimeError("it computes nothing")
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device {str(device)!r} is not to be had here; cpu always is, cuda where torch sees one"
        ) from error
    return picked


def require_flex_attention(device: torch.device, packing: bool) -> None:
    """UserError where --flex_attention cannot be had: elsewhere than on a GPU, and for padded batches."""
    if not packing:
        raise UserError("--flex_attention has no effect with --packing False; leave one of them out")
    if device.type != "cuda":
        raise UserError(
            f"--flex_attention is compiled for GPUs, and this runs on the device {device.type}; leave it out"
        )


RELEASE_EVERY = 8
"""Passes over a batch after which free memory is given back: after each, taking it anew costs a tenth of a step."""


def release_memory(passes: int = 0) -> None:
    """Give free memory back to the system, where the C library can (glibc), after every `RELEASE_EVERY` passes.

    It keeps what tensors leave, in pieces that those of the next batch, packed and so of other sizes, do not fit into:
    without this the memory of a process on a CPU grows with every step, by some 40 MB with all-MiniLM-L6-v2.
    """
    if passes % RELEASE_EVERY:
        return
    if trim := _malloc_trim():
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def run_jobs(
    jobs: Sequence[JobT], work: Callable[[JobT], object], done: Callable[[JobT], object], *, in_threads: bool
) -> None:
    """Do `work` for every job, and report each in order when it is `done`; the first error is raised.

    in_threads: with many jobs every thread of torch takes one of its own and computes it alone. The operations of an
    encoder on a small batch are short, and cores that share each of them wait for one another between any two.
    """
    threads = torch.get_num_threads()
    if not in_threads or threads == 1 or len(jobs) < 2 * threads:
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
        torch.set_num_threads(threads)  # torch keeps the last number given anywhere for threads yet to come
