"""The random order of training examples, without a list of them."""

from collections.abc import Iterator

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import DataLoader

CHUNK_ROWS = 10_000
"""Number of row numbers that are Python integers at once."""


class CompactRandomSampler(SeedableRandomSampler):
    """A sampler with the order of accelerate's `SeedableRandomSampler` that takes 4 bytes per row in place of 40.

    The permutation is a tensor, parts of which are converted to Python integers. Its dtype does not change the random
    numbers that `torch.randperm` draws.
    """

    def __iter__(self) -> Iterator[int]:
        rows = len(self.data_source)
        generator = torch.Generator().manual_seed(self.initial_seed + self.epoch)
        dtype = torch.int32 if rows <= torch.iinfo(torch.int32).max else torch.int64
        for chunk in torch.randperm(rows, generator=generator, dtype=dtype, device="cpu").split(CHUNK_ROWS):
            yield from chunk.tolist()
        self.set_epoch(self.epoch + 1)


def make_compact(loader: DataLoader) -> None:
    """Replace the sampler of a loader that accelerate has prepared by one with the same order and less memory.

    A sampler of another kind (in order, or by length) is kept.
    """
    sampler = loader.get_sampler()
    if type(sampler) is SeedableRandomSampler and sampler.num_samples == len(sampler.data_source):
        compact = CompactRandomSampler(sampler.data_source, data_seed=sampler.initial_seed)
        compact.set_epoch(sampler.epoch)
        loader.set_sampler(compact)
