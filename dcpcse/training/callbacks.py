"""Callbacks that write the records of a run, show its progress, and let a resumed run continue exactly.

The argument `trainer` is always a `dcpcse.training.trainer.Trainer`.
"""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm.auto import tqdm
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from dcpcse.data.tables import describe
from dcpcse.methods import Method
from dcpcse.training import checkpoints
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import open_append, write_atomic, write_json_atomic
from dcpcse.utils.private.trainer import DEFAULT_PROGRESS_CALLBACK
from dcpcse.utils.run_files import ENVIRONMENT, METRICS, count_without_gain, read_environment


def require_callbacks(callbacks: Any) -> None:
    """Raise UserError unless the value is a list of callbacks or of their classes."""
    if not isinstance(callbacks, list | tuple):
        raise UserError(f"callbacks is {describe(callbacks)}; give a list of transformers.TrainerCallback")
    for callback in callbacks:
        if not isinstance(callback, TrainerCallback) and not (
            isinstance(callback, type) and issubclass(callback, TrainerCallback)
        ):
            raise UserError(
                f"callbacks: {callback!r:.60} is not a transformers.TrainerCallback; derive its class from "
                "transformers.TrainerCallback"
            )


class AfterStep(TrainerCallback):
    """Calls the method `after_step` of each loss after each optimiser step, before evaluation and saving."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @torch.no_grad()
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        for loss_fn in self.method.losses:
            loss_fn.after_step(self.method.model)


class ResumeCallback(TrainerCallback):
    """Lets a resumed run continue exactly as if it had not been interrupted.

    It finds the best checkpoint so far, continues early stopping, sets the epoch of the training data, and saves the
    checkpoint at the end of an epoch only after the evaluation of the epoch.
    """

    def __init__(self, trainer: transformers.Trainer) -> None:
        self.trainer = trainer
        self.postponed = False

    def on_train_begin(
        self, args: transformers.TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any
    ) -> None:
        """Find the best checkpoint of a resumed run. Its recorded path may be wrong if the folder was moved."""
        resumed_from = self.trainer.resumed_from
        for callback in self.trainer.early_stopping:
            callback.early_stopping_patience_counter = 0 if resumed_from is None else count_without_gain(vars(state))
        if resumed_from is None:
            return
        if best := checkpoints.find_best(state.best_global_step, Path(args.output_dir), resumed_from):
            state.best_model_checkpoint = str(best)

    def on_epoch_begin(
        self, args: transformers.TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any
    ) -> None:
        """Set the epoch of the training data. A resumed run may start in the middle of an epoch."""
        self.trainer.epoch_is_over = False
        self.trainer.train_dataset.begin_epoch(int((state.epoch or 0) + 1e-6))

    def on_step_end(
        self, args: transformers.TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the last step of an epoch, postpone the checkpoint until the epoch has been evaluated."""
        self.postponed = control.should_save and float(state.epoch).is_integer()
        control.should_save = control.should_save and not self.postponed

    def on_epoch_end(
        self, args: transformers.TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.epoch_is_over = True
        control.should_save = control.should_save or self.postponed
        self.postponed = False


class MetricsFile(TrainerCallback):
    """Writes all log entries to `metrics.jsonl`. A resumed run removes the lines of the steps that it repeats."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Create `metrics.jsonl`. In a resumed run, it begins with the log entries before the checkpoint."""
        self.follow(state)

    def follow(self, state: TrainerState) -> None:
        """Rewrite `metrics.jsonl` with the log entries of a trainer's state, and without entries of later steps."""
        if state.is_world_process_zero:
            write_atomic(self.path, "".join(_line(entry["step"], entry) for entry in state.log_history))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append a log entry to `metrics.jsonl`. JSON has no infinity and no NaN, so null is written for them."""
        if not state.is_world_process_zero or not logs:
            return
        with open_append(self.path) as file:
            file.write(_line(state.global_step, logs))


def _line(step: int, logs: Mapping[str, float]) -> str:
    numbers = {name: value if math.isfinite(value) else None for name, value in logs.items() if name != "step"}
    return json.dumps({"step": step, **numbers}) + "\n"


def write_environment(folder: Path, step: int) -> None:
    """Add the versions and the hardware of this call of train.py to the record of all calls for a run.

    Args:
        folder: The output folder of the run.
        step: The step from which this call resumes, or 0. Earlier calls that started at or after this step are removed
            from the record.
    """
    before = [call for call in read_environment(folder) if step and call["from_step"] < step]
    write_json_atomic(folder / ENVIRONMENT, [*before, {"from_step": step, **system_info()}])


class LogLines(TrainerCallback):
    """Prints a line for each log entry of a run, except for the last entry, which reports the total time."""

    prints = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print a log entry, after removing `total_flos` from it, which is always 0."""
        logs = {} if logs is None else logs
        logs.pop("total_flos", None)
        if self.prints and state.is_world_process_zero and "train_runtime" not in logs:
            figures = "  ".join(f"{name} {value:.4g}" for name, value in logs.items())
            tqdm.write(f"step {state.global_step}: {figures}")
            sys.stdout.flush()  # a pipe or a file would get the lines at the end of the run


class ProgressBar(LogLines, ProgressCallback):
    """Shows the number of finished steps, in a notebook and on a terminal."""


def replace_progress(trainer: transformers.Trainer, *, prints_log: bool) -> None:
    """Replace the callbacks with which transformers shows progress. `--disable_tqdm True` turns progress bars off.

    Args:
        trainer: The trainer whose callbacks are replaced.
        prints_log: Whether log entries are printed.
    """
    callbacks, replaced = trainer.callback_handler.callbacks, (PrinterCallback, DEFAULT_PROGRESS_CALLBACK)
    for index, callback in enumerate(callbacks):
        if type(callback) in replaced:
            callbacks[index] = LogLines() if trainer.args.disable_tqdm else ProgressBar()
            callbacks[index].prints = prints_log


def close_bars(callbacks: list[TrainerCallback]) -> None:
    """Close the progress bars after an error or interruption. Otherwise, later bars would be drawn below them."""
    for callback in callbacks:
        if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
            callback.training_bar.close()
            callback.training_bar = None
