"""Check the options of train.py and fill in values that follow from them, before any file is read."""

import os
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch
import transformers
from accelerate.utils import DynamoBackend
from senteval import TRANSFER_TASKS
from transformers.integrations import get_available_reporting_integrations

from dcpcse.evaluation.evaluator import METRIC_NAMES
from dcpcse.training.arguments import DataArguments, TrainingArguments
from dcpcse.training.options import OWN_METRICS_OF_OPTION
from dcpcse.training.publish import PushTarget
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, invalid_choice
from dcpcse.utils.option_fields import Need
from dcpcse.utils.private.trainer import INTEGRATION_TO_CALLBACK

HUB_OPTIONS = ("hub_model_id", "hub_private_repo", "hub_revision")
"""Options that describe the repository for `--push_to_hub`."""


SCORES_DEV = Need("--eval_strategy steps or --do_eval", lambda run: wants_dev_scores(run))
DURING_TRAINING = Need("--eval_strategy steps or epoch", lambda run: run.eval_strategy != "no")
ADAM = Need("an --optim with Adam", lambda run: "adam" in _word(run.optim))
NEEDS: Mapping[str, Need] = {
    **dict.fromkeys(("eval_data_dir", "custom_eval_data", "eval_tasks", "per_device_eval_batch_size"), SCORES_DEV),
    **dict.fromkeys(OWN_METRICS_OF_OPTION, SCORES_DEV),
    **dict.fromkeys(("metric_for_best_model", "load_best_model_at_end", "greater_is_better"), SCORES_DEV),
    "denoise_in_dev": SCORES_DEV,
    "eval_steps": Need("--eval_strategy steps", lambda run: run.eval_strategy == "steps"),
    "eval_delay": DURING_TRAINING,
    "save_steps": Need("--save_strategy steps", lambda run: run.save_strategy == "steps"),
    "save_total_limit": Need("--save_strategy steps or epoch", lambda run: run.save_strategy != "no"),
    "logging_steps": Need("--logging_strategy steps", lambda run: run.logging_strategy == "steps"),
    "logging_dir": Need("--report_to tensorboard", lambda run: "tensorboard" in run.report_to),
    "adam_bias_correction": Need("--optim adamw_torch", lambda run: _word(run.optim) == "adamw_torch"),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_epsilon"), ADAM),
    "warmup_steps": Need(
        "a schedule with a warm-up (--lr_scheduler_type)", lambda run: _word(run.lr_scheduler_type) != "constant"
    ),
    "gradient_checkpointing_kwargs": Need("--gradient_checkpointing", lambda run: run.gradient_checkpointing),
}
"""Option of a run → the condition on other options without which it has no effect.

Such an option is reported and not rejected, since old scripts contain some.
"""


def take_push_target(run: TrainingArguments, given: Collection[str]) -> PushTarget | None:
    """Return the repository to which the finished folder is pushed, or None without `--push_to_hub`.

    Also sets `run.push_to_hub` to False, since transformers would push every checkpoint with optimiser states and
    pickles.
    """
    if not run.push_to_hub:
        if unread := [name for name in HUB_OPTIONS if name in given]:
            raise UserError(f"--{unread[0]} has no effect without --push_to_hub; add it, or leave --{unread[0]} out")
        return None
    if not run.hub_model_id:
        raise UserError("--push_to_hub needs a repository; add --hub_model_id ORGANISATION/NAME")
    if not run.trains:
        raise UserError("--push_to_hub needs --do_train; dcpcse hub push FOLDER ORGANISATION/NAME pushes a folder")
    run.push_to_hub = False
    return PushTarget(run.hub_model_id, run.hub_revision or "main", run.hub_private_repo or None)


def resolve_arguments(run: TrainingArguments, data: DataArguments | None, given: Collection[str]) -> None:
    """Fill in values that follow from other options, and raise UserError for invalid combinations.

    data: the options that name the evaluation data; None if these are Python objects. given: the names of the options
    that the user has set; they are kept as `run.given`.
    """
    run.given, run.is_resolved = frozenset(given), True
    # dcpcse.Trainer needs no do_train, as in transformers. run.do_eval is not used: eval_strategy also sets it.
    run.trains = data is None or run.do_train or not {"do_train", "do_eval"} & run.given
    if run.fp16 and not torch.cuda.is_available():
        warn("--fp16 has no effect without a GPU; training in float32")
        run.fp16 = False
    if run.visible_gpus > 1:
        warn(f"{run.visible_gpus} GPUs are visible, but one process uses one; launch with torchrun to use all")
    if data and data.eval_transfer and not wants_dev_scores(run):
        raise UserError("--eval_transfer has no effect without an evaluation; add --eval_strategy steps or --do_eval")
    if run.metric_for_best_model and data:
        _require_metric(run.metric_for_best_model, data)
        run.greater_is_better = run.greater_is_better if "greater_is_better" in given else True
    _notify_of_unused(run, given)
    if run.ddp_find_unused_parameters is None:
        run.ddp_find_unused_parameters = False
    if run.dataloader_pin_memory and not torch.cuda.is_available():
        _set_aside(run, "dataloader_pin_memory", "memory is pinned for GPUs, and there is none")
    if "accelerator_config" not in given:
        # Copies from pinned memory need not be waited for: the next batch is collated in the meantime.
        run.accelerator_config.non_blocking = run.dataloader_pin_memory
    if run.remove_unused_columns:
        _set_aside(run, "remove_unused_columns", "all columns of the training data are read")
    if run.train_sampling_strategy != "random":
        raise UserError(
            f"--train_sampling_strategy {run.train_sampling_strategy} changes which sentences are each other's "
            "negatives; only random is supported"
        )
    if run.accelerator_config.split_batches or run.accelerator_config.dispatch_batches:
        raise UserError(
            "--accelerator_config: split_batches and dispatch_batches change which sentences are each other's "
            "negatives; leave them out"
        )
    _require_installed(run)
    if run.logging_dir:
        os.environ["TENSORBOARD_LOGGING_DIR"] = run.logging_dir


def _set_aside(run: TrainingArguments, name: str, reason: str) -> None:
    """Set an option that is True and cannot have an effect to False, and say so if it was given."""
    setattr(run, name, False)
    if name in run.given:
        warn(f"--{name} True has no effect: {reason}")


def _notify_of_unused(run: TrainingArguments, given: Collection[str]) -> None:
    """Report each given option that has no effect. A flag that is off asks for none."""
    for name, need in NEEDS.items():
        is_off = getattr(run, name, None) is False
        if name in given and not is_off and not need.holds(run):
            warn(f"--{name} has no effect without {need.words}")


def _word(value: Any) -> str:
    """Return the value of an option that transformers may have made an enumeration."""
    return str(getattr(value, "value", value))


def _require_installed(run: TrainingArguments) -> None:
    """Raise UserError if a reporter, the optimiser, the schedule or a compile option is unknown or not installed."""
    if unknown := sorted(set(run.report_to) - set(INTEGRATION_TO_CALLBACK)):
        raise invalid_choice("--report_to", unknown[0], [*sorted(INTEGRATION_TO_CALLBACK), "none"])
    if missing := sorted(set(run.report_to) - set(get_available_reporting_integrations())):
        names = " ".join(missing)
        raise UserError(f"--report_to {names} is not installed; pip install {names}, or give --report_to none")
    try:
        transformers.Trainer.get_optimizer_cls_and_kwargs(run)
    except (ImportError, ValueError, RuntimeError) as error:
        name = getattr(run.optim, "value", run.optim)
        raise UserError(f"--optim {name}: {' '.join(str(error).split())}") from error
    _require_schedule(run)
    backends = sorted(backend.value.lower() for backend in DynamoBackend)
    if run.torch_compile_backend and run.torch_compile_backend.lower() not in backends:
        raise invalid_choice("--torch_compile_backend", run.torch_compile_backend, backends)
    if run.torch_compile_mode:
        try:
            torch.compile(lambda tensor: tensor, mode=run.torch_compile_mode)
        except RuntimeError as error:
            raise UserError(
                f"--torch_compile_mode {run.torch_compile_mode}: {' '.join(str(error).split())}"
            ) from error


def _require_schedule(run: TrainingArguments) -> None:
    """Raise UserError if the learning rate schedule cannot be created or advanced with these options."""
    name = getattr(run.lr_scheduler_type, "value", run.lr_scheduler_type)
    # A learning rate that is not given is filled in later (`dcpcse.training.setup.fill_recipe`).
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=run.learning_rate or 1.0)
    try:
        schedule = transformers.get_scheduler(
            run.lr_scheduler_type, optimizer, run.get_warmup_steps(100), 100, run.lr_scheduler_kwargs or {}
        )
        if not isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            with warnings.catch_warnings():  # torch warns that the optimiser has made no step yet
                warnings.simplefilter("ignore")
                schedule.step()
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"--lr_scheduler_type {name}: {problem}; change --lr_scheduler_kwargs") from error


def _require_metric(name: str, data: DataArguments) -> None:
    """Raise UserError if the metric of the best checkpoint is not measured."""
    own = [metrics for option, metrics in OWN_METRICS_OF_OPTION.items() if getattr(data, option) is not None]
    known = [metric for metrics in own for metric in metrics]
    sts = {METRIC_NAMES[task]: task for task in data.eval_tasks if task in METRIC_NAMES}
    known += [*sts, *(["avg_sts"] if len(sts) == len(METRIC_NAMES) else [])]
    known += [*TRANSFER_TASKS, "avg_transfer"] if data.eval_transfer else []
    name = name.removeprefix("eval_")
    if name in known:
        return
    if tasks := [task for task, metric in METRIC_NAMES.items() if name in (metric, "avg_sts")]:
        raise UserError(
            f"--metric_for_best_model {name} is not measured; add --eval_tasks {' '.join(tasks)}, or choose from: "
            f"{', '.join(known)}"
        )
    raise invalid_choice("--metric_for_best_model", name, known)


def wants_dev_scores(run: TrainingArguments) -> bool:
    """Return whether the run computes dev scores at any time."""
    return run.do_eval or run.eval_strategy != "no" or run.eval_on_start
