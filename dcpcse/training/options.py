"""Resolve the options of a training run, given on a command line or in Python.

The value of an option comes from the first of these sources that has one: the given options, the preset, options that
other options imply, the defaults.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.encoders.templates import MASK, PROMPT, SENTENCE
from dcpcse.utils import presets
from dcpcse.utils.arguments import unknown_argument
from dcpcse.utils.command_parser import Parser, build_dataclass
from dcpcse.utils.console import notify, warn
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.files import require_encoder_path
from dcpcse.utils.option_fields import refuse_removed

if TYPE_CHECKING:
    from collections.abc import Collection

    from dcpcse.methods.arguments import ModelArguments
    from dcpcse.methods.registry import Builder, Method
    from dcpcse.training.arguments import DataArguments, TrainingArguments

    Options = tuple[ModelArguments, DataArguments, TrainingArguments]


OWN_METRICS_OF_OPTION: Mapping[str, tuple[str, ...]] = {
    "eval_pairs": ("pairs_spearman", "pairs_ap"),
    "eval_labels": ("labels_accuracy",),
    "eval_retrieval": ("retrieval_ndcg_at_10",),
}
"""Option of user data for evaluation → their possible metrics. The first given option chooses the best checkpoint."""


def training_option_parser(**settings: Any) -> Parser:
    """Return a parser of the options of train.py, including the options of all registered methods.

    Args:
        settings: As in `Parser`.
    """
    # Imported here because transformers' TrainingArguments imports torch and modelling code, which takes seconds.
    from dcpcse.methods import option_parts
    from dcpcse.methods.arguments import ModelArguments
    from dcpcse.training.arguments import UNSUPPORTED, DataArguments, TrainingArguments

    kinds = (ModelArguments, *option_parts(), DataArguments, TrainingArguments)
    return Parser(kinds, unsupported=UNSUPPORTED, **settings)


def resolve_options(
    parser: Parser, options: Mapping[str, Any], method: "Builder | Method | None" = None
) -> "tuple[Options, set[str]]":
    """Return the options as dataclasses, and the names of the options that the user or the preset sets.

    Args:
        parser: Result of `training_option_parser`.
        options: The options that the user has set, with values that already have the type of the option.
        method: The method if it is a Python object; None if an option names the method.
    """
    from dcpcse.methods.registry import find_method, require_own_options
    from dcpcse.training.arguments import DataArguments, TrainingArguments

    options = presets.drop_unused(_preset(parser, options), options, parser.metadata(), warn) | options
    values = options | _measure_own_data(options)
    values |= _save_at_evaluations(values) | _implied_method(options)
    if method is not None:
        values["method"] = find_method(method)[0]
    kinds = (require_own_options(method or values.get("method"), values), DataArguments, TrainingArguments)
    model, data, run = (build_dataclass(kind, values) for kind in kinds)
    return (model, data, run), set(options)


def require_valid(options: "Options", option_names: "Collection[str]", objects: "Collection[str]" = ()) -> None:
    """Raise UserError if a path is missing or cannot be used, or if options of the method contradict each other.

    This function imports no training code, which would take seconds, so mistakes are reported at once.

    Args:
        options: The result of `resolve_options`.
        option_names: Names of options that the user has set.
        objects: Names of inputs that are Python objects instead of options, such as `train_data` and `method`.
    """
    from dcpcse.data.readers import reader_of
    from dcpcse.methods import fill_defaults

    model, data, run = options
    if "output_dir" not in option_names:  # transformers would take ./trainer_output
        raise OptionError("output_dir", reason="is missing", remedy="give a folder for the trained model")
    if Path(run.output_dir).is_file():
        raise UserError(f"{spell('output_dir', run.output_dir)} is a file; give a folder")
    if model.model_name_or_path:
        require_encoder_path(model.model_name_or_path, "model_name_or_path")
    elif "method" not in objects:  # a built method has an encoder
        remedy = "give an encoder as a Hugging Face folder or hub id"
        raise OptionError("model_name_or_path", reason="is missing", remedy=remedy)
    if "train_data" not in objects:
        if not data.train_files:
            raise OptionError("train_file", reason="is missing", remedy="give a txt, csv, tsv, json or jsonl file")
        for file in data.train_files:
            reader_of(Path(file))  # raises UserError if the file does not exist or has an unknown format
    if not run.do_train and not run.do_eval and "do_train" in option_names:
        raise UserError(
            f"{spell('do_train', False)} leaves nothing to do without {spell('do_eval', True)}; leave out "
            f"{spell('do_train', False)}, or add {spell('do_eval', True)}"
        )
    if "method" not in objects:
        fill_defaults(model, None)


def python_options(
    function: str, parser: Parser, options: Mapping[str, Any], others: "Collection[str]" = ()
) -> dict[str, Any]:
    """Return the options with which a function of the Python interface was called, without options that are None.

    Args:
        function: Name of the function, for messages.
        parser: Result of `training_option_parser`.
        options: Keywords of the function.
        others: Names of the function's other parameters, for messages.

    Raises:
        UserError: If an option was removed or is not supported.
        TypeError: If an option does not exist.
    """
    from dcpcse.training.arguments import require_supported

    require_supported(options)
    known = [action.dest for action in parser._actions if action.nargs != 0 and action.dest != "help"]
    for name in options:
        if name not in known:
            refuse_removed([name])
            raise unknown_argument(function, name, [*others, *map(spell, set(known) - parser.unsupported.keys())])
        if isinstance(options[name], dict):
            json.dumps(options[name])  # raises TypeError for values that run.yaml cannot record
    return {name: value for name, value in options.items() if value is not None}


def _preset(parser: Parser, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the preset that `--preset` names, and report its source."""
    if not options.get("preset"):
        return {}
    preset = presets.load_preset(options["preset"])
    for line in preset.describe().splitlines():
        notify(line)
    return parser.given_by_name(preset.options)


def _measure_own_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user's evaluation data imply.

    Only the user's data are measured, at the start and after every epoch. `dcpcse.training.eval_datasets` replaces the
    metric later if the pairs have the scores 0 and 1.
    """
    data_options = [name for name in OWN_METRICS_OF_OPTION if options.get(name) is not None]
    if not data_options:
        return {}
    implied = {"eval_tasks": [], "metric_for_best_model": OWN_METRICS_OF_OPTION[data_options[0]][0]}
    if options.get("do_train") or not options.get("do_eval"):
        implied["eval_strategy"] = "steps" if "eval_steps" in options else "epoch"
        implied["eval_on_start"] = options.get("eval_strategy") != "no"
    implied = {name: value for name, value in implied.items() if name not in options}
    if "eval_strategy" in implied:
        when = f"at the steps of {spell('eval_steps')}" if "eval_steps" in options else "after every epoch"
        start = "before training and " if implied.get("eval_on_start", options.get("eval_on_start")) else ""
        names = " and ".join(map(spell, data_options))
        warn(f"the data of {names} are evaluated {start}{when}; {spell('eval_strategy')} changes this")
    return implied


def _save_at_evaluations(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options implied by `--load_best_model_at_end`: by default, save a checkpoint at every evaluation.

    With transformers' default save_steps=500, there might be no checkpoint for the best evaluation.
    `--early_stopping_patience` implies `--load_best_model_at_end`.
    """
    stops_early = "early_stopping_patience" in options and options.get("eval_strategy", "no") != "no"
    if not options.get("load_best_model_at_end", stops_early):
        return {}
    implied = {"metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True}
    if not {"save_steps", "save_strategy"} & set(options):
        implied |= {"save_strategy": options.get("eval_strategy", "no"), "save_total_limit": 2}
        if "eval_steps" in options:
            implied["save_steps"] = options["eval_steps"]
        if implied["save_strategy"] == "no":
            remedy = f"add {spell('eval_strategy', 'steps')}"
            warn(f"no checkpoint is saved, since nothing is evaluated during training; {remedy}")
        else:
            warn("a checkpoint is saved at every evaluation; the best and the last one are kept")
    return {name: value for name, value in implied.items() if name not in options}


def _conpvp(prompt_len: int) -> dict[str, Any]:
    """Return the settings of the public ConPVP code, whose templates have a full stop after [MASK]."""
    prompts = [PROMPT] * prompt_len
    return {
        "template": " ".join([SENTENCE, *prompts, MASK, "."]),
        **{"denoise_by": "attention", "prototype_templates": "code", "prompt_init": "uniform"},
    }


def _diffcse(value: Any) -> dict[str, Any]:
    """Return the settings of the public DiffCSE code. They do not depend on the value of the option."""
    return {
        **{"generation": "argmax", "generate_at": "all", "generator_train_mode": True, "crtd_reduction": "mean_all"},
        **{"lambda_weight": 0.1, "masking_ratio": 0.15, "batchnorm": False, "mlp_only_train": False},
    }


TELLING_OPTIONS: Mapping[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "prompt_len": ("conpvp", _conpvp),
    "generator_name": ("diffcse", _diffcse),
    "lambda_weight": ("diffcse", _diffcse),
}
"""Option that identifies a public code without a method option → the method, and a function of the option's value that
returns the settings of the code."""


def _implied_method(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method and settings of the public code that an option belongs to, unless a method is given.

    Args:
        options: The options of the command line, the options file and the preset together.
    """
    telling = next((name for name in TELLING_OPTIONS if options.get(name) is not None), None)
    if telling is None or "method" in options:
        return {}
    method, settings = TELLING_OPTIONS[telling]
    implied = {name: value for name, value in settings(options[telling]).items() if name not in options}
    implied = {"method": method, **implied}
    words = " ".join(f"{spell(name)} {value}" for name, value in implied.items())
    warn(f"{spell(telling)} is an option of the public {method} code: {words}")
    return implied
