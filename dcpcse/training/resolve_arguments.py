"""Check the options of train.py and fill in values that follow from them, before any file is read."""

import os
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch
import transformers
from senteval import TRANSFER_TASKS

from dcpcse.evaluation.evaluator import METRIC_NAMES
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.training.options import OWN_METRICS_OF_OPTION
from dcpcse.training.publish import PushTarget
from dcpcse.utils.console import warn
from dcpcse.utils.errors import OptionError, UserError, invalid_choice, spell
from dcpcse.utils.option_fields import Need, needs_value

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

Such an option is reported and not rejected, since old scripts contain some.
"""


def take_push_target(run: TrainingArguments, option_names: Collection[str]) -> PushTarget | None:
    """Return the repository to which the finished folder is pushed, or None without `--push_to_hub`.

    Also sets `run.push_to_hub` to False, since transformers would push every checkpoint with optimiser states and
    pickles.

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
        option_names: Names of the options that the user has set; they are kept as `run.given`.
    """
    run.given, run.is_resolved = frozenset(option_names), True
    # dcpcse.Trainer needs no do_train, as in transformers. run.do_eval is not used: eval_strategy also sets it.
    run.trains = data is None or run.do_train or not {"do_train", "do_eval"} & run.given
    if run.fp16 and not torch.cuda.is_available():
        warn(f"{spell('fp16', True)} has no effect without a GPU; training in float32")
        run.fp16 = False
    if run.visible_gpus > 1:
        warn(f"{run.visible_gpus} GPUs are visible, but one process uses one; launch with torchrun to use all")
    if data and data.eval_transfer and not wants_dev_scores(run):
        raise OptionError(
            "eval_transfer",
            reason="has no effect without an evaluation",
            remedy=f"add {spell('eval_strategy', 'steps')} or {spell('do_eval', True)}",
        )
    if run.metric_for_best_model and data:
        _require_metric(run.metric_for_best_model, data)
        run.greater_is_better = run.greater_is_better if "greater_is_better" in option_names else True
    _notify_of_unused(run, option_names)
    if run.ddp_find_unused_parameters is None:
        run.ddp_find_unused_parameters = False
    if run.dataloader_pin_memory and not torch.cuda.is_available():
        _set_aside(run, "dataloader_pin_memory", "memory is pinned for GPUs, and there is none")
    if "accelerator_config" not in option_names:
        # Copies from pinned memory need not be waited for: the next batch is collated in the meantime.
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
    """Set an option that is True and cannot have an effect to False, and say so if it was given."""
    setattr(run, name, False)
    if name in run.given:
        warn(f"{spell(name, True)} has no effect: {reason}")


def _notify_of_unused(run: TrainingArguments, option_names: Collection[str]) -> None:
    """Report each given option that has no effect. A flag that is off asks for none."""
    for name, need in NEEDS.items():
        is_off = getattr(run, name, None) is False
        if name in option_names and not is_off and not need.holds(run):
            value = getattr(run, name, None)
            warn(f"{spell(name, True if value is True else None)} has no effect without {need}")


def _word(value: Any) -> str:
    """Return the value of an option that transformers may have made an enumeration."""
    return str(getattr(value, "value", value))


def _try_optimizer_and_schedule(run: TrainingArguments) -> None:
    """Raise the errors of transformers before anything is written: for a missing package, or options of a schedule."""
    transformers.Trainer.get_optimizer_cls_and_kwargs(run)
    # A learning rate that is not given is filled in later (`dcpcse.training.fitting_options.fill_recipe`).
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=run.learning_rate or 1.0)
    schedule = transformers.get_scheduler(
        run.lr_scheduler_type, optimizer, run.get_warmup_steps(100), 100, run.lr_scheduler_kwargs or {}
    )
    if not isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        with warnings.catch_warnings():  # torch warns that the optimiser has made no step yet
            warnings.simplefilter("ignore")
            schedule.step()


def _require_metric(name: str, data: DataArguments) -> None:
    """Raise UserError if the metric of the best checkpoint is not measured."""
    own_metrics = [metrics for option, metrics in OWN_METRICS_OF_OPTION.items() if getattr(data, option) is not None]
    known = [metric for metrics in own_metrics for metric in metrics]
    sts = {METRIC_NAMES[task]: task for task in data.eval_tasks if task in METRIC_NAMES}
    known += [*sts, *(["avg_sts"] if len(sts) == len(METRIC_NAMES) else [])]
    known += [*TRANSFER_TASKS, "avg_transfer"] if data.eval_transfer else []
    name = name.removeprefix("eval_")
    if name in known:
        return
    if tasks := [task for task, metric in METRIC_NAMES.items() if name in (metric, "avg_sts")]:
        raise UserError(
            f"{spell('metric_for_best_model', name)} is not measured; add {spell('eval_tasks', tasks)}, or "
            f"choose from: {', '.join(known)}"
        )
    raise invalid_choice("metric_for_best_model", name, known)


def wants_dev_scores(run: TrainingArguments) -> bool:
    """Return whether the run computes dev scores at any time."""
    return run.do_eval or run.eval_strategy != "no" or run.eval_on_start
