"""Fields of option dataclasses, the form in which their checks complain, and words that several tools take."""

from dataclasses import field, fields
from typing import Any

from dcpcse.utils.errors import UserError

BASE = "--base (in Python: base=)"
"""The option that says where a frozen encoder is now, as messages name it."""

CHOICES = ("sample", "argmax")
"""What `dcpcse.losses.generator` puts at a masked token: a sample of its distribution, or the most probable one."""
PLACES = ("masked", "all")
"""At which tokens it does so."""

LARGEST = 10_000
"""Of what is counted in prompts: more is a slip of the keyboard, and no machine has the memory."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with the text that `--help` shows."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


def flag(help: str) -> Any:
    """An option that is on where it stands without a value; None, where it is left out, is the method's own."""
    return option(None, help, nargs="?", const=True)


def require(holds: bool, name: str, given: Any, allowed: str) -> None:
    """UserError that says what was given and what is allowed, unless it holds."""
    if not holds:
        raise UserError(f"{name} {given}: must be {allowed}")


def require_choices(arguments: Any) -> None:
    """UserError for an option of a dataclass that is none of the choices its field names."""
    for one in fields(arguments):
        value, known = getattr(arguments, one.name), one.metadata.get("choices")
        if known is not None:
            require(value is None or value in known, f"--{one.name}", value, f"one of {sorted(known)}")


def require_count(name: str, value: int | None) -> None:
    """UserError for a number of prompts, or a size of theirs, that cannot be."""
    require(value is None or 1 <= value <= LARGEST, f"--{name}", value, f"in 1 .. {LARGEST:,}")
