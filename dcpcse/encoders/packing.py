"""Batches without padding: one row of all real tokens, and the way there and back.

A frozen encoder spends its time in linear layers, which treat every token alike. Pads cost as much there as text, so
they are left out; attention alone has to know where a text ends (`dcpcse.encoders.attention`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the T real tokens of a batch (N, L) lie, text after text.

    source (T,): their indices in the flattened batch. place (T,): their indices in flattened rows (N, width) that hold
    each text from the first place on, width being the longest text. real, boolean (N, width): where these hold tokens.
    lengths (N,): tokens of each text; sizes: the same numbers, for which no device has to be asked.
    """

    source: Tensor
    place: Tensor
    lengths: Tensor
    real: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """The real tokens of a mask (N, L), 1 where a token is one; anywhere in a row.

        On a GPU this waits for the device; a collator makes it of the mask before that goes there.
        """
        real = mask.bool()
        lengths = real.sum(1)
        sizes = tuple(lengths.tolist())
        places = torch.arange(max(sizes), device=mask.device)
        there = places < lengths.unsqueeze(1)
        return cls(_indices(real), _indices(there), lengths, there, sizes)

    def to(self, device: torch.device | str, **options: Any) -> "Packing":
        """The same on another device."""
        return self._with(lambda tensor: tensor.to(device, **options))

    def pin_memory(self) -> "Packing":
        """The same in memory that a GPU copies from while it computes; DataLoader calls this."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Packing":
        tensors = (self.source, self.place, self.lengths, self.real)
        return Packing(*map(change, tensors), self.sizes)

    def split(self, rows: Sequence[int], length: int) -> Iterator["Packing"]:
        """Those of parts of so many rows each of the batch (N, length); waits for no device."""
        text, token, width = 0, 0, self.real.shape[1]
        for count in rows:
            sizes = self.sizes[text : text + count]
            tokens, widest = slice(token, token + sum(sizes)), max(sizes)
            place = self.place[tokens] - text * width
            yield Packing(
                self.source[tokens] - text * length,
                place // width * widest + place % width,
                self.lengths[text : text + count],
                self.real[text : text + count, :widest],
                sizes,
            )
            text, token = text + count, tokens.stop

    @property
    def first(self) -> Tensor:
        """Index (N,) of each text's first token among the packed ones."""
        return self.lengths.cumsum(0) - self.lengths

    def pack(self, batch: Tensor) -> Tensor:
        """(N, L, ...) → (1, T, ...)."""
        return batch.flatten(0, 1).index_select(0, self.source).unsqueeze(0)

    def unpack(self, packed: Tensor, length: int) -> Tensor:
        """(1, T, ...) → (N, length, ...), zeros at pads."""
        return _spread(packed.squeeze(0), self.source, (len(self.lengths), length))

    def to_rows(self, packed: Tensor) -> Tensor:
        """(T, ...) → (N, width, ...), each text from the first place on, zeros after its end."""
        return _spread(packed, self.place, tuple(self.real.shape))

    def from_rows(self, rows: Tensor) -> Tensor:
        """(N, width, ...) → (T, ...)."""
        return rows.flatten(0, 1).index_select(0, self.place)


def _indices(mask: Tensor) -> Tensor:
    """Where a boolean mask, flattened, is true."""
    return mask.flatten().nonzero().squeeze(1)


def _spread(rows: Tensor, index: Tensor, shape: tuple[int, int]) -> Tensor:
    """Rows at an index each of zeros (shape[0] · shape[1], ...), unflattened."""
    zeros = rows.new_zeros((shape[0] * shape[1], *rows.shape[1:]))
    return zeros.index_copy(0, index, rows).unflatten(0, shape)
