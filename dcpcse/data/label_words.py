"""The words of labels: one spelling for each label, and the meaning of the words that are known for pairs."""

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

CLASSES = ("contradiction", "entailment", "neutral")
"""Relations of natural language inference in the order of their indices, which are the same as in SBERT's reader."""

BINARY = ("1", "0")
"""The words of a third column that contains scores whatever its name is."""

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
"""The two words of binary labels of pairs: the one that stands for the score 1, and the one that stands for 0."""

KNOWN = f"{', '.join(CLASSES)}, or one of {', '.join('/'.join(words) for words in SCHEMES)} for scores of 1 and 0"
"""All labels of pairs that are known, for messages."""

Words = tuple[str, str]


def label_text(label: Any) -> str:
    """Return the text of a label, the same for each of its forms: `1` for 1.0 and "1.0", `true` for True and "True".

    label: a string, a boolean or a number. The text is stripped.
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
    """Return a label of a pair in the spelling of `SCHEMES`: lower case, underscores, and `not` in place of `non`."""
    word = re.sub(r"[\s_-]+", "_", label_text(label).lower())
    return re.sub("^non_|^dis(?=similar$)", "not_", word)


def words_of(label: Any) -> Words | None:
    """Return the two words of the binary labels that a label belongs to; None if it is not a binary label."""
    word = pair_word(label)
    return next((words for words in SCHEMES if word in words), None)


def is_relation(label: str) -> bool:
    """Return whether a label names a relation of two sentences; `yes` and `same`, for example, may be sentences."""
    words = words_of(label) or ("", "")
    return pair_word(label) in CLASSES or words[1].startswith("not_")


def is_undecided(label: Any) -> bool:
    """Return whether a label is a relation and a binary label as well, so that another label has to decide."""
    return pair_word(label) in CLASSES and words_of(label) is not None


def binary_score(label: Any, words: Words) -> float | None:
    """Return the score 1 or 0 of a binary label; None if it is not one of the two words."""
    word = pair_word(label)
    return float(word == words[0]) if word in words else None


def are_labels(values: Sequence[str]) -> bool:
    """Return whether all of these texts are known labels of pairs, or names of splits of data."""
    known = {*CLASSES, *(word for words in SCHEMES for word in words), *_SPLITS}
    return all(pair_word(value) in known for value in values)


_SPLITS = ("train", "training", "dev", "development", "valid", "validation", "val", "test", "eval")
