"""A dataset whose examples contain their row number, so that the contents of a batch can be traced to the file."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

ROW_KEY = "row"
"""Name of the row number in an example."""

EPOCH_KEY = "epoch"
"""Name of the epoch number in an example."""

ROWS_KEY = "rows"
"""Name of the row numbers in a batch: a list of integers, which is never moved to a device."""


class IndexedDataset(Dataset):
    """A dataset that adds the row number and the epoch to each example of a table."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch of the examples. Call this before the data loader starts: its workers copy the dataset."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        examples = self.rows.__getitems__(list(indices))
        return [{**example, ROW_KEY: i, EPOCH_KEY: self.epoch} for example, i in zip(examples, indices, strict=True)]


def stack_indices(examples: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the row numbers of a batch, or {} if its examples have none."""
    return {ROWS_KEY: [example[ROW_KEY] for example in examples]} if ROW_KEY in examples[0] else {}


def without_index(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Split a batch into the model's inputs and the row numbers of its examples (empty if unknown)."""
    return {name: value for name, value in batch.items() if name != ROWS_KEY}, batch.get(ROWS_KEY, [])
