"""A dataset whose examples contain their row number, so that the contents of a batch can be traced to the file."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from dcpcse.data.columns import Columns
from dcpcse.data.examples import Examples
from dcpcse.data.token_table import Tokenization, TokenizedTable
from dcpcse.encoders.tokenization import TokenIds
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

    Examples may be others than the rows of the table: a subclass says in which cells of the table their sentences are.
    The sentence in row r of the k-th column of sentences is in the cell k · number of rows + r.

    draws: whether the positives are drawn in each epoch. tables: the token ids of the sentences, by the way in which
    they were tokenised. If there are any, a data loader gets `TableExamples`, otherwise lists of dicts.
    """

    draws = False

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        columns = Columns(rows.column_names)
        self.columns, self.label = columns.sentences, columns.label
        self.epoch = 0
        self.tables: Mapping[Tokenization, TokenizedTable] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch of the examples. Call this before the data loader starts: its workers copy the dataset."""
        self.epoch = epoch

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """Return the cells (n,) of the sentences of n examples in an epoch, by the columns of the examples.

        The cells of the first column are also the row numbers of the examples.
        """
        return {column: index * len(self.rows) + indices for index, column in enumerate(self.columns)}

    def values(self, indices: np.ndarray) -> dict[str, Sequence[Any]]:
        """Return what n examples have besides their sentences, by name: a label, a score or a class."""
        return {} if self.label is None else {self.label: self._only_label[indices.tolist()][self.label]}

    def texts(self, cells: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
        """Return the sentences in some cells, by the same names. Each row of the table is read once."""
        columns, rows = np.divmod(np.concatenate([*cells.values()]), len(self.rows))
        distinct, places = np.unique(rows, return_inverse=True)
        read = self._only_sentences[distinct.tolist()]
        texts = [read[self.columns[column]][index] for column, index in zip(columns, places, strict=True)]
        n = len(texts) // len(cells)
        return {name: texts[i * n : (i + 1) * n] for i, name in enumerate(cells)}

    @cached_property
    def _only_sentences(self) -> Any:
        return self.rows.select_columns(list(self.columns))

    @cached_property
    def _only_label(self) -> Any:
        return self.rows.select_columns([self.label])

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, K) of n examples in an epoch: numbers, of which two rows of a batch should share none.

        They are 64-bit digests of the sentences, so rows with a common sentence always share a key.
        """
        return self.sentence_keys[indices]

    @cached_property
    def sentence_keys(self) -> np.ndarray:
        """The digests (rows, columns) of the sentences of all rows of the table."""
        digests = np.empty((len(self.rows), len(self.columns)), np.int64)
        for index, column in enumerate(self.columns):
            for start in range(0, len(digests), BATCH_ROWS):
                texts = self.rows[start : start + BATCH_ROWS][column]
                digests[start : start + BATCH_ROWS, index] = _digests(texts)
        return digests

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return TableExamples(self, [index]).listed()[0]

    def __getitems__(self, indices: Sequence[int]) -> Examples | list[dict[str, Any]]:
        examples = TableExamples(self, indices)
        return examples if self.tables else examples.listed()


class TableExamples:
    """Examples of a dataset. Their texts are read only if they are needed; `ids` needs the dataset's token ids."""

    def __init__(self, dataset: IndexedDataset, indices: Sequence[int]) -> None:
        self._dataset, self._indices = dataset, np.array(indices)
        self._cells = dataset.cells(self._indices, dataset.epoch)
        epochs = [dataset.epoch] * len(indices)
        self._values = {
            **dataset.values(self._indices),
            ROW_KEY: next(iter(self._cells.values())).tolist(),
            EPOCH_KEY: epochs,
        }
        if isinstance(indices, Share):
            self._values[COUNTS_KEY] = [indices.counts] * len(indices)

    def __len__(self) -> int:
        return len(self._indices)

    @cached_property
    def _texts(self) -> dict[str, list[str]]:
        return self._dataset.texts(self._cells)

    def texts(self, column: str) -> list[str]:
        return self._texts[column]

    def ids(self, column: str, way: Tokenization, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
        return self._dataset.tables[way].take(self._cells[column])

    def values(self, name: str) -> Sequence[Any] | None:
        return self._values.get(name)

    def listed(self) -> list[dict[str, Any]]:
        """Return the examples as dicts with their texts, row number and epoch."""
        columns = {**self._texts, **self._values}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _digests(texts: Iterable[str]) -> np.ndarray:
    # Not Python's hash, which differs between processes.
    joined = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(joined, np.int64)


def stack_indices(examples: Examples) -> dict[str, Sequence[int]]:
    """Return the row numbers of a batch, and the counts of its step; those that its examples lack are left out."""
    rows, counts = examples.values(ROW_KEY), examples.values(COUNTS_KEY)
    return ({} if rows is None else {ROWS_KEY: rows}) | ({} if counts is None else {COUNTS_KEY: counts[0]})


def without_index(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Split a batch into the model's inputs and the row numbers of its examples (empty if unknown)."""
    return {name: value for name, value in batch.items() if name != ROWS_KEY}, batch.get(ROWS_KEY, [])
