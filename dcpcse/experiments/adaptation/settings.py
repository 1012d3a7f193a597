"""The settings that an adaptation tries, and the options of train.py that all settings share."""

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any

from dcpcse.data.examples import make_examples
from dcpcse.data.sampling import distinct_rows
from dcpcse.data.training_data import TrainingData
from dcpcse.encoders.pooling import POOLERS
from dcpcse.experiments.adaptation.measures import DataKind
from dcpcse.methods.registry import option_fields
from dcpcse.methods.tunings import TUNINGS
from dcpcse.training.arguments import NO_DUPLICATES
from dcpcse.utils.console import notify
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import POOLERS_WITH_HEAD, Need, needs_of
from dcpcse.utils.packages import not_installed

Options = Mapping[str, Any]
"""Options of train.py by name."""

STEPS, STEPS_PER_EVALUATION = 60, 15

BATCH_SIZE = 32


def _prompts(learning_rate: float, length: int, temperature: float) -> Options:
    """Return a setting of deep prompts that do not shift the positions of the text."""
    fixed = {"tuning": "deep", "position_offset": 0, "prompt_dropout": 0.0}
    return {**fixed, "learning_rate": learning_rate, "pre_seq_len": length, "temp": temperature}


def _lora(learning_rate: float, temperature: float) -> Options:
    """Return a setting of a LoRA adapter of the default rank."""
    return {"tuning": "lora", "learning_rate": learning_rate, "temp": temperature}


SETTINGS = (
    _prompts(1e-2, 16, 0.1),
    _lora(1e-3, 0.1),
    _prompts(3e-2, 16, 0.2),
    _prompts(3e-3, 16, 0.2),
    _prompts(3e-2, 16, 0.05),
    _lora(3e-3, 0.05),
    _prompts(1e-2, 4, 0.2),
    _prompts(1e-2, 16, 0.05),
    _lora(3e-4, 0.2),
    _prompts(3e-2, 4, 0.1),
    _prompts(1e-2, 16, 0.2),
    _lora(1e-3, 0.05),
    _prompts(3e-2, 16, 0.1),
    _prompts(3e-3, 4, 0.1),
    _prompts(3e-3, 16, 0.05),
    _prompts(3e-3, 16, 0.1),
)
"""The settings in the order of trials. The first settings differ as much as possible."""

MEASURING: Options = {
    **{"eval_strategy": "steps", "save_strategy": "best", "save_only_model": True, "save_total_limit": 1},
    **{"load_best_model_at_end": True, "metric_for_best_model": "dev", "greater_is_better": True},
    **{"disable_tqdm": True, "report_to": "none"},
}
"""Options that measure every training; they are not recorded with its model."""

DECIDED = (
    *("model_name_or_path", "train_file", "output_dir", "preset", "seed", "data_seed", "init_from"),
    *("tokenizer_name", "config_name", "do_train", "do_eval", "num_train_epochs", "resume"),
    *("resume_from_checkpoint", "overwrite_output_dir", "eval_pairs", "eval_labels", "eval_columns", "eval_retrieval"),
    *("eval_tasks", "eval_transfer", "eval_data_dir", "eval_delay", "eval_on_start", "custom_eval_data"),
    *("save_steps", "logging_strategy"),
    *("push_to_hub", "hub_model_id", *MEASURING),
)
"""Options of train.py that only the adaptation may set."""


def require_free(overrides: Options) -> None:
    """Raise UserError if the user gave an option of train.py that only the adaptation may set."""
    if taken := next((name for name in overrides if name in DECIDED), None):
        raise OptionError(
            taken, reason="is an option of training that dcpcse adapt sets itself", remedy="leave it out"
        )
    pooler = overrides.get("pooler_type")
    if pooler in POOLERS_WITH_HEAD:
        allowed = ", ".join(name for name in POOLERS if name not in POOLERS_WITH_HEAD)
        raise UserError(
            f"{spell('pooler_type', pooler)} trains a new head, but adapt keeps the representation of the encoder; "
            f"choose from: {allowed}"
        )


def settings_of(kind: DataKind, overrides: Options) -> list[dict[str, Any]]:
    """Return the settings to try for a kind of data, in the order of trials. A setting is a dict of train.py options.

    Each setting uses a tuning, such as deep prompts or LoRA. A setting is left out if an option in `overrides` has no
    effect on its tuning, or if the Python package for its tuning is not installed.

    Args:
        overrides: Options of train.py given by the user. They have the same values in all settings.

    Raises:
        UserError: If no setting is left.
    """
    tunings = _tunings(overrides)
    fixed = {*overrides, *(() if kind.contrastive else ("temp",))} - {"tuning"}
    chosen = [setting for setting in SETTINGS if setting["tuning"] in tunings]
    whole = [{**base, **alternative} for base, alternative in zip(chosen, cycle(kind.alternatives), strict=False)]
    varied = [{name: value for name, value in setting.items() if name not in fixed} for setting in whole]
    return [setting for index, setting in enumerate(varied) if setting not in varied[:index]]


def _tunings(overrides: Options) -> list[str]:
    """Return the tunings to try: installed ones on which all given options have an effect."""
    known = list(dict.fromkeys(setting["tuning"] for setting in SETTINGS))
    if "tuning" in overrides:
        if overrides["tuning"] not in known:
            raise OptionError(
                "tuning",
                overrides["tuning"],
                f"dcpcse adapt tries {' and '.join(known)}",
                "leave it out, or use dcpcse train",
            )
        return [overrides["tuning"]]
    needs = {name: needs_of(one.metadata) for name, one in option_fields().items() if name in overrides}
    bound = {name: [need for need in conditions if need.voids == "tuning"] for name, conditions in needs.items()}
    taken = [one for one in known if all(_holds(need, one) for conditions in bound.values() for need in conditions)]
    if not taken:
        names = ", ".join(spell(name) for name, conditions in bound.items() if conditions)
        raise UserError(f"{names}: no tuning takes all of these options; leave out the options of one tuning")
    for tuning in taken:
        if not _is_installed(tuning):
            error = not_installed(spell("tuning", tuning), TUNINGS[tuning].package, TUNINGS[tuning].package)
            notify(f"adapt does not try all settings: {error}")
    return [tuning for tuning in taken if _is_installed(tuning)]


def _holds(need: Need, tuning: str) -> bool:
    return bool(need.holds(SimpleNamespace(tuning=tuning)))


def _is_installed(tuning: str) -> bool:
    package = TUNINGS[tuning].package
    return package is None or importlib.util.find_spec(package) is not None


def described(setting: Options, settings: Sequence[Options]) -> str:
    """Return, as one line of text, the options of a setting that do not have the same value in all settings."""
    varied = {
        name: value for name, value in setting.items() if any(other.get(name, value) != value for other in settings)
    }
    return ", ".join(f"{name} {value}" for name, value in (varied or setting).items())


def shared_options(kind: DataKind, train: TrainingData, representation: Options, overrides: Options) -> dict[str, Any]:
    """Return the options of train.py that all settings share.

    Args:
        train: The rows to train on.
        representation: The result of `representation_of` for the encoder.
        overrides: Options given by the user, which take precedence.

    Raises:
        UserError: If no two rows can be in one batch, because all rows share a text.
    """
    lengths = {"max_steps": STEPS, "eval_steps": STEPS_PER_EVALUATION, "logging_steps": STEPS_PER_EVALUATION}
    shared = {**kind.options, **representation, **lengths, **overrides, "do_train": True}
    return {"per_device_train_batch_size": _batch_size(train, shared), **shared}


def _batch_size(train: TrainingData, shared: Options) -> int:
    """Return the number of rows of a batch: at most `BATCH_SIZE`, and at most as many rows as can be in one batch."""
    _, examples = make_examples(train, shared["seed"], shared.get("positive", "dropout"))
    if shared.get("batch_sampler") != NO_DUPLICATES:
        return min(BATCH_SIZE, len(examples))
    rows = len(distinct_rows(examples, BATCH_SIZE))
    if rows < 2:
        raise UserError(f"{train.name}: all rows share a text, so that none has negatives; give rows with other texts")
    return rows
