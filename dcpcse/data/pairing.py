"""Make pairs of single sentences: the positive of a sentence is another sentence of its class."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from dcpcse.data.columns import CLASS, ROLES, Columns
from dcpcse.data.indexed_dataset import EPOCH_KEY, ROW_KEY, IndexedDataset
from dcpcse.data.training_file import TrainingData

ANCHOR, POSITIVE = ROLES[:2]


def make_examples(data: TrainingData, seed: int) -> tuple[Columns, IndexedDataset]:
    """Return the columns of the examples that a method is trained on, and the examples.

    They are the rows of the data; sentences with classes get positives. seed: seed of the positives.
    """
    columns = data.roles
    if columns.label == CLASS:
        return Columns((ANCHOR, POSITIVE, CLASS), columns.classes), ClassPairs(data.dataset, seed)
    return columns, IndexedDataset(data.dataset)


class ClassPairs(IndexedDataset):
    """A dataset of pairs of sentences of one class, and the number of this class.

    In each epoch, the positive of a row is drawn uniformly from the other rows of its class. The draw depends on
    seed, epoch and row only, so it is the same in every process and in a resumed run. The positive of a row that is
    alone in its class is its own sentence.
    """

    def __init__(self, rows: Any, seed: int) -> None:
        """Create the dataset. rows: a memory-mapped dataset with the columns `anchor` and `class`."""
        super().__init__(rows)
        self.seed = seed
        encoded = rows.data.column(CLASS).dictionary_encode()
        self.classes = encoded.unify_dictionaries().combine_chunks().indices.to_numpy()
        self._by_class = np.argsort(self.classes, kind="stable").astype(np.int32)
        # Each row's place in `_by_class`, and where its class begins and ends there.
        self._places = np.empty_like(self._by_class)
        self._places[self._by_class] = np.arange(len(self._by_class))
        self._bounds = np.searchsorted(self.classes[self._by_class], np.arange(self.classes.max() + 2))

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        partners = [self.partner(index, self.epoch) for index in indices]
        texts = [example[ANCHOR] for example in self.rows.__getitems__([*indices, *partners])]
        pairs = zip(indices, texts[: len(indices)], texts[len(indices) :], strict=True)
        return [
            {ANCHOR: anchor, POSITIVE: positive, CLASS: int(self.classes[i]), ROW_KEY: i, EPOCH_KEY: self.epoch}
            for i, anchor, positive in pairs
        ]

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, 3) of examples: those of their two sentences, and of their class."""
        partners = [self.partner(row, epoch) for row in indices.tolist()]
        texts = self.sentence_keys[:, 0]
        return np.stack([texts[indices], texts[partners], self.classes[indices]], axis=1)

    def partner(self, row: int, epoch: int) -> int:
        """Return the row whose sentence is the positive of a row in an epoch."""
        first, end = self._bounds[self.classes[row]], self._bounds[self.classes[row] + 1]
        if end - first == 1:
            return row
        place = first + Random(f"{self.seed} {epoch} {row} {CLASS}").randrange(end - first - 1)
        return int(self._by_class[place + (place >= self._places[row])])
