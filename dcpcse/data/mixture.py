"""Train on several training sets in one run. Each batch has rows of one set."""

import hashlib
import json
from bisect import bisect
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import accumulate
from numbers import Number
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from dcpcse.data.columns import SCORE, Columns, negatives_in
from dcpcse.data.examples import Examples, IndexedDataset, make_examples
from dcpcse.data.training_data import TrainingData
from dcpcse.utils.console import warn
from dcpcse.utils.distributed import Share
from dcpcse.utils.errors import UserError, spell


@dataclass(frozen=True)
class TrainingSets:
    """Several training sets, whose rows are numbered consecutively: the rows of the first set come first.

    Args:
        sets: The sets by name. Hard negatives have the same roles in all sets, so `negative` may become `negative_1`.
    """

    sets: Mapping[str, TrainingData]

    @classmethod
    def of(cls, sets: Mapping[str, TrainingData]) -> "TrainingSets":
        """Return the sets, with hard negatives named as in the set that has the most hard negatives."""
        most = max((data.roles.negatives for data in sets.values()), key=len)
        roles = {name: dict(zip(data.roles.negatives, most, strict=False)) for name, data in sets.items()}
        return cls({n: replace(data, dataset=data.dataset.rename_columns(roles[n])) for n, data in sets.items()})

    @property
    def sha256(self) -> str:
        """A digest of the contents of all sets in their order."""
        return hashlib.sha256(json.dumps([data.sha256 for data in self.sets.values()]).encode()).hexdigest()

    def locate(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the set, the location in the set, and the sentences of each row. All rows must be of one set."""
        first = 0
        for name, data in self.sets.items():
            if rows[0] < first + len(data.dataset):
                return [{"set": name, **place} for place in data.locate([row - first for row in rows])]
            first += len(data.dataset)
        raise IndexError(f"row {rows[0]} is after the last row of all training sets")


AnyTrainingData = TrainingData | TrainingSets
"""One or several training sets."""


def by_name(files: Sequence[str]) -> str | dict[str, str]:
    """Return a single file unchanged, and several files as a dict by name.

    The name is the file name without extension, or the path if two file names are equal.
    """
    names = [Path(file).name.partition(".")[0] for file in files]
    names = names if len(set(names)) == len(files) else files
    return files[0] if len(files) == 1 else dict(zip(names, files, strict=True))


def is_several(data: Any) -> bool:
    """Return whether training data are a dict of sets by name, and not a table (a dict of columns)."""
    return type(data) is dict and bool(data) and not any(map(_is_column, data.values()))


def _is_column(value: Any) -> bool:
    is_table = isinstance(value, (str, PathLike, Mapping)) or hasattr(value, "columns") or hasattr(value, "to_reader")
    if is_table or hasattr(value, "column_names") or not isinstance(value, Sized):
        return False
    return isinstance(next(iter(value), ""), (str, Number, np.generic, type(None)))


class MixedDataset(Dataset):
    """The examples of several datasets. Each batch has examples of one dataset.

    The number of an example is epoch · N + (number of examples of earlier datasets) + (number in its dataset). N is
    the number of examples of all datasets.

    Args:
        parts: The datasets by name.
    """

    def __init__(self, parts: Mapping[str, IndexedDataset]) -> None:
        self.names, self.parts = tuple(parts), tuple(parts.values())
        self.draws = any(part.draws for part in self.parts)
        *self.starts, self._count = accumulate(map(len, self.parts), initial=0)
        self._first_rows = [*accumulate((len(part.rows) for part in self.parts), initial=0)]
        for part, first in zip(self.parts, self._first_rows, strict=False):
            part.first_row = first

    @property
    def num_negatives(self) -> np.ndarray | None:
        """The numbers of hard negatives that occur; None if all examples have the same number."""
        fixed = {part: len(negatives_in(part.columns)) for part in self.parts}
        numbers = np.hstack([fixed[p] if p.num_negatives is None else p.num_negatives for p in self.parts])
        return numbers if np.ptp(numbers) else None

    def name_of(self, row: int) -> str:
        """Return the name of the dataset that contains the row with this number."""
        return self.names[bisect(self._first_rows, row) - 1]

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing: the number of an example contains its epoch."""

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: Sequence[int]) -> Examples | list[dict[str, Any]]:
        epoch, first = divmod(indices[0], self._count)
        place = bisect(self.starts, first) - 1
        part = self.parts[place]
        share = Share(index - epoch * self._count - self.starts[place] for index in indices)
        share.counts = indices.counts
        part.begin_epoch(epoch)
        return part.__getitems__(share)


def make_mixture(
    data: AnyTrainingData, seed: int, positive: str = "dropout"
) -> tuple[Columns, IndexedDataset | MixedDataset]:
    """Return the columns of the examples, and the examples of all training sets.

    Each set contributes the examples that `make_examples` returns for it.

    Args:
        data: The training data.
        seed: As in `make_examples`.
        positive: As in `make_examples`.

    Raises:
        UserError: If the columns of the sets differ, except for the number of hard negatives.
    """
    made = {name: make_examples(part, seed, positive) for name, part in data.sets.items()}
    if len(made) == 1:
        return next(iter(made.values()))
    columns = {name: of_set for name, (of_set, _) in made.items()}
    widest = max(columns.values(), key=len)
    wanted = [role for role in widest if role not in widest.negatives]
    for name, roles in columns.items():
        if [role for role in roles if role not in roles.negatives] != wanted:
            raise UserError(
                f"the training set {name} has the columns {', '.join(roles)}, but another has {', '.join(widest)}; "
                "the sets of a run may differ only in the number of hard negatives; train on one set first, and go on "
                f"with the other by {spell('init_from')}"
            )
    scores = [roles.scores for roles in columns.values() if roles.scores]
    if widest.label == SCORE and len({high for _, high in scores}) > 1:
        ends = ", ".join(f"{high:g} ({name})" for name, (_, high) in zip(columns, scores, strict=True))
        warn(f"the largest scores of the training sets differ: {ends}; give scores on one scale")
    classes = sorted({label for roles in columns.values() for label in roles.classes})
    limits = (min(low for low, _ in scores), max(high for _, high in scores)) if scores else ()
    return Columns(widest, classes, limits), MixedDataset({name: examples for name, (_, examples) in made.items()})
