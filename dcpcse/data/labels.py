"""Labels of sentence pairs: classes of natural language inference, or scores.

Labels are in a third column named `label` or `score`, where other training files have hard negatives.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dcpcse.utils.option_fields import finite_number

CLASSES = ("contradiction", "entailment", "neutral")
"""Classes in the order of their indices, which are the same as in SBERT's reader."""

LABEL, SCORE = "label", "score"
LABEL_INDEX = 2
"""Index of the column of labels, which follows the two sentences."""


class Columns(tuple[str, ...]):
    """The names of the columns of training data, with a summary of the labels.

    classes: the classes that occur, in the order of `CLASSES`. scores: the smallest and the largest score. Either is
    empty if the data have no labels of this kind, or if only the names of the columns are known.
    """

    classes: tuple[str, ...]
    scores: tuple[float, ...]

    def __new__(cls, names: Iterable[str], classes: Iterable[str] = (), scores: Iterable[float] = ()) -> "Columns":
        columns = super().__new__(cls, names)
        columns.classes, columns.scores = tuple(classes), tuple(scores)
        return columns

    @classmethod
    def of(cls, names: Iterable[str]) -> "Columns":
        """Convert names of columns to `Columns` without a summary of labels; return `Columns` unchanged."""
        return names if isinstance(names, cls) else cls(names)

    @property
    def label(self) -> str | None:
        """The name of the label column, `label` or `score`, or None if there is no such column."""
        return next((name for name in (LABEL, SCORE) if name in self), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The names of the columns that contain sentences."""
        return tuple(name for name in self if name != self.label)


def label_kind(names: Sequence[str]) -> str | None:
    """Return `label` or `score` if the third column of a file has this name (in any letter case), else None."""
    return _kind(names[LABEL_INDEX]) if len(names) > LABEL_INDEX else None


def misplaced_label(names: Sequence[str]) -> str | None:
    """Return the name of a column named `label` or `score` that is not the third column; None if there is none."""
    return next((name for i, name in enumerate(names) if len(names) > 1 and i != LABEL_INDEX and _kind(name)), None)


def _kind(name: str) -> str | None:
    return name.lower() if name.lower() in (LABEL, SCORE) else None


def normalize_label(kind: str, cell: str) -> str:
    """Normalise a label: return a class in lower case, or a score as Python prints it.

    Raises ValueError if the label is neither one of `CLASSES` nor a finite number, as its kind requires.
    """
    if kind == LABEL:
        if cell.lower() not in CLASSES:
            raise ValueError(
                f"the label {cell[:40]!r} is not one of {', '.join(CLASSES)}; write the class as a word (numbers have "
                f"different meanings in different data), remove the row, or rename the column: to {SCORE} if it "
                "contains numbers, such as 1 and 0 for similar and dissimilar pairs, or to another name if it has "
                "hard negatives"
            )
        return cell.lower()
    try:
        return repr(finite_number(cell))
    except ValueError:
        pass
    if cell.lower() in CLASSES:
        remedy = f"rename the column to {LABEL}, which is for {', '.join(CLASSES)}"
    else:
        remedy = "write a number such as 3.5 (1 and 0 for true and false), or remove the row"
    raise ValueError(
        f"the score {cell[:40]!r} is not a number in digits; {remedy}, or rename a column of hard negatives"
    )


class LabelCounter:
    """A counter of the labels of a file, filled while the file is read."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind
        self._classes: Counter[str] = Counter()
        self._scores: tuple[float, ...] = ()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows, each given by the number of its first line and its cells."""
        cells = [cells[LABEL_INDEX] for _, cells in rows if self.kind]
        if self.kind == LABEL:
            self._classes.update(cells)
        elif cells:
            scores = (*map(float, cells), *self._scores)
            self._scores = (min(scores), max(scores))

    @property
    def classes(self) -> Mapping[str, int]:
        """The number of rows of each class that occurs, in the order of `CLASSES`."""
        return {name: self._classes[name] for name in CLASSES if self._classes[name]}

    @property
    def scores(self) -> tuple[float, ...]:
        """The smallest and the largest score; empty if there are none."""
        return self._scores


def describe_labels(classes: Mapping[str, int], scores: Sequence[float]) -> str:
    """Return a short description of the counts of `LabelCounter`; empty if there are no labels."""
    counts = ", ".join(f"{number:,} {name}" for name, number in classes.items())
    return counts or (f"scores from {scores[0]:g} to {scores[1]:g}" if scores else "")
