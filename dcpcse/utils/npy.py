"""A reader of untrusted .npy files by memory mapping; a header that claims more than the file has costs no memory."""

import tokenize
import zipfile
from pathlib import Path

import numpy as np

from dcpcse.utils.parsing import open_input

_ABSURD = (EOFError, TypeError, KeyError, OverflowError, SyntaxError, RecursionError, MemoryError)
BROKEN_HEADERS = (*_ABSURD, tokenize.TokenError)
"""Exceptions besides ValueError that numpy raises for malformed headers, which it parses as Python literals."""


def open_array(path: str | Path) -> np.ndarray:
    """Return the array of a .npy file without unpickling. Raises OSError or ValueError for any other file."""
    try:
        open_input(path).close()  # raises OSError for anything that is not a file
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (*BROKEN_HEADERS, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a .npy file ({error})") from error
    if not isinstance(array, np.ndarray):  # an archive of arrays (.npz), which must be closed
        array.close()
        raise ValueError(f"{path} is an archive, not a .npy file")
    return array
