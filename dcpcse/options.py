"""Fields of option dataclasses, the form in which their checks complain, and words that several tools take."""

from dataclasses import field
from typing import Any

from .errors import UserError

BASE = "--base (in Python: base=)"
"""The option that says where a frozen encoder is now, as messages name it."""

CHOICES = ("sample", "argmax")
"""What `dcpcse.generator` puts at a masked token: a sample of its distribution, or the most probable one."""
PLACES = ("masked", "all")
"""At which tokens it does so."""


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
