"""The exception for user mistakes, and functions that write error messages."""

import difflib
import re
from collections.abc import Iterable, Sequence


class UserError(ValueError):
    """A mistake in the user's input. The message says what was given, what is allowed and what to do.

    The command-line tools print the message as one line and exit with code 2. Any other exception is a bug and keeps
    its traceback.
    """


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`, `2 processes`."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def first_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first names of a list, and how many more there are: `a, b, c and 9 more`."""
    more = len(names) - count
    return ", ".join(names[:count]) + (f" and {more} more" if more > 0 else "")


_SYNONYMS = {
    **{"mean": "avg", "mean_tokens": "avg", "first_token": "cls", "prefix": "deep", "promcse": "dcpcse"},
    **{"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "validation": "dev", "adamw": "adamw_torch"},
    **{"batch_size": "per_device_train_batch_size", "epochs": "num_train_epochs", "lr": "learning_rate"},
    **{"temperature": "temp", "model": "model_name_or_path"},
}
"""Common name in the literature or of other libraries → the name that dcpcse uses."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6, form: str = "'{}'") -> str:
    """Return `did you mean 'X'?` with the known name that is most similar, or an empty string if none is similar.

    A synonym is preferred, then a similar spelling in any case, then the first known name that begins with `name`.
    form: the format of X.
    """
    by_lower = {one.lower(): one for one in known}
    lower = str(name).lower()
    near = [_SYNONYMS[lower]] if _SYNONYMS.get(lower) in by_lower else []
    near = near or difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    near = near or [one for one in by_lower if len(lower) > 2 and one.startswith(lower)]
    return f"did you mean {form.format(by_lower[near[0]])}?" if near else ""


def invalid_choice(option: str, given: str, known: Iterable[str]) -> UserError:
    """Return the error for a value of an option that is not one of the known values."""
    known = list(map(str, known))
    hint, allowed = did_you_mean(given, known), ", ".join(known)
    return UserError(f"{option} {given} is unknown; {f'{hint} Choose' if hint else 'choose'} from: {allowed}")


def shown(value: object) -> str:
    """Return any object as text on one line of at most 60 characters, for an error message."""
    try:
        return " ".join(repr(value).split())[:60]  # the representation of a model has many lines
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return f"of type {type(value).__name__}"[:60]


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, and the next line if the first ends with a colon.

    If the error has no message, the name of its class is returned.
    """
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first


SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of characters: Python strings can contain them, but no encoding, tokenizer or file in UTF-8 can."""

# C0 and C1 controls except tab and line feed, marks of the direction of a text, and unpaired surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with its control characters escaped as in JSON (\\u001b), so that no terminal acts on them."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(message: str) -> str:
    """Return an error message as one line; long words in a long message, and a very long message, are cut inside."""
    line = " ".join(message.splitlines())
    if len(line) > _LONG:
        line = re.sub(r"""\S{81,}|'[^']{80,}'|"[^"]{80,}\"""", lambda word: f"{word[0][:60]}…{word[0][-15:]}", line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[3 - _LONGEST // 2 :]}"


_LONG = 1000
"""The length in characters of an error message from which its long words are cut."""

_LONGEST = 2000
"""The maximum length in characters of an error message."""
