"""Argument parsers that raise UserError with a one-line message instead of printing the usage."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from transformers.hf_argparser import string_to_bool

from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError, choose_from, did_you_mean
from dcpcse.utils.option_fields import Whole, finite_number, refuse_removed, without_removed_defaults
from dcpcse.utils.private import DataclassParser

DEBUG_HELP = "--debug shows the traceback of an error."
MODEL_HELP = "Output folder of train.py, Hugging Face folder or hub id."


def as_text(word: str) -> str:
    """Return the word unchanged.

    As the argparse type of an option, it marks a text in which, unlike in a path, `~` does not mean the home folder.
    """
    return word


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """A formatter that adds missing defaults to help texts, and hides the spelling --a-b of an option --a_b."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Add a line to the help text that shows how to call the command, with the required arguments only."""
        if usage is None:
            words = ["%(prog)s"]
            for action in actions:
                if action.required or not action.option_strings:
                    values = self._format_args(action, self._get_default_metavar_for_optional(action))
                    words += [*action.option_strings[:1], values]
            usage = " ".join([*words, "[--OPTION VALUE ...]"])
        super().add_usage(usage, actions, groups, prefix)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default in (None, []) or action.nargs == 0 or "default" in (action.help or "").lower():
            return action.help
        if isinstance(default, list):
            return f"{action.help} (default: {' '.join(default)})"
        return super()._get_help_string(action)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind = int if isinstance(action.type, Whole) else action.type
        names = {int: "INT", float: "FLOAT", finite_number: "FLOAT", string_to_bool: "BOOL"}
        return names.get(kind, "VALUE")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "-" not in name[2:]]
        if not names:
            return super()._format_action_invocation(action)
        values = "" if action.nargs == 0 else self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(names)} {values}".rstrip()


class CommandParser(argparse.ArgumentParser):
    """An argument parser that raises UserError; the one-line message suggests the most similar option or choice.

    Args:
        args: As in argparse.
        epilog: As in argparse.
        unsupported: Name of an option that the command rejects → the reason.
        kwargs: As in argparse.
    """

    def __init__(
        self, *args: Any, epilog: str = DEBUG_HELP, unsupported: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        kwargs = {"allow_abbrev": False, "formatter_class": HelpFormatter, **kwargs}
        super().__init__(*args, epilog=epilog, **kwargs)
        self.unsupported = unsupported or {}
        self.takes_model = False
        # argparse would read the values -1e-3 and -inf as options.
        self._negative_number_matcher = re.compile(r"-(\.?\d|inf|nan)")

    def add_model(self, name: str = "model", help: str = MODEL_HELP, **kwargs: Any) -> None:
        """Add the first positional argument, a model or folder. It can also be given by `--model_name_or_path`.

        Args:
            name: Name of the argument.
            help: The help text.
            kwargs: As in `add_argument`.
        """
        self.takes_model = True
        self.add_argument(name, **{"metavar": name.upper(), **kwargs}, help=f"{help} Also --model_name_or_path.")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the options)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise UserError(f"{_name(action)} {value}: unknown; {choose_from(value, action.choices)}")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs == "+" and action.type in (int, float):  # numbers may be separated by spaces or commas
            arg_strings = [part for text in arg_strings for part in text.split(",")]
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        if action.type in (None, str, Path):  # a path, a name or one of the choices
            text = os.path.expanduser(text)
        parse = finite_number if action.type is float else action.type
        try:
            if parse is finite_number or isinstance(parse, Whole):
                return parse(text)
            return super()._get_value(action, text)
        except ValueError as error:
            raise UserError(f"{_name(action)} {text}: must be {error}") from None
        except argparse.ArgumentError as error:  # argparse would name all spellings of the option
            raise UserError(f"{_name(action)} {text}: {error.message}") from None

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Parse as in argparse. Raises UserError for unknown arguments."""
        parsed, left = self.parse_known_args(args, namespace)
        self.refuse_unknown(left)
        return parsed

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as in argparse, but report empty values and unknown options before all other errors."""
        words = list(sys.argv[1:] if args is None else args)
        words = _model_first(words) if self.takes_model else words
        _refuse_empty(words, {name for name, action in self._option_string_actions.items() if action.type is as_text})
        if self._subparsers is None:  # otherwise the options belong to a subparser
            options = [word.split("=")[0] for word in _options(words)]
            for name in (option[2:].replace("-", "_") for option in options):
                if name in self.unsupported:
                    raise UserError(f"--{name} is not supported: {self.unsupported[name]}; leave it out")
            self.refuse_unknown([name for name in options if name not in self._option_string_actions])
        return super().parse_known_args(words, namespace)

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """Raise UserError for the first unknown argument; the message suggests the most similar option."""
        if not words:
            return
        name = words[0].split("=")[0]
        if Path(name).suffix in (".json", ".yaml", ".yml"):
            raise UserError(f"{name} is not an option; a file of options must be the first argument")
        known = [option.lstrip("-") for action in self._actions for option in action.option_strings]
        known += ["model_name_or_path"] * self.takes_model
        if name.startswith("-"):
            refuse_removed([name.lstrip("-").replace("-", "_")])
            hint = did_you_mean(name.lstrip("-"), known, form="--{}")
        else:
            hint = f"did you mean --{name}?" if name in known else ""
        raise UserError(f"unknown argument {words[0]}{hint and '; ' + hint} (--help lists the options)")


def _name(action: argparse.Action) -> str:
    return next(iter(action.option_strings), str(action.metavar))


def names_model(word: str) -> bool:
    """Return whether an argument is `--model_name_or_path`, with or without a value."""
    return word.partition("=")[0].replace("-", "_") == "__model_name_or_path"


def _model_first(words: Sequence[str]) -> list[str]:
    """Return the words with the value of `--model_name_or_path` moved to the front, as a positional argument."""
    others, models = [], []
    for word in (rest := iter(words)):
        if names_model(word):
            models.append(word.partition("=")[2] if "=" in word else next(rest, "--"))
        else:
            others.append(word)
    if any(model.startswith("--") for model in models):
        raise UserError("--model_name_or_path has no value; give a folder or hub id (--help lists the options)")
    return [*models, *others]


def _options(words: Sequence[str]) -> list[str]:
    """Return the arguments that argparse interprets as long options."""
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("--") and " " not in word]


def _refuse_empty(words: Sequence[str], texts: Collection[str]) -> None:
    """Raise UserError for an empty or blank value, such as the value of an unset shell variable.

    Args:
        texts: Options whose values are texts, which may be empty.
    """
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            before, word = word[:-1], ""
        if before not in texts and not (word.strip() if before.startswith("--") else word):
            where = f"the value of {before} is empty" if before.startswith("--") else "an argument is empty"
            raise UserError(f"{where}; give a value, or leave it out (is a shell variable unset?)")


class Parser(CommandParser, DataclassParser):
    """A parser whose options are the fields of dataclasses.

    Args:
        args: The dataclasses, and arguments of argparse.
        main_options: The names of the options that `--help` shows, by heading. `--help all` shows all options. None:
            `--help` also shows all options.
        kwargs: As in `CommandParser`.
    """

    def __init__(self, *args: Any, main_options: Mapping[str, Sequence[str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, add_help=not main_options, **kwargs)
        for name, metadata in self.metadata().items():
            if metadata.get("text") and not metadata.get("python_only"):
                self._option_string_actions[f"--{name}"].type = as_text
        for action in self._actions:
            if action.type is Any:  # in Python also another object; on the command line a file
                action.type = None
            # transformers' parser adds --no_x for every flag x that is on by default; --x False suffices.
            if action.dest in self.unsupported or isinstance(action, argparse._StoreFalseAction):
                action.help = argparse.SUPPRESS
        if main_options:
            self._main_groups = self._group(main_options)
            self.add_argument("-h", "--help", action=_HelpAction)

    def _group(self, options: Mapping[str, Sequence[str]]) -> list[Any]:
        """Move options to new groups at the beginning of the help text, and return the new groups.

        Args:
            options: The names of the options in each group, by heading.
        """
        others, moved = list(self._action_groups), []
        for heading, names in options.items():
            moved.append(self.add_argument_group(heading))
            moved[-1]._group_actions = [self._option_string_actions[f"--{name}"] for name in names]
        taken = {action.dest for group in moved for action in group._group_actions}
        for group in others:
            group._group_actions = [action for action in group._group_actions if action.dest not in taken]
        self._action_groups = [*moved, *others]
        return moved

    def format_main_help(self) -> str:
        """Return the help text that shows only the main options."""
        whole = self._action_groups
        try:
            self._action_groups = self._main_groups
            return self.format_help()
        finally:
            self._action_groups = whole

    def metadata(self) -> dict[str, Mapping[str, Any]]:
        """Return option name → the metadata that `option_fields.option` stores, such as help, choices and bounds."""
        return {field.name: field.metadata for kind in self.dataclass_types for field in fields(kind)}

    def given(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the options given on a command line, without defaults."""
        unset = argparse.Namespace(**{action.dest: _UNSET for action in self._actions})
        namespace, unknown = self.parse_known_args(argv, unset)
        self.refuse_unknown(unknown)
        return {name: value for name, value in vars(namespace).items() if value is not _UNSET}

    def given_by_name(
        self, options: Mapping[str, Any], translate: Callable[[list[str]], list[str]] = list
    ) -> dict[str, Any]:
        """Return the options of a file or preset, parsed and checked like options of a command line.

        Args:
            options: The values by option.
            translate: A function that replaces old options in the words of a command line.
        """
        options = without_removed_defaults(options, {action.dest for action in self._actions})
        for name, value in options.items():
            action = self._option_string_actions.get(f"--{name}")
            if isinstance(value, dict) and action is not None and action.nargs == "+":
                options[name] = [f"{key}={text}" for key, text in value.items()]
            # run.yaml contains --report_to as a list of one value.
            if isinstance(value, list) and len(value) > 1 and action is not None and action.nargs not in ("+", "*"):
                raise UserError(f"--{name} {value} is a list; give one value")
        return self.given(translate([word for name, value in options.items() for word in _as_words(name, value)]))

    def parse(self, argv: Sequence[str], texts: str | None = None) -> tuple[Any, ...]:
        """Parse a command line; return the dataclasses, and a namespace with all other arguments.

        Args:
            argv: The words of the command line.
            texts: Name of a positional argument with several values. The user may write options between the values.
        """
        places, left = self.parse_known_args(argv)
        if texts:  # argparse accepts only the first group of values
            setattr(places, texts, [*getattr(places, texts), *(word for word in left if word[:1] != "-")])
            left = [word for word in left if word[:1] == "-"]
        self.refuse_unknown(left)
        return (*(build_dataclass(kind, vars(places)) for kind in self.dataclass_types), places)


_UNSET = object()


def _as_words(name: str, value: Any) -> list[str]:
    """Return an option of a file as the words of a command line."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    return [f"--{name}", str(value)]


class _HelpAction(argparse.Action):
    """`--help` prints the main options, `--help all` prints all options."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = "Show the main options, or all options with --help all."
        super().__init__(option_strings, dest, "?", default=argparse.SUPPRESS, help=text, metavar="all")

    def __call__(self, parser: Parser, namespace: Any, values: str | None, option_string: str | None = None) -> None:
        if values not in (None, "all"):
            raise UserError(f"--help {values} is unknown; give --help for the main options, or --help all")
        print_result(parser.format_help() if values else parser.format_main_help(), end="")
        parser.exit()


def build_dataclass(kind: type, values: Mapping[str, Any]) -> Any:
    """Create an object of a dataclass from the options that are its fields. Ignore other options.

    Args:
        kind: The dataclass.
        values: The values of the given options, by option.
    """
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.init and field.name in values})
