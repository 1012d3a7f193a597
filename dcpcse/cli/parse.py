"""Parse the options of train.py and evaluation.py.

Options of the command line take precedence over an options file, an options file over a preset, and a preset over the
defaults.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.cli.legacy_options import EVALUATION_NAMES, TRAINING_NAMES, LegacyNames, translate
from dcpcse.evaluation.arguments import EvaluationArguments
from dcpcse.inference.arguments import PublishedEvaluationArguments
from dcpcse.utils.command_parser import DEBUG_HELP, Parser, build_dataclass, names_model
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import parse_json, parse_yaml, read_text

if TYPE_CHECKING:
    from dcpcse.methods.arguments import ModelArguments
    from dcpcse.training.arguments import DataArguments, TrainingArguments

MAIN_TRAINING_OPTIONS = {
    "model and method": (
        *("model_name_or_path", "preset", "method", "tuning", "pooler_type", "temp", "mlp_only_train", "template"),
        *("hard_negative_weight", "do_mlm", "init_from"),
    ),
    "prompts": ("pre_seq_len", "prompt_dropout", "position_offset"),
    "LoRA": ("lora_r",),
    "data": ("train_file", "max_seq_length", "cache_dir"),
    "training": (
        *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_cache_chunk", "learning_rate"),
        *("lr_scheduler_type", "warmup_steps", "fp16", "bf16", "use_cpu", "seed"),
    ),
    "evaluation while training": (
        *("eval_strategy", "eval_steps", "eval_pairs", "eval_labels", "eval_data_dir"),
        *("load_best_model_at_end", "metric_for_best_model", "early_stopping_patience"),
    ),
    "output": (
        *("output_dir", "overwrite_output_dir", "resume", "save_strategy", "save_steps", "logging_steps", "report_to"),
        *("push_to_hub",),
    ),
}
"""A dict from headings to the options that `train.py --help` shows under them."""

MAIN_EVALUATION_OPTIONS = {
    "encoder": ("model_name_or_path", "pooler_type", "template", "denoise", "base", "batch_size", "bf16", "device"),
    "tasks": (
        *("task_set", "tasks", "mode", "pairs", "labels", "metric", "retrieval", "mteb", "mteb_benchmark"),
        *("data_dir", "custom_data"),
    ),
    "scores": ("truncate_dim", "postprocess", "fit_on", "classifier"),
    "output": ("output_file", "similarities_file", "overwrite", "cache_dir"),
}
"""A dict from headings to the options that `evaluation.py --help` shows under them."""


def parse_training(argv: Sequence[str]) -> "tuple[tuple[ModelArguments, DataArguments, TrainingArguments], set[str]]":
    """Register the methods of plugins, and return the options of train.py and the names of the given options."""
    from dcpcse.methods.plugins import load_plugins
    from dcpcse.training.options import resolve_options

    argv = _named_model(argv)
    early = _early_options(argv)
    load_plugins(early.plugin)
    parser = training_parser(early.method)
    return resolve_options(parser, _given(parser, argv, TRAINING_NAMES))


def _early_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options `plugin` and `method`. They are parsed first, since they decide which other options exist."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--plugin", nargs="*")
    parser.add_argument("--method", nargs="?")
    early = parser.parse_known_args(argv)[0]
    if early.plugin is None and argv and not argv[0].startswith("-"):
        early.plugin = _content(_options_file(argv[0])).get("plugin")
    early.plugin = [early.plugin] if isinstance(early.plugin, str) else [str(name) for name in early.plugin or ()]
    return early


def parse_evaluation(argv: Sequence[str]) -> tuple[EvaluationArguments, PublishedEvaluationArguments]:
    """Return the options of evaluation.py."""
    parser = evaluation_parser()
    options = _given(parser, _named_model(argv), EVALUATION_NAMES)
    return tuple(build_dataclass(kind, options) for kind in parser.dataclass_types)


def _named_model(argv: Sequence[str]) -> list[str]:
    """Return the arguments, with --model_name_or_path inserted if the first argument is a model."""
    is_model = argv and not argv[0].startswith("-") and Path(argv[0]).suffix not in _READERS
    return ["--model_name_or_path", *argv] if is_model and not any(map(names_model, argv)) else list(argv)


def training_parser(method: str | None = None) -> Parser:
    """Return the parser of train.py.

    Args:
        method: The method whose options `--help` shows in addition. None: no method.
    """
    from dcpcse.methods import METHODS
    from dcpcse.training.options import training_option_parser

    method_options = {f"method {method}": sorted(METHODS[method].options)} if method in METHODS else {}
    parser = training_option_parser(
        prog=(program := _program("train", "train.py")),
        usage=f"{program} ENCODER --train_file FILE --output_dir FOLDER [--OPTION VALUE ...]",
        description="Train sentence embeddings on a frozen encoder. The first argument is the encoder "
        "(--model_name_or_path), or a file of options (.json, .yaml), which the command line overrides.",
        epilog="--help all shows all options, including the options of transformers.TrainingArguments, and "
        "--method NAME --help also the options of that method. "
        f"{DEBUG_HELP} With a value, --debug is the option of transformers.",
        main_options=MAIN_TRAINING_OPTIONS | method_options,
    )
    for action in parser._actions:
        if action.dest == "method":
            action.help = f"Training method: {', '.join(sorted(METHODS))}."
        if action.dest in TRAINING_NAMES.gone:
            action.help = argparse.SUPPRESS
    return parser


def evaluation_parser() -> Parser:
    """Return the parser of evaluation.py."""
    kinds = (EvaluationArguments, PublishedEvaluationArguments)
    return Parser(
        kinds,
        prog=(program := _program("evaluate", "evaluation.py")),
        usage=f"{program} MODEL [--OPTION VALUE ...]",
        description="Evaluate an encoder on STS, transfer and other tasks, and print the tables of the papers. The "
        "first argument is the encoder (--model_name_or_path), or a file of options (.json, .yaml), which the command "
        "line overrides.",
        epilog=f"--help all shows all options. {DEBUG_HELP}",
        main_options=MAIN_EVALUATION_OPTIONS,
    )


def _program(command: str, script: str) -> str:
    """Return how this program was started: as a script, or as a command of dcpcse."""
    return script if Path(sys.argv[0]).name == script else f"dcpcse {command}"


def _given(parser: Parser, argv: Sequence[str], names: LegacyNames) -> dict[str, Any]:
    """Return the options given on a command line, without defaults.

    Args:
        argv: The arguments. The first one may be a .json or .yaml file of options. The other arguments take precedence
            over this file.
        names: Old option names.
    """
    argv = list(argv)
    from_file: dict[str, Any] = {}
    if argv and not argv[0].startswith("-"):
        from_file = _read_config(parser, _options_file(argv.pop(0)), names)
    return from_file | parser.given(translate(argv, notify, names))


def _read_config(parser: Parser, path: Path, names: LegacyNames = TRAINING_NAMES) -> dict[str, Any]:
    content = _content(path)
    try:
        return parser.given_by_name(content, lambda words: translate(words, notify, names))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _options_file(word: str) -> Path:
    return Path(os.path.expanduser(word))


def _content(path: Path) -> dict[str, Any]:
    """Return a dict from option names to values, from an options file."""
    if path.suffix not in _READERS:
        raise UserError(
            f"{path} is not a file of options (.json, .yaml), and the model is already given by --model_name_or_path; "
            "omit one of them"
        )
    try:
        content = _READERS[path.suffix](read_text(path))
    except OSError as error:
        raise UserError(f"cannot read the options file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid {path.suffix[1:]}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must contain option names and values, such as temp: 0.05")
    return content


_READERS: Mapping[str, Callable[[str], Any]] = {
    ".json": functools.partial(parse_json, once=True),
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
}
