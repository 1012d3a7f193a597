"""The columns of training data: what each one contains follows from the names, and from the cells of the first row."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dcpcse.utils.errors import UserError

ROLES = ("anchor", "positive", "negative")
"""Roles of up to three columns of sentences. Several hard negatives are `negative_1`, `negative_2`, …"""

LABEL, SCORE, CLASS = "label", "score", "class"
"""Roles of a column that contains no sentences: relations of pairs, scores of pairs, classes of sentences."""

BINARY = ("0", "1")
"""Cells of a third column that is one of scores whatever its name is."""

ALLOWED = (
    "1 (sentence), 2 (anchor, positive; or a sentence and a column named class), 3 (anchor, positive, negative; or "
    "two sentences and a column named label or score) or more (anchor, positive, negative_1, negative_2, ...)"
)

_NEGATIVE = re.compile(r"(hard[ _-]?)?neg(ative)?[ _-]?\d*", re.IGNORECASE)


class Columns(tuple[str, ...]):
    """The roles of the columns of training data, with a summary of the labels.

    classes: the classes that occur, of pairs in the order of `labels.CLASSES`. scores: the smallest and the largest
    score. Either is empty if the data have no labels of this kind, or if only the roles of the columns are known.
    """

    classes: tuple[str, ...]
    scores: tuple[float, ...]

    def __new__(cls, names: Iterable[str], classes: Iterable[str] = (), scores: Iterable[float] = ()) -> "Columns":
        columns = super().__new__(cls, names)
        columns.classes, columns.scores = tuple(classes), tuple(scores)
        return columns

    @classmethod
    def of(cls, names: Iterable[str]) -> "Columns":
        """Convert roles of columns to `Columns` without a summary of labels; return `Columns` unchanged."""
        return names if isinstance(names, cls) else cls(names)

    @property
    def label(self) -> str | None:
        """The role of the column that contains no sentences, or None if there is no such column."""
        return next((name for name in (LABEL, SCORE, CLASS) if name in self), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The roles of the columns that contain sentences."""
        return tuple(name for name in self if name != self.label)

    @property
    def negatives(self) -> tuple[str, ...]:
        """The roles of the columns of hard negatives."""
        return negatives_in(self)

    @property
    def kinds(self) -> frozenset[str]:
        """The roles without the numbers of hard negatives."""
        return frozenset(ROLES[2] if name in self.negatives else name for name in self)


def negatives_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the roles, or names of views, of hard negatives: `negative`, or `negative_1`, `negative_2`, …"""
    return tuple(name for name in names if re.fullmatch(r"negative(_\d+)?", name))


@dataclass(frozen=True)
class Header:
    """The names of the columns of a file or an object, and their roles.

    binary: whether the scores are 0 and 1, in a column with a name other than `score`.
    """

    names: tuple[str, ...]
    roles: tuple[str, ...]
    binary: bool = False

    @property
    def target(self) -> str | None:
        """The role of the last column if it contains no sentences, else None."""
        return Columns(self.roles).label


def header_of(names: Sequence[str], error: Callable[[str], UserError], first: Sequence[str] = ()) -> Header:
    """Return the names of columns with their roles.

    first: the cells of the first row, if it is known; a third column in which it has 0 or 1 is one of scores. Raises
    `error`, given a problem, unless these are columns of training data.
    """
    _require_names(names, error)
    binary = len(names) == 3 and names[2].lower() != SCORE and tuple(first[2:]) in {(cell,) for cell in BINARY}
    roles = (*ROLES[:2], SCORE) if binary else _roles(names)
    return Header(tuple(names), roles, binary)


def target_of(names: Sequence[str]) -> str | None:
    """Return the role of the last of these columns if it contains no sentences by its name, else None."""
    return Columns(_roles(names)).label


def is_negative(name: str) -> bool:
    """Return whether a column has a name of hard negatives, such as negative_1, neg_2 or hard_neg."""
    return bool(_NEGATIVE.fullmatch(name))


def _roles(names: Sequence[str]) -> tuple[str, ...]:
    last = names[-1].lower() if names else ""
    if len(names) == 2 and last in (LABEL, CLASS):
        return (ROLES[0], CLASS)
    if len(names) == 3 and last in (LABEL, SCORE):
        return (*ROLES[:2], last)
    if len(names) <= len(ROLES):
        return ROLES[: len(names)]
    return (*ROLES[:2], *(f"negative_{number}" for number in range(1, len(names) - 1)))


def _require_names(names: Sequence[str], error: Callable[[str], UserError]) -> None:
    names = list(names)
    if not all(names):
        raise error(f"the columns {names} have an empty name; name every column")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise error(
            f"the columns {names} have the name {repeated!r} twice; give every column a name of its own (in a file, "
            "the first row must be a header)"
        )
    if len(names) > len(ROLES) and not all(map(is_negative, names[2:])):
        raise error(f"found {len(names)} columns {names}; keep {ALLOWED}")
    if len(names) == 1:
        return
    target = _roles(names)[-1]
    for name in names if target not in (LABEL, SCORE, CLASS) else names[:-1]:
        if name.lower() == CLASS:
            raise error(
                f"the column {name!r} of {names} is not the second of two; give a sentence and its class in two "
                "columns, in this order, or rename a column of sentences"
            )
        if name.lower() in (LABEL, SCORE):
            raise error(
                f"the column {name!r} of {names} is not the third; put labels or scores into the third column, after "
                "two columns of sentences, or rename a column of sentences"
            )
