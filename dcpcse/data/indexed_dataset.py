"""Examples that know their row in the training data, so that what a batch held can be found again."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

ROW_KEY = "row"
"""Name of the number among an example's columns."""

EPOCH_KEY = "epoch"
"""Name of the epoch's number among an example's columns."""

ROWS_KEY = "rows"
"""Name of the numbers in a batch: plain ones, which are never sent to a device."""


class IndexedDataset(Dataset):
    """Examples of a table with their row, and the epoch, beside the texts."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """From now on examples are of this epoch; before its loader begins, as workers have a copy of their own."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        examples = self.rows.__getitems__(list(indices))
        return [{**example, ROW_KEY: i, EPOCH_KEY: self.epoch} for example, i in zip(examples, indices, strict=True)]


def stack_indices(examples: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The rows of a batch, where its examples know theirs."""
    return {ROWS_KEY: [example[ROW_KEY] for example in examples]} if ROW_KEY in examples[0] else {}


def without_index(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """A batch as the model takes it, and the rows of its examples; none where they do not know theirs."""
    return {name: value for name, value in batch.items() if name != ROWS_KEY}, batch.get(ROWS_KEY, [])
