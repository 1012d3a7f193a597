"""Datasets of training examples: rows of a table with row numbers; some datasets draw a positive for each row."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from random import Random
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from dcpcse.data.columns import CLASS, CLASS_SEPARATOR, ROLES, Columns, negatives_in, positives_in
from dcpcse.data.token_table import Tokenization, TokenizedTable
from dcpcse.data.training_data import TrainingData
from dcpcse.encoders.tokenization import TokenIds
from dcpcse.utils.distributed import Share
from dcpcse.utils.errors import UserError, spell


class Examples(Protocol):
    """The interface of `ListedExamples` and `TableExamples`, from which a collator makes a batch."""

    def __len__(self) -> int: ...

    def has(self, column: str) -> bool:
        """Return whether the examples have a column of sentences."""
        ...

    def texts(self, column: str) -> Sequence[str | None]:
        """Return the sentences in a column. None stands for an absent hard negative."""
        ...

    def ids(self, column: str, way: Tokenization, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
        """Return the token ids of the sentences in a column."""
        ...

    def values(self, name: str) -> Sequence[Any] | None:
        """Return a value of each example, such as its row number (name `row`); None if examples have no such value."""
        ...


class ListedExamples:
    """Examples that are given as a list of dicts, one for each example."""

    def __init__(self, examples: Sequence[Mapping[str, Any]]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def has(self, column: str) -> bool:
        return column in self._examples[0]

    def texts(self, column: str) -> list[str | None]:
        return [example[column] for example in self._examples]

    def ids(self, column: str, way: Tokenization, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
        return TokenIds.of(way.ids(tokenizer, self.texts(column)))

    def values(self, name: str) -> list[Any] | None:
        return [example[name] for example in self._examples] if name in self._examples[0] else None


ROW_KEY = "row"
"""Name of the row number in an example."""

EPOCH_KEY = "epoch"
"""Name of the epoch number in an example."""

ROWS_KEY = "rows"
"""Name of the row numbers in a batch: a list of integers, which is never moved to a device."""

COUNTS_KEY = "counts"
"""Name of the numbers of rows of all processes in a step, by rank, in examples and batches; a tuple of integers."""


NEGATIVES_KEY = "num_negatives"
"""Name of the number of hard negatives of an example, in data whose rows do not all have the same number."""

BATCH_ROWS = 10_000
"""Number of rows whose sentences are in memory at once."""


class IndexedDataset(Dataset):
    """A dataset that adds the row number and the epoch to each example of a table.

    An example need not be a row of the table: a subclass defines which cells of the table contain the sentences of an
    example. Cells are numbered: the sentence in row r of the k-th column of sentences (k from 0) has the number k ·
    (number of rows) + r. A data loader gets `TableExamples` if there are token ids, otherwise lists of dicts.

    Args:
        draws: Whether the positives are drawn in each epoch.
        first_row: The row number of the first row of the table in examples; above 0 in a `MixedDataset`, except in its
            first dataset.
        tables: The token ids of the sentences of the table, for each way to tokenise the sentences.
    """

    draws = False
    first_row = 0

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        columns = Columns(rows.column_names)
        self.columns, self.label = columns.sentences, columns.label
        self.epoch = 0
        self.tables: Mapping[Tokenization, TokenizedTable] = {}

    @property
    def parts(self) -> "tuple[IndexedDataset, ...]":
        """A tuple with this dataset alone. (A `dcpcse.data.mixture.MixedDataset` has several parts.)"""
        return (self,)

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch of the examples. Call this before the data loader starts: its workers copy the dataset."""
        self.epoch = epoch

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """Return, for each column, the cell numbers (n,) of the sentences of n examples in an epoch.

        The cell numbers of the first column are also the row numbers of the examples. `indices` (n,) contains the
        numbers of the examples.
        """
        return {column: index * len(self.rows) + indices for index, column in enumerate(self.columns)}

    def values(self, indices: np.ndarray) -> dict[str, Sequence[Any]]:
        """Return the labels, scores, classes or numbers of hard negatives of n examples, by name."""
        if self.num_negatives is not None:
            return {NEGATIVES_KEY: self.num_negatives[indices].tolist()}
        return {} if self.label is None else {self.label: self._only_label[indices.tolist()][self.label]}

    @cached_property
    def num_negatives(self) -> np.ndarray | None:
        """The number of hard negatives of each row of the table; None if all rows have the same number."""
        numbers = _numbers(self.rows, negatives_in(self.columns))
        return numbers if np.ptp(numbers) else None

    def texts(self, cells: Mapping[str, np.ndarray]) -> dict[str, list[str | None]]:
        """Return the sentences of each column, given the cell numbers (n,) of each column. Each row is read once."""
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
        """Return the K keys of each of n examples in an epoch, (n, K).

        A key is a 64-bit digest of a sentence, so examples with a common sentence always have a common key. With
        --batch_sampler no_duplicates, no two examples of a batch have a common key. An absent sentence has the key of
        the anchor.
        """
        return self.sentence_keys[indices]

    @cached_property
    def sentence_keys(self) -> np.ndarray:
        """The digests (rows, columns) of the sentences of all rows of the table."""
        digests = np.empty((len(self.rows), len(self.columns)), np.int64)
        for index, column in enumerate(self.columns):
            for start in range(0, len(digests), BATCH_ROWS):
                part = digests[start : start + BATCH_ROWS]
                of_texts = _digests(self.rows[start : start + BATCH_ROWS][column])
                part[:, index] = np.where(of_texts == ABSENT, part[:, 0], of_texts)
        return digests

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return TableExamples(self, [index]).listed()[0]

    def __getitems__(self, indices: Sequence[int]) -> Examples | list[dict[str, Any]]:
        examples = TableExamples(self, indices)
        return examples if self.tables else examples.listed()


class TableExamples:
    """The examples of an `IndexedDataset` at some indices. Their texts are read only when they are needed.

    The method `ids` requires that the dataset has token ids (`tables`).
    """

    def __init__(self, dataset: IndexedDataset, indices: Sequence[int]) -> None:
        self._dataset, self._indices = dataset, np.array(indices)
        self._cells = dataset.cells(self._indices, dataset.epoch)
        epochs = [dataset.epoch] * len(indices)
        self._values = {
            **dataset.values(self._indices),
            ROW_KEY: (next(iter(self._cells.values())) + dataset.first_row).tolist(),
            EPOCH_KEY: epochs,
        }
        if isinstance(indices, Share):
            self._values[COUNTS_KEY] = [indices.counts] * len(indices)

    def __len__(self) -> int:
        return len(self._indices)

    @cached_property
    def _texts(self) -> dict[str, list[str | None]]:
        return self._dataset.texts(self._cells)

    def has(self, column: str) -> bool:
        return column in self._cells

    def texts(self, column: str) -> list[str | None]:
        return self._texts[column]

    def ids(self, column: str, way: Tokenization, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
        return self._dataset.tables[way].take(self._cells[column])

    def values(self, name: str) -> Sequence[Any] | None:
        return self._values.get(name)

    def listed(self) -> list[dict[str, Any]]:
        """Return the examples as dicts with their texts, row number and epoch."""
        columns = {**self._texts, **self._values}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


ABSENT = 0
"""Digest of an absent sentence."""


def _digests(texts: Iterable[str | None]) -> np.ndarray:
    # Not Python's hash, which differs between processes.
    joined = b"".join(bytes(8) if t is None else hashlib.blake2b(t.encode(), digest_size=8).digest() for t in texts)
    return np.frombuffer(joined, np.int64)


def _numbers(rows: Any, columns: Sequence[str]) -> np.ndarray:
    """Return how many of the columns of a memory-mapped dataset have a sentence in each row (rows,).

    Columns without an absent sentence are not read.
    """
    numbers = np.zeros(len(rows), np.int32)
    for cells in map(rows.data.column, columns):
        numbers += cells.is_valid().to_numpy() if cells.null_count else 1
    return numbers


def stack_indices(examples: Examples) -> dict[str, Sequence[int]]:
    """Return a dict with the row numbers of a batch, and the number of rows of each process in its step, if known."""
    rows, counts = examples.values(ROW_KEY), examples.values(COUNTS_KEY)
    return ({} if rows is None else {ROWS_KEY: rows}) | ({} if counts is None else {COUNTS_KEY: counts[0]})


def without_index(batch: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Split a batch into the inputs of the model and the row numbers of the examples (empty if unknown)."""
    return {name: value for name, value in batch.items() if name != ROWS_KEY}, batch.get(ROWS_KEY, [])


ANCHOR, POSITIVE = ROLES[:2]

EVERY = "all"
"""Value of the option --positive for an example of each of several positives."""


def make_examples(data: TrainingData, seed: int, positive: str = "dropout") -> tuple[Columns, IndexedDataset]:
    """Return the columns of the examples for the training of a method, and the examples.

    Usually, each row of the data is an example. If the rows have classes, the positive of a row is another row of its
    class, drawn in each epoch. If the rows have several positives, one of them is drawn in each epoch, or each of them
    makes an example.

    Args:
        data: The training data.
        seed: Seed of the drawn positives.
        positive: A value of the option --positive, which says what the positive of a single sentence is, or whether
            all of several positives are used.

    Raises:
        UserError: If the value of `positive` does not apply to these data.
    """
    columns = data.roles
    several = len(columns.positives) > 1
    if positive != "dropout" and not (several if positive == EVERY else columns == (ANCHOR,)):
        wanted = "several positives" if positive == EVERY else "one column"
        raise UserError(
            f"{spell('positive', positive)} is for data with {wanted}, but {data.name} has the columns "
            f"{', '.join(data.columns)}; leave out the option"
        )
    if positive == "next":
        return Columns((ANCHOR, POSITIVE)), NextLinePairs(data.dataset, data.breaks())
    if columns.label == CLASS:
        return Columns((ANCHOR, POSITIVE, CLASS), columns.classes), ClassPairs(data.dataset, seed)
    if several:
        examples = EveryPositive(data.dataset) if positive == EVERY else OneOfSeveralPositives(data.dataset, seed)
        return Columns((ANCHOR, POSITIVE, *columns.negatives)), examples
    return columns, IndexedDataset(data.dataset)


class NextLinePairs(IndexedDataset):
    """A dataset of pairs of a row and the following row of the same document.

    The last row of a document is not an anchor. The number of an example is the row number of its anchor.
    """

    def __init__(self, rows: Any, breaks: Sequence[int]) -> None:
        """Create the dataset.

        Args:
            rows: A table with the column `anchor`.
            breaks: The row numbers at which documents begin.
        """
        super().__init__(rows)
        is_last = np.zeros(len(rows), dtype=bool)
        is_last[[*(row - 1 for row in breaks if 0 < row < len(rows)), len(rows) - 1]] = True
        self.anchors = np.flatnonzero(~is_last).astype(np.int32)

    @property
    def digest(self) -> str:
        """A digest of the row numbers of the anchors, which depend on where documents end."""
        return hashlib.sha256(self.anchors.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.anchors)

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        rows = self.anchors[indices].astype(np.int64)
        return {ANCHOR: rows, POSITIVE: rows + 1}

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, 2) of the sentences of each example. A batch has no two examples with a common key."""
        rows, texts = self.anchors[indices], self.sentence_keys[:, 0]
        return np.stack([texts[rows], texts[rows + 1]], axis=1)


class ClassPairs(IndexedDataset):
    """A dataset of pairs of sentences with the same class, and the number of the class.

    In each epoch, the positive of a row is drawn uniformly from the other rows of its class. The draw depends on seed,
    epoch and row only, so it is the same in every process and in a resumed run. If a class has only one row, its
    positive is the same sentence. For a row with several classes, a class that has other rows is drawn first.

    Attributes:
        classes: The numbers (rows, K) of the classes of the rows; rows with fewer than K classes repeat the last one.
    """

    draws = True

    def __init__(self, rows: Any, seed: int) -> None:
        """Create the dataset.

        Args:
            rows: A memory-mapped dataset with the columns `anchor` and `class`.
        """
        super().__init__(rows)
        self.seed = seed
        encoded = rows.data.column(CLASS).dictionary_encode()
        encoded = encoded.unify_dictionaries().combine_chunks()
        sets, of_row = [cell.split(CLASS_SEPARATOR) for cell in encoded.dictionary.to_pylist()], encoded.indices
        numbers = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(sets)))}
        counts = np.array([*map(len, sets)])
        padded = [[numbers[name] for name in names + names[-1:] * int(counts.max() - len(names))] for names in sets]
        self.classes = np.array(padded, np.int32)[of_row.to_numpy()]
        # The rows of each class, and where each class begins and ends there.
        rows_of, columns_of = np.nonzero(np.arange(counts.max()) < counts[of_row.to_numpy()][:, None])
        classes = self.classes[rows_of, columns_of]
        order = np.argsort(classes, kind="stable")
        self._by_class = rows_of[order].astype(np.int32)
        self._bounds = np.searchsorted(classes[order], np.arange(len(numbers) + 1))

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        return {ANCHOR: indices, POSITIVE: self._partners(indices, epoch)}

    def values(self, indices: np.ndarray) -> dict[str, Sequence[Any]]:
        classes = self.classes[indices]
        return {CLASS: (classes if classes.shape[1] > 1 else classes[:, 0]).tolist()}

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Return the keys (n, 2 + K) of examples: the keys of their two sentences, and of their classes."""
        texts = self.sentence_keys[:, 0]
        return np.column_stack([texts[indices], texts[self._partners(indices, epoch)], self.classes[indices]])

    def _partners(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        return np.array([self.partner(row, epoch) for row in indices.tolist()], dtype=np.int64)

    def partner(self, row: int, epoch: int) -> int:
        """Return the row whose sentence is the positive of a row in an epoch."""
        bounds = [self._bounds[number : number + 2] for number in dict.fromkeys(self.classes[row].tolist())]
        bounds = [(first, end) for first, end in bounds if end - first > 1]
        if not bounds:
            return row
        random = Random(f"{self.seed} {epoch} {row} {CLASS}")
        first, end = bounds[0] if len(bounds) == 1 else random.choice(bounds)
        index, members = random.randrange(end - first - 1), self._by_class[first:end]
        return int(members[index + (index >= np.searchsorted(members, row))])


class OneOfSeveralPositives(IndexedDataset):
    """A dataset of rows with one of their positives.

    In each epoch, the positive of a row is drawn uniformly from its columns of positives. The draw depends on seed,
    epoch and row only, so it is the same in every process and in a resumed run. The other positives of a row are not
    in the batch, so they are not negatives of its anchor. The expected loss of a row is the mean of the losses of its
    positives, as in the loss L_out of Khosla et al. 2020 (Supervised Contrastive Learning, eq. 2). But unlike L_out,
    the denominator does not contain the other positives of the anchor.

    Examples have the columns `anchor` and `positive`, and the columns of hard negatives. The keys of an example are
    the keys of all sentences of its row, including the positives that are not drawn.
    """

    draws = True

    def __init__(self, rows: Any, seed: int) -> None:
        """Create the dataset.

        Args:
            rows: A table with the columns `anchor`, `positive_1`, `positive_2`, … and negatives.
        """
        super().__init__(rows)
        self.seed = seed
        self.positives, self.negatives = positives_in(self.columns), negatives_in(self.columns)
        self.num_positives = _numbers(rows, self.positives)

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        cells = super().cells(indices, epoch)
        drawn = [cells[self.drawn(row, epoch)][i] for i, row in enumerate(indices.tolist())]
        return {ANCHOR: cells[ANCHOR], POSITIVE: np.array(drawn), **{name: cells[name] for name in self.negatives}}

    def drawn(self, row: int, epoch: int) -> str:
        """Return the column whose sentence is the positive of a row in an epoch."""
        return Random(f"{self.seed} {epoch} {row} positives").choice(self.positives[: self.num_positives[row]])


class EveryPositive(IndexedDataset):
    """A dataset of rows with each of their positives: a row with three positives makes three examples.

    In a batch, the positives of one row are never negatives of each other. Examples have the same columns and keys as
    in `OneOfSeveralPositives`.
    """

    def __init__(self, rows: Any) -> None:
        """Create the dataset from a table as in `OneOfSeveralPositives`."""
        super().__init__(rows)
        self.negatives = negatives_in(self.columns)
        numbers = _numbers(rows, positives_in(self.columns))
        # The row of each example, and the place of its positive among those of the row.
        self.row_of = np.repeat(np.arange(len(rows), dtype=np.int32), numbers)
        self._places = np.arange(len(self.row_of), dtype=np.int32) - np.repeat(numbers.cumsum() - numbers, numbers)

    def __len__(self) -> int:
        return len(self.row_of)

    def cells(self, indices: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        rows = self.row_of[indices].astype(np.int64)
        cells = super().cells(rows, epoch)
        positives = rows + (1 + self._places[indices]) * len(self.rows)
        return {ANCHOR: rows, POSITIVE: positives, **{name: cells[name] for name in self.negatives}}

    def values(self, indices: np.ndarray) -> dict[str, Sequence[Any]]:
        """Return the values of n examples, with the row number as class: losses do not contrast examples of a
        class.
        """
        rows = self.row_of[indices]
        return {**super().values(rows), CLASS: rows.tolist()}

    def keys(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        return self.sentence_keys[self.row_of[indices]]
