"""The one exception that means: the user can mend this."""


class UserError(ValueError):
    """A mistake in what the user gave; the message says what was given, what is allowed and what to do.

    The command-line tools print it as one line and leave with exit code 2; everything else is a bug and
    keeps its traceback.
    """
