"""Fields of option dataclasses, their checks, and values that several tools share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dcpcse.utils.errors import UserError, invalid_choice

BASE = "--base (in Python: base=)"
"""The option for the location of a frozen encoder, as messages name it."""

POOLERS_WITH_HEAD = ("cls", "mask")
"""Poolers that methods add a head to; the other representations are used as they are."""

GENERATION_CHOICES = ("sample", "argmax")
"""Tokens that `dcpcse.losses.generator` inserts: a sample of its distribution, or the most probable token."""
GENERATE_AT_CHOICES = ("masked", "all")
"""Positions at which it inserts them."""

MAX_PROMPT_SIZE = 10_000
"""Upper bound of prompt lengths and sizes. Larger values are typing errors that no machine has the memory for."""


@dataclass(frozen=True)
class Need:
    """A condition on other options without which an option has no effect.

    words: the condition in messages. holds: whether an object with the options as attributes fulfils it. voids: an
    option that, given with a preset, removes the preset's options whose condition it does not fulfil.
    """

    words: str
    holds: Callable[[Any], Any]
    voids: str | None = None


OWN_METADATA = ("needs", "replaces")
"""Metadata of fields that only this package reads; other metadata are arguments of `argparse.add_argument`."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field with the text that `--help` shows.

    needs: a `Need`, or several. replaces: options of a preset that are left out if this option is given; for a flag,
    if it is given as False. Other metadata is passed to argparse.
    """
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


def flag(help: str, **metadata: Any) -> Any:
    """Return a field that is True if the option is given without a value. The default None means the method's own."""
    return option(None, help, nargs="?", const=True, **metadata)


def require(holds: bool, name: str, given: Any, allowed: str) -> None:
    """Raise UserError with the given and the allowed values unless the condition holds."""
    if not holds:
        raise UserError(f"{name} {given}: must be {allowed}")


def require_choices(arguments: Any) -> None:
    """Raise UserError for an option of a dataclass whose value is not one of the choices of its field."""
    for one in fields(arguments):
        value, known = getattr(arguments, one.name), one.metadata.get("choices")
        if known is not None and value is not None and value not in known:
            raise invalid_choice(f"--{one.name}", value, known)


def require_count(name: str, value: int | None) -> None:
    """Raise UserError for a prompt length or size out of range."""
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
    """Return the conditions that the metadata of an option declare."""
    needs = metadata.get("needs", ())
    return (needs,) if isinstance(needs, Need) else needs
