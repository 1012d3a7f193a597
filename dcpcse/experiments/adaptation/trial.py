"""A trial: one training with one setting, with dev scores during the training."""

import gc
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from senteval import DataError, Suite, settings_of_mode
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState

from dcpcse.experiments.adaptation.measures import Measure
from dcpcse.experiments.adaptation.parts import DEV, Parts
from dcpcse.experiments.adaptation.settings import MEASURING, Options
from dcpcse.training import atomic_save
from dcpcse.training.callbacks import write_environment
from dcpcse.training.options import resolve_options, training_option_parser
from dcpcse.training.resolve_arguments import resolve_arguments
from dcpcse.training.run import Inputs, build_trainer
from dcpcse.training.setup import write_run
from dcpcse.training.trainer import Trainer
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, first_line, spell
from dcpcse.utils.files import remove
from dcpcse.utils.run_files import RUN_FILE, checkpoints_in

PATIENCE = 2
"""Number of evaluations without a better dev score after which a training stops."""

FINISHED, STOPPED, PRUNED, CUT, FAILED = "finished", "stopped early", "pruned", "out of time", "failed"
"""How a trial can end."""


@dataclass
class Budget:
    """The time limit of an adaptation in seconds.

    Args:
        spent: Seconds that an earlier, interrupted call spent.
        reserved: Seconds reserved to measure and write the result.
    """

    seconds: float
    spent: float = 0.0
    reserved: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """The seconds spent so far in all calls."""
        return self.spent + time.monotonic() - self.started

    @property
    def left(self) -> float:
        """The seconds that are left for trials."""
        return self.seconds - self.reserved - self.elapsed


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that has ended: one training with one setting.

    Args:
        setting: The options of the setting.
        outcome: How the trial ended: "finished", "stopped early", "pruned", "out of time" or "failed".
        scores: Step → dev score × 100.
        steps: Number of training steps.
        seconds: Duration in seconds.
        reason: The reason if the trial failed.
    """

    setting: Options
    outcome: str
    scores: Mapping[int, float]
    steps: int
    seconds: float
    reason: str | None = None

    @property
    def step(self) -> int | None:
        """The step with the best dev score, or the first of several such steps; None if there is no score."""
        return max(self.scores, key=self.scores.__getitem__, default=None)

    @property
    def score(self) -> float | None:
        """The best dev score × 100."""
        return None if self.step is None else self.scores[self.step]


@dataclass
class Watch(TrainerCallback):
    """A callback that records the dev scores of a trial, and ends the trial if it is pruned or its time is over.

    A trial is pruned if its dev score is worse than the scores of other trials.

    Args:
        is_worse: A function of the step and the best dev score so far. It returns whether to prune the trial.
        on_step: A function that is called with the number of steps after each step.
    """

    budget: Budget
    is_worse: Callable[[int, float], bool]
    on_step: Callable[[int], None] | None = None
    scores: dict[int, float] = field(default_factory=dict)
    outcome: str | None = None
    _slowest: float = 0.0
    _since: float = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._since = time.monotonic()

    def on_step_end(
        self, args: transformers.TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Evaluate after the last step. If there is no time for another step, evaluate and stop the training."""
        self._slowest = max(self._slowest, time.monotonic() - self._since)
        if self.on_step is not None:
            self.on_step(state.global_step)
        if state.global_step == state.max_steps:
            control.should_evaluate = True  # the last evaluation may come after fewer steps than others
        elif self.budget.left < self._slowest:
            self.outcome = CUT
            control.should_evaluate = control.should_training_stop = True

    def on_evaluate(
        self,
        args: transformers.TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        **kwargs: Any,
    ) -> None:
        """Record the dev score, and stop the training if the trial is pruned."""
        step, score = state.global_step, metrics[f"eval_{DEV}"]
        self.scores[step] = score
        if self.is_worse(step, max(self.scores.values())) and self.outcome is None and step < state.max_steps:
            self.outcome = PRUNED
            control.should_training_stop = True


def as_suite(measure: Measure) -> Suite:
    """Return an evaluation suite whose only task is the measure."""
    return Suite({measure.part: measure}, settings_of_mode("dev", official=False), {})


def run_trial(setting: Options, shared: Options, parts: Parts, folder: Path, watch: Watch) -> FinishedTrial:
    """Train with a setting, and write the model with the best dev score to a new folder.

    Args:
        shared: Options of train.py that all trials share.

    Raises:
        UserError: If options, encoder and data do not fit together. If the training fails later, no error is raised,
            and the outcome of the trial is "failed".
    """
    started = time.monotonic()
    with quiet():
        trainer = _trainer({**shared, **setting, "output_dir": str(folder)}, parts, watch)
        reason = None
        try:
            trainer.train()
            if watch.scores:
                _write(trainer, folder)
        except (UserError, DataError) as error:
            reason, watch.scores = first_line(error), {}
        steps = trainer.state.global_step
        # A trainer and its callbacks refer to each other, but the next trainer needs the memory.
        del trainer
        gc.collect()
    for checkpoint in checkpoints_in(folder).values():
        atomic_save.delete_checkpoint(checkpoint)
    if not watch.scores:
        remove(folder)
    ended = FINISHED if steps >= shared["max_steps"] else STOPPED
    outcome = FAILED if reason else watch.outcome or ended
    return FinishedTrial(setting, outcome, dict(watch.scores), steps, time.monotonic() - started, reason)


def trainable(
    settings: Sequence[Options],
    shared: Options,
    overrides: Options,
    parts: Parts,
    folder: Path,
) -> list[Options]:
    """Return the settings with which the encoder can be trained.

    The check runs before any trial: for each combination of the options tuning and positive, it builds the trainer of
    the first setting, without training. The other options of a setting, such as the learning rate, do not affect
    whether the trainer can be built. A log message says why settings are left out.

    Raises UserError if no setting can be trained, because options, encoder and data do not fit together.

    Args:
        overrides: The options given by the user. If an error message names an option that the user did not give, it
            says that dcpcse adapt set the option.
        folder: A folder for temporary files.
    """
    kinds: dict[tuple[Any, Any], Options] = {}
    for setting in settings:
        kinds.setdefault(_kind(setting), setting)
    watch, errors = Watch(Budget(0.0), lambda step, score: False), {}
    for kind, setting in kinds.items():
        try:
            with quiet():
                trainer = _trainer({**shared, **setting, "output_dir": str(folder)}, parts, watch)
                del trainer  # the next trainer needs the memory
                gc.collect()
        except UserError as error:
            # A new error, since the traceback of this one would keep the trainer in memory.
            errors[kind] = UserError(first_line(error) + _chosen(error, {**shared, **setting}, overrides))
    if len(errors) == len(kinds):
        raise next(iter(errors.values()))
    for message in dict.fromkeys(map(first_line, errors.values())):
        notify(f"adapt does not try all settings: {message}")
    return [setting for setting in settings if _kind(setting) not in errors]


def _chosen(error: UserError, options: Options, overrides: Options) -> str:
    """Return a text in parentheses with the options in an error that adapt has chosen; empty without such options."""
    named = {*re.findall(r"--(\w+)|(\w+)=", str(error))}
    named = {one or other for one, other in named} | {getattr(error, "option", "")}
    chosen = ", ".join(
        spell(name, value) for name, value in options.items() if name in named and name not in overrides
    )
    return f" (dcpcse adapt itself sets {chosen})" if chosen else ""


def _kind(setting: Options) -> tuple[Any, Any]:
    return setting.get("tuning"), setting.get("positive")


def _trainer(options: Options, parts: Parts, watch: Watch) -> Trainer:
    (model, data, run), names = resolve_options(training_option_parser(), {**options, **MEASURING})
    resolve_arguments(run, None, names - MEASURING.keys())
    inputs = Inputs(callbacks=[watch, EarlyStoppingCallback(PATIENCE)], prints_log=False)
    data.train_file = parts.train.name
    return build_trainer(model, data, run, inputs, parts.train, as_suite(parts.dev))


def _write(trainer: Trainer, folder: Path) -> None:
    """Write the model, with the records that train.py writes."""
    trainer.save_result({})
    write_run(folder / RUN_FILE, trainer.run_options)
    write_environment(folder, step=0)


@contextmanager
def quiet() -> Iterator[None]:
    """Log only errors within the context, since each trial would repeat the same messages and warnings."""
    loggers = [logging.getLogger(name) for name in ("dcpcse", "transformers")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
