"""The papers' hyperparameter searches on STS-B dev, as Optuna studies whose trials are runs of train.py.

A study is stored in a journal file. An interrupted search can therefore be resumed, and several processes or machines
can work on the same study.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_plain_file, write_atomic
from dcpcse.utils.packages import not_installed
from dcpcse.utils.run_files import is_number, read_state
from dcpcse.utils.tables import make_table

TrainingOptions = dict[str, Any]

SELECTION_METRIC = "eval_stsb_spearman"
TRIAL_DEFAULTS = {
    "eval_strategy": "steps",
    "eval_steps": "125",
    "metric_for_best_model": "stsb_spearman",
    "load_best_model_at_end": "True",
}
"""Options of train.py that every trial uses unless they are given."""


def learning_rates(best: Sequence[TrainingOptions]) -> list[TrainingOptions]:
    """Return 0.01 to 0.09 in steps of 0.01 (D2CSE, appendix, first step)."""
    return [{"learning_rate": round(0.01 * i, 3)} for i in range(1, 10)]


def finer_learning_rates(best: Sequence[TrainingOptions]) -> list[TrainingOptions]:
    """Return steps of 0.001 between the two best learning rates of the first step (D2CSE, appendix, second step)."""
    if "learning_rate" not in best[0]:
        raise UserError(
            "--stages 'learning rate, finer' refines the best results of 'learning rate'; run that stage first"
        )
    rates = sorted(round(1000 * options["learning_rate"]) for options in best[:2])
    return [{**best[0], "learning_rate": rate / 1000} for rate in range(rates[0], rates[-1] + 1)]


def vary_option(name: str, values: Sequence[Any]) -> Callable[[Sequence[TrainingOptions]], list[TrainingOptions]]:
    """Return a stage that tries several values of one option and keeps the best options so far otherwise."""
    return lambda best: [{**best[0], name: value} for value in values]


def batch_and_rate_grid(best: Sequence[TrainingOptions]) -> list[TrainingOptions]:
    """Return all combinations of the batch sizes and learning rates to try (DCPCSE, appendix)."""
    return [
        {"per_device_train_batch_size": batch, "learning_rate": rate}
        for batch in (64, 128, 256, 512)
        for rate in (5e-3, 1e-2, 3e-2)
    ]


Stage = Callable[[Sequence[TrainingOptions]], list[TrainingOptions]]
"""Given the options tried so far, best first, a stage returns the options to try next."""


@dataclass(frozen=True)
class Search:
    """The stages of a search by name, in their order.

    fixed_with_pairs: stages that are left out if the training data are pairs (or triplets) of sentences → the options
    of train.py that every trial then uses unless they are given.
    """

    stages: Mapping[str, Stage]
    fixed_with_pairs: Mapping[str, TrainingOptions] = field(default_factory=dict)

    def stages_for(self, columns: Sequence[str]) -> dict[str, Stage]:
        """Return the stages for training data with these columns."""
        left_out = self.fixed_with_pairs if len(columns) > 1 else {}
        return {name: stage for name, stage in self.stages.items() if name not in left_out}

    def defaults_for(self, columns: Sequence[str]) -> TrainingOptions:
        """Return the options of train.py that every trial uses unless they are given."""
        fixed = self.fixed_with_pairs.values() if len(columns) > 1 else ()
        return {**TRIAL_DEFAULTS, **{name: value for options in fixed for name, value in options.items()}}


SEARCHES: Mapping[str, Search] = {
    "dcpcse": Search({"batch and learning rate": batch_and_rate_grid}),
    "d2cse": Search(
        {
            "learning rate": learning_rates,
            "learning rate, finer": finer_learning_rates,
            "batch": vary_option("per_device_train_batch_size", range(128, 257, 16)),
            "lambda": vary_option("lambda_weight", (0.001, 0.005, 0.01, 0.05, 0.075)),
            "epochs": vary_option("num_train_epochs", (1, 2, 3)),
            "prompt length": vary_option("pre_seq_len", (10, 12, 14, 16, 18, 20)),
        },
        # "{1, 2, 3} for epochs under unsupervised setting" (appendix); 10 in the supervised columns of Table 7.
        fixed_with_pairs={"epochs": {"num_train_epochs": "10"}},
    ),
}


@strict
@dataclass(kw_only=True)
class _Study:
    """What is recorded with a study besides its trials."""

    given: list[str] | None = None


@strict
@dataclass(kw_only=True)
class _Trial(schema.Open):
    """What is recorded with a trial besides its score."""

    stage: str | None = None
    options: dict | None = None
    worker: list[str | int] | None = None

    def validate_worker(self) -> None:
        """Raise ValueError unless the worker is a host and a process."""
        if self.worker is not None and list(map(type, self.worker)) != [str, int]:
            raise ValueError(f"worker is {self.worker!r:.60}; expected a host and a process")


class Trials:
    """The trials of a search, in a folder that also contains the journal of the study."""

    def __init__(
        self,
        folder: Path,
        name: str,
        arguments: Sequence[str],
        shared: TrainingOptions,
        limit: int | None = None,
        reclaim: bool = False,
    ) -> None:
        """Open or create the study in `folder`.

        arguments: options of train.py for all trials, as command-line arguments. shared: the same options by name.
        limit: maximum number of trials to start. reclaim: restart the unfinished trials of other machines.
        Raises UserError if the folder contains another search or a search with other options.
        """
        optuna = import_optuna()
        self.folder = folder
        self.given = list(arguments)
        self.shared = dict(shared)
        self.left = limit
        self._waiting_for = ""
        self._states = optuna.trial.TrialState
        path = folder / "study.journal"
        require_plain_file(path)
        try:
            storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
            others = {*optuna.get_all_study_names(storage)} - {name}
        except (ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
            # Optuna replays the journal without checking it.
            raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); choose another folder") from error
        if others:
            raise UserError(f"{folder} contains the search {', '.join(sorted(others))}; choose another folder")
        self.study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
        with schema.explained(path):
            schema.check(_Study, self.study.user_attrs)
            for trial in self.study.get_trials(deepcopy=False):
                schema.check(_Trial, trial.user_attrs)
        owner = self.study.user_attrs.get("given")
        if owner is None:
            self.study.set_user_attr("given", self.given)
        elif owner != self.given:
            raise UserError(
                f"{folder} contains a search with other options ({' '.join(owner)}); use the same, or another folder"
            )
        self._release_dead_trials(reclaim)

    def finish(self, stage: str, candidates: Sequence[TrainingOptions]) -> None:
        """Run the candidates that have not been tried yet, and log the best one. Raises UserError if all fail."""
        for options in candidates:
            if not self._of([options], self._states.WAITING, self._states.RUNNING, self._states.COMPLETE):
                self.study.enqueue_trial({}, user_attrs={"stage": stage, "options": options})
        while waiting := self._of(candidates, self._states.WAITING, self._states.RUNNING):
            if any(trial.state == self._states.WAITING for trial in waiting):
                self._next()
            else:
                self._wait(waiting)
        done = self._of(candidates, self._states.COMPLETE)
        if not done:
            raise UserError(f"all trials of the stage {stage!r} failed; see the logs in {self.folder}")
        best = max(done, key=lambda trial: trial.value)
        notify(f"{stage}: best {self._options(best)} ({100 * best.value:.2f})")

    def best_after(self, stages: Sequence[str]) -> list[TrainingOptions]:
        """Return the options, best first, tried in the last of these stages that has results; [{}] if none has."""
        for stage in reversed(stages):
            done = [t for t in self._shown() if t.user_attrs.get("stage") == stage and t.value is not None]
            if done:
                return [self._options(trial) for trial in done]
        return [{}]

    def _wait(self, running: Sequence[Any]) -> None:
        """Wait for the last trials of a stage, which are running in other processes."""
        where = ", ".join(sorted({str(trial.user_attrs.get("worker", ["?"])[0]) for trial in running}))
        if where != self._waiting_for:
            notify(f"waiting for {len(running)} trials of other processes ({where}); --retake restarts them")
        self._waiting_for = where
        time.sleep(2)

    def _next(self) -> None:
        if self.left == 0:
            raise StopIteration
        trial = self.study.ask()
        options = trial.user_attrs.get("options")
        if options is None or self._begun_elsewhere(trial, options):
            # Another process has taken the last trial in the meantime, or has queued the same options.
            self.study.tell(trial, state=self._states.PRUNED)
            return
        self.left = None if self.left is None else self.left - 1
        trial.set_user_attr("worker", [platform.node(), os.getpid()])
        notify(f"trial {trial.number}: {options}")
        try:
            score = self._train(trial.number, options)
        except TrialFailedError as error:
            self.study.tell(trial, state=self._states.FAIL)
            notify(f"trial {trial.number} failed: {error}")
        except BaseException:
            self.study.tell(trial, state=self._states.FAIL)
            raise
        else:
            self.study.tell(trial, score)

    def _train(self, number: int, options: TrainingOptions) -> float:
        """Run train.py in a separate process and return the best STS-B dev score."""
        from dcpcse.experiments.reproduction.run_unit import run_command  # this imports torch

        folder = self.folder / f"try-{number:04d}"
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words = ["train", *self.given, *words, "--output_dir", str(folder), "--overwrite_output_dir"]
        try:
            run_command(words, folder.with_suffix(".log"))
        except UserError as error:
            raise TrialFailedError(str(error)) from error
        history = (read_state(folder) or {}).get("log_history") or []
        scores = [entry[SELECTION_METRIC] for entry in history if is_number(entry.get(SELECTION_METRIC))]
        if not scores:
            raise UserError(
                f"{folder} has no {SELECTION_METRIC}; set --eval_steps to at most the number of steps of a run"
            )
        return max(scores)

    def _release_dead_trials(self, reclaim: bool) -> None:
        """Mark unfinished trials as failed: all with `reclaim`, else those of this machine whose process has ended."""
        for trial in self.study.get_trials(deepcopy=False, states=(self._states.RUNNING,)):
            host, process = trial.user_attrs.get("worker", (None, 0))
            if reclaim or (host == platform.node() and not _is_alive(process)):
                self.study.tell(trial.number, state=self._states.FAIL)

    def _options(self, trial: Any) -> TrainingOptions:
        return dict(trial.user_attrs["options"])

    def _of(self, candidates: Sequence[TrainingOptions], *states: Any) -> list[Any]:
        """Return, for each of these options, one trial in one of these states, if there is one."""
        trials: dict[str, Any] = {}
        for trial in self.study.get_trials(deepcopy=False, states=states):
            options = trial.user_attrs.get("options")
            if options in candidates:
                trials.setdefault(json.dumps(options, sort_keys=True), trial)
        return list(trials.values())

    def _begun_elsewhere(self, trial: Any, options: TrainingOptions) -> bool:
        others = self._of([options], self._states.RUNNING, self._states.COMPLETE)
        return any(other.number < trial.number for other in others)

    def table(self) -> str:
        """Return a table of all trials, best first."""
        names = list(dict.fromkeys(name for trial in self._shown() for name in self._options(trial)))
        rows = []
        for trial in self._shown():
            score = f"{100 * trial.value:.2f}" if trial.value is not None else trial.state.name.lower()
            options = self._options(trial)
            stage = trial.user_attrs.get("stage", "")
            rows.append([trial.number, stage, *(options.get(name, "") for name in names), score])
        return str(make_table(["trial", "stage", *names, "STS-B dev"], rows, "r"))

    def _shown(self) -> list[Any]:
        trials = [t for t in self.study.get_trials(deepcopy=False) if t.state != self._states.PRUNED]
        return sorted(trials, key=lambda t: (t.value is None, -(t.value or 0), t.number))

    def write_best(self) -> None:
        """Write the best options to a file that train.py reads, if any trial has finished."""
        done = [trial for trial in self._shown() if trial.state == self._states.COMPLETE]
        if done:
            text = yaml.safe_dump({**self.shared, **self._options(done[0])}, sort_keys=True)
            write_atomic(self.folder / "best.yaml", text)
            notify(f"best: trial {done[0].number}, {100 * done[0].value:.2f}; options in {self.folder / 'best.yaml'}")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists, but belongs to another user
    return True


class TrialFailedError(Exception):
    """A run of train.py ended with an error."""


def import_optuna(what: str = "dcpcse reproduce search") -> Any:
    """Import and return the module optuna. Raises UserError if it is not installed. what: what requires it."""
    try:
        import optuna
    except ImportError as error:
        raise not_installed(what, "Optuna", "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
