"""The exception DataError, for faults that the user can fix, and helpers for its messages."""

import reprlib
from numbers import Integral
from typing import Any

_quoter = reprlib.Repr()
_quoter.maxstring = 60


class DataError(ValueError):
    """Raised for faults in the evaluation data, the embeddings or the settings.

    The message is one line: the file and line (for data), what is expected, what was found and what to do.

    Args:
        message: The message.
        remedy: The setting named at the end of the message, such as `data_dir` or `official=False`. A program in which
            this setting has another name can replace the name in the message.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def quote(text: str) -> str:
    """Return text in quotes for an error message, on one line and, if it is long, shortened in the middle."""
    return _quoter.repr(text)


def shown(given: Any) -> str:
    """Return any value as text for an error message, on one line and, if it is long, shortened in the middle."""
    return " ".join(_quoter.repr(given).split())


def require_integer(name: str, given: Any, least: int, most: int | None = None) -> None:
    """Raise DataError unless `given` is an integer from `least` to `most` (None: no upper limit)."""
    if not isinstance(given, Integral) or given < least or (most is not None and given > most):
        bound = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise DataError(f"{name} is {shown(given)}; an integer {bound} is needed")
