"""The one exception that means: the user can mend this; and texts of others made fit to be shown."""

import difflib
import re
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave; the message says what was given, what is allowed and what to do.

    The command-line tools print it as one line and leave with exit code 2; everything else is a bug and
    keeps its traceback.
    """


def plural(number: int, what: str) -> str:
    """A number of things: `1 row`, `2 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`did you mean X? `, of the known name that is most alike; empty where none is alike."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}? " if near else ""


def first_line(error: Exception) -> str:
    """What an error says in one line: its first, and the next after a colon; its name where it says nothing."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first


# C0 and C1 but tab and line feed, the marks that force the direction of a text, and halves of surrogate pairs.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text that a terminal shows and does not obey; the characters it would obey as in JSON (\\u001b)."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
