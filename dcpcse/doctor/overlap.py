"""Find sentences of evaluation data in a training file: scores of a model that has seen them would be too high."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from dcpcse.doctor.evaluation_data import sentences

_OTHERS = re.compile(r"[\W_]+")
"""All ASCII characters but letters and digits. (In other scripts, `\\W` would also match vowel signs and accents.)"""


def key(text: str) -> int | None:
    """Return a 64-bit hash of the letters and digits of a text, without regard to case; None if it has none.

    Marks on letters, such as the vowel signs of Indic scripts, belong to the letters. It does not matter whether a
    letter and its marks are one character or several.
    """
    text = text.casefold()
    if text.isascii():
        letters = _OTHERS.sub("", text)
    else:
        categories = ((letter, unicodedata.category(letter)[0]) for letter in unicodedata.normalize("NFC", text))
        letters = "".join(letter for letter, category in categories if category in "LMN")
        # Without letters, only marks are left of emoji.
        letters = letters if any(map(str.isalnum, letters)) else ""
    return hash(letters) if letters else None


def evaluation_keys(folders: Iterable[Path]) -> Mapping[int, str]:
    """Return the key of each sentence in folders of evaluation data, with the first task that contains it.

    The memory grows with the evaluation data, some 100 bytes per sentence, and not with the training file.
    """
    keys: dict[int, str] = {}
    for folder in folders:
        for task, text in sentences(folder):
            digest = key(text)
            if digest is not None:
                keys.setdefault(digest, task)
    return keys
