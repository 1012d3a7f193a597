"""Fill in and check the options of train.py that depend on other options, the method, the encoder or the device."""

import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from dcpcse.encoders.encode_options import PROMPT_ROLES
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.encoders.storage.manifest import MODULES
from dcpcse.inference.st_folder import SentenceFolder, is_sentence_encoder
from dcpcse.methods import METHODS, fill_defaults
from dcpcse.methods.arguments import ModelArguments, PromptOptions
from dcpcse.methods.registry import Entry
from dcpcse.methods.tunings import Recipe
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.training.options import OWN_METRICS_OF_OPTION
from dcpcse.training.publish import PushTarget
from dcpcse.utils.console import notify, warn
from dcpcse.utils.devices import has_bfloat16_units
from dcpcse.utils.distributed import all_reduce_max
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import Need, needs_given, needs_value

HUB_OPTIONS = ("hub_model_id", "hub_private_repo", "hub_revision")
"""Options that describe the repository for `--push_to_hub`."""


SCORES_DEV = Need(
    lambda: f"{spell('eval_strategy', 'steps')} or {spell('do_eval', True)}", lambda run: wants_dev_scores(run)
)
DURING_TRAINING = Need(lambda: f"{spell('eval_strategy', 'steps')} or epoch", lambda run: run.eval_strategy != "no")
ADAM = Need(lambda: f"an {spell('optim')} with Adam", lambda run: "adam" in _word(run.optim))
NEEDS: Mapping[str, Need] = {
    **dict.fromkeys(("eval_data_dir", "custom_eval_data", "eval_tasks", "per_device_eval_batch_size"), SCORES_DEV),
    **dict.fromkeys(OWN_METRICS_OF_OPTION, SCORES_DEV),
    **dict.fromkeys(("metric_for_best_model", "load_best_model_at_end", "greater_is_better"), SCORES_DEV),
    "denoise_in_dev": SCORES_DEV,
    "eval_steps": needs_value("eval_strategy", "steps"),
    "eval_delay": DURING_TRAINING,
    "early_stopping_threshold": needs_given("early_stopping_patience"),
    "save_steps": needs_value("save_strategy", "steps"),
    "save_total_limit": Need(
        lambda: f"{spell('save_strategy', 'steps')} or epoch", lambda run: run.save_strategy != "no"
    ),
    "logging_steps": needs_value("logging_strategy", "steps"),
    "logging_dir": Need(lambda: spell("report_to", "tensorboard"), lambda run: "tensorboard" in run.report_to),
    "adam_bias_correction": needs_value("optim", "adamw_torch"),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon"), ADAM),
    "warmup_steps": Need(
        lambda: f"a schedule with a warm-up ({spell('lr_scheduler_type')})",
        lambda run: _word(run.lr_scheduler_type) != "constant",
    ),
    "gradient_checkpointing_kwargs": needs_value("gradient_checkpointing", True),
}
"""Option of a run → the condition on other options without which it has no effect.

Such an option causes a message and not an error, since old scripts contain some.
"""


def take_push_target(run: TrainingArguments, option_names: Collection[str]) -> PushTarget | None:
    """Return the repository to which the finished model folder is pushed, or None without `--push_to_hub`.

    The function also sets `run.push_to_hub` to False. Otherwise, transformers would push every checkpoint, with
    optimiser states and pickles.

    Args:
        run: Options of the run, which are changed.
        option_names: Names of the options that the user has set.
    """
    if not run.push_to_hub:
        if unread := [name for name in HUB_OPTIONS if name in option_names]:
            raise OptionError(
                unread[0],
                reason=f"has no effect without {spell('push_to_hub', True)}",
                remedy=f"add it, or leave {spell(unread[0])} out",
            )
        return None
    if not run.hub_model_id:
        raise OptionError(
            "push_to_hub", reason="needs a repository", remedy=f"add {spell('hub_model_id', 'ORGANISATION/NAME')}"
        )
    if not run.trains:
        raise OptionError(
            "push_to_hub",
            reason=f"needs {spell('do_train', True)}",
            remedy="dcpcse hub push FOLDER ORGANISATION/NAME pushes a folder",
        )
    run.push_to_hub = False
    return PushTarget(run.hub_model_id, run.hub_revision or "main", run.hub_private_repo or None)


def resolve_arguments(run: TrainingArguments, data: DataArguments | None, option_names: Collection[str]) -> None:
    """Fill in values that follow from other options, and raise UserError for invalid combinations.

    Args:
        run: Options of the run, which are changed.
        data: The options that name the evaluation data; None if these are Python objects.
        option_names: Names of the options that the user has set. They are stored in `run.given`.
    """
    run.given, run.is_resolved = frozenset(option_names), True
    # dcpcse.Trainer needs no do_train, as in transformers. run.do_eval is not used: eval_strategy also sets it.
    run.trains = data is None or run.do_train or not {"do_train", "do_eval"} & run.given
    if run.fp16 and not torch.cuda.is_available():
        warn(f"{spell('fp16', True)} has no effect without a GPU; training in float32")
        run.fp16 = False
    if run.visible_gpus > 1:
        warn(f"{run.visible_gpus} GPUs are visible, but this process uses only one; launch with torchrun to use all")
    if data and data.eval_transfer and not wants_dev_scores(run):
        raise OptionError(
            "eval_transfer",
            reason="has no effect without an evaluation",
            remedy=f"add {spell('eval_strategy', 'steps')} or {spell('do_eval', True)}",
        )
    if run.early_stopping_patience and run.eval_strategy == "no":
        raise OptionError(
            "early_stopping_patience",
            reason="needs evaluations during the training",
            remedy=f"add {spell('eval_strategy', 'steps')}, or your own evaluation data by {spell('eval_pairs')}",
        )
    if run.metric_for_best_model and data:
        run.greater_is_better = run.greater_is_better if "greater_is_better" in option_names else True
    _notify_of_unused(run, option_names)
    run.load_best_model_at_end &= run.eval_strategy != "no"
    if run.ddp_find_unused_parameters is None:
        run.ddp_find_unused_parameters = False
    if run.dataloader_pin_memory and not torch.cuda.is_available():
        _set_aside(run, "dataloader_pin_memory", "memory is pinned for GPUs, and there is none")
    if "accelerator_config" not in option_names:
        # The process need not wait for copies from pinned memory, and the next batch is collated in the meantime.
        run.accelerator_config.non_blocking = run.dataloader_pin_memory
    if run.remove_unused_columns:
        _set_aside(run, "remove_unused_columns", "all columns of the training data are read")
    if run.train_sampling_strategy != "random":
        raise UserError(
            f"{spell('train_sampling_strategy', run.train_sampling_strategy)} changes which sentences are each "
            "other's negatives; only random is supported"
        )
    if run.accelerator_config.split_batches or run.accelerator_config.dispatch_batches:
        raise UserError(
            f"{spell('accelerator_config')}: split_batches and dispatch_batches change which sentences are each "
            "other's negatives; leave them out"
        )
    _try_optimizer_and_schedule(run)
    if run.logging_dir:
        os.environ["TENSORBOARD_LOGGING_DIR"] = run.logging_dir


def _set_aside(run: TrainingArguments, name: str, reason: str) -> None:
    """Set an option to False if it is True, since it has no effect; log a message if the user gave the option."""
    setattr(run, name, False)
    if name in run.given:
        warn(f"{spell(name, True)} has no effect: {reason}")


def _notify_of_unused(run: TrainingArguments, option_names: Collection[str]) -> None:
    """Log a message for each given option that has no effect, except for flags with the value False."""
    for name, need in NEEDS.items():
        is_off = getattr(run, name, None) is False
        if name in option_names and not is_off and not need.holds(run):
            value = getattr(run, name, None)
            warn(f"{spell(name, True if value is True else None)} has no effect without {need}")


def _word(value: Any) -> str:
    """Return the value of an option, which transformers may have converted to an Enum member."""
    return str(getattr(value, "value", value))


def _try_optimizer_and_schedule(run: TrainingArguments) -> None:
    """Raise transformers' errors for a missing package or wrong options of a schedule before files are written."""
    transformers.Trainer.get_optimizer_cls_and_kwargs(run)
    # A learning rate that is not given is filled in later (`dcpcse.training.resolve_arguments.fill_recipe`).
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=run.learning_rate or 1.0)
    schedule = transformers.get_scheduler(
        run.lr_scheduler_type, optimizer, run.get_warmup_steps(100), 100, run.lr_scheduler_kwargs or {}
    )
    if not isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        with warnings.catch_warnings():  # torch warns that the optimiser has made no step yet
            warnings.simplefilter("ignore")
            schedule.step()


def wants_dev_scores(run: TrainingArguments) -> bool:
    """Return whether the run computes dev scores at any time."""
    return run.do_eval or run.eval_strategy != "no" or run.eval_on_start


WORKERS_ON_GPU = 2
"""Number of processes that collate the batches of a training on a GPU, for each process that trains."""

FAR = 10.001
"""Factor above which a learning rate is far from the default: ten, with a margin for rounding errors."""


def fill_recipe(run: TrainingArguments, recipe: Recipe, model: ModelArguments) -> None:
    """Set the learning rate and the batch size if they are not given; log the values if the run trains.

    Args:
        run: Options of the run, which are changed.
        recipe: The default learning rate and batch size of the method.
        model: Options of the model, which name the encoder.
    """
    depends = run.learning_rate is None and recipe.on_sentence_encoder is not None
    trained_before = depends and _is_sentence_encoder(model)
    rate = recipe.rate(sentence_encoder=trained_before)
    filled = _fill(run, {"learning_rate": rate, "per_device_train_batch_size": recipe.batch_size})
    if filled and run.trains:
        values = " and ".join(f"{spell(name)} {value:g}" for name, value in filled.items())
        kind = f" on an encoder that was {'' if trained_before else 'not '}trained for sentences" if depends else ""
        warn(f"{values}: filled in, as the default of {_words(model)}{kind}")


def _fill(run: TrainingArguments, values: Mapping[str, Any]) -> dict[str, Any]:
    """Set the options in `values` that the user has not given, and return the options that were set."""
    filled = {name: value for name, value in values.items() if getattr(run, name) is None}
    for name, value in filled.items():
        setattr(run, name, value)
    run.filled = {**run.filled, **filled}
    return filled


def _words(model: ModelArguments) -> str:
    tuning = f" with {spell('tuning', model.tuning)}" if model.tuning else ""
    return f"{spell('method', model.method)}{tuning}"


def warn_of_another_method(run: TrainingArguments, recipe: Recipe, model: ModelArguments) -> None:
    """Warn if the given options probably belong to another method than the method that is trained.

    This is probable if the learning rate is far from the method's default, or if the output folder has the name of
    another method. Commands of other public code do not name a method, so they would train the default method.

    Args:
        run: Options of the run.
        recipe: The default learning rate and batch size of the method.
        model: Options of the model with all values filled in.
    """
    problem, rate, usual = "", run.learning_rate, recipe.learning_rate
    if "learning_rate" not in run.filled and "preset" not in run.given:
        known = recipe.on_sentence_encoder is not None and _is_sentence_encoder(model)
        usual = recipe.rate(sentence_encoder=known)
        is_far = not usual / FAR <= rate <= usual * FAR
        how = "under a tenth of" if rate < usual else "more than ten times"
        problem = (
            f"{spell('learning_rate')} {rate:g} is {how} {usual:g}, the default of {_words(model)}" if is_far else ""
        )
    other = _other_method(run, model, "simcse" if problem and rate < usual else None)
    if other and not problem:
        problem = f"{spell('output_dir', Path(run.output_dir).name)} names another method than {model.method}"
    if problem:
        hint = (
            f"; no {spell('method')} is given: add {spell('method', other)} if that method is meant" if other else ""
        )
        warn(f"{problem}{hint}")


def _other_method(run: TrainingArguments, model: ModelArguments, likely: str | None) -> str | None:
    """Return the method in the name of the output folder, or else `likely`; None if a method was chosen.

    An option of prompts chooses the default method.
    """
    choosing = {"method", "preset", "tuning", *(field.name for field in fields(PromptOptions))}
    if model.method != ModelArguments.method or choosing & run.given:
        return None
    words = re.findall("[a-z0-9]+", Path(run.output_dir).name.lower())
    return None if model.method in words else next((word for word in words if word in METHODS), likely)


def fill_precision(run: TrainingArguments, model: ModelArguments) -> None:
    """Set `bf16` if no precision is given; log a message if `bf16` is True and the run trains.

    `bf16` is True if every process has a GPU with units for bfloat16. All processes must call this function.

    Args:
        run: Options of the run, which are changed.
        model: Options of the model. Its option `encoder_dtype` also counts as a given precision.
    """
    if run.bf16 is not None:
        return
    by_launcher = run.mixed_precision  # the precision of accelerate launch, unless --fp16 is given
    explicit = by_launcher != "no" or "fp16" in run.given or model.encoder_dtype != ModelArguments.encoder_dtype
    on = by_launcher == "bf16" or not (explicit or all_reduce_max(int(not has_bfloat16_units(run.device))))
    _fill(run, {"bf16": on})
    run.set_bf16(on)
    if on and not explicit and run.trains:
        warn(f"{spell('bf16', True)}: filled in, as the default on this GPU; {spell('bf16', False)} trains in float32")


def fill_workers(run: TrainingArguments) -> None:
    """Set the number of data loader processes if it is not given; log the number if it is above 0.

    The result of a training does not depend on this number.
    """
    number = WORKERS_ON_GPU if run.trains and run.device.type == "cuda" else 0
    if _fill(run, {"dataloader_num_workers": number}) and number:
        notify(f"{spell('dataloader_num_workers', number)}: filled in, as the default on a GPU")


def _is_sentence_encoder(model: ModelArguments) -> bool:
    try:
        return is_sentence_encoder(model.model_name_or_path, load_options(model))
    except UserError:  # an encoder that was built in memory, or that cannot be loaded, which is reported later
        return False


def load_options(model: ModelArguments) -> LoadOptions:
    """Return the options with which the encoder is loaded."""
    return LoadOptions.from_args(model.cache_dir, model.use_auth_token, model.model_revision)


def sentence_folder(model: ModelArguments, *, loaded: bool) -> SentenceFolder | None:
    """Return the settings (pooling, prompts) with which sentence-transformers uses an encoder; None if it has none.

    If dcpcse cannot reproduce the settings, a warning is logged and None is returned.

    Args:
        model: Options of the model, which name the encoder.
        loaded: Whether the encoder is already in memory. If so, its folder need not exist.

    Raises:
        UserError: If the encoder does not exist.
    """
    name, options = model.model_name_or_path, load_options(model)
    try:
        hub.require_known(name, options)
    except UserError:
        if loaded:
            return None
        raise
    try:
        folder = SentenceFolder.find(name, options)
        if folder is not None:
            folder.pooling  # noqa: B018, read here, so that its errors are raised here
        return folder
    except UserError as error:
        warn(f"the trained model does not keep the sentence representation of {name}: {error}")
        return None


def fill_representation(
    model: ModelArguments, columns: Sequence[str], entry: Entry, folder: SentenceFolder | None
) -> ModelArguments:
    """Return the options of the model, completed with the sentence-transformers settings of the encoder.

    The settings do not replace a pooler, a template or a head that an option or the method chooses.

    Args:
        model: Options of the model.
        columns: The columns of the training data.
        entry: The registered method, with its defaults.
        folder: The sentence-transformers settings of the encoder. None: the options are returned unchanged.
    """
    if folder is None:
        return model
    filled = fill_defaults(model, columns, entry)
    if filled.template is not None:
        return model
    values: dict[str, Any] = {"prompt": folder.texts.prefix or None}
    if not (model.pooler_type or model.mlp_only_train or model.org_mlp or model.batchnorm):
        values |= {"pooler_type": folder.pooling.pooling, "normalize": folder.pooling.normalize}
    if filled.tuning == "deep":
        values["position_offset"] = 0
    return replace(model, **{name: value for name, value in values.items() if getattr(model, name) is None})


def keep_prompts(model: SentenceEncoder, folder: SentenceFolder, options: ModelArguments) -> None:
    """Add the encoder's named prompts (texts before sentences) to the trained model, unless it has a template.

    A warning is logged if the training does not use the prompts.

    Args:
        model: The model that is trained.
        folder: The sentence-transformers settings of the encoder.
        options: Options of the model.
    """
    if model.templates:
        return
    model.prompts = folder.prompts | model.prompts
    if not options.prompts and any(model.prompt_text(role) != model.text_prefix for role in PROMPT_ROLES):
        warn(
            f"the encoder has the prompts {', '.join(model.prompts)}, which the training does not put before its "
            f"sentences: {spell('prompts')} sets the text before each column"
        )


def report_representation(model: SentenceEncoder, folder: SentenceFolder) -> None:
    """Log whether the trained model represents sentences as its encoder does, and warn about differences.

    Args:
        model: The model that is trained.
        folder: The sentence-transformers settings of the encoder.
    """
    name = f"{model.source.name_or_path} is a sentence encoder ({folder.pooling}, as {MODULES} says)"
    trained, original = model.pooler, POOLERS[folder.pooling.pooling]
    prompt = folder.texts.prefix
    differences = {
        f"the pooler {model.pooling}": (trained.layers, trained.reduce) != (original.layers, original.reduce),
        "a head": model.head_at_inference,
        "no dense layer": bool(folder.pooling.dense),
        f"vectors that are {'' if model.normalize else 'not '}scaled to unit length": (
            model.normalize != folder.pooling.normalize
        ),
        f"{f'the prompt {model.text_prefix!r}' if model.text_prefix else 'no prompt'} instead of {prompt!r}": (
            model.text_prefix != prompt
        ),
        f"texts that begin at position {model.encoder.position_offset}": model.encoder.position_offset != 0,
    }
    if changed := [difference for difference, differs in differences.items() if differs]:
        warn(f"{name}; the trained model represents sentences differently, with {', '.join(changed)}")
    else:
        before = f", with the text {prompt!r} before each sentence" if prompt else ""
        notify(f"{name}; the trained model keeps this representation{before}")
