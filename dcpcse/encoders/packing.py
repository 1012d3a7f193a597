"""Batches without padding: pack all real tokens of a batch into one row, and convert them back to padded rows.

A frozen encoder spends most of its time in linear layers. There, a padding token needs as much time as a token of
text, so padding is left out. Only attention needs the boundaries of the texts (`dcpcse.encoders.attention`).
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor


class TensorGroup:
    """Base class of dataclasses whose tensors move to another device together."""

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Return a copy with `change` applied to every field: a tensor or another group. None stays None."""
        return type(self)(**{name: part if part is None else change(part) for name, part in vars(self).items()})

    def to(self, device: torch.device | str, **options: Any) -> Self:
        """Return a copy on another device."""
        return self.map(lambda part: part.to(device, **options))

    def pin_memory(self) -> Self:
        """Return a copy in pinned memory, from which a GPU copies asynchronously. DataLoader calls this method."""
        return self.map(lambda part: part.pin_memory())


@dataclass(frozen=True)
class Packing(TensorGroup):
    """Indices of the T real tokens of a batch (N, L), text by text.

    In the left-aligned batch (N, width), each text starts at index 0 of its row. The width is the length of the
    longest text.

    Args:
        source: (T,), indices of the tokens in the flattened batch.
        place: (T,), indices of the tokens in the flattened left-aligned batch.
        lengths: (N,), number of tokens of each text.
        real: Boolean (N, width), true at the tokens of the left-aligned batch.
        sizes: The lengths as Python integers, so reading them does not wait for a device.
    """

    source: Tensor
    place: Tensor
    lengths: Tensor
    real: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """Compute the packing of a mask (N, L), which is 1 at real tokens. Padding may be anywhere in a row.

        On a GPU, this waits for the device. The collator therefore computes the packing before the mask is moved to
        the GPU.
        """
        real = mask.bool()
        lengths = real.sum(1)
        sizes = tuple(lengths.tolist())
        columns = torch.arange(max(sizes), device=mask.device)
        left_aligned = columns < lengths.unsqueeze(1)
        return cls(indices_of(real), indices_of(left_aligned), lengths, left_aligned, sizes)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Packing":
        """Return a copy with every tensor changed."""
        tensors = (self.source, self.place, self.lengths, self.real)
        return Packing(*map(change, tensors), self.sizes)

    def split(self, rows: Sequence[int], length: int) -> Iterator["Packing"]:
        """Yield the packings of consecutive parts of the batch.

        This does not wait for a device.

        Args:
            rows: Number of rows of each part.
            length: Number of columns L of the batch.
        """
        text, token, width = 0, 0, self.real.shape[1]
        for count in rows:
            sizes = self.sizes[text : text + count]
            tokens, widest = slice(token, token + sum(sizes)), max(sizes)
            indices = self.place[tokens] - text * width
            yield Packing(
                self.source[tokens] - text * length,
                indices // width * widest + indices % width,
                self.lengths[text : text + count],
                self.real[text : text + count, :widest],
                sizes,
            )
            text, token = text + count, tokens.stop

    @property
    def first(self) -> Tensor:
        """Indices (N,) of the first token of each text among the packed tokens."""
        return self.lengths.cumsum(0) - self.lengths

    @functools.cached_property
    def starts(self) -> Tensor:
        """(N + 1,) int32: the index of the first packed token of each text, then the number of all tokens."""
        return F.pad(self.lengths.cumsum(0), (1, 0)).int()

    def pack(self, batch: Tensor) -> Tensor:
        """Convert a padded batch (N, L, ...) to packed tokens (1, T, ...)."""
        return batch.flatten(0, 1).index_select(0, self.source).unsqueeze(0)

    def unpack(self, packed: Tensor, length: int) -> Tensor:
        """Convert packed tokens to a padded batch (N, length, ...), with zeros as padding.

        Args:
            packed: (1, T, ...).
            length: Number of columns of the batch.
        """
        return _spread(packed.squeeze(0), self.source, (len(self.lengths), length))

    def to_rows(self, packed: Tensor) -> Tensor:
        """Convert tokens (T, ...) to rows (N, width, ...). Each text starts at index 0 and is padded with zeros."""
        return _spread(packed, self.place, tuple(self.real.shape))

    def from_rows(self, rows: Tensor) -> Tensor:
        """Convert a padded batch (N, width, ...) to packed tokens (T, ...), without the padding."""
        return rows.flatten(0, 1).index_select(0, self.place)


def indices_of(mask: Tensor) -> Tensor:
    """Return the indices at which the flattened boolean mask is true."""
    return mask.flatten().nonzero().squeeze(1)


def _spread(rows: Tensor, index: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a tensor (*shape, ...) of zeros, with the rows (T, ...) at the given indices of the flattened shape."""
    zeros = rows.new_zeros((shape[0] * shape[1], *rows.shape[1:]))
    return zeros.index_copy(0, index, rows).unflatten(0, shape)
