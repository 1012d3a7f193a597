"""The columns of training data: find the role of each column by the names and the first row; interpret labels."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.option_fields import finite_number

CLASSES = ("contradiction", "entailment", "neutral")
"""Relations of natural language inference in the order of their indices, which are the same as in SBERT's reader."""

BINARY = ("1", "0")
"""Labels that make a third column scores, whatever its name is."""

SCHEMES = (
    BINARY,
    ("true", "false"),
    ("yes", "no"),
    ("entailment", "not_entailment"),
    ("duplicate", "not_duplicate"),
    ("paraphrase", "not_paraphrase"),
    ("equivalent", "not_equivalent"),
    ("similar", "not_similar"),
    ("same", "different"),
)
"""Pairs of words for binary labels: first the word for the score 1, then the word for 0."""

KNOWN = f"{', '.join(CLASSES)}, or one of {', '.join('/'.join(words) for words in SCHEMES)} for scores of 1 and 0"
"""All known labels of pairs, for messages."""

Words = tuple[str, str]


def label_text(label: Any) -> str:
    """Return a label as stripped text: `1` for 1.0 and "1.0", `true` for True and "True".

    Args:
        label: A string, a boolean or a number.
    """
    if isinstance(label, str):
        text = label.strip()
    elif isinstance(label, Integral) and not isinstance(label, bool):
        text = str(int(label))
    else:
        text = str(label) if type(label).__name__.startswith("bool") else repr(float(label))
    if text.lower() in ("true", "false"):
        return text.lower()
    return re.sub(r"\A(-?\d+)\.0+\Z", r"\1", text)


def pair_word(label: Any) -> str:
    """Return a label of a pair in normal spelling: lower case, underscores, and `not` instead of `non`."""
    word = re.sub(r"[\s_-]+", "_", label_text(label).lower())
    return re.sub("^non_|^dis(?=similar$)", "not_", word)


def words_of(label: Any) -> Words | None:
    """Return the pair of words that contains a binary label, such as ("yes", "no"); None for other labels."""
    word = pair_word(label)
    return next((words for words in SCHEMES if word in words), None)


def is_relation(label: str) -> bool:
    """Return whether a text can only be the label of a relation, not a sentence.

    For example, `yes` and `same` are labels, but may also be sentences, so the result is False.
    """
    words = words_of(label) or ("", "")
    return pair_word(label) in CLASSES or words[1].startswith("not_")


def is_undecided(label: Any) -> bool:
    """Return whether a label, such as entailment, can be a relation or a binary label.

    The label of another row then decides.
    """
    return pair_word(label) in CLASSES and words_of(label) is not None


def binary_score(label: Any, words: Words) -> float | None:
    """Return the score of a binary label: 1 for the first word, 0 for the second word, None for other labels."""
    word = pair_word(label)
    return float(word == words[0]) if word in words else None


def are_labels(values: Sequence[str]) -> bool:
    """Return whether all texts are known labels of pairs or names of splits such as train, and thus no sentences."""
    known = {*CLASSES, *(word for words in SCHEMES for word in words), *_SPLITS}
    return all(pair_word(value) in known for value in values)


_SPLITS = ("train", "training", "dev", "development", "valid", "validation", "val", "test", "eval")


ROLES = ("anchor", "positive", "negative")
"""Roles of up to three columns of sentences. Several positives are `positive_1`, `positive_2`, …, and several hard
negatives `negative_1`, `negative_2`, …"""

LABEL, SCORE, CLASS = "label", "score", "class"
"""Roles of a column that contains no sentences: relations of pairs, scores of pairs, classes of sentences."""

CLASS_SEPARATOR = "\n"
"""Stands between the classes of a sentence with several ones; no text of a cell contains a line end."""

ALLOWED = (
    "1 (sentence), 2 (anchor, positive; or a sentence and a column named class), 3 (anchor, positive, negative; or "
    "two sentences and a column named label or score) or more (anchor, positive_1, positive_2, ..., negative_1, "
    "negative_2, ...; a single positive may have any name)"
)

_NAMES = {
    "P": re.compile(r"pos(itive)?[ _-]?\d*", re.IGNORECASE),
    "N": re.compile(r"(hard[ _-]?)?neg(ative)?[ _-]?\d*", re.IGNORECASE),
}
"""P → pattern of the names of positives, N → pattern of the names of hard negatives. Other names have the letter O."""

_SEVERAL_POSITIVES = re.compile("OP{2,}N*")
"""The letters of the names of columns with several positives; see `_letters`."""


class Columns(tuple[str, ...]):
    """The roles of the columns of training data, with a summary of the labels.

    The summary consists of `classes` and `scores`. They are empty if the data have no classes or no scores, or if only
    the roles of the columns are known.

    Args:
        names: The roles of the columns.
        classes: The classes that occur. Relations of pairs are in the order contradiction, entailment, neutral.
        scores: The smallest and the largest score.
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
        """The role of the column that contains labels, scores or classes; None if all columns contain sentences."""
        return next((name for name in (LABEL, SCORE, CLASS) if name in self), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The roles of the columns that contain sentences."""
        return tuple(name for name in self if name != self.label)

    @property
    def positives(self) -> tuple[str, ...]:
        """The roles of the columns of positives."""
        return positives_in(self)

    @property
    def negatives(self) -> tuple[str, ...]:
        """The roles of the columns of hard negatives."""
        return negatives_in(self)

    @property
    def kinds(self) -> frozenset[str]:
        """The roles without numbers, such as `negative` for `negative_2`."""
        return frozenset(map(kind_of_role, self))


def positives_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of positives among the given names: `positive`, or `positive_1`, `positive_2`, …"""
    return tuple(name for name in names if kind_of_role(name) == ROLES[1])


def negatives_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of hard negatives among the given names: `negative`, or `negative_1`, `negative_2`, …"""
    return tuple(name for name in names if kind_of_role(name) == ROLES[2])


def kind_of_role(role: str) -> str:
    """Return a role without its number, such as `negative` for `negative_2`."""
    return re.sub(r"^(positive|negative)_\d+$", r"\1", role)


@dataclass(frozen=True)
class Header:
    """The names of the columns of a file or an object, and their roles.

    Args:
        words: The two words of binary labels: the first means the score 1, the second 0. None if the labels are not
            binary.
    """

    names: tuple[str, ...]
    roles: tuple[str, ...]
    words: Words | None = None

    @property
    def target(self) -> str | None:
        """The role of the last column if it contains no sentences, else None."""
        return Columns(self.roles).label


def header_of(
    names: Sequence[str],
    error: Callable[[str], UserError],
    first: Sequence[str] = (),
    *,
    example: Callable[[Sequence[str]], str] = lambda columns: "",
) -> Header:
    """Return the names of columns with their roles.

    Args:
        names: The names of the columns.
        error: A function that returns the error for a problem. The error is raised if the names are not names of
            training data.
        first: The cells of the row that decides what a third column contains (see `binary_words`).
        example: A function that returns the end of an error message, which shows how to keep only the given columns.
            If no columns are given, the function chooses some columns.
    """
    _require_names(names, error, example)
    words = binary_words(names[2], first[2]) if len(names) == len(first) == 3 else None
    roles = (*ROLES[:2], SCORE) if words else roles_of(names)
    # The first cell of a third column decides what it contains.
    checked = 2 if words or (len(names) == 3 and not first) else len(names)
    if misplaced := _misplaced(names, roles[:checked]):
        raise error(_describe_misplaced(names, *misplaced, example))
    return Header(tuple(names), roles, words)


def binary_words(name: str, cell: str) -> Words | None:
    """Return the two words of binary labels if the cell of a third column is one of these words; otherwise None.

    Which binary labels are known depends on the name of the column:

    - `label`: all binary labels
    - `score`: all binary labels except numbers, since a number is a score on any scale
    - any other name: only the labels 1 and 0
    """
    words, name = words_of(cell), name.lower()
    if name == LABEL:
        return None if pair_word(cell) in CLASSES else words
    return words if (words == BINARY) != (name == SCORE) else None


def is_positive_or_negative(name: str) -> bool:
    """Return whether a column has a name of positives or hard negatives, such as positive_1, neg_2 or hard_neg."""
    return _letters([name]) != "O"


def are_known(names: Sequence[str]) -> bool:
    """Return whether the names of more than three columns are names of positives and hard negatives, in any order.

    The first column may have any name. The second column may have any name if all later columns are hard negatives.
    """
    return bool(re.fullmatch("..N+|.[PN]+", _letters(names)))


def roles_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the roles of columns, given names of training data."""
    last = names[-1].lower() if names else ""
    if len(names) == 2 and last in (LABEL, CLASS):
        return (ROLES[0], CLASS)
    if len(names) == 3 and last in (LABEL, SCORE):
        return (*ROLES[:2], last)
    letters = _letters(names)
    positives = letters.count("P") if _SEVERAL_POSITIVES.fullmatch(letters) else 1
    roles = (ROLES[0], *numbered(ROLES[1], positives), *numbered(ROLES[2], len(names) - 1 - positives))
    return roles[: len(names)]


def numbered(role: str, count: int) -> tuple[str, ...]:
    """Return `count` numbered roles, such as `negative_1` and `negative_2`; a single role has no number."""
    return (role,) if count == 1 else tuple(f"{role}_{number}" for number in range(1, count + 1))


def _letters(names: Iterable[str]) -> str:
    """Return the letters of the names: P for positives, N for hard negatives, O for any other name."""
    return "".join(next((letter for letter, known in _NAMES.items() if known.fullmatch(name)), "O") for name in names)


def _require_names(
    names: Sequence[str], error: Callable[[str], UserError], example: Callable[[Sequence[str]], str]
) -> None:
    names = list(names)
    if not all(names):
        raise error(f"the columns {names} have an empty name; name every column")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise error(
            f"the columns {names} have the name {repeated!r} twice; give every column a different name (in a file, "
            "the first row must be a header)"
        )
    if len(names) > len(ROLES) and not are_known(names):
        raise error(_describe_unknown(names, example))
    if len(names) == 1:
        return
    target = roles_of(names)[-1]
    for name in names if target not in (LABEL, SCORE, CLASS) else names[:-1]:
        if name.lower() == CLASS:
            raise error(
                f"the column {name!r} of {names} must be the second of two columns; give a sentence and its class, in "
                "this order, or rename the column if it contains sentences"
            )
        if name.lower() in (LABEL, SCORE):
            position, remedy = "third", "put labels or scores into the third column, after two columns of sentences"
            if len(names) == 2 and name.lower() == LABEL:
                position, remedy = "second", "give a sentence and its class in two columns, in this order"
            raise error(
                f"the column {name!r} of {names} must be the {position}; {remedy}, or rename the column if it "
                "contains sentences"
            )


def _describe_unknown(names: Sequence[str], example: Callable[[Sequence[str]], str]) -> str:
    """Return the problem of more than three columns that do not all have names of positives and hard negatives."""
    letters, misplaced = _letters(names), _misplaced(names, roles_of(names))
    if misplaced and misplaced[0].lower() == ROLES[0]:
        return _describe_misplaced(names, *misplaced, example)
    several = "several positives" if letters.count("P") > 1 else "hard negatives" if "N" in letters[2:] else None
    if several is None:
        return f"found {len(names)} columns {list(names)}; keep {ALLOWED}{example(())}"
    target = next((name for name in names if name.lower() in (LABEL, SCORE, CLASS)), None)
    # The anchor may have any name, and so may a single positive.
    later = list(zip(names, letters, strict=True))[1 if "P" in letters else 2 :]
    name = target or next(name for name, letter in later if letter == "O")
    removed = f"remove it{example([other for other in names if other != name])}"
    if target:
        return f"the column {name!r} of {list(names)} cannot be combined with {several}; {removed}"
    return (
        f"the column {name!r} of {list(names)} has neither a name of positives (positive_1, positive_2, ...) nor of "
        f"hard negatives (negative_1, negative_2, ...); rename it to such a name, or {removed}"
    )


def _misplaced(names: Sequence[str], roles: Sequence[str]) -> tuple[str, str] | None:
    """Return the first name whose role differs from the role of its position, and the role of the name; or None."""
    named = {"P": ROLES[1], "N": ROLES[2]}
    for name, role in zip(names if len(names) > 1 else (), map(kind_of_role, roles), strict=False):
        of_name = ROLES[0] if name.lower() == ROLES[0] else named.get(_letters([name]), role)
        if of_name != role:
            return name, role
    return None


def _describe_misplaced(names: Sequence[str], name: str, role: str, example: Callable[[Sequence[str]], str]) -> str:
    """Return the problem of a column with the name of a different role, and the remedy."""
    known = _named(names)
    removed = [other for other in names if other not in known]
    if removed and len(known) > 1 and known[0].lower() == ROLES[0] and not _misplaced(known, roles_of(known)):
        columns = f"column{'s' if len(removed) > 1 else ''} {', '.join(map(repr, removed))}"
        remedy = f"remove the {columns}{example(known)}"
    else:
        remedy = (
            f"give the columns in the order {', '.join(ROLES)} (several: anchor, positive_1, positive_2, ..., "
            "negative_1, negative_2, ...), or rename them"
        )
    return (
        f"the column {name!r} of {list(names)} is read as the {role}, since the position of a column decides "
        f"its role; {remedy}"
    )


def _named(names: Sequence[str]) -> list[str]:
    """Return the columns that have the name of their role, in their order."""
    letters = _letters(names)
    targets = {0: (LABEL, CLASS), 1: (LABEL, SCORE)}.get(len(letters.replace("O", "")), ())
    known = (ROLES[0], *targets)
    return [name for name, letter in zip(names, letters, strict=True) if letter != "O" or name.lower() in known]


_DECIMAL = re.compile(r"[+-]?\d*\.\d*[1-9]\d*")
"""A number that is not whole, such as 0.5; version numbers with two dots are words."""


def normalize_label(header: Header, cell: str) -> str:
    """Return a label in its normal spelling: a relation in lower case, a score as Python prints it, a class as a word.

    Raises:
        ValueError: If the label does not fit its column. A column of relations allows contradiction, entailment and
            neutral. A column of scores allows finite numbers or binary labels. A column of classes allows words and
            whole numbers.
    """
    if header.target == LABEL:
        return _relation(cell)
    if header.target == CLASS:
        return CLASS_SEPARATOR.join(class_words(cell))
    return repr(_binary_score(header, cell) if header.words else _score(cell))


def class_words(cell: str) -> list[str]:
    """Return the different classes in a cell as words. Raises ValueError as `class_word` does."""
    return sorted(set(map(class_word, cell.split(CLASS_SEPARATOR))))


def class_word(cell: str) -> str:
    """Return a class as a word. Raises ValueError if it is a number that is not whole."""
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
        f"the column {name!r} has {other} or {similar} in the first row, so its labels are read as scores, but here "
        f"it has {cell[:40]!r}; write {similar} for similar and {other} for dissimilar pairs, name the column {SCORE} "
        "if it "
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
    raise ValueError(
        f"the score {cell[:40]!r} is not a number; {remedy}; if the column has hard negatives, name it negative"
    )


class LabelCounter:
    """A counter of the labels of a file, filled while the file is read."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind
        self._classes: Counter[str] = Counter()
        self._scores: tuple[float, ...] = ()

    def add(self, rows: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Add rows. A row is given by the number of its first line and its cells."""
        cells = [cells[-1] for _, cells in rows if self.kind]
        if self.kind == SCORE:
            scores = (*map(float, cells), *self._scores)
            self._scores = (min(scores), max(scores)) if scores else ()
        else:
            self._classes.update(name for cell in cells for name in cell.split(CLASS_SEPARATOR))

    @property
    def classes(self) -> Mapping[str, int]:
        """The number of rows of each class, sorted by the name of the class."""
        names = CLASSES if self.kind == LABEL else sorted(self._classes)
        return {name: self._classes[name] for name in names if self._classes[name]}

    @property
    def scores(self) -> tuple[float, ...]:
        """The smallest and the largest score; empty if there are no scores."""
        return self._scores


def describe_labels(classes: Mapping[str, int], scores: Sequence[float]) -> str:
    """Return a short description of the classes and scores of a `LabelCounter`; empty if there are no labels."""
    counts = ", ".join(f"{number:,} {name}" for name, number in classes.items())
    if not classes.keys() <= set(CLASSES):
        least, most = min(classes.values()), max(classes.values())
        size = plural(most, "sentence") if least == most else f"{least:,} to {plural(most, 'sentence')}"
        each = " each" if least == most and len(classes) > 1 else ""
        counts = f"{plural(len(classes), 'class')} of {size}{each}"
    return counts or (f"scores from {scores[0]:g} to {scores[1]:g}" if scores else "")
