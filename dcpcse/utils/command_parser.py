"""Argument parsers that raise UserError with one line instead of printing their usage."""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, did_you_mean, invalid_choice
from dcpcse.utils.option_fields import OWN_METADATA

DEBUG_HELP = "--debug shows the traceback of an error."

REMOVED: dict[str, dict[str, str]] = {}
"""Removed options by program (`train.py`, `dcpcse runs`): name without dashes, and what to do instead."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are user errors of one line, with the most similar known option or choice.

    unsupported: options that are rejected, and the reason.
    """

    def __init__(
        self, *args: Any, epilog: str = DEBUG_HELP, unsupported: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, epilog=epilog, **{"allow_abbrev": False, **kwargs})
        self.unsupported = unsupported or {}

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the options)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise invalid_choice(next(iter(action.option_strings), str(action.metavar)), value, action.choices)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse as argparse does. Raises UserError for unknown arguments."""
        parsed, left = self.parse_known_args(args, namespace)
        self.refuse_unknown(left)
        return parsed

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but report empty values and options that do not exist before all other errors."""
        words = list(sys.argv[1:] if args is None else args)
        _refuse_empty(words)
        if self._subparsers is None:  # otherwise the options belong to a subparser
            given = [word.split("=")[0] for word in _options(words)]
            for name in (option[2:].replace("-", "_") for option in given):
                if name in (removed := REMOVED.get(self.prog, {})):
                    raise UserError(f"--{name} was removed; {removed[name]}")
                if name in self.unsupported:
                    raise UserError(f"--{name} is not supported: {self.unsupported[name]}; leave it out")
            self.refuse_unknown([name for name in given if name not in self._option_string_actions])
            self._notify_of_repeated(given)
        return super().parse_known_args(words, namespace)

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Raise UserError for the first of the unknown arguments, with the most similar option."""
        if not words:
            return
        name = words[0].split("=")[0]
        if Path(name).suffix in (".json", ".yaml", ".yml"):
            raise UserError(f"{name} is not an option; a file of options must be the first argument")
        known = [option.lstrip("-") for action in self._actions for option in action.option_strings]
        hint = did_you_mean(name.lstrip("-"), known, form="--{}") if name.startswith("-") else ""
        raise UserError(f"unknown argument {words[0]}{hint and '; ' + hint} (--help lists the options)")

    def _notify_of_repeated(self, given: Sequence[str]) -> None:
        actions = [self._option_string_actions[name] for name in given]
        for action, times in Counter(actions).items():
            if times > 1 and not isinstance(action, argparse._AppendAction):
                notify(f"{action.option_strings[0]} is given {times} times; the last one is used")


def _options(words: Sequence[str]) -> list[str]:
    """Return the arguments that argparse takes for long options."""
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("--") and " " not in word]


def _refuse_empty(words: Sequence[str]) -> None:
    """Raise UserError for a value that is empty or blank, as an unset variable of the shell leaves it."""
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            before, word = word[:-1], ""
        if not (word.strip() if before.startswith("--") else word):
            where = f"the value of {before} is empty" if before.startswith("--") else "an argument is empty"
            raise UserError(f"{where}; give a value, or leave it out (is a shell variable unset?)")


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Names the default of an option, unless it is None: what that stands for, the help says."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(CommandParser, HfArgumentParser):
    """The parser of dataclasses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=_Defaults, **kwargs)

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: Field) -> None:
        field = copy(field)
        field.metadata = {name: value for name, value in field.metadata.items() if name not in OWN_METADATA}
        HfArgumentParser._parse_dataclass_field(parser, field)

    def metadata(self) -> dict[str, Mapping[str, Any]]:
        """The metadata of all options, by name."""
        return {field.name: field.metadata for kind in self.dataclass_types for field in fields(kind)}

    def parse(self, argv: Sequence[str], texts: str | None = None) -> tuple[Any, ...]:
        """The dataclasses, and a namespace of everything else. texts: a positional that may stand between options."""
        places, left = self.parse_known_args(argv)
        if texts:  # argparse takes the first run of them only
            setattr(places, texts, [*getattr(places, texts), *(word for word in left if word[:1] != "-")])
            left = [word for word in left if word[:1] == "-"]
        self.refuse_unknown(left)
        return (*(build_dataclass(kind, vars(places)) for kind in self.dataclass_types), places)


def build_dataclass(kind: type, given: Mapping[str, Any]) -> Any:
    names = {f.name for f in fields(kind) if f.init}
    for name in names & given.keys():
        if isinstance(given[name], float) and not math.isfinite(given[name]):
            raise UserError(f"--{name} {given[name]}: must be a finite number")
        if isinstance(given[name], int) and abs(given[name]) >= 2**63:
            raise UserError(f"--{name} {given[name]}: must be below 2^63")
    try:
        return kind(**{name: value for name, value in given.items() if name in names})
    except UserError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(" ".join(str(error).split())) from error
