"""Options of train.py and evaluation.py: command line over file over preset over defaults."""

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.cli.legacy_options import EVALUATION_NAMES, TRAINING_NAMES, LegacyNames, implied_method, translate
from dcpcse.evaluation.arguments import EvaluationArguments
from dcpcse.inference.arguments import PublishedEvaluationArguments
from dcpcse.utils import presets
from dcpcse.utils.command_parser import Parser, build_dataclass
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import parse_json, parse_yaml, read_text

if TYPE_CHECKING:
    from dcpcse.methods.arguments import ModelArguments
    from dcpcse.training.arguments import DataArguments, RunArguments

_UNSET = object()


def parse_training(argv: Sequence[str]) -> "tuple[tuple[ModelArguments, DataArguments, RunArguments], set[str]]":
    """Options of train.py and the names of those that were given; methods from outside are registered before."""
    from dcpcse.methods import arguments_class
    from dcpcse.methods.plugins import load_plugins

    argv = list(argv)
    load_plugins(_plugins_in(argv))
    parser = training_parser()
    *_, data, run = parser.dataclass_types
    return _parse(parser, argv, (arguments_class(), data, run), TRAINING_NAMES, _implied_in_training)


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
    return _parse(parser, argv, parser.dataclass_types, EVALUATION_NAMES)[0]


def training_parser() -> Parser:
    """The parser of train.py; what it would refuse does not stand in its help."""
    # Here only: transformers' TrainingArguments import torch and its modelling code, which takes seconds.
    from dcpcse.methods import option_parts
    from dcpcse.methods.arguments import ModelArguments
    from dcpcse.training.arguments import UNSUPPORTED, DataArguments, RunArguments

    kinds = (ModelArguments, *option_parts(), DataArguments, RunArguments)
    texts = {"usage": _TRAIN_USAGE, "description": _TRAIN_HELP, "epilog": _TRAIN_DEBUG}
    parser = Parser(kinds, prog="train.py", unsupported=UNSUPPORTED, **texts)
    for action in parser._actions:
        if action.dest in UNSUPPORTED or action.dest in TRAINING_NAMES.gone:
            action.help = argparse.SUPPRESS
    return parser


def evaluation_parser() -> Parser:
    """The parser of evaluation.py."""
    kinds = (EvaluationArguments, PublishedEvaluationArguments)
    return Parser(kinds, prog="evaluation.py", usage=_EVALUATION_USAGE, description=_EVALUATION_HELP)


def _implied_in_training(given: Mapping[str, Any]) -> dict[str, Any]:
    return _save_when_measured(given) | implied_method(given, notify)


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
        notify("a checkpoint at every evaluation; the best and the last are kept")
    return {name: value for name, value in implied.items() if name not in given}


def _parse(
    parser: Parser,
    argv: Sequence[str],
    kinds: Sequence[type],
    names: LegacyNames,
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
        from_file = _read_config(parser, Path(argv.pop(0)), names)
    given = from_file | _given(parser, translate(argv, notify, names))
    given = presets.drop_unused(_preset(parser, given), given, parser.metadata(), notify) | given
    values = given | dict(implied(given))
    return tuple(build_dataclass(kind, values) for kind in kinds), set(given)


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
    preset = presets.load_preset(given["preset"])
    for line in preset.describe().splitlines():
        notify(line)
    return _given_by_name(parser, preset.options, TRAINING_NAMES)


def _read_config(parser: Parser, path: Path, names: LegacyNames = TRAINING_NAMES) -> dict[str, Any]:
    content = _content(path)
    try:
        return _given_by_name(parser, content, names)
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


def _given_by_name(parser: Parser, options: Mapping[str, Any], names: LegacyNames) -> dict[str, Any]:
    """Through the same parser as the command line: same types, same choices, same complaints."""
    for name, value in options.items():
        action = parser._option_string_actions.get(f"--{name}")
        # A list of one is what run.yaml holds of --report_to.
        if isinstance(value, list) and len(value) > 1 and action is not None and action.nargs not in ("+", "*"):
            raise UserError(f"--{name} {value}: takes one value, and a list is given")
    words = [word for name, value in options.items() for word in _as_words(name, value)]
    return _given(parser, translate(words, notify, names))


def _as_words(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    return [f"--{name}", str(value)]


_TRAIN_USAGE = """
  train.py [options.yaml] --model_name_or_path ENCODER --train_file FILE --output_dir FOLDER [--option value ...]"""

_TRAIN_HELP = """Train sentence embeddings on a frozen encoder. A file of options (.json, .yaml) may stand first; the
command line overrides it. Besides the options of this program those of transformers.TrainingArguments are known."""

_TRAIN_DEBUG = "--debug without a value shows the traceback of an error; with one it is transformers' own option."

_EVALUATION_USAGE = """
  evaluation.py [options.yaml] --model_name_or_path FOLDER_OR_ID [--option value ...]"""

_EVALUATION_HELP = """Measure an encoder on STS, transfer and other tasks and print the papers' tables."""
