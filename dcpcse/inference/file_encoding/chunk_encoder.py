"""One chunk of sentences to vectors, in whatever process: the model with the options of the job."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from dcpcse.encoders.fingerprint import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.tokenization import CUT_WARNING
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.utils.devices import release_memory
from dcpcse.utils.errors import UserError


class EncodedChunk(NamedTuple):
    """Of one chunk: rows (n, H) in the type of the file, and how many of its texts had to be cut."""

    rows: np.ndarray
    cut: int


@dataclass(frozen=True)
class EncodeJob:
    """All that a process must know to encode as every other one does.

    identity: of the model, so that another machine does not take another one; None before it is known.
    """

    name: str
    encoder: EncoderArguments
    dtype: str
    normalize: bool
    max_length: int | None
    bf16: bool
    identity: Mapping[str, Any] | None = None

    def load(self, device: str | torch.device) -> SentenceEncoder:
        return load_model(self.name, replace(self.encoder, device=str(device)))


class ChunkEncoder:
    """Sentences of a chunk → `EncodedChunk`."""

    def __init__(self, model: SentenceEncoder, job: EncodeJob) -> None:
        self.model, self.job = model, job

    @classmethod
    def load(cls, job: EncodeJob, device: str, threads: int | None) -> "ChunkEncoder":
        """In a process of its own; UserError where the model is not the one that the job was begun with."""
        if threads is not None:
            torch.set_num_threads(threads)
        model = job.load(device)
        found = identity(model)
        if others := [key for key, value in found.items() if job.identity.get(key) != value]:
            raise UserError(f"{job.name} is another model to one of the workers ({', '.join(others)} differ)")
        return cls(model, job)

    def __call__(self, sentences: Sequence[str]) -> EncodedChunk:
        job, device = self.job, self.model.device
        autocast = torch.autocast(device.type, torch.bfloat16) if job.bf16 else contextlib.nullcontext()
        with _cuts_counted() as counter, autocast:
            vectors = self.model.encode(
                sentences, batch_size=job.encoder.batch_size, normalize=job.normalize, max_length=job.max_length
            )
        release_memory()
        with np.errstate(over="ignore"):  # the infinity that comes of it is found, and named by its line
            return EncodedChunk(vectors.astype(job.dtype, copy=False), counter.cut)


class _CutCounter(logging.Filter):
    """Takes the warning of cut texts, which would come with every chunk, and keeps the number."""

    cut = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg is not CUT_WARNING:
            return True
        self.cut += record.args[0]
        return False


@contextlib.contextmanager
def _cuts_counted() -> Iterator[_CutCounter]:
    counter, logger = _CutCounter(), logging.getLogger(SentenceEncoder.__module__)
    logger.addFilter(counter)
    try:
        yield counter
    finally:
        logger.removeFilter(counter)
