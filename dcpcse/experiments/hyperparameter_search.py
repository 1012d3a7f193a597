"""The papers' hyperparameter searches on STS-B dev. Each trial is a run of train.py.

search.json       the search, and the options of train.py that all trials have
try-DIGEST/       a trial: trial.json with its options and its score, log.txt, and the trained model
best.yaml         the best options so far

The search has a folder with these files, from which an interrupted search is resumed. Several processes or machines
can work on the same search: each trial has a lock, which is released when its process ends.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural, spell
from dcpcse.utils.files import write_atomic
from dcpcse.utils.job_folder import JobFolder, JobRecord
from dcpcse.utils.locks import LockedError
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
"""Options of train.py that every trial uses, unless the user gives other values."""


def learning_rates(best: Sequence[TrainingOptions]) -> list[TrainingOptions]:
    """Return the learning rates 0.01 to 0.09 in steps of 0.01 (D2CSE, appendix, first step)."""
    return [{"learning_rate": round(0.01 * i, 3)} for i in range(1, 10)]


def finer_learning_rates(best: Sequence[TrainingOptions]) -> list[TrainingOptions]:
    """Return learning rates in steps of 0.001, between the two best of `learning_rates`.

    Source: D2CSE, appendix, second step.
    """
    if "learning_rate" not in best[0]:
        raise UserError(
            "--stages 'learning rate, finer' refines the best results of 'learning rate'; run that stage first"
        )
    rates = sorted(round(1000 * options["learning_rate"]) for options in best[:2])
    return [{**best[0], "learning_rate": rate / 1000} for rate in range(rates[0], rates[-1] + 1)]


def vary_option(name: str, values: Sequence[Any]) -> Callable[[Sequence[TrainingOptions]], list[TrainingOptions]]:
    """Return a stage that tries several values of an option. The other options are the best options so far."""
    return lambda best: [{**best[0], name: value} for value in values]


def batch_and_rate_grid(best: Sequence[TrainingOptions]) -> list[TrainingOptions]:
    """Return all combinations of the batch sizes and learning rates to try (DCPCSE, appendix)."""
    return [
        {"per_device_train_batch_size": batch, "learning_rate": rate}
        for batch in (64, 128, 256, 512)
        for rate in (5e-3, 1e-2, 3e-2)
    ]


Stage = Callable[[Sequence[TrainingOptions]], list[TrainingOptions]]
"""A function of the options tried so far, best first, that returns the options to try next."""


@dataclass(frozen=True)
class Search:
    """The stages of a search by name, in their order.

    Args:
        fixed_with_pairs: Name of a stage that is left out if the training data are pairs or triplets of sentences →
            options of train.py that every trial then uses, unless the user gives other values.
    """

    stages: Mapping[str, Stage]
    fixed_with_pairs: Mapping[str, TrainingOptions] = field(default_factory=dict)

    def stages_for(self, columns: Sequence[str]) -> dict[str, Stage]:
        """Return the stages for training data with these columns."""
        left_out = self.fixed_with_pairs if len(columns) > 1 else {}
        return {name: stage for name, stage in self.stages.items() if name not in left_out}

    def defaults_for(self, columns: Sequence[str]) -> TrainingOptions:
        """Return the options of train.py that every trial uses, unless the user gives other values."""
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
class TrialRecord(JobRecord):
    """The record of a trial, which is one training. The entry `made_of` contains its options.

    Args:
        number: Position of the trial in the stage that tried it first.
        score: The best STS-B dev score; None until the trial is finished.
        failed: The error message if the training failed.
    """

    stage: str
    number: int = schema.count()
    score: int | float | None = schema.finite(default=None)
    failed: str | None = None

    def validate_options(self) -> None:
        """Raise ValueError unless `made_of` contains the options of the trial."""
        if not isinstance(self.made_of.get("options"), dict):
            raise ValueError("made_of has no options")


class Trials:
    """The trials, one training each, of a hyperparameter search in a folder.

    Args:
        folder: The folder.
        name: Name of the search, "dcpcse" or "d2cse".
        arguments: Options of train.py for all trials, as command-line arguments.
        shared: The options in `arguments`, by name.
        limit: Maximum number of trials to start.

    Raises:
        UserError: If the folder contains another search, or the same search with other options.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        arguments: Sequence[str],
        shared: TrainingOptions,
        limit: int | None = None,
    ) -> None:
        self.folder, self.arguments, self.shared, self.left = folder, list(arguments), dict(shared), limit
        made_of = {"search": name, "command": {"train": self.arguments}}
        job = JobFolder(folder, "search.json", made_of, spell("output_dir", folder), earlier="study.journal")
        if job.read() is None:
            job.write({})
        self._failed: set[Path] = set()

    def finish(self, stage: str, candidates: Sequence[TrainingOptions]) -> bool:
        """Run the candidates that have not been tried yet, and log the best one.

        Returns False if `limit` is reached before all candidates are tried. Raises UserError if all candidates fail.

        Args:
            stage: Name of the stage.
            candidates: The options to try, one dict per trial.
        """
        jobs = [self._job(options) for options in candidates]
        waiting = list(range(len(jobs)))
        while waiting:
            running = []
            for number in waiting:
                try:
                    if not self._finish_trial(jobs[number], stage, number):
                        return False
                except LockedError:
                    running.append(number)
            if running and len(running) == len(waiting):
                notify(f"waiting for {plural(len(running), 'trial')} of other processes")
                self._wait()
            waiting = running
        done = [trial for job in jobs if (trial := job.read()) and trial.get("score") is not None]
        if not done:
            raise UserError(f"all trials of the stage {stage!r} failed; see the logs in {self.folder}")
        best = max(done, key=lambda trial: trial["score"])
        notify(f"stage {stage}: the best options are {_options(best)} ({100 * best['score']:.2f})")
        return True

    def best_after(self, stages: Sequence[str]) -> list[TrainingOptions]:
        """Return the options of finished trials, best first, from the last given stage that has results.

        Without results, return [{}].
        """
        for stage in reversed(stages):
            done = [_options(trial) for trial in self._finished() if trial["stage"] == stage]
            if done:
                return done
        return [{}]

    def _job(self, options: TrainingOptions) -> JobFolder:
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()
        folder = self.folder / f"try-{digest[:8]}"
        return JobFolder(folder, "trial.json", {"options": options}, str(folder), kind=TrialRecord)

    def _finish_trial(self, job: JobFolder, stage: str, number: int) -> bool:
        """Run a trial unless it is finished, or has failed in this call. Return False if `limit` is reached.

        Raises LockedError if another process is running it.
        """
        with job.lock():
            record = job.read() or {"stage": stage, "number": number}
            if record.get("score") is not None or job.folder in self._failed:
                return True
            if self.left == 0:
                return False
            self.left = None if self.left is None else self.left - 1
            facts = {"stage": record["stage"], "number": record["number"]}
            job.write(facts)
            notify(f"{job.folder.name} starts with the options {job.made_of['options']}")
            try:
                score = self._train(job.folder, job.made_of["options"])
            except UserError as error:
                self._failed.add(job.folder)
                job.write({**facts, "failed": str(error)})
                notify(f"the trial {job.folder.name} failed: {error}")
                return True
            if score is None:
                raise UserError(
                    f"{job.folder} has no {SELECTION_METRIC}; set --eval_steps to at most the number of steps of a run"
                )
            job.write({**facts, "score": score})
            return True

    def _train(self, folder: Path, options: TrainingOptions) -> float | None:
        """Run train.py in a separate process, and return the best STS-B dev score; None if no score was logged."""
        from dcpcse.experiments.reproduction.run_unit import LOG, train_once  # this imports torch

        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        model = folder / "model"
        train_once([*self.arguments, *words, "--output_dir", str(model)], model, folder / LOG)
        history = (read_state(model) or {}).get("log_history") or []
        scores = [entry[SELECTION_METRIC] for entry in history if is_number(entry.get(SELECTION_METRIC))]
        return max(scores, default=None)

    def _wait(self) -> None:
        time.sleep(2)

    def _records(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the digest and the record of each trial, in the order in which they are tried."""
        paths = self.folder.glob("try-*/trial.json")
        trials = [(path.parent.name.removeprefix("try-"), schema.read(TrialRecord, path)) for path in paths]
        return sorted(trials, key=lambda item: (item[1]["number"], item[0]))

    def _finished(self) -> list[dict[str, Any]]:
        """Return the finished trials, best first."""
        return sorted((trial for _, trial in self._records() if trial.get("score") is not None), key=_rank)

    def table(self) -> str:
        """Return a table of all trials, best first."""
        trials = sorted(self._records(), key=lambda item: _rank(item[1]))
        names = list(dict.fromkeys(name for _, trial in trials for name in _options(trial)))
        rows = []
        for digest, trial in trials:
            unfinished = "fail" if trial.get("failed") else "running"
            score = unfinished if trial.get("score") is None else f"{100 * trial['score']:.2f}"
            rows.append([digest, trial["stage"], *(_options(trial).get(name, "") for name in names), score])
        return str(make_table(["trial", "stage", *names, "STS-B dev"], rows, "r"))

    def write_best(self) -> None:
        """Write the best options to a file that train.py can read. Without a finished trial, write nothing."""
        if done := self._finished():
            path = self.folder / "best.yaml"
            write_atomic(path, yaml.safe_dump({**self.shared, **_options(done[0])}, sort_keys=True))
            notify(f"best: {_options(done[0])} ({100 * done[0]['score']:.2f}); options in {path}")


def _rank(trial: Mapping[str, Any]) -> float:
    return math.inf if trial.get("score") is None else -trial["score"]


def _options(trial: Mapping[str, Any]) -> TrainingOptions:
    return dict(trial["made_of"]["options"])
