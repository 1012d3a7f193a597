"""Compute the vectors of a batch of texts of many models, which share the passes through their encoder."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dcpcse.encoders.cpu_prepacking import prepacked
from dcpcse.encoders.sentence_encoder import CPU_TOKENS, GPU_TOKENS, SentenceEncoder, encode_in_batches
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.inference.adapters import MixedBatch, MixedTexts, grouped
from dcpcse.serving.texts import PreparedText


def encode_mixed(texts: Sequence[PreparedText], batch_size: int) -> list[np.ndarray]:
    """Return the float32 vector (H,) of each text, before it is scaled to unit length.

    batch_size: maximum number of texts in a pass. Models of different dimensions have passes of their own.
    """
    of_dimension, places = grouped([text.model.dimension for text in texts])
    vectors = [_encode([texts[index] for index in indices], batch_size) for indices in of_dimension.values()]
    return [vectors[number][row] for number, row in places]


def _encode(texts: Sequence[PreparedText], batch_size: int) -> np.ndarray:
    mixed = _mixed(texts)

    def embed(batch: MixedBatch) -> torch.Tensor:
        return batch.embeddings(normalize=False)

    first = mixed.models[0]
    return encode_in_batches(first, mixed.lengths, mixed.batch, embed, batch_size, False, first.dimension)


def _mixed(texts: Sequence[PreparedText]) -> MixedTexts:
    of_model, places = grouped([text.model for text in texts])
    rows = [_tokenized([texts[index] for index in indices]) for indices in of_model.values()]
    return MixedTexts(list(of_model), rows, places)


def _tokenized(texts: Sequence[PreparedText]) -> TokenizedTexts:
    """Return texts of one model, all of which or none have a template."""
    slots = [text.rendered for text in texts if text.rendered is not None]
    return TokenizedTexts([list(text.ids) for text in texts], 0, slots or None)


def tokens_per_batch(device: torch.device) -> int:
    """Return the default maximum number of tokens of a batch, which is that of `SentenceEncoder.encode`."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


@contextlib.contextmanager
def kept_prepacked(model: SentenceEncoder) -> Iterator[None]:
    """Keep prepacked weights of the encoder within the context, on a CPU: every batch is then faster."""
    with prepacked(model, not model.bf16):
        yield
