"""Compute the vectors of a batch of texts of many models, which share the passes through their encoder."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dcpcse.encoders.cpu_prepacking import prepacked
from dcpcse.encoders.sentence_encoder import CPU_TOKENS, GPU_TOKENS, SentenceEncoder, encode_in_batches
from dcpcse.encoders.templates import Rendered
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.inference.adapters import MixedBatch, MixedTexts
from dcpcse.serving.texts import PreparedText


def encode_mixed(texts: Sequence[PreparedText], batch_size: int) -> list[np.ndarray]:
    """Return the float32 vector (H,) of each text, before it is scaled to unit length.

    batch_size: maximum number of texts in a pass. Models of different dimensions have passes of their own.
    """
    found: dict[int, np.ndarray] = {}
    of_dimension = defaultdict(list)
    for place, text in enumerate(texts):
        of_dimension[text.model.dimension].append(place)
    for places in of_dimension.values():
        vectors = _encode([texts[place] for place in places], batch_size)
        found |= dict(zip(places, vectors, strict=True))
    return [found[place] for place in range(len(texts))]


def _encode(texts: Sequence[PreparedText], batch_size: int) -> np.ndarray:
    mixed = _mixed(texts)

    def embed(batch: MixedBatch) -> torch.Tensor:
        return batch.embeddings(normalize=False)

    first = mixed.models[0]
    return encode_in_batches(first, mixed.lengths, mixed.batch, embed, batch_size, False, first.dimension)


def _mixed(texts: Sequence[PreparedText]) -> MixedTexts:
    numbers: dict[int, int] = {}
    own: list[list[PreparedText]] = []
    places = []
    for text in texts:
        number = numbers.setdefault(id(text.model), len(own))
        if number == len(own):
            own.append([])
        places.append((number, len(own[number])))
        own[number].append(text)
    rows = [
        TokenizedTexts([list(text.ids) for text in group], 0, _slots(group))
        for group in own
    ]  # fmt: skip
    return MixedTexts([group[0].model for group in own], rows, places)


def _slots(texts: Sequence[PreparedText]) -> list[Rendered] | None:
    rendered = [text.rendered for text in texts if text.rendered is not None]
    return rendered or None


def tokens_per_batch(device: torch.device) -> int:
    """Return the default maximum number of tokens of a batch, which is that of `SentenceEncoder.encode`."""
    return CPU_TOKENS if device.type == "cpu" else GPU_TOKENS


@contextlib.contextmanager
def kept_prepacked(model: SentenceEncoder) -> Iterator[None]:
    """Keep prepacked weights of the encoder within the context, on a CPU: every batch is then faster."""
    with prepacked(model, not model.bf16):
        yield
