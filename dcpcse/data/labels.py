"""Labels: relations of natural language inference or scores of sentence pairs, and classes of sentences.

Labels are in the last column, see `dcpcse.data.columns`.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dcpcse.data.columns import CLASS, LABEL, SCORE, Header
from dcpcse.data.label_words import CLASSES, KNOWN, binary_score, label_text, pair_word
from dcpcse.utils.errors import plural
from dcpcse.utils.option_fields import finite_number

_DECIMAL = re.compile(r"[+-]?\d*\.\d*[1-9]\d*")
"""A number that is not whole, such as 0.5; version numbers with two dots are words."""


def normalize_label(header: Header, cell: str) -> str:
    """Normalise a label: return a relation in lower case, a score as Python prints it, or a class in one spelling.

    Raises ValueError if the label is not what its column requires: one of `CLASSES`, a finite number or a binary
    label, or a class that is a word or a whole number.
    """
    if header.target == LABEL:
        return _relation(cell)
    if header.target == CLASS:
        return _class(cell)
    return repr(_binary_score(header, cell) if header.words else _score(cell))


def _class(cell: str) -> str:
    if _DECIMAL.fullmatch(cell):
        raise ValueError(
            f"found {cell[:40]} as a class; give every class as a word or a whole number (scores belong to pairs: two "
            f"columns of sentences, and the column {SCORE} third)"
        )
    return label_text(cell)


def _relation(cell: str) -> str:
    if pair_word(cell) in CLASSES:
        return pair_word(cell)
    raise ValueError(
        f"the label {cell[:40]!r} is not one of {KNOWN}; write it as one of these words (numbers have different "
        f"meanings in different data), remove the row, or rename the column: to {SCORE} if it contains numbers, such "
        "as 1 and 0 for similar and dissimilar pairs, or to another name if it has hard negatives"
    )


def _binary_score(header: Header, cell: str) -> float:
    score = binary_score(cell, header.words)
    if score is not None:
        return score
    (similar, other), name = header.words, header.names[-1]
    raise ValueError(
        f"the column {name!r} has {other} or {similar} in the first row, which makes it one of scores, but here "
        f"{cell[:40]!r}; write {similar} for similar and {other} for dissimilar pairs, name the column {SCORE} if it "
        f"has other scores, or write {', '.join(CLASSES)} in a column {LABEL}"
    )


def _score(cell: str) -> float:
    with contextlib.suppress(ValueError):
        if "_" not in cell:  # Python would read 3_5 as 35
            return finite_number(cell)
    if pair_word(cell) in CLASSES:
        remedy = f"rename the column to {LABEL}, which is for {', '.join(CLASSES)}"
    else:
        remedy = "write a number such as 3.5 (1 and 0 for true and false), or remove the row"
    raise ValueError(f"the score {cell[:40]!r} is not a number; {remedy}, or rename a column of hard negatives")


class LabelCounter:
    """A counter of the labels of a file, filled while the file is read."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind
        self._classes: Counter[str] = Counter()
        self._scores: tuple[float, ...] = ()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows, each given by the number of its first line and its cells."""
        cells = [cells[-1] for _, cells in rows if self.kind]
        if self.kind == SCORE:
            scores = (*map(float, cells), *self._scores)
            self._scores = (min(scores), max(scores)) if scores else ()
        else:
            self._classes.update(cells)

    @property
    def classes(self) -> Mapping[str, int]:
        """The number of rows of each class that occurs: of relations in the order of `CLASSES`, of others by name."""
        names = CLASSES if self.kind == LABEL else sorted(self._classes)
        return {name: self._classes[name] for name in names if self._classes[name]}

    @property
    def scores(self) -> tuple[float, ...]:
        """The smallest and the largest score; empty if there are none."""
        return self._scores


def describe_labels(classes: Mapping[str, int], scores: Sequence[float]) -> str:
    """Return a short description of the counts of `LabelCounter`; empty if there are no labels."""
    counts = ", ".join(f"{number:,} {name}" for name, number in classes.items())
    if not classes.keys() <= set(CLASSES):
        least, most = min(classes.values()), max(classes.values())
        size = plural(most, "sentence") if least == most else f"{least:,} to {plural(most, 'sentence')}"
        each = " each" if least == most and len(classes) > 1 else ""
        counts = f"{plural(len(classes), 'class')} of {size}{each}"
    return counts or (f"scores from {scores[0]:g} to {scores[1]:g}" if scores else "")
