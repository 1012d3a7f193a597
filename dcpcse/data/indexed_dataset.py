"""A dataset whose examples contain their row number, so that the contents of a batch can be traced to the file."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from dcpcse.data.columns import Columns
from dcpcse.utils.distributed import Share

ROW_KEY = "row"
"""Name of the row number in an example."""

EPOCH_KEY = "epoch"
"""Name of the epoch number in an example."""

ROWS_KEY = "rows"
"""Name of the row numbers in a batch: a list of integers, which is never moved to a device."""

COUNTS_KEY = "counts"
"""Name of the numbers of rows of all processes in a step, by rank, in examples and batches; a tuple of integers."""


BATCH_ROWS = 10_000
"""Number of rows whose sentences are in memory at once."""


class IndexedDataset(Dataset):
    """A dataset that adds the row number and the epoch to each example of a table.

    draws: whether the positives are drawn in each epoch.
    """

    draws = False

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch of the examples. Call this before the data loader starts: its workers copy the dataset."""
        self.epoch = epoch

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, K) of n examples in an epoch: numbers, of which two rows of a batch should share none.

        They are 64-bit digests of the sentences, so rows with a common sentence always share a key.
        """
        return self.sentence_keys[indices]

    @cached_property
    def sentence_keys(self) -> np.ndarray:
        """The digests (rows, columns) of the sentences of all rows of the table."""
        columns = Columns(self.rows.column_names).sentences
        digests = np.empty((len(self.rows), len(columns)), np.int64)
        for place, column in enumerate(columns):
            for start in range(0, len(digests), BATCH_ROWS):
                texts = self.rows[start : start + BATCH_ROWS][column]
                digests[start : start + BATCH_ROWS, place] = _digests(texts)
        return digests

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        examples = self.examples(indices)
        if isinstance(indices, Share):
            examples = [{**example, COUNTS_KEY: indices.counts} for example in examples]
        return examples

    def examples(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the examples with these indices, each with its row number and epoch."""
        examples = self.rows.__getitems__(list(indices))
        return [{**example, ROW_KEY: i, EPOCH_KEY: self.epoch} for example, i in zip(examples, indices, strict=True)]


def _digests(texts: Iterable[str]) -> np.ndarray:
    # Not Python's hash, which differs between processes.
    joined = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(joined, np.int64)


def stack_indices(examples: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[int]]:
    """Return the row numbers of a batch, and the counts of its step; those that its examples lack are left out."""
    rows = {ROWS_KEY: [example[ROW_KEY] for example in examples]} if ROW_KEY in examples[0] else {}
    return {**rows, COUNTS_KEY: examples[0][COUNTS_KEY]} if COUNTS_KEY in examples[0] else rows


def without_index(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Split a batch into the model's inputs and the row numbers of its examples (empty if unknown)."""
    return {name: value for name, value in batch.items() if name != ROWS_KEY}, batch.get(ROWS_KEY, [])
