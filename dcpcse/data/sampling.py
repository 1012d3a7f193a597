"""Samplers that return training examples in random order, on request without duplicates in a batch."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import DataLoader

from dcpcse.data.examples import IndexedDataset
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
    """A sampler whose batches, of given sizes, contain no two rows with a common key.

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
        """Move rows that fit into a batch, at most one row per group: the rows of a group have a common key."""
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
    """Return up to `most` examples of a dataset, with their keys. No two of these examples have a common key.

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


def set_order(loader: DataLoader, sizes: Sequence[int] | None = None) -> None:
    """Replace the random sampler of a data loader by a sampler of this module with the same seed and epoch.

    A sampler with another order, such as sequential or by length, is not replaced.

    Args:
        loader: A data loader that accelerate has prepared.
        sizes: The sizes of the batches of an epoch. If they are given, batches contain no duplicates. None: the order
            of the rows stays the same.

    Raises:
        UserError: If `sizes` is given and the loader's sampler is not replaced.
    """
    sampler = loader.get_sampler()
    if type(sampler) is not SeedableRandomSampler or sampler.num_samples != len(sampler.data_source):
        if sizes is not None:
            raise UserError(
                f"{spell('batch_sampler', 'no_duplicates')} has no effect if you give your own sampler; leave this "
                "option out"
            )
        return
    data, seed = sampler.data_source, sampler.initial_seed
    if sizes is None:
        ours = CompactRandomSampler(data, data_seed=seed)
    else:
        ours = NoDuplicatesSampler(data, sizes, data_seed=seed)
    ours.set_epoch(sampler.epoch)
    loader.set_sampler(ours)
