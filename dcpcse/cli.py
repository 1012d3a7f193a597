"""What the command-line tools share: reading options, and turning user mistakes into one line and exit code 2."""

import argparse
import difflib
import errno
import functools
import json
import logging
import math
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from senteval.errors import DataError
from transformers import HfArgumentParser

from . import presets
from .errors import UserError, printable
from .evaluation_arguments import EvaluationArguments, PublishedEvaluationArguments
from .interruption import Interrupted, end_silently, sigterm_raises
from .legacy import EVALUATION, GONE, REFUSED, told_by_an_option, translate
from .parsing import parse_json, parse_yaml, read_text

if TYPE_CHECKING:
    from .arguments import DataArguments, ModelArguments, RunArguments

logger = logging.getLogger(__name__)

_UNSET = object()

DEBUG_HELP = "--debug shows the traceback of an error."


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a tool, which may give an exit code of its own; a mistake of the user's gives one line on stderr and 2.

    `--debug` shows its traceback. Of several processes the first that fails speaks: see `_wait_for_the_end`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    argv, debug = _take_debug(argv)
    # Of several processes the first one speaks.
    first = os.environ.get("RANK", "0") == "0"
    _set_up_output(first)
    try:
        _require_current_folder()
        with sigterm_raises():
            code = main(argv)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # Whoever reads (`| head`) has seen enough. Python itself would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell has it for SIGPIPE
    except KeyboardInterrupt as error:
        if debug:
            raise
        if first and (str(error) or not _is_launchers_signal(error)):
            print(str(error) or "interrupted", file=sys.stderr)
        return getattr(error, "code", 130)
    except (UserError, DataError, OSError, RuntimeError) as error:
        told = None if debug else _told(error)
        if told is None:
            raise
        line, code = told
        if not first or code == 1:
            _wait_for_the_end()
        print(f"error: {printable(' '.join(line.splitlines()))}", file=sys.stderr)
        return code


def _set_up_output(first: bool) -> None:
    """Log lines on stderr, of the first process alone; what has nobody to read it (`>&-`) goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, as long as the process
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("dcpcse").setLevel(logging.INFO if first else logging.ERROR)
    # Its tries again, two lines each, would bury what is said when the last one has failed.
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)


def _require_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the folder that this is called from is gone; change to another one") from error


_OF_PLACES = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Errors of a place that somebody gave, wherever it is first looked at."""


def _told(error: Exception) -> tuple[str, int] | None:
    """What is said of an error, and the exit code; None for a bug, which keeps its traceback."""
    if isinstance(error, (UserError, DataError)):
        return str(error), 2
    if isinstance(error, OSError) and error.errno in _OF_PLACES:
        place = "" if error.filename is None else f": {str(error.filename)[:200]}"
        return f"{error.strerror}{place}; give another place", 2
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of pathlib
        return f"{str(error)[:200]}; give the file itself", 2
    if isinstance(error, RuntimeError) and _is_lost_process(error):
        return f"another process of this run has ended, or is out of reach: {str(error).splitlines()[0]}", 1
    return None


class _Printable(logging.Formatter):
    """Lines that cannot command the terminal, whatever the names in them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def answer(text: str) -> None:
    """What a command was asked for, on stdout; names and sentences of others cannot command the terminal."""
    print(printable(text))


def _wait_for_the_end() -> None:
    """Give the launcher time to end this process, silently, because another one has failed, and has said why.

    Otherwise each would repeat an error of all, and complain of the one that is gone. Without such a launcher, on
    another machine, or where this one alone has failed, it speaks after all.
    """
    end_silently()
    time.sleep(_GRACE)


def _is_launchers_signal(error: KeyboardInterrupt) -> bool:
    """Whether it is a SIGTERM of torchrun's, which says itself why it ends the processes of a run."""
    return isinstance(error, Interrupted) and error.number == signal.SIGTERM and "RANK" in os.environ


_GRACE = 5
"""Seconds; torchrun looks after its processes ten times a second."""


def _is_lost_process(error: RuntimeError) -> bool:
    from .distributed import is_lost_process  # torch is not needed for an option's mistake

    return is_lost_process(error)


def _take_debug(argv: list[str]) -> tuple[list[str], bool]:
    """Take out `--debug` where it stands without a value; with one it is transformers' own option."""
    bare = [i for i, word in enumerate(argv) if word == "--debug" and (argv[i + 1 : i + 2] or ["--"])[0][:2] == "--"]
    return [word for i, word in enumerate(argv) if i not in bare], bool(bare)


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
                say(f"{action.option_strings[0]} is given {times} times; the last one counts")


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
        near = difflib.get_close_matches(said[1], known, n=1)
        return f"{name} {said[1]}: {f'did you mean {near[0]}? ' if near else ''}choose one of {', '.join(known)}"
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

    def parse(self, argv: Sequence[str], texts: str | None = None) -> tuple[Any, ...]:
        """The dataclasses, and a namespace of everything else. texts: a positional that may stand between options."""
        places, left = self.parse_known_args(argv)
        if texts:  # argparse takes the first run of them only
            setattr(places, texts, [*getattr(places, texts), *(word for word in left if word[:1] != "-")])
            left = [word for word in left if word[:1] == "-"]
        self.refuse_unknown(left)
        return (*(_build(kind, vars(places)) for kind in self.dataclass_types), places)


def parse_training(argv: Sequence[str]) -> "tuple[tuple[ModelArguments, DataArguments, RunArguments], set[str]]":
    """Options of train.py and the names of those that were given; methods from outside are registered before."""
    from .methods import arguments_class
    from .plugins import load_plugins

    argv = list(argv)
    load_plugins(_plugins_in(argv))
    parser = training_parser()
    *_, data, run = parser.dataclass_types
    return _parse(parser, translate(argv, say), (arguments_class(), data, run), _implied_in_training)


def _plugins_in(argv: Sequence[str]) -> list[str]:
    """Values of `--plugin`, which has to be followed before the other options are known."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", nargs="*")
    named = parser.parse_known_args(argv)[0].plugin
    if named is None and argv and not argv[0].startswith("-"):
        named = _content(Path(argv[0])).get("plugin")
    return [named] if isinstance(named, str) else [str(name) for name in named or ()]


def parse_evaluation(argv: Sequence[str]) -> tuple[EvaluationArguments, PublishedEvaluationArguments]:
    """Options of evaluation.py."""
    parser = evaluation_parser()
    return _parse(parser, translate(argv, say, EVALUATION), parser.dataclass_types)[0]


def training_parser() -> Parser:
    """The parser of train.py; what it would refuse does not stand in its help."""
    # Here only: transformers' TrainingArguments import torch and its modelling code, which takes seconds.
    from .arguments import DataArguments, ModelArguments, RunArguments
    from .methods import option_parts

    kinds = (ModelArguments, *option_parts(), DataArguments, RunArguments)
    parser = Parser(kinds, usage=_TRAIN_USAGE, description=_TRAIN_HELP, epilog=_TRAIN_DEBUG)
    for action in parser._actions:
        if action.dest in REFUSED or action.dest in GONE:
            action.help = argparse.SUPPRESS
    return parser


def evaluation_parser() -> Parser:
    """The parser of evaluation.py."""
    kinds = (EvaluationArguments, PublishedEvaluationArguments)
    return Parser(kinds, usage=_EVALUATION_USAGE, description=_EVALUATION_HELP)


def _implied_in_training(given: Mapping[str, Any]) -> dict[str, Any]:
    return _save_when_measured(given) | told_by_an_option(given, say)


def _save_when_measured(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `--load_best_model_at_end` implies: a checkpoint at every evaluation, unless told otherwise.

    With transformers' own save_steps=500 the best of four measurements would be lost, or refused.
    """
    if not given.get("load_best_model_at_end"):
        return {}
    implied = {"metric_for_best_model": "stsb_spearman"}
    if not {"save_steps", "save_strategy"} & set(given):
        implied |= {"save_strategy": given.get("eval_strategy", "no"), "save_total_limit": 2}
        if "eval_steps" in given:
            implied["save_steps"] = given["eval_steps"]
        say("a checkpoint at every evaluation; the best and the last are kept")
    return {name: value for name, value in implied.items() if name not in given}


def _parse(
    parser: Parser,
    argv: Sequence[str],
    kinds: Sequence[type],
    implied: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda given: {},
) -> tuple[tuple, set[str]]:
    """Options as dataclasses of these kinds, and the names of those that were given.

    argv: options, after an optional .json or .yaml file of options, which the command line overrides. A preset lies
    below both.
    implied: what follows from the given options for others.
    """
    argv = list(argv)
    from_file: dict[str, Any] = {}
    if argv and not argv[0].startswith("-"):
        from_file = _read_config(parser, Path(argv.pop(0)))
    given = from_file | _given(parser, argv)
    given = presets.without_void(_preset(parser, given), given, say) | given
    values = given | dict(implied(given))
    return tuple(_build(kind, values) for kind in kinds), set(given)


def say(line: str) -> None:
    """A line for the person at the terminal: how what was asked is understood."""
    logger.info(line)


def _given(parser: Parser, argv: Sequence[str]) -> dict[str, Any]:
    """The options that stand on the command line, without any default."""
    unset = argparse.Namespace(**{action.dest: _UNSET for action in parser._actions})
    namespace, unknown = parser.parse_known_args(argv, unset)
    parser.refuse_unknown(unknown)
    return {name: value for name, value in vars(namespace).items() if value is not _UNSET}


def _preset(parser: Parser, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the preset that `--preset` names, and a few lines that say where it comes from."""
    if not given.get("preset"):
        return {}
    preset = presets.load(given["preset"])
    for line in preset.describe().splitlines():
        say(line)
    return _given_by_name(parser, preset.options)


def _read_config(parser: Parser, path: Path) -> dict[str, Any]:
    content = _content(path)
    try:
        return _given_by_name(parser, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _content(path: Path) -> dict[str, Any]:
    """What an options file holds, by name."""
    if path.suffix not in _READERS:
        raise UserError(f"{path} is neither an option (--name) nor a file of options (.json, .yaml)")
    try:
        content = _READERS[path.suffix](read_text(path))
    except OSError as error:
        raise UserError(f"cannot read the options file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not readable as {path.suffix[1:]}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold option names and values, such as temp: 0.05")
    return content


_READERS: Mapping[str, Callable[[str], Any]] = {
    ".json": functools.partial(parse_json, once=True),
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}


def _given_by_name(parser: Parser, options: Mapping[str, Any]) -> dict[str, Any]:
    """Through the same parser as the command line: same types, same choices, same complaints."""
    for name, value in options.items():
        action = parser._option_string_actions.get(f"--{name}")
        # A list of one is what run.yaml holds of --report_to.
        if isinstance(value, list) and len(value) > 1 and action is not None and action.nargs not in ("+", "*"):
            raise UserError(f"--{name} {value}: takes one value, and a list is given")
    words = [word for name, value in options.items() for word in _as_words(name, value)]
    return _given(parser, translate(words, say))


def _as_words(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    return [f"--{name}", str(value)]


def _build(kind: type, given: Mapping[str, Any]) -> Any:
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


_TRAIN_USAGE = """
  train.py [options.yaml] --model_name_or_path ENCODER --train_file FILE --output_dir FOLDER [--option value ...]"""

_TRAIN_HELP = """Train sentence embeddings on a frozen encoder. A file of options (.json, .yaml) may stand first; the
command line overrides it. Besides the options of this program those of transformers.TrainingArguments are known."""

_TRAIN_DEBUG = "--debug without a value shows the traceback of an error; with one it is transformers' own option."

_EVALUATION_USAGE = """
  evaluation.py [options.yaml] --model_name_or_path FOLDER_OR_ID [--option value ...]"""

_EVALUATION_HELP = """Measure an encoder on STS, transfer and other tasks and print the papers' tables."""
