"""Samplers that return training examples in random order, on request without duplicates in a batch."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, count, cycle, islice, repeat

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import DataLoader

from dcpcse.data.examples import IndexedDataset
from dcpcse.data.mixture import MixedDataset
from dcpcse.utils.console import warn
from dcpcse.utils.distributed import is_main_process
from dcpcse.utils.errors import UserError, spell

CHUNK_ROWS = 10_000
"""Number of row numbers that are converted to Python integers at a time."""

SEARCHED = 100
"""Number of rows, per row of a batch, that are tried when a batch is filled up at the end of an epoch."""

KeyedRow = tuple[int, Sequence[int]]
"""The index of an example and its keys (see `IndexedDataset.keys`)."""


class CompactRandomSampler(SeedableRandomSampler):
    """A sampler with the same order as accelerate's `SeedableRandomSampler`, in 4 bytes per row instead of 40.

    The permutation stays a tensor, and only parts of the tensor are converted to Python integers at a time. The dtype
    of the tensor does not change the random numbers that `torch.randperm` draws.
    """

    def __iter__(self) -> Iterator[int]:
        for chunk in self.order().split(CHUNK_ROWS):
            yield from chunk.tolist()
        self.set_epoch(self.epoch + 1)

    def order(self) -> torch.Tensor:
        """Return the random order of all rows in this epoch."""
        rows = len(self.data_source)
        generator = torch.Generator().manual_seed(self.initial_seed + self.epoch)
        dtype = torch.int32 if rows <= torch.iinfo(torch.int32).max else torch.int64
        return torch.randperm(rows, generator=generator, dtype=dtype, device="cpu")


class NoDuplicatesSampler(CompactRandomSampler):
    """A sampler whose batches, of given sizes, contain no two rows with a common key (see `IndexedDataset.keys`).

    The order is the same as in `CompactRandomSampler`, with one exception: if a row has a common key with an earlier
    row of its batch, the row waits for the next batch without this key. At the end of an epoch, the remaining rows may
    fit into no batch. Batches are then filled up with rows that the epoch has already used, so all batches keep their
    sizes, and the remaining rows are left out. One warning gives the number of these rows. Every process computes the
    order of all rows.
    """

    def __init__(self, dataset: IndexedDataset, sizes: Sequence[int], data_seed: int) -> None:
        """Create the sampler.

        Args:
            sizes: Number of rows of each batch of an epoch, summed over all processes. `distinct_rows` must find
                enough rows for the largest batch.
        """
        super().__init__(dataset, data_seed=data_seed)
        self.sizes = sizes
        self._said = False

    def __iter__(self) -> Iterator[int]:
        order, waiting = self.order().numpy(), _Waiting()
        used = np.zeros(len(order), dtype=bool)
        rows, again = self._with_keys(order), chain.from_iterable(map(self._with_keys, repeat(order)))
        for size in self.sizes:
            batch = _Batch(size)
            waiting.fill(batch)
            while not batch.is_full and (row := next(rows, None)) is not None:
                if (key := batch.add(*row)) is not None:
                    waiting.append(key, row)
            if not batch.is_full:
                batch = self._filled_up(batch, again, waiting, used)
            used[batch.rows] = True
            yield from batch.rows
        self._say_left_out(int(np.count_nonzero(~used)))
        self.set_epoch(self.epoch + 1)

    def _with_keys(self, order: np.ndarray) -> Iterator[KeyedRow]:
        for start in range(0, len(order), CHUNK_ROWS):
            chunk = order[start : start + CHUNK_ROWS]
            yield from zip(chunk.tolist(), self.data_source.keys(chunk, self.epoch).tolist(), strict=True)

    def _filled_up(
        self, batch: "_Batch", again: Iterator[KeyedRow], waiting: "_Waiting", used: np.ndarray
    ) -> "_Batch":
        """Return a full batch: the given batch, filled up with rows that were used before, or only such rows."""
        for row in islice(again, SEARCHED * batch.size):
            batch.add(*row)
            if batch.is_full:
                return batch
        certain = distinct_rows(self.data_source, max(self.sizes), self.epoch)
        for row in certain:
            batch.add(*row)
        if batch.is_full:
            return batch
        # No further row fits into the batch, so its rows wait again.
        for row, keys in batch.content:
            if not used[row]:
                waiting.append(keys[0], (row, keys))
        full = _Batch(batch.size)
        for row in certain:
            full.add(*row)
        return full

    def _say_left_out(self, rows: int) -> None:
        if rows and not self._said and is_main_process():
            warn(
                f"{spell('batch_sampler', 'no_duplicates')}: {rows:,} of {len(self.data_source):,} rows did not fit "
                f"into a batch of epoch {self.epoch + 1} and were left out of it; other rows were used twice in their "
                "place. Later epochs may leave out other rows, without a message"
            )
            self._said = True


class MixedSampler(CompactRandomSampler):
    """A sampler of several datasets. Each batch has rows of one dataset; `sizes` contains the sizes of the batches.

    An epoch has as many batches as the epochs of all datasets together, in random order. Without weights, each dataset
    has the batches of one epoch. With weights, each dataset has a share of the batches in proportion to its weight. If
    this share exceeds an epoch of the dataset, further epochs in other orders follow.
    """

    def __init__(
        self,
        dataset: MixedDataset,
        samplers: Sequence[CompactRandomSampler],
        sizes: Sequence[Sequence[int]],
        weights: Sequence[float] | None,
        data_seed: int,
    ) -> None:
        """Create the sampler.

        Args:
            samplers: The sampler of each dataset.
            sizes: For each dataset, the number of rows of each batch of its epoch, summed over all processes.
            weights: The weight of each dataset. None: proportional to the number of batches.
        """
        super().__init__(dataset, data_seed=data_seed)
        self.samplers, self.weights = samplers, weights
        self._sizes = sizes

    def batches(self) -> list[tuple[int, int]]:
        """Return the dataset (by its number) and the number of rows of each batch of this epoch."""
        generator = torch.Generator().manual_seed(self.initial_seed + self.epoch)
        counts = torch.tensor([*map(len, self._sizes)])
        if self.weights is not None:
            weights = torch.tensor(self.weights, dtype=torch.float64)
            shares = weights / weights.sum() * counts.sum()
            counts, left = shares.long(), int(counts.sum() - shares.long().sum())
            if left:  # rounded up at random, so that a small weight is not lost
                counts[torch.multinomial(shares - counts, left, generator=generator)] += 1
        numbers = torch.repeat_interleave(counts)
        numbers = numbers[torch.randperm(len(numbers), generator=generator)].tolist()
        sizes = [*map(cycle, self._sizes)]
        return [(number, next(sizes[number])) for number in numbers]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each batch of this epoch, summed over all processes."""
        return [size for _, size in self.batches()]

    def __iter__(self) -> Iterator[int]:
        rows = [self._rows(number, self.epoch) for number in range(len(self.samplers))]
        for number, size in self.batches():
            yield from islice(rows[number], size)
        self.set_epoch(self.epoch + 1)

    def _rows(self, number: int, epoch: int) -> Iterator[int]:
        """Yield the numbers of examples of a dataset without end: of as many of its epochs as are needed."""
        dataset, sampler, sizes = self.data_source, self.samplers[number], self._sizes[number]
        most = 1 if self.weights is None else -(-sum(map(len, self._sizes)) // len(sizes))
        for own_epoch in count(epoch * most):
            sampler.set_epoch(own_epoch)
            first = own_epoch * len(dataset) + dataset.starts[number]
            yield from (first + row for row in islice(sampler, sum(sizes)))


class _Batch:
    """A batch of up to a given number of rows without a common key."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.content: list[KeyedRow] = []
        self.keys: set[int] = set()

    @property
    def rows(self) -> list[int]:
        return [row for row, _ in self.content]

    @property
    def is_full(self) -> bool:
        return len(self.content) == self.size

    def add(self, row: int, keys: Sequence[int]) -> int | None:
        """Add a row, unless the batch is full or contains a key of the row; return the first such key, or None."""
        shared = next((key for key in keys if key in self.keys), None)
        if shared is None and not self.is_full:
            self.content.append((row, keys))
            self.keys.update(keys)
        return shared


class _Waiting:
    """Rows that wait for a batch, in order of arrival, grouped by the key that another row of the batch had."""

    def __init__(self) -> None:
        self._by_key: dict[int, deque[KeyedRow]] = {}

    def append(self, key: int, row: KeyedRow) -> None:
        self._by_key.setdefault(key, deque()).append(row)

    def fill(self, batch: _Batch) -> None:
        """Move waiting rows to a batch, at most one of each group, since the rows of a group have a common key."""
        for key in list(self._by_key):
            queue = self._by_key[key]
            while queue and key not in batch.keys and not batch.is_full:
                row = queue.popleft()
                if (shared := batch.add(*row)) is not None:
                    self.append(shared, row)
            if not queue:
                del self._by_key[key]
            if batch.is_full:
                return


def distinct_rows(dataset: IndexedDataset, most: int, epoch: int = 0) -> list[KeyedRow]:
    """Return up to `most` examples of a dataset, with the keys of their sentences. No two examples share a key.

    The search begins with the examples whose keys are rarest, which finds more examples than a random order.
    """
    keys = dataset.keys(np.arange(len(dataset)), epoch)
    _, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    batch = _Batch(most)
    for row in np.argsort(counts[which.reshape(keys.shape)].sum(axis=1), kind="stable").tolist():
        batch.add(row, keys[row].tolist())
        if batch.is_full:
            break
    return batch.content


def set_order(
    loader: DataLoader,
    sizes: Sequence[Sequence[int]] | None = None,
    *,
    distinct: bool = False,
    weights: Sequence[float] | None = None,
) -> None:
    """Replace the random sampler of a data loader by a sampler of this module with the same seed and epoch.

    A sampler with another order, such as sequential or by length, is not replaced.

    Args:
        loader: A data loader that accelerate has prepared.
        sizes: For each part of the dataset (a `MixedDataset` has several), the sizes of the batches of an epoch. They
            are needed for batches without duplicates, and for several parts. None: the order of the rows stays the
            same.
        distinct: Whether batches contain no duplicates.
        weights: As in `MixedSampler`.

    Raises:
        UserError: If `sizes` is given and the loader's sampler is not replaced.
    """
    sampler = loader.get_sampler()
    if type(sampler) is not SeedableRandomSampler or sampler.num_samples != len(sampler.data_source):
        if sizes is not None:
            what = spell("batch_sampler", "no_duplicates") if distinct else "a second training set"
            raise UserError(f"{what} cannot be combined with your own sampler; leave one of them out")
        return
    data, seed = sampler.data_source, sampler.initial_seed
    if sizes is None:
        ours = CompactRandomSampler(data, data_seed=seed)
    else:
        samplers = [
            NoDuplicatesSampler(part, of_part, seed) if distinct else CompactRandomSampler(part, data_seed=seed)
            for part, of_part in zip(data.parts, sizes, strict=True)
        ]
        ours = MixedSampler(data, samplers, sizes, weights, seed) if len(samplers) > 1 else samplers[0]
    ours.set_epoch(sampler.epoch)
    loader.set_sampler(ours)
