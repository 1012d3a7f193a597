"""Fields of option dataclasses, the form in which their checks complain, and words that several tools take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dcpcse.utils.errors import UserError, invalid_choice

BASE = "--base (in Python: base=)"
"""The option that says where a frozen encoder is now, as messages name it."""

POOLERS_WITH_HEAD = ("cls", "mask")
"""Poolers that methods put their MLP on; the other representations are taken as they are pooled."""

GENERATION_CHOICES = ("sample", "argmax")
"""What `dcpcse.losses.generator` puts at a masked token: a sample of its distribution, or the most probable one."""
GENERATE_AT_CHOICES = ("masked", "all")
"""At which tokens it does so."""

MAX_PROMPT_SIZE = 10_000
"""Of what is counted in prompts: more is a slip of the keyboard, and no machine has the memory."""


@dataclass(frozen=True)
class Need:
    """What must hold of other options for an option to have an effect.

    words: how messages name it. holds: whether it holds of options, the attributes of an object. voids: the option
    that, given beside a preset, takes the preset's options with this need away where the need does not hold.
    """

    words: str
    holds: Callable[[Any], Any]
    voids: str | None = None


OWN_METADATA = ("needs", "replaces")
"""Metadata of fields that are ours; all others are arguments of `argparse.add_argument`."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with the text that `--help` shows.

    needs: a `Need`, or several. replaces: options of a preset that it takes the place of, where it is given; of a
    flag, where it is given as False. The rest of metadata goes to argparse.
    """
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


def flag(help: str, **metadata: Any) -> Any:
    """An option that is on where it stands without a value; None, where it is left out, is the method's own."""
    return option(None, help, nargs="?", const=True, **metadata)


def require(holds: bool, name: str, given: Any, allowed: str) -> None:
    """UserError that says what was given and what is allowed, unless it holds."""
    if not holds:
        raise UserError(f"{name} {given}: must be {allowed}")


def require_choices(arguments: Any) -> None:
    """Raise UserError for an option of a dataclass whose value is not one of the choices of its field."""
    for one in fields(arguments):
        value, known = getattr(arguments, one.name), one.metadata.get("choices")
        if known is not None and value is not None and value not in known:
            raise invalid_choice(f"--{one.name}", value, known)


def require_count(name: str, value: int | None) -> None:
    """UserError for a number of prompts, or a size of theirs, that cannot be."""
    require(value is None or 1 <= value <= MAX_PROMPT_SIZE, f"--{name}", value, f"in 1 .. {MAX_PROMPT_SIZE:,}")


def require_effect(arguments: Any) -> None:
    """UserError for an option of a dataclass that was given and has no effect, since what it needs does not hold."""
    for one in fields(arguments):
        value = getattr(arguments, one.name)
        for need in needs_of(one.metadata):
            if value not in (None, False, one.default) and not need.holds(arguments):
                off = f" (--{one.name} False turns it off)" if value is True else ""
                raise UserError(f"--{one.name} has no effect without {need.words}; leave it out{off}")


def needs_of(metadata: Mapping[str, Any]) -> tuple[Need, ...]:
    """What the field of an option with this metadata needs."""
    needs = metadata.get("needs", ())
    return (needs,) if isinstance(needs, Need) else needs
