"""Encoding by all processes for the first one, which measures: it asks, each encodes a share, it gets the vectors."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from dcpcse.utils.distributed import cpu_group, is_main_process, world_size

EncodeFunction = Callable[..., np.ndarray]
"""Sentences, and options by name → embeddings (n, H)."""

T = TypeVar("T")


def run_on_rank_zero(encode: EncodeFunction, work: Callable[[EncodeFunction], T]) -> T:
    """The result of `work`, which the first process alone does, with an encode function that all carry out.

    All processes call this with an `encode` that gives the same vectors, and all get the result: there is one, so
    that what follows from it cannot differ between them. Alone, `work` gets `encode` itself.
    """
    if world_size() == 1:
        return work(encode)
    if not is_main_process():
        return _encode_shares(encode)
    result = work(lambda sentences, **options: _share_out(encode, sentences, options))
    _broadcast({"result": result})
    return result


def _share_out(encode: EncodeFunction, sentences: list[str], options: dict[str, Any]) -> np.ndarray:
    if len(sentences) < world_size():
        return encode(sentences, **options)
    _broadcast({"sentences": sentences, "options": options})
    own = _share(encode, sentences, options)
    shares: list[Any] = [None] * world_size()
    dist.gather_object(own, shares, group=cpu_group())
    vectors = np.empty((len(sentences), *own.shape[1:]), dtype=own.dtype)
    for rank, share in enumerate(shares):
        vectors[rank :: world_size()] = share
    return vectors


def _encode_shares(encode: EncodeFunction) -> Any:
    """Encode shares until the first process is done; its result."""
    while "result" not in (told := _broadcast(None)):
        dist.gather_object(_share(encode, told["sentences"], told["options"]), group=cpu_group())
    return told["result"]


def _share(encode: EncodeFunction, sentences: list[str], options: dict[str, Any]) -> np.ndarray:
    # Every world-th: texts come sorted by length, and no process is to have all the long ones.
    share = sentences[dist.get_rank() :: world_size()]
    logger = logging.getLogger("dcpcse")
    level = logger.level
    logger.setLevel(min(level, logging.WARNING))  # texts that are cut are counted where they are
    try:
        return encode(share, **options)
    finally:
        logger.setLevel(level)


def _broadcast(content: Any) -> Any:
    """What the first process says, in all."""
    box = [content]
    dist.broadcast_object_list(box, group=cpu_group())
    return box[0]
