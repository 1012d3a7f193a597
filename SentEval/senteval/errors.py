"""The one exception that means: the user can mend this, be it data, embeddings or request."""

import reprlib
from numbers import Integral
from typing import Any

_quoter = reprlib.Repr()
_quoter.maxstring = 60


class DataError(ValueError):
    """Something is wrong with the evaluation data, with the embeddings, or with what was asked for.

    The message is one line: the file and line where there is one, what was found, what is expected and
    what to do.
    """


def quote(text: str) -> str:
    """Return text in quotes, on one line and cut in its middle, fit for an error message."""
    return _quoter.repr(text)


def shown(given: Any) -> str:
    """Any value on one line, cut in its middle, fit for an error message."""
    return " ".join(_quoter.repr(given).split())


def require_whole(name: str, given: Any, least: int, most: int | None = None) -> None:
    """Raise DataError unless given is a whole number within bounds."""
    if not isinstance(given, Integral) or given < least or (most is not None and given > most):
        bound = f"from {least} on" if most is None else f"from {least} to {most}"
        raise DataError(f"{name} is {shown(given)}; a whole number {bound} is needed")
