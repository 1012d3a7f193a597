"""Functions that declare and check the fields of option dataclasses; options that were removed."""

import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Self, get_args

from dcpcse.utils.arguments import (
    list_of_locations,
    list_of_strings,
    location,
    named_texts,
    number,
    numbers,
    string,
    truth_value,
    whole_number,
    whole_numbers,
)
from dcpcse.utils.errors import OptionError, invalid_choice, spell

BATCH_SIZE_HELP = "Maximum batch size in sentences. Default: 128 on a CPU; on a GPU, only tokens are limited."
"""Help of the options for the batch size of `encode`."""

POOLERS_WITH_HEAD = ("cls", "mask")
"""Poolers whose output methods pass through a head; the output of other poolers is used unchanged."""

GENERATION_CHOICES = ("sample", "argmax")
"""How `dcpcse.losses.generator` chooses a token: by sampling its distribution, or the most probable token."""
GENERATE_AT_CHOICES = ("masked", "all")
"""Positions at which `dcpcse.losses.generator` inserts tokens."""

ALL_LINEAR = "all-linear"
"""Value of `--lora_target_modules` that stands for all linear layers, as in peft."""

SHARE: Mapping[str, float] = {"at_least": 0, "below": 1}
"""Bounds of a rate or share that may be 0, as metadata of `option`."""

RATE: Mapping[str, float] = {"above": 0, "below": 1}
"""Bounds of a rate or share that is neither 0 nor 1, as metadata of `option`."""

COUNT: Mapping[str, int] = {"at_least": 1}
"""Bounds of a length or size, as metadata of `option`."""

SEEDS: Mapping[str, int] = {"at_least": 0, "at_most": 2**32 - 1}
"""Bounds of seeds, as metadata of `option`: the numbers that numpy accepts."""


@dataclass(frozen=True)
class Need:
    """A condition on other options. An option that needs the condition has no effect if the condition is false.

    Args:
        words: The condition in words for messages. If the words contain options, a function that returns the words
            (see `spell`).
        holds: A function that gets an object with the options as attributes, and returns whether the condition is
            fulfilled.
        voids: Name of an option. If the user gives this option and a preset, and the condition is not fulfilled, the
            options of the preset that need the condition are removed.
    """

    words: str | Callable[[], str]
    holds: Callable[[Any], Any]
    voids: str | None = None

    def __str__(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()


def needs_value(option: str, value: Any, *, voids: bool = False) -> Need:
    """Return the condition that an option has a value.

    Args:
        option: Name of the option.
        value: The value that the option must have. True: any value that counts as true, for a flag.
        voids: Whether options of a preset are removed if the condition is not fulfilled (see `Need.voids`).
    """

    def holds(options: Any) -> bool:
        current = getattr(options, option, None)
        return bool(current) if value is True else current == value

    return Need(lambda: spell(option, value), holds, option if voids else None)


def needs_given(option: str) -> Need:
    """Return the condition that an option without a default is given."""
    return Need(lambda: spell(option), lambda options: getattr(options, option, None) is not None)


def needs_above_zero(option: str) -> Need:
    """Return the condition that an option, such as a weight, is above zero.

    If the condition is not fulfilled, options of a preset that need it are removed (see `Need.voids`).
    """
    return Need(lambda: f"{spell(option)} above 0", lambda options: getattr(options, option) != 0, option)


@dataclass(frozen=True)
class Whole:
    """The type of an option that is a whole number within limits; calling it parses a text.

    Args:
        least: The least allowed value.
        most: The largest allowed value; None if there is no limit.
    """

    least: int
    most: int | None = None

    def __call__(self, text: str) -> int:
        """Return the number in a text. Raises ValueError for any other text, with the allowed values."""
        try:
            number = int(text)
        except ValueError:
            raise ValueError("a whole number, such as 10") from None
        if self.most is None and number < self.least:
            raise ValueError(f"at least {self.least}")
        if self.most is not None and not self.least <= number <= self.most:
            raise ValueError(f"a whole number from {self.least} to {self.most}")
        return number


SEED = Whole(SEEDS["at_least"], SEEDS["at_most"])
"""The type of seeds."""


def finite_number(text: str) -> float:
    """Parse a number such as 0.05 or 1e-3, the type of options that are not whole numbers.

    Raises ValueError, with a description of the allowed values, for other texts and for `nan` and `inf`.
    """
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a number, such as 0.05") from None
    if not math.isfinite(value):
        raise ValueError("a finite number")
    return value


BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}
"""Metadata key of a bound of numbers → whether a value is within it."""

OWN_METADATA = ("needs", "replaces", "column", "named", "text", "python_only", *BOUNDS)
"""Metadata keys of fields that are used only by this package; others are arguments of `argparse.add_argument`."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field that declares an option.

    Metadata of the option:

    - `at_least`, `above`, `at_most`, `below`: bounds of a number, or of each number in a list
    - `choices`: the allowed values
    - `needs`: one or several conditions (`Need`) without which the option has no effect
    - `column`: the column of the training data without which the option has no effect
    - `replaces`: options of a preset that are left out if the user gives this option (if it is a flag: as False)
    - `named`: True if the value is a list of NAME=VALUE, for which Python also accepts a dict
    - `text`: True if the value is a text; in all other values, `~` at the start means the home folder
    - `python_only`: True if commands do not have the option
    - all other metadata are passed to argparse

    Args:
        default: The default value. None: the default depends on the method or on other options.
        help: The text that `--help` shows.
        metadata: The metadata by name.
    """
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help, **metadata})
    return field(default=default, metadata={"help": help, **metadata})


def flag(help: str, **metadata: Any) -> Any:
    """Return a field of a flag. Given without a value, the flag is True. None means the default of the method.

    Args:
        help: The text that `--help` shows.
        metadata: As in `option`.
    """
    return option(None, help, nargs="?", const=True, **metadata)


def require(holds: bool, option: str, value: Any, allowed: str) -> None:
    """Raise OptionError, with the given and the allowed values, unless a condition is true.

    Args:
        holds: Whether the condition is true.
        option: Name of the option.
        value: The given value.
        allowed: The allowed values, as the rest of a sentence after "must be".
    """
    if not holds:
        raise OptionError(option, value, f"must be {allowed}")


class Options:
    """Base class of dataclasses of options. It converts and checks the values when an object is created.

    A subclass may define further checks in a method `check`. The `check` methods of all base classes are called. A
    keyword that is the name of a removed option raises UserError.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Raise UserError if a keyword is the name of a removed option."""
        refuse_removed(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        require_kinds(self)
        for option_field in fields(self):
            check_value(option_field.name, getattr(self, option_field.name), option_field.metadata)
        for kind in reversed(type(self).__mro__):
            if "check" in vars(kind):
                kind.check(self)


def check_value(option: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise OptionError if a value is not one of the choices of the option, not within the bounds, or not finite.

    Args:
        option: Name of the option.
        value: The value, or a list of values. None is always allowed.
        metadata: Metadata of the option, as in `option`.
    """
    choices = metadata.get("choices")
    bounds = {name: metadata[name] for name in BOUNDS if name in metadata}
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            continue
        if choices is not None and item not in choices:
            raise invalid_choice(option, item, choices)
        if isinstance(item, float) and not math.isfinite(item):
            raise OptionError(option, item, "must be a finite number")
        if not all(BOUNDS[name](item, bound) for name, bound in bounds.items()):
            allowed = " and ".join(f"{name.replace('_', ' ')} {_number(bound)}" for name, bound in bounds.items())
            raise OptionError(option, item, f"must be {allowed}")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def require_kinds(arguments: Any) -> None:
    """Convert options to the types of their fields, such as numpy's integers; raise OptionError for other types.

    In paths, `~` is replaced by the home folder. In fields that allow several types, only paths are converted.
    """
    for name, check, takes_none in _kind_checks(type(arguments)):
        value = getattr(arguments, name)
        if check and not (value is None and takes_none):
            setattr(arguments, name, check(name, value))
        elif isinstance(value, str):
            setattr(arguments, name, os.path.expanduser(value))


@cache
def _kind_checks(arguments_type: type) -> Sequence[tuple[str, Callable[[str, Any], Any] | None, bool]]:
    """Return the name of each field, the check of its type, and whether None is allowed.

    The check is None if the field allows several types.

    The result is cached for each class, since a server creates options for every request.
    """
    checks = {
        **{list[str]: list_of_locations, list[int]: whole_numbers, list[float]: numbers},
        **{bool: truth_value, int: whole_number, float: number, str: location},
    }
    of_texts = {location: string, list_of_locations: list_of_strings}
    rows = []
    for option_field in fields(arguments_type):
        kinds = {option_field.type} if option_field.type in checks else {*get_args(option_field.type)} - {NoneType}
        check = checks.get(kinds.pop()) if len(kinds) == 1 else None
        check = of_texts.get(check, check) if option_field.metadata.get("text") else check
        check = named_texts if option_field.metadata.get("named") else check
        rows.append((option_field.name, check, option_field.type not in checks))
    return rows


_COLUMNS = {"positive": "pairs of sentences in", "negative": "hard negatives, a third column of"}
"""Column without which an option has no effect → its description in messages, before the option train_file."""


def require_effect(arguments: Any, columns: Collection[str] | None) -> None:
    """Raise OptionError for an option that differs from its default and has no effect.

    Args:
        arguments: The options.
        columns: The columns of the training data; None if they are not known yet.
    """
    for option_field in fields(arguments):
        value, column = getattr(arguments, option_field.name), option_field.metadata.get("column")
        if value in (None, False, option_field.default):
            continue
        missing = [str(need) for need in needs_of(option_field.metadata) if not need.holds(arguments)]
        if column and columns is not None and column not in columns:
            missing.append(f"{_COLUMNS.get(column, f'a column {column} in')} {spell('train_file')}")
        if missing:
            off = f" ({spell(option_field.name, False)} turns it off)" if value is True else ""
            raise OptionError(
                option_field.name, reason=f"has no effect without {missing[0]}", remedy=f"leave it out{off}"
            )


def needs_of(metadata: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return the conditions that an option declares in its metadata."""
    needs = metadata.get("needs", ())
    return (needs,) if isinstance(needs, Need) else needs


REMOVED: Mapping[str, tuple[str, str]] = {
    "compile_layers": ("0.2.0", "training was slower with it on a CPU and on an H100"),
    "final_dropout": ("0.2.0", "the config.json of an encoder sets a dropout of 0.1"),
    "flex_attention": ("0.2.0", "on a GPU, the Triton kernels compute attention over packed sentences"),
    "initializer_range": ("0.2.0", "the weights of a new encoder are drawn with standard deviation 0.04"),
    "intermediate_size": ("0.2.0", "the inner layers of a new encoder are four times as wide as its hidden states"),
    "max_position_embeddings": ("0.2.0", "a new encoder has the positions that it is trained on (max_seq_length)"),
    "num_attention_heads": ("0.2.0", "a head of a new encoder has 64 units"),
    "shard_encoder": ("0.2.0", "frozen encoders larger than one GPU are not supported"),
    "url": ("0.2.0", "dcpcse encode loads the model itself, so give the folder of the model as MODEL"),
}
"""Removed option → the version without it, and the reason."""


def refuse_removed(names: Iterable[str]) -> None:
    """Raise OptionError for the first of these names that is a removed option.

    Args:
        names: Names of options that do not exist, with underscores and without leading dashes.
    """
    for name in names:
        if name in REMOVED:
            version, reason = REMOVED[name]
            raise OptionError(name, reason=f"was removed in {version}: {reason}", remedy="leave it out")


def without_removed_defaults(options: Mapping[str, Any], existing: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of a file without removed options that have the value False or None.

    With these values, a removed option asked for what dcpcse now always does.

    Args:
        options: The values by option.
        existing: Names of options that exist. A plugin may define an option with the name of a removed option.
    """
    removed = REMOVED.keys() - set(existing)
    return {name: value for name, value in options.items() if name not in removed or value not in (False, None)}
