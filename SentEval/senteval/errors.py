"""The one exception that means: the user can mend this, be it data, embeddings or request."""

import reprlib

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
