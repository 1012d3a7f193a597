"""The job that all workers share: the model to load, and the options for encoding chunks of sentences."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from dcpcse.encoders.encode_options import SIZE_WARNINGS, EncodeOptions, PrecisionOptions
from dcpcse.encoders.identity import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.tokenization import CUT_WARNING
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.utils.devices import release_memory
from dcpcse.utils.errors import UserError


class Chunk(NamedTuple):
    """Consecutive sentences of a text, which are encoded together, and the number of this chunk (from 0)."""

    number: int
    sentences: list[str]


class EncodedChunk(NamedTuple):
    """The vectors (n, H) of the n sentences of a chunk, and the number of sentences that were truncated."""

    vectors: np.ndarray
    truncated: int


@dataclass(frozen=True)
class EncodeJob:
    """The model name and the options that a worker needs to compute the same vectors as every other worker.

    Args:
        name: Folder or hub id of the model.
        encoder: Options for loading the model.
        options: Options of encoding.
        dtype: Data type of the vectors.
        identity: Identity of the model, by which a worker detects a different model. None: not known yet.
    """

    name: str
    encoder: EncoderArguments
    options: PrecisionOptions
    dtype: str
    identity: Mapping[str, Any] | None = None

    def load(self, device: str | torch.device) -> SentenceEncoder:
        """Load the model of this job onto a device, and return it."""
        return load_model(self.name, replace(self.encoder, device=str(device)))

    def identify(self, model: SentenceEncoder, device_type: str) -> tuple["EncodeJob", int]:
        """Return a copy of the job that contains the model's identity, and the dimension of the vectors.

        The copy also contains the dtype of the vectors and, for int8 and uint8, the ranges that quantize them.

        Args:
            model: The model.
            device_type: Type of the device that the workers will use. The type becomes part of the identity.

        Raises:
            UserError: If the model does not support the maximum length or the number of values in the options.
        """
        none = model.encode([], **self.options.given())
        with _count_truncated():
            options = self.options.with_prompt(model).calibrated(model)
        dtype = self.dtype if none.dtype == np.float32 else str(none.dtype)
        facts = {**identity(model), "device": device_type}
        return replace(self, options=options, dtype=dtype, identity=facts), none.shape[1]

    def start(self, device: str, model: SentenceEncoder | None = None) -> Callable[[Chunk], EncodedChunk]:
        """Return the function that encodes a chunk.

        Args:
            device: Device of the worker.
            model: The model, if it has already been loaded.

        Raises:
            UserError: If the loaded model has a different identity than the job.
        """
        if model is None:
            model = self.load(device)
            facts = identity(model)
            if different := [key for key, value in facts.items() if self.identity.get(key) != value]:
                raise UserError(
                    f"{self.name} is a different model on one of the workers ({', '.join(different)} differ); "
                    "use the same model and the same versions everywhere"
                )
        return partial(self.encode, model)

    def encode(self, model: SentenceEncoder, chunk: Chunk) -> EncodedChunk:
        """Return the vectors of the sentences of a chunk.

        Args:
            model: The model that encodes the sentences.
            chunk: The sentences.
        """
        with _count_truncated() as counts:
            vectors = model.encode(chunk.sentences, **self.options.given())
        release_memory(model.device)
        with np.errstate(over="ignore"):  # the caller rejects infinite values and reports their line
            return EncodedChunk(vectors.astype(self.dtype, copy=False), sum(counts))


_COUNTS: ContextVar[list[int] | None] = ContextVar("counts", default=None)
"""The numbers of truncated texts in warnings of this thread, or None if the thread does not count them."""


def _counted(record: logging.LogRecord) -> bool:
    """Hide the warning about truncated texts, which every chunk would repeat, and record the number of these texts.

    A warning about the size of the vectors is hidden too, because `EncodeJob.identify` has already logged it.
    """
    counts = _COUNTS.get()
    if counts is None or record.msg not in (CUT_WARNING, *SIZE_WARNINGS):
        return True
    if record.msg is CUT_WARNING:
        counts.append(record.args[0])
    return False


# One filter for all threads: a filter that comes and goes would also hide the warnings of other threads.
for _module in (SentenceEncoder.__module__, EncodeOptions.__module__):
    logging.getLogger(_module).addFilter(_counted)


@contextlib.contextmanager
def _count_truncated() -> Iterator[list[int]]:
    token = _COUNTS.set(counts := [])
    try:
        yield counts
    finally:
        _COUNTS.reset(token)
