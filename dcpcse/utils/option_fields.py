"""Functions that declare and check the fields of option dataclasses, and values that several tools share."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

from dcpcse.utils.arguments import (
    list_of_locations,
    list_of_strings,
    location,
    number,
    numbers,
    string,
    truth_value,
    whole_number,
    whole_numbers,
)
from dcpcse.utils.errors import UserError, invalid_choice

BATCH_SIZE_HELP = "Maximum batch size in sentences. Default: 128 on a CPU; on a GPU, only tokens are limited."
"""Help of the options for the batch size of `encode`."""

BASE = "--base (in Python: base=)"
"""How messages name the option for the location of a frozen encoder."""

POOLERS_WITH_HEAD = ("cls", "mask")
"""Poolers whose output methods pass through a head; the output of other poolers is used unchanged."""

GENERATION_CHOICES = ("sample", "argmax")
"""How `dcpcse.losses.generator` chooses a token: by sampling its distribution, or the most probable token."""
GENERATE_AT_CHOICES = ("masked", "all")
"""Positions at which `dcpcse.losses.generator` inserts tokens."""

ALL_LINEAR = "all-linear"
"""Value of `--lora_target_modules` that stands for all linear layers, as in peft."""

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


MAX_INT = 2**63 - 1


@dataclass(frozen=True)
class Whole:
    """The type of an option that is a whole number from `least` to `most`; calling it parses a text.

    Only digits and a sign are allowed: Python's int() would also parse `1_0`, ` 10 ` and the digits of other scripts.
    """

    least: int = -MAX_INT
    most: int = MAX_INT

    @property
    def allowed(self) -> str:
        """The range in words."""
        return f"at least {self.least}" if self.most == MAX_INT else f"a whole number from {self.least} to {self.most}"

    def __call__(self, text: str) -> int:
        """Return the number. Raises ValueError, with a description of what is allowed, for any other text."""
        if not re.fullmatch("[+-]?[0-9]+", text):
            raise ValueError("a whole number in digits, such as 10")
        if len(text) > 40 or abs(int(text)) > MAX_INT:  # Python refuses to parse thousands of digits
            raise ValueError("below 2^63")
        if not self.least <= int(text) <= self.most:
            raise ValueError(self.allowed)
        return int(text)


SEED = Whole(0, 2**32 - 1)
"""The type of seeds: the numbers that numpy accepts."""


def finite_number(text: str) -> float:
    """Parse a number such as 0.05 or 1e-3, the type of options that are not whole numbers.

    Raises ValueError, with a description of what is allowed, for any other text, such as `1_0`, `nan` or `inf`.
    """
    try:
        # float() would also parse underscores, blanks and the digits of other scripts.
        value = float(text if re.fullmatch("[a-zA-Z0-9.+-]+", text) else "")
    except ValueError:
        raise ValueError("a number in digits, such as 0.05") from None
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


OWN_METADATA = ("needs", "replaces", "column", "text")
"""Metadata keys of fields that only this package uses; others are arguments of `argparse.add_argument`."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field. help: the text that `--help` shows.

    needs: a `Need`, or several. column: the column of the training data without which the option has no effect.
    replaces: options of a preset that are removed if this option is given (for a flag: if it is given as False). text:
    whether the value is a text; in all other values, `~` at the start is the home folder. Other metadata are passed to
    argparse.
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
        shown = int(given) if isinstance(given, float) and given.is_integer() and abs(given) < MAX_INT else given
        raise UserError(f"{name} {shown}: must be {allowed}")


def require_seed(name: str, given: int | None) -> None:
    """Raise UserError if a seed is given and is not a number that numpy accepts."""
    require(given is None or SEED.least <= given <= SEED.most, f"--{name}", given, SEED.allowed)


def require_choices(arguments: Any) -> None:
    """Raise UserError if the value of an option is not one of the choices that its dataclass field declares."""
    for one in fields(arguments):
        given, known = getattr(arguments, one.name), one.metadata.get("choices")
        for value in given if isinstance(given, list) else [given]:
            if known is not None and value is not None and value not in known:
                raise invalid_choice(f"--{one.name}", value, known)


def require_kinds(arguments: Any) -> None:
    """Convert options to the types of their fields, such as numpy's integers; raise UserError for other types.

    In paths, the home folder replaces `~`.
    """
    # Lists come first, since their type argument is a type as well.
    checks = {
        list[str]: list_of_locations,
        list[int]: whole_numbers,
        list[float]: numbers,
        bool: truth_value,
        int: whole_number,
        float: number,
        str: location,
    }
    of_texts = {location: string, list_of_locations: list_of_strings}
    for one in fields(arguments):
        value, kinds = getattr(arguments, one.name), (one.type, *get_args(one.type))
        if value is not None or type(None) not in kinds:
            check = next(check for kind, check in checks.items() if kind in kinds)
            check = of_texts.get(check, check) if one.metadata.get("text") else check
            setattr(arguments, one.name, check(f"--{one.name}", value))


def require_count(name: str, value: int | None) -> None:
    """Raise UserError if a prompt length or size is out of range."""
    require(value is None or 1 <= value <= MAX_PROMPT_SIZE, f"--{name}", value, f"from 1 to {MAX_PROMPT_SIZE:,}")


_COLUMNS = {"positive": "pairs of sentences in", "negative": "hard negatives, a third column of"}
"""Column without which an option has no effect → how messages describe it, followed by --train_file."""


def require_effect(arguments: Any, columns: Collection[str] | None) -> None:
    """Raise UserError for an option that differs from its default and has no effect.

    columns: the columns of the training data; None if they are not known yet.
    """
    for one in fields(arguments):
        value, column = getattr(arguments, one.name), one.metadata.get("column")
        if value in (None, False, one.default):
            continue
        missing = [need.words for need in needs_of(one.metadata) if not need.holds(arguments)]
        if column and columns is not None and column not in columns:
            missing.append(f"{_COLUMNS.get(column, f'a column {column} in')} --train_file")
        if missing:
            off = f" (--{one.name} False turns it off)" if value is True else ""
            raise UserError(f"--{one.name} has no effect without {missing[0]}; leave it out{off}")


def needs_of(metadata: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return the conditions that an option declares in its metadata."""
    needs = metadata.get("needs", ())
    return (needs,) if isinstance(needs, Need) else needs
