"""What pairs of sentences are said to be: the classes of natural language inference, or scores.

In training data they stand in a third column named `label` or `score`, where other files have hard negatives.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

CLASSES = ("contradiction", "entailment", "neutral")
"""Their numbers are the places in here, which are those of SBERT's reader."""

LABEL, SCORE = "label", "score"
LABEL_INDEX = 2
"""A label stands third, behind its two sentences."""


class Columns(tuple[str, ...]):
    """Names of the columns of training data, and what its labels are.

    classes: those that occur, in the order of `CLASSES`; scores: the least and the largest; empty where the data have
    none, or where nothing but the names is known.
    """

    classes: tuple[str, ...]
    scores: tuple[float, ...]

    def __new__(cls, names: Iterable[str], classes: Iterable[str] = (), scores: Iterable[float] = ()) -> "Columns":
        columns = super().__new__(cls, names)
        columns.classes, columns.scores = tuple(classes), tuple(scores)
        return columns

    @classmethod
    def of(cls, names: Iterable[str]) -> "Columns":
        """The columns, of which no more than the names may be known."""
        return names if isinstance(names, cls) else cls(names)

    @property
    def label(self) -> str | None:
        """`label` or `score`, if one of them is a column."""
        return next((name for name in (LABEL, SCORE) if name in self), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The columns that hold sentences."""
        return tuple(name for name in self if name != self.label)


def label_kind(names: Sequence[str]) -> str | None:
    """`label` or `score` where the third of a file's columns is named so, in capitals or not; None for sentences."""
    return _kind(names[LABEL_INDEX]) if len(names) > LABEL_INDEX else None


def misplaced_label(names: Sequence[str]) -> str | None:
    """A column of a file that is named as a label and does not stand third, behind two sentences; None without."""
    return next((name for i, name in enumerate(names) if len(names) > 1 and i != LABEL_INDEX and _kind(name)), None)


def _kind(name: str) -> str | None:
    return name.lower() if name.lower() in (LABEL, SCORE) else None


def normalize_label(kind: str, cell: str) -> str:
    """A label as it is kept: a class in small letters, a score as Python writes it; ValueError for anything else."""
    if kind == LABEL:
        if cell.lower() not in CLASSES:
            raise ValueError(
                f"the label {cell[:40]!r} is none of {', '.join(CLASSES)}; write it in words (numbers mean other "
                "classes in other data), leave the row out, or name a column of hard negatives otherwise"
            )
        return cell.lower()
    try:
        score = float(cell.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ValueError(
            f"the score {cell[:40]!r} is no number; write it as 3.5, leave the row out, or name a column of hard "
            "negatives otherwise"
        )
    return repr(score)


class LabelCounter:
    """Counts the labels of a file while it is read."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind
        self._classes: Counter[str] = Counter()
        self._scores: tuple[float, ...] = ()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Take in rows: the number of the line on which each starts, and its cells."""
        cells = [cells[LABEL_INDEX] for _, cells in rows if self.kind]
        if self.kind == LABEL:
            self._classes.update(cells)
        elif cells:
            scores = (*map(float, cells), *self._scores)
            self._scores = (min(scores), max(scores))

    @property
    def classes(self) -> Mapping[str, int]:
        """Class → number of rows, of those that occur, in the order of `CLASSES`."""
        return {name: self._classes[name] for name in CLASSES if self._classes[name]}

    @property
    def scores(self) -> tuple[float, ...]:
        """The least and the largest; empty without any."""
        return self._scores


def describe_labels(classes: Mapping[str, int], scores: Sequence[float]) -> str:
    """What `LabelCounter` has counted, in a few words; empty for nothing."""
    counts = ", ".join(f"{number:,} {name}" for name, number in classes.items())
    return counts or (f"scores from {scores[0]:g} to {scores[1]:g}" if scores else "")
