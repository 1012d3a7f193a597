"""Functions that declare and check the fields of option dataclasses, and values that several tools share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dcpcse.utils.errors import UserError, invalid_choice

BASE = "--base (in Python: base=)"
"""How messages name the option for the location of a frozen encoder."""

POOLERS_WITH_HEAD = ("cls", "mask")
"""Poolers whose output methods pass through a head; the output of other poolers is used unchanged."""

GENERATION_CHOICES = ("sample", "argmax")
"""How `dcpcse.losses.generator` chooses a token: by sampling its distribution, or the most probable token."""
GENERATE_AT_CHOICES = ("masked", "all")
"""Positions at which `dcpcse.losses.generator` inserts tokens."""

MAX_PROMPT_SIZE = 10_000
"""Maximum of prompt lengths and sizes. Larger values are typing errors and would exhaust any memory."""


@dataclass(frozen=True)
class Need:
    """A condition on other options without which an option has no effect.

    words: the condition, worded for messages. holds: a function that returns whether an object with the options as
    attributes fulfils the condition. voids: the name of an option; if this option is given together with a preset and
    the condition is not fulfilled, the options of the preset that need the condition are removed.
    """

    words: str
    holds: Callable[[Any], Any]
    voids: str | None = None


OWN_METADATA = ("needs", "replaces")
"""Metadata keys of fields that only this package uses; others are arguments of `argparse.add_argument`."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field. help: the text that `--help` shows.

    needs: a `Need`, or several. replaces: options of a preset that are removed if this option is given (for a flag: if
    it is given as False). Other metadata are passed to argparse.
    """
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


def flag(help: str, **metadata: Any) -> Any:
    """Return a field that is True if the option is given without a value. None means the default of the method."""
    return option(None, help, nargs="?", const=True, **metadata)


def require(holds: bool, name: str, given: Any, allowed: str) -> None:
    """Raise UserError, with the given and the allowed values, unless the condition `holds` is true."""
    if not holds:
        raise UserError(f"{name} {given}: must be {allowed}")


def require_choices(arguments: Any) -> None:
    """Raise UserError if the value of an option is not one of the choices that its dataclass field declares."""
    for one in fields(arguments):
        value, known = getattr(arguments, one.name), one.metadata.get("choices")
        if known is not None and value is not None and value not in known:
            raise invalid_choice(f"--{one.name}", value, known)


def require_count(name: str, value: int | None) -> None:
    """Raise UserError if a prompt length or size is out of range."""
    require(value is None or 1 <= value <= MAX_PROMPT_SIZE, f"--{name}", value, f"in 1 .. {MAX_PROMPT_SIZE:,}")


def require_effect(arguments: Any) -> None:
    """Raise UserError for an option that differs from its default and has no effect because of other options."""
    for one in fields(arguments):
        value = getattr(arguments, one.name)
        for need in needs_of(one.metadata):
            if value not in (None, False, one.default) and not need.holds(arguments):
                off = f" (--{one.name} False turns it off)" if value is True else ""
                raise UserError(f"--{one.name} has no effect without {need.words}; leave it out{off}")


def needs_of(metadata: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return the conditions that an option declares in its metadata."""
    needs = metadata.get("needs", ())
    return (needs,) if isinstance(needs, Need) else needs
