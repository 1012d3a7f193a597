"""Find sentences of evaluation data in a training file: scores of a model that has seen them would be too high."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dcpcse.doctor.evaluation_data import sentences

_OTHERS = re.compile(r"[\W_]+")
"""All characters but letters and digits."""


def key(text: str) -> int | None:
    """Return a 64-bit hash of the letters and digits of a text, without regard to case; None if it has none."""
    kept = _OTHERS.sub("", text.casefold())
    return hash(kept) if kept else None


def evaluation_keys(folders: Iterable[Path]) -> Mapping[int, str]:
    """Return the key of each sentence in folders of evaluation data, with the first task that contains it.

    The memory grows with the evaluation data, some 100 bytes per sentence, and not with the training file.
    """
    keys: dict[int, str] = {}
    for folder in folders:
        for task, text in sentences(folder):
            found = key(text)
            if found is not None:
                keys.setdefault(found, task)
    return keys
