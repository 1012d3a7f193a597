"""Evaluation in several processes: all processes encode sentences, and the first process computes the scores."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from dcpcse.utils.distributed import broadcast, cpu_group, is_main_process, world_size

EncodeFunction = Callable[..., np.ndarray]
"""A function that returns the embeddings (n, H) of n sentences and accepts named options."""

T = TypeVar("T")


def run_on_rank_zero(encode: EncodeFunction, work: Callable[[EncodeFunction], T]) -> T:
    """Run a function in the first process and return its result in all processes.

    All processes must call this function, since each of them encodes a share of the sentences.

    Args:
        encode: A function that returns the embeddings (n, H) of n sentences, the same in each process.
        work: The function to run. Its argument is an encode function that distributes the sentences over all
            processes. With a single process, the argument is `encode`.
    """
    if world_size() == 1:
        return work(encode)
    if not is_main_process():
        return _encode_shares(encode)
    result = work(lambda sentences, **options: _encode_distributed(encode, sentences, options))
    broadcast({"result": result})
    return result


def _encode_distributed(encode: EncodeFunction, sentences: list[str], options: dict[str, Any]) -> np.ndarray:
    if len(sentences) < world_size():
        return encode(sentences, **options)
    broadcast({"sentences": sentences, "options": options})
    local = _encode_share(encode, sentences, options)
    shares: list[Any] = [None] * world_size()
    dist.gather_object(local, shares, group=cpu_group())
    vectors = np.empty((len(sentences), *local.shape[1:]), dtype=local.dtype)
    for rank, share in enumerate(shares):
        vectors[rank :: world_size()] = share
    return vectors


def _encode_shares(encode: EncodeFunction) -> Any:
    """Encode this process's shares of sentences until the first process sends the result; return that result."""
    while "result" not in (message := broadcast(None)):
        dist.gather_object(_encode_share(encode, message["sentences"], message["options"]), group=cpu_group())
    return message["result"]


def _encode_share(encode: EncodeFunction, sentences: list[str], options: dict[str, Any]) -> np.ndarray:
    # The shares are interleaved, because sentences are sorted by length and no process should get all long ones.
    share = sentences[dist.get_rank() :: world_size()]
    logger = logging.getLogger("dcpcse")
    level = logger.level
    logger.setLevel(min(level, logging.WARNING))  # each process warns about the texts that it truncates
    try:
        return encode(share, **options)
    finally:
        logger.setLevel(level)
