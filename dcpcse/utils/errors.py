"""The exceptions for mistakes of the user, and functions that write and format error messages."""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any


class UserError(ValueError):
    """A mistake in the user's input. The message says what was given, what is allowed and what to do.

    The command-line tools print the message as one line and exit with code 2.
    """


class OptionError(UserError):
    """A mistake in the value of an option. The message spells the option as in the current interface (`spell`).

    The message is `OPTION VALUE: reason; remedy`, or `OPTION reason; remedy` without a value.

    Args:
        option: Name of the option, such as `temp`.
        value: The given value; None if the message is not about a value.
        reason: Why the value is an error, such as `must be above 0` or `has no effect without ...`.
        remedy: What the user should do; empty if the reason already says it.
    """

    def __init__(self, option: str, value: Any = None, reason: str = "", remedy: str = "") -> None:
        self.option, self.value, self.reason, self.remedy = option, value, reason, remedy
        named = f"{spell(option, value)}{'' if value is None else ':'} {reason}"
        super().__init__(f"{named}; {remedy}" if remedy else named)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process does not know which interface the user called, so the first process writes the message
        # again.
        return type(self), (self.option, self.value, self.reason, self.remedy)


def no_effect(option: str, why: str) -> OptionError:
    """Return the error for an option that would be ignored.

    Args:
        option: Name of the option.
        why: The rest of the sentence after "has no effect", such as `without ...`.
    """
    return OptionError(option, reason=f"has no effect {why}", remedy="leave it out")


_on_command_line = False
"""Whether a command-line tool is running; unlike a context variable, this is the same in all threads."""

_parameters: ContextVar[Mapping[str, str] | None] = ContextVar("parameters", default=None)
"""Option → parameter of the running function of the Python interface, where the names differ."""


@contextlib.contextmanager
def command_line(active: bool = True) -> Iterator[None]:
    """Spell options in messages as on a command line, instead of as in Python, within this context."""
    global _on_command_line
    before = _on_command_line
    _on_command_line = active
    try:
        yield
    finally:
        _on_command_line = before


def is_command_line() -> bool:
    """Return whether messages spell options as on a command line."""
    return _on_command_line


@contextlib.contextmanager
def parameter_names(**renamed: str) -> Iterator[None]:
    """Spell options in messages as the parameters of a Python function, within this context or as a decorator.

    If a decorated function calls another decorated function, the parameter names of the outer function are used. On a
    command line, this function has no effect.

    Args:
        renamed: The parameter of the function for each option with a different name, such as `pooler_type="pooler"`.
            It may contain the value that means the same, such as `custom_data="official=False"`.
    """
    token = _parameters.set(renamed) if _parameters.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _parameters.reset(token)


def spell(option: str, value: Any = None) -> str:
    """Return an option, with its value, as the user would write it in the current interface.

    On a command line, `spell("tuning", "deep")` is `--tuning deep`, `spell("resume", True)` is `--resume`, and
    `spell("packing", False)` is `--packing False`. In Python they are `tuning="deep"`, `resume=True` and
    `packing=False`. Without a value, `spell("tuning")` is `--tuning` or `tuning`.

    Args:
        option: Name of the option on the command line, without dashes; the name of a positional argument is in
            capitals.
        value: The value of the option. True: a flag. None: only the name is spelled.
    """
    if _on_command_line:
        name = option if option.isupper() else f"--{option}"
        return name if value is None or value is True else f"{name} {_word(value)}"
    name = (_parameters.get() or {}).get(option, option.lower())
    return name if value is None or "=" in name else f"{name}={_literal(value)}"


def same_call() -> str:
    """Return the words for what the user has run: `the same command`, or in Python `the same call`."""
    return "the same command" if _on_command_line else "the same call"


def _word(value: Any) -> str:
    """Return a value as the words of a command line."""
    if isinstance(value, list | tuple):
        return " ".join(map(_word, value))
    if isinstance(value, str | os.PathLike):
        return os.fsdecode(value)
    return f"{value:.0f}" if _is_whole(value) else shown(value)


def _literal(value: Any) -> str:
    """Return a value as it is written in Python, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fsdecode(value), ensure_ascii=False)
    return shown(value)


def _is_whole(value: Any) -> bool:
    """Return whether a value is a whole float such as 64.0, which the user may have written as `64`."""
    return isinstance(value, float) and value.is_integer() and abs(value) < 2**63


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`, `2 processes`.

    Args:
        number: The number.
        noun: The noun in the singular.
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def first_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first names of a list, and how many more there are: `a, b, c and 9 more`.

    Args:
        names: The names.
        count: How many names are listed.
    """
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
    """Return `did you mean 'X'?` with the most similar known name X; an empty string if no known name is similar.

    A synonym is preferred, then a similar spelling (ignoring case), then the first known name that begins with `name`.

    Args:
        name: The unknown name.
        known: The known names.
        cutoff: Minimum similarity of a spelling, from 0 to 1.
        form: The format of X.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    lower = str(name).lower()
    near = [_SYNONYMS[lower]] if _SYNONYMS.get(lower) in by_lower else []
    near = near or difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    near = near or [candidate for candidate in by_lower if len(lower) > 2 and candidate.startswith(lower)]
    return f"did you mean {form.format(by_lower[near[0]])}?" if near else ""


def choose_from(value: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown value: `did you mean 'avg'? Choose from: avg, cls`.

    Args:
        value: The unknown value.
        known: The known values.
    """
    known = list(map(str, known))
    hint = did_you_mean(value, known)
    return f"{f'{hint} Choose' if hint else 'choose'} from: {', '.join(known)}"


def invalid_choice(option: str, value: Any, known: Iterable[str]) -> OptionError:
    """Return the error for a value of an option that is not one of the known values.

    Args:
        option: Name of the option.
        value: Its value.
        known: The known values.
    """
    return OptionError(option, value, "unknown", choose_from(value, known))


def shown(value: object) -> str:
    """Return any object as text on one line of at most 60 characters, for an error message."""
    try:
        return " ".join(repr(value).split())[:60]  # the representation of a model has many lines
    except ValueError:  # Python does not convert integers of more than 4,300 digits
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
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shortened(message: str) -> str:
    """Return an error message as one line. Very long messages, and long words in long messages, are shortened."""
    line = " ".join(message.splitlines())
    if len(line) > _LONG:
        line = re.sub(r"""\S{81,}|'[^']{80,}'|"[^"]{80,}\"""", lambda word: f"{word[0][:60]}…{word[0][-15:]}", line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[3 - _LONGEST // 2 :]}"


_LONG = 1000
"""Length of an error message in characters above which its long words are cut."""

_LONGEST = 2000
"""The maximum length in characters of an error message."""


BUGS = (
    *(AssertionError, AttributeError, NameError, NotImplementedError, RecursionError, ReferenceError, SystemError),
    ZeroDivisionError,
)
"""Errors that no input should cause; any other error may be caused by the user's input or by the system."""


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Add to an error in this context what was being done, such as `while pairs.tsv was read`.

    If contexts are nested, the innermost description is used.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError) and not getattr(error, "__notes__", None):
            error.add_note(what)
        raise


def describe_error(error: Exception) -> str | None:
    """Return the line that describes an error to the user; None for a bug, whose traceback should be shown."""
    if isinstance(error, BUGS):
        return None
    if isinstance(error, UserError):
        return str(error)
    kind, whole = type(error).__name__, " ".join(str(error).split())
    line = whole if 0 < len(whole) <= 400 else first_line(error)  # torch appends the stack in C++
    notes = getattr(error, "__notes__", [])
    return " ".join([kind if line == kind else f"{kind}: {line}", *notes[:1]])


def as_user_error(error: Exception) -> UserError:
    """Return an error that a user can cause as a UserError, which a worker can send to the parent process.

    Any other error is raised again.
    """
    if isinstance(error, UserError):
        return error
    if line := describe_error(error):
        return UserError(line)
    raise error
