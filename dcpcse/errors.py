"""The one exception that means: the user can mend this."""


class UserError(ValueError):
    """A mistake in what the user gave; the message says what was given, what is allowed and what to do.

    The command-line tools print it as one line and leave with exit code 2; everything else is a bug and
    keeps its traceback.
    """


def first_line(error: Exception) -> str:
    """What an error says in one line: its first, or its name where it says nothing."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
