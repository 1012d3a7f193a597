"""Argument parsers whose complaints are user errors, in one style."""

import argparse
import difflib
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser

from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, did_you_mean
from dcpcse.utils.option_fields import OWN_METADATA

DEBUG_HELP = "--debug shows the traceback of an error."


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose complaints are user errors, in one style; it names the nearest known option."""

    def __init__(self, *args: Any, epilog: str = DEBUG_HELP, **kwargs: Any) -> None:
        super().__init__(*args, epilog=epilog, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{_reworded(message)} (--help lists the options)")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse; UserError for what is left over."""
        parsed, left = self.parse_known_args(args, namespace)
        self.refuse_unknown(left)
        return parsed

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse, but an unknown option or an empty value is refused before anything else is complained of."""
        words = list(sys.argv[1:] if args is None else args)
        _refuse_empty(words)
        if self._subparsers is None:  # else its options are those of a parser below
            given = [word.split("=")[0] for word in _options(words)]
            self.refuse_unknown([name for name in given if name not in self._option_string_actions])
            self._tell_of_repeated(given)
        return super().parse_known_args(words, namespace)

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """UserError for left-over words, with the nearest known option."""
        if not words:
            return
        name = words[0].split("=")[0]
        if Path(name).suffix in (".json", ".yaml", ".yml"):
            raise UserError(f"{name} is no option; a file of options must stand first, before all others")
        known = [option.lstrip("-") for action in self._actions for option in action.option_strings]
        near = _near(name.lstrip("-"), known) if name.startswith("-") else []
        hint = f"; did you mean --{near[0]}?" if near else ""
        raise UserError(f"unknown argument {words[0]}{hint} (--help lists the options)")

    def _tell_of_repeated(self, given: Sequence[str]) -> None:
        actions = [self._option_string_actions[name] for name in given]
        for action, times in Counter(actions).items():
            if times > 1 and not isinstance(action, argparse._AppendAction):
                notify(f"{action.option_strings[0]} is given {times} times; the last one counts")


def _near(name: str, known: Sequence[str]) -> list[str]:
    """The known name that a wrong one was meant for, if any: one alike, or the first that begins so."""
    begun = [option for option in known if len(name) > 2 and option.startswith(name)]
    return difflib.get_close_matches(name, known, n=1) or begun[:1]


def _options(words: Sequence[str]) -> list[str]:
    """Those of some words that argparse takes for long options."""
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("--") and " " not in word]


def _refuse_empty(words: Sequence[str]) -> None:
    """UserError for an empty value, or one of blanks, which is a mistake wherever it stands."""
    cause = "is a variable of the shell not set?"
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            before, word = word[:-1], ""
        if not (word.strip() if before.startswith("--") else word):
            where = f"the value of {before} is empty" if before.startswith("--") else "an argument is empty"
            raise UserError(f"{where}; give one, or leave it out ({cause})")


def _reworded(message: str) -> str:
    """A complaint of argparse in our words: what was given, and what is allowed."""
    if message.startswith(_REQUIRED):
        names = message.removeprefix(_REQUIRED)
        return f"{names} {'are' if ', ' in names else 'is'} missing"
    if (found := re.fullmatch(r"argument (?P<name>[^/: ]+)\S*: (?P<problem>.*)", message, re.DOTALL)) is None:
        return message
    name = found["name"]
    for pattern, words in _COMPLAINTS.items():
        if said := re.fullmatch(pattern, found["problem"], re.DOTALL):
            return words.format(*said.groups(), name=name)
    if said := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", found["problem"]):
        known = [choice.strip("'") for choice in said[2].split(", ")]
        return f"{name} {said[1]}: {did_you_mean(said[1], known)}choose one of {', '.join(known)}"
    return f"{name}: {found['problem']}"


_REQUIRED = "the following arguments are required: "

_COMPLAINTS = {
    r"invalid int value: '(.*)'": "{name} {0}: must be a whole number",
    r"invalid float value: '(.*)'": "{name} {0}: must be a number",
    r"invalid (\w+) value: '(.*)'": "{name} {1}: is no {0}",
    r"Truthy value expected: got (.*?) but expected .*": "{name} {0}: must be True or False",
    r"expected (?:at least )?one argument": "{name}: its value is missing (one that begins with - as {name}=VALUE)",
    r"expected (\d+) arguments": "{name}: {0} values are needed",
    r"ignored explicit argument '(.*)'": "{name} takes no value, and {0} is given",
}
"""Of argparse and of transformers' parser, as patterns → what is said instead."""


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
