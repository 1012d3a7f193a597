"""What the command-line tools share: reading options, and turning user mistakes into one line and exit code 2."""

import argparse
import difflib
import json
import logging
import os
import signal
import sys
import time
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
from .parsing import parse_json, parse_yaml

if TYPE_CHECKING:
    from .arguments import DataArguments, ModelArguments, RunArguments

logger = logging.getLogger(__name__)

_UNSET = object()


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a tool, which may give an exit code of its own; a mistake of the user's gives one line on stderr and 2.

    `--debug` shows its traceback. Of several processes the first that fails speaks: see `_wait_for_the_end`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    argv, debug = _take_debug(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Of several processes the first one speaks.
    first = os.environ.get("RANK", "0") == "0"
    logging.getLogger("dcpcse").setLevel(logging.INFO if first else logging.ERROR)
    try:
        with sigterm_raises():
            code = main(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads (`| head`) has seen enough. Python itself would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell has it for SIGPIPE
    except (UserError, DataError) as error:
        if debug:
            raise
        if not first:
            _wait_for_the_end()
        print(f"error: {_in_a_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        if debug:
            raise
        if first and (str(error) or not _is_launchers_signal(error)):
            print(str(error) or "interrupted", file=sys.stderr)
        return getattr(error, "code", 130)
    except RuntimeError as error:
        if debug or not _is_lost_process(error):
            raise
        _wait_for_the_end()
        cause = str(error).splitlines()[0]
        print(f"error: another process of this run has ended, or is out of reach: {printable(cause)}", file=sys.stderr)
        return 1
    return code or 0


class _Printable(logging.Formatter):
    """Lines that cannot command the terminal, whatever the names in them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _in_a_line(error: Exception) -> str:
    return printable(" ".join(str(error).splitlines()))


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
    """An argument parser whose complaints are user errors."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the options)")


class Parser(CommandParser, HfArgumentParser):
    """The parser of dataclasses; it names the nearest known option."""

    def parse_texts(self, argv: Sequence[str], name: str) -> tuple[Any, ...]:
        """As `parse_args_into_dataclasses`, with texts for the positional `name` before and after options."""
        *parsed, places, left = self.parse_args_into_dataclasses(
            list(argv), return_remaining_strings=True, look_for_args_file=False
        )
        # argparse takes the first run of them only.
        late = [word for word in left if not word.startswith("-")]
        self.refuse_unknown([word for word in left if word not in late])
        setattr(places, name, [*getattr(places, name), *late])
        return (*parsed, places)

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """UserError for left-over words, with the nearest known option."""
        if not words:
            return
        known = [name for action in self._actions for name in action.option_strings]
        name = words[0].split("=")[0]
        if Path(name).suffix in (".json", ".yaml", ".yml"):
            raise UserError(f"{name} is no option; a file of options must stand first, before all others")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown argument {words[0]}{hint} (--help lists the options)")


def parse_training(argv: Sequence[str]) -> "tuple[tuple[ModelArguments, DataArguments, RunArguments], set[str]]":
    """Options of train.py and the names of those that were given."""
    return _parse(training_parser(), translate(argv, say), _implied_in_training)


def parse_evaluation(argv: Sequence[str]) -> tuple[EvaluationArguments, PublishedEvaluationArguments]:
    """Options of evaluation.py."""
    return _parse(evaluation_parser(), translate(argv, say, EVALUATION))[0]


def training_parser() -> Parser:
    """The parser of train.py; what it would refuse does not stand in its help."""
    # Here only: transformers' TrainingArguments import torch and its modelling code, which takes seconds.
    from .arguments import DataArguments, ModelArguments, RunArguments

    kinds = (ModelArguments, DataArguments, RunArguments)
    parser = Parser(kinds, usage=_TRAIN_USAGE, description=_TRAIN_HELP, allow_abbrev=False)
    for action in parser._actions:
        if action.dest in REFUSED or action.dest in GONE:
            action.help = argparse.SUPPRESS
    return parser


def evaluation_parser() -> Parser:
    """The parser of evaluation.py."""
    kinds = (EvaluationArguments, PublishedEvaluationArguments)
    return Parser(kinds, usage=_EVALUATION_USAGE, description=_EVALUATION_HELP, allow_abbrev=False)


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
    implied: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda given: {},
) -> tuple[tuple, set[str]]:
    """Options as the parser's dataclasses, and the names of those that were given.

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
    return tuple(_build(kind, values) for kind in parser.dataclass_types), set(given)


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
    readers: Mapping[str, Callable[[str], Any]] = {
        ".json": parse_json,
        ".yaml": parse_yaml,
        ".yml": parse_yaml,
    }
    if path.suffix not in readers:
        raise UserError(f"{path} is neither an option (--name) nor a file of options (.json, .yaml)")
    try:
        content = readers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the options file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not readable as {path.suffix[1:]}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold option names and values")
    try:
        return _given_by_name(parser, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _given_by_name(parser: Parser, options: Mapping[str, Any]) -> dict[str, Any]:
    """Through the same parser as the command line: same types, same choices, same complaints."""
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
    try:
        return kind(**{name: value for name, value in given.items() if name in names})
    except UserError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(" ".join(str(error).split())) from error


_TRAIN_USAGE = """
  train.py [options.yaml] --model_name_or_path ENCODER --train_file FILE --output_dir FOLDER [--option value ...]"""

_TRAIN_HELP = """Train sentence embeddings on a frozen encoder. A file of options (.json, .yaml) may stand first; the
command line overrides it. Besides the options of this program those of transformers.TrainingArguments are known.
--debug without a value shows the traceback of an error."""

_EVALUATION_USAGE = """
  evaluation.py [options.yaml] --model_name_or_path FOLDER_OR_ID [--option value ...]"""

_EVALUATION_HELP = """Measure an encoder on STS, transfer and other tasks and print the papers' tables.
--debug shows the traceback of an error."""
