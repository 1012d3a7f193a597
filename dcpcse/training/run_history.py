"""Find training runs and read their options, progress and scores from their folders, without importing torch."""

import errno
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dcpcse.utils import run_files
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import RUN_FILE, is_number

Content = TypeVar("Content")

DEV_METRICS = ("pairs_spearman", "pairs_ap", "labels_accuracy", "stsb_spearman", "avg_sts", "sickr_spearman")
DEV_METRICS += ("avg_transfer",)
"""The dev scores of which the first available one is shown if a run does not select its best checkpoint by a dev
score."""

DEV_PREFIX = "eval_"
"""Prefix of dev metrics in a log."""

_CHECKPOINT_OR_TEMPORARY = re.compile(r"checkpoint-\d+|\.checkpoint-\d+\.\w+")


@dataclass(frozen=True)
class DevScore:
    """The last and the best logged value of a dev metric: Spearman correlations as fractions, accuracies in percent.

    Args:
        metric: Name of the metric.
        last: The last value.
        best: The best value.
        best_step: Number of finished steps when the best value was measured.
    """

    metric: str
    last: float
    best: float
    best_step: int


METRIC_TITLES = {
    "spearman": "Spearman x 100",
    "average_precision": "average precision x 100",
    "accuracy": "accuracy x 100",
    "mean": "nDCG@10 x 100",
}
"""Metric of user data, as in `gain.json` → its name in text."""


@dataclass(frozen=True)
class Gain:
    """The score × 100 of the trained model and of the untouched encoder on the user's evaluation data.

    Args:
        data: Name of the file or argument.
        metric: "spearman", "average_precision", "accuracy", or "mean" (of nDCG@10).
        size: Number of pairs, texts or queries.
        representation: How the untouched encoder represents a sentence.
        untouched: Score × 100 of the untouched encoder.
        trained: Score × 100 of the trained model.
        interval: The 95 % interval of the difference, over random draws of pairs, texts or queries, not over seeds;
            None if there are too few pairs, texts or queries.
        chose: Whether the best checkpoint was chosen on the same data. The score of the trained model is then too
            favourable.
    """

    data: str
    metric: str
    size: int
    representation: str
    untouched: float
    trained: float
    interval: tuple[float, float] | None
    chose: bool

    @property
    def difference(self) -> float:
        """The difference of the scores, trained model minus untouched encoder."""
        return self.trained - self.untouched

    def __str__(self) -> str:
        examples = {"accuracy": "texts", "mean": "queries"}.get(self.metric, "pairs")
        covers = f"there are too few {examples} for an interval"
        if self.interval is not None:
            low, high = self.interval
            covers = f"95 % interval {low:+.2f} to {high:+.2f}, which covers {examples}, not seeds"
        chose = f"; these {examples} also chose the checkpoint" if self.chose else ""
        return (
            f"{self.data} ({self.size:,} {examples}, {METRIC_TITLES[self.metric]}): untouched {self.untouched:.2f} "
            f"({self.representation}), trained {self.trained:.2f}, difference {self.difference:+.2f} ({covers}){chose}"
        )


@dataclass(frozen=True)
class Run:
    """What the files in the output folder of a run record. A damaged file counts as empty (see `problems`).

    Args:
        folder: The folder of the run.
        options: The options of run.yaml.
        metrics: Lines of metrics.jsonl. If this file does not exist, the log history in trainer_state.json.
        environment: The environment (versions, hardware) of each call of train.py.
        end: The content of trainer_state.json in the folder of the run; None until the run has finished once.
        checkpoint: The content of trainer_state.json in the newest checkpoint; None if there is no checkpoint.
        problems: A line about each damaged file.
        gains: The scores of the trained model and the untouched encoder, for each set of the user's evaluation data.
    """

    folder: Path
    options: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    environment: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any] | None
    checkpoint: Mapping[str, Any] | None
    problems: tuple[str, ...] = ()
    gains: tuple[Gain, ...] = ()

    @property
    def steps_done(self) -> int:
        """The number of finished optimiser steps: the largest number of steps in the records."""
        states = [state["global_step"] for state in (self.end, self.checkpoint) if state]
        return max([0, *states, *(line["step"] for line in self.metrics)])

    @property
    def steps_planned(self) -> int | None:
        """The number of optimiser steps of the complete run; None if no file records it."""
        asked = self.options.get("max_steps")
        if isinstance(asked, int) and asked > 0:
            return asked
        return next((state.get("max_steps") for state in (self.end, self.checkpoint) if self._is_of_plan(state)), None)

    def _is_of_plan(self, state: Mapping[str, Any] | None) -> bool:
        """Return whether a state has the number of epochs in run.yaml, which the user may increase after a run."""
        epochs = self.options.get("num_train_epochs")
        return bool(state) and (not is_number(epochs) or state.get("num_train_epochs") == math.ceil(epochs))

    @property
    def finished(self) -> bool:
        """Whether training reached its planned end, or stopped early, and its result was written."""
        if self.end is None:
            return False
        patience, planned = self.options.get("early_stopping_patience"), self.steps_planned
        stopped = is_number(patience) and run_files.count_without_gain(self.end) >= patience
        return stopped or (planned is not None and self.end["global_step"] >= planned)

    @cached_property
    def dev_scores(self) -> dict[str, DevScore]:
        """All dev metrics in the log, by name."""
        series: dict[str, list[tuple[int, float]]] = {}
        for line in self.metrics:
            for name, value in line.items():
                if name.startswith(DEV_PREFIX) and is_number(value):
                    series.setdefault(name.removeprefix(DEV_PREFIX), []).append((line["step"], value))
        return {name: self._dev_score(name, points) for name, points in series.items()}

    def _dev_score(self, name: str, points: Sequence[tuple[int, float]]) -> DevScore:
        pick = min if self.options.get("greater_is_better") is False else max
        step, best = pick(points, key=lambda point: point[1])
        return DevScore(name, points[-1][1], best, step)

    @property
    def dev_score(self) -> DevScore | None:
        """The most important dev metric; None if there is no dev metric.

        It is the metric that selects the best checkpoint, or else the first metric of a fixed order (`DEV_METRICS`),
        or else any dev metric.
        """
        chosen = str(self.options.get("metric_for_best_model", "")).removeprefix(DEV_PREFIX)
        order = (chosen, *DEV_METRICS, *self.dev_scores)
        return next((self.dev_scores[name] for name in order if name in self.dev_scores), None)

    @property
    def written(self) -> datetime:
        """The time at which the newest record of the run was written."""
        paths = [self.folder / name for name in (RUN_FILE, *run_files.RECORDS, run_files.STATE)]
        return datetime.fromtimestamp(max(path.stat().st_mtime for path in paths if path.is_file())).astimezone()

    @property
    def commit(self) -> str | None:
        """The commit of dcpcse in the last call of train.py for this run; None if it is not recorded."""
        return self.environment[-1].get("commit") if self.environment else None


def read_run(folder: Path) -> Run:
    """Read the files of a run. `problems` of the result names the files that cannot be read."""
    problems: list[str] = []

    def attempt(read: Callable[[Path], Content], path: Path, instead: Content) -> Content:
        try:
            return read(path)
        except UserError as error:
            problems.append(str(error))
            return instead

    end = attempt(run_files.read_state, folder, None)
    checkpoint = attempt(_newest_state, folder, None)
    gains = gains_of(attempt(run_files.read_gains, folder, []))
    return Run(
        folder,
        attempt(run_files.read_options, folder, {}),
        attempt(run_files.read_metrics, folder, []) or (end or checkpoint or {}).get("log_history") or [],
        attempt(run_files.read_environment, folder, []),
        end,
        checkpoint,
        tuple(problems),
        gains,
    )


def gains_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Gain, ...]:
    """Return the gains in the entries of `gain.json`. Entries without a score of a trained model are left out."""
    names = ("data", "metric", "representation", "untouched", "trained")
    return tuple(
        Gain(
            **{name: entry[name] for name in names},
            size=len(entry["outcomes"]),
            interval=None if entry.get("interval") is None else tuple(entry["interval"]),
            chose=entry.get("chose", False),
        )
        for entry in entries
        if entry.get("trained") is not None
    )


def _newest_state(folder: Path) -> Mapping[str, Any] | None:
    """Return the state of the newest checkpoint, even if a running training removes checkpoints meanwhile."""
    newest = run_files.last_checkpoint(folder)
    while newest:
        try:
            state = run_files.read_state(newest)
        except UserError:
            if newest.is_dir():
                raise
            state = None
        if newest.is_dir():
            return state
        newest = run_files.last_checkpoint(folder)
    return None


def require_run_folder(folder: Path) -> None:
    """Raise UserError if the folder contains no run."""
    if not (folder / RUN_FILE).is_file():
        what = f"contains no {RUN_FILE}" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {what}; give output folders of a training")


def require_run(folder: Path) -> Run:
    """Read the files of a run. Raises UserError if the folder contains no run, or if a file is damaged."""
    require_run_folder(folder)
    run = read_run(folder)
    if run.problems:
        raise UserError(run.problems[0])
    return run


def find_runs(roots: Sequence[Path], on_problem: Callable[[str], None]) -> list[Path]:
    """Return the folders of all runs in the given folders and their subfolders, each once. Checkpoints are not runs.

    Args:
        roots: The folders to search.
        on_problem: A function that is called with a message for each unreadable folder.

    Raises:
        UserError: If a root is not a folder.
    """
    runs: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root} is not a folder; give folders that contain runs of dcpcse train")
        for folder in _runs_below(root, on_problem):
            runs.setdefault(folder.resolve(), folder)
    return list(runs.values())


def _runs_below(root: Path, on_problem: Callable[[str], None]) -> Iterator[Path]:
    def tell(error: OSError) -> None:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(error.filename):
            return  # a running training has removed a listed folder
        on_problem(f"cannot read {error.filename}: {error.strerror}")

    for dirpath, folders, files in os.walk(root, onerror=tell):
        folders.sort()
        folder = Path(dirpath)
        of_a_run = is_checkpoint(folder) and (folder.absolute().parent / RUN_FILE).is_file()
        if RUN_FILE in files and not of_a_run:
            yield folder


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has the name of a checkpoint or of a temporary checkpoint."""
    return bool(_CHECKPOINT_OR_TEMPORARY.fullmatch(folder.absolute().name))


def find_scores(folder: Path, on_problem: Callable[[str], None]) -> dict[Path, dict[str, Any]]:
    """Return the contents of the files in the folder of a run that `evaluation.py --output_file` wrote, by path.

    Args:
        folder: The folder of the run.
        on_problem: A function that is called with a message for each damaged file.
    """
    reports = {}
    for path in sorted(folder.glob("*.json")):
        try:
            report = run_files.read_scores(path)
        except UserError as error:
            if getattr(error.__cause__, "errno", None) == errno.EFBIG:
                raise  # not a file of scores, which is known only after reading it
            if path.is_symlink() or path.exists():  # otherwise it was removed after it was listed
                on_problem(str(error))
            continue
        if report is not None:
            reports[path] = report
    return reports


def run_labels(folders: Sequence[Path]) -> list[str]:
    """Return a label for each folder: as many last parts of its path as are needed to make all labels different.

    Raises UserError if a folder is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise UserError("a run is given twice; give each run once")
    for count in range(1, max(len(path.parts) for path in paths)):
        names = [str(Path(*path.parts[-count:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
