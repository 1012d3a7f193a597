"""Describe in one line the errors that a user can cause, by what the system or a library refuses."""

import contextlib
from collections.abc import Iterator

from dcpcse.utils.errors import UserError, first_line

BUGS = (
    *(AssertionError, AttributeError, NameError, NotImplementedError, RecursionError, ReferenceError, SystemError),
    ZeroDivisionError,
)
"""Errors that no input should cause; any other error may come from what the user gave, or from the system."""


_LONG = 400
"""The length in characters of an error message of which only the first line is shown."""


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Note in an error what was being done, such as `while pairs.tsv was read`; the innermost description is kept."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError) and not getattr(error, "__notes__", None):
            error.add_note(what)
        raise


def describe_error(error: Exception) -> str | None:
    """Return the line that tells a user of an error; None for a bug, which should keep its traceback."""
    if isinstance(error, BUGS):
        return None
    if isinstance(error, UserError):
        return str(error)
    kind, whole = type(error).__name__, " ".join(str(error).split())
    line = whole if 0 < len(whole) <= _LONG else first_line(error)  # torch appends the stack in C++
    notes = getattr(error, "__notes__", [])
    return " ".join([kind if line == kind else f"{kind}: {line}", *notes[:1]])


def as_user_error(error: Exception) -> UserError:
    """Return an error that a user can cause as UserError, for the process that started this one. Raises bugs."""
    if isinstance(error, UserError):
        return error
    if line := describe_error(error):
        return UserError(line)
    raise error
