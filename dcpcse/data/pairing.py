"""Make the examples of a method: rows as they are, or with a positive that is drawn, or that is the following line."""

import hashlib
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from dcpcse.data.columns import CLASS, ROLES, Columns, negatives_in, positives_in
from dcpcse.data.indexed_dataset import IndexedDataset
from dcpcse.data.training_file import TrainingData
from dcpcse.utils.errors import UserError, spell

ANCHOR, POSITIVE = ROLES[:2]


def make_examples(data: TrainingData, seed: int, positive: str = "dropout") -> tuple[Columns, IndexedDataset]:
    """Return the columns of the examples that a method is trained on, and the examples.

    They are the rows of the data; sentences with classes get positives, and of several positives one is drawn. seed:
    seed of the positives. positive: what the positive of a single sentence is, a value of --positive. Raises UserError
    if the data are not single sentences and it differs from the default.
    """
    columns = data.roles
    if positive != "dropout" and columns != (ANCHOR,):
        raise UserError(
            f"{spell('positive', positive)} makes pairs of single sentences, but {data.name} has the columns "
            f"{', '.join(data.columns)}; leave it out"
        )
    if positive == "next":
        return Columns((ANCHOR, POSITIVE)), NextLinePairs(data.dataset, data.breaks())
    if columns.label == CLASS:
        return Columns((ANCHOR, POSITIVE, CLASS), columns.classes), ClassPairs(data.dataset, seed)
    if len(columns.positives) > 1:
        return Columns((ANCHOR, POSITIVE, *columns.negatives)), OneOfSeveralPositives(data.dataset, seed)
    return columns, IndexedDataset(data.dataset)


class NextLinePairs(IndexedDataset):
    """A dataset of pairs of a row and the following row of the same document.

    The last row of a document is a positive only. Row numbers are those of the anchors.
    """

    def __init__(self, rows: Any, breaks: Sequence[int]) -> None:
        """Create the dataset. rows: a table with the column `anchor`. breaks: rows with which a document begins."""
        super().__init__(rows)
        is_last = np.zeros(len(rows), dtype=bool)
        is_last[[*(row - 1 for row in breaks if 0 < row < len(rows)), len(rows) - 1]] = True
        self.anchors = np.flatnonzero(~is_last).astype(np.int32)

    @property
    def digest(self) -> str:
        """A digest of the rows that are anchors, which follow from the ends of the documents."""
        return hashlib.sha256(self.anchors.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.anchors)

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        rows = self.anchors[indices].astype(np.int64)
        return {ANCHOR: rows, POSITIVE: rows + 1}

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, 2) of examples: those of their two sentences."""
        rows, texts = self.anchors[indices], self.sentence_keys[:, 0]
        return np.stack([texts[rows], texts[rows + 1]], axis=1)


class ClassPairs(IndexedDataset):
    """A dataset of pairs of sentences of one class, and the number of this class.

    In each epoch, the positive of a row is drawn uniformly from the other rows of its class. The draw depends on
    seed, epoch and row only, so it is the same in every process and in a resumed run. The positive of a row that is
    alone in its class is its own sentence.
    """

    draws = True

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

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        return {ANCHOR: indices, POSITIVE: self._partners(indices, epoch)}

    def values(self, indices: np.ndarray) -> dict[str, Sequence[Any]]:
        return {CLASS: self.classes[indices].tolist()}

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, 3) of examples: those of their two sentences, and of their class."""
        texts = self.sentence_keys[:, 0]
        return np.stack([texts[indices], texts[self._partners(indices, epoch)], self.classes[indices]], axis=1)

    def _partners(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        return np.array([self.partner(row, epoch) for row in indices.tolist()], dtype=np.int64)

    def partner(self, row: int, epoch: int) -> int:
        """Return the row whose sentence is the positive of a row in an epoch."""
        first, end = self._bounds[self.classes[row]], self._bounds[self.classes[row] + 1]
        if end - first == 1:
            return row
        index = first + Random(f"{self.seed} {epoch} {row} {CLASS}").randrange(end - first - 1)
        return int(self._by_class[index + (index >= self._places[row])])


class OneOfSeveralPositives(IndexedDataset):
    """A dataset of rows with one of their positives.

    In each epoch, the positive of a row is drawn uniformly from its columns of positives. The draw depends on seed,
    epoch and row only, so it is the same in every process and in a resumed run. The other positives of a row are not
    in the batch, so they are not negatives of its anchor. The expected loss of a row is the mean of the losses of its
    positives, as in the loss L_out of Khosla et al. 2020 (Supervised Contrastive Learning, eq. 2). Unlike there, the
    other positives of the anchor are not in the denominator.

    Examples have the columns `anchor` and `positive`, and those of hard negatives. The keys of an example are those of
    all sentences of its row, whichever positive is drawn.
    """

    draws = True

    def __init__(self, rows: Any, seed: int) -> None:
        """Create the dataset. rows: a table with the columns `anchor`, `positive_1`, `positive_2`, … and negatives."""
        super().__init__(rows)
        self.seed = seed
        self.positives, self.negatives = positives_in(self.columns), negatives_in(self.columns)

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        cells = super().cells(indices, epoch)
        drawn = [cells[self.drawn(row, epoch)][i] for i, row in enumerate(indices.tolist())]
        return {ANCHOR: cells[ANCHOR], POSITIVE: np.array(drawn), **{name: cells[name] for name in self.negatives}}

    def drawn(self, row: int, epoch: int) -> str:
        """Return the column whose sentence is the positive of a row in an epoch."""
        return Random(f"{self.seed} {epoch} {row} positives").choice(self.positives)
