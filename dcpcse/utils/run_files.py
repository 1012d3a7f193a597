"""Read the records in the folder of a run without torch, even while a training writes to the folder."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema
from dcpcse.utils.console import notify
from dcpcse.utils.errors import OptionError, UserError
from dcpcse.utils.locks import is_locked
from dcpcse.utils.parsing import parse_json, parse_yaml, read_text

RUN_FILE = "run.yaml"
"""The file with the options of a run, in its folder and in each of its checkpoints."""

METRICS = "metrics.jsonl"
"""The file of logged values, one line per log entry: step, epoch, and the values."""

ENVIRONMENT = "environment.json"
"""The file with versions, hardware and commit, one entry per call of train.py that trained the run."""

STATE = "trainer_state.json"
"""The file with the state of transformers' Trainer, in the folder of a finished run and in each checkpoint."""

GAIN = "gain.json"
"""The file with the scores of the untouched encoder and of the trained model on the user's evaluation data."""

RECORDS = (METRICS, ENVIRONMENT, GAIN)

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def is_checkpoint_name(name: str) -> bool:
    """Return whether a folder name is the name of a checkpoint, such as `checkpoint-100`."""
    return bool(_CHECKPOINT.fullmatch(name))


@strict
@dataclass(kw_only=True)
class RunOptions(schema.Open):
    """The content of `run.yaml`, the file with the options of a training.

    The values can have any type, since the file may be edited and older versions of dcpcse had other options.
    """

    nan = True  # --max_grad_norm inf, for instance


@strict
@dataclass(kw_only=True)
class MetricsLine(schema.Open):
    """A line of `metrics.jsonl`, the log of a training. All keys without a field are logged values.

    A value that is not finite is null.
    """

    other_keys = int | float | None
    step: int = schema.count()


@strict
@dataclass(kw_only=True)
class EnvironmentCall(schema.Open):
    """An entry of `environment.json`: the versions, hardware and commit with which a call of train.py ran."""

    from_step: int = schema.count()
    versions: dict = field(default_factory=dict)
    hardware: dict = field(default_factory=dict)
    commit: str | None = None


@strict
@dataclass(kw_only=True)
class GainEntry(schema.Open):
    """An entry of `gain.json`: scores before and after the training on one set of the user's evaluation data.

    The untouched encoder is the encoder before the training. Scores, difference and interval are × 100.

    Args:
        data: Name of the file or argument.
        sha256: Digest of the content.
        metric: The name of the score, such as "spearman" (a key of `significance.STATISTICS`).
        representation: How the untouched encoder represents a sentence.
        untouched: Score of the untouched encoder.
        outcomes: The outcome of the untouched encoder on each example: the cosine of a pair, 1 or 0 for a correct or
            wrong label, or nDCG@10 of a query.
        trained: Score of the trained model; None until the training has ended.
        interval: Interval of the difference; None until the training has ended, or if there are too few examples.
        chose: Whether the best checkpoint was chosen on the same data.
    """

    data: str
    sha256: str = schema.sha256()
    metric: str = schema.one_of(("spearman", "average_precision", "accuracy", "mean"))
    representation: str
    untouched: int | float = schema.finite()
    outcomes: list[int | float] = schema.finite()
    trained: int | float | None = schema.finite(default=None)
    interval: list[int | float] | None = schema.finite(default=None)
    chose: bool = False

    def validate_interval(self) -> None:
        """Raise ValueError unless the interval has two ends."""
        if self.interval is not None and len(self.interval) != 2:
            raise ValueError(f"interval is {self.interval!r:.60}; expected two numbers")


@strict
@dataclass(kw_only=True)
class _LogEntry(schema.Open):
    other_keys = int | float | None
    step: int = schema.count()


@strict
@dataclass(kw_only=True)
class TrainerRecord(schema.Foreign):
    """The content of `trainer_state.json`, with the types that transformers' TrainerState requires."""

    global_step: int = schema.count()
    max_steps: int | None = None
    num_train_epochs: int | float | None = None
    log_history: list[_LogEntry] | None = None
    best_global_step: int | None = schema.count(default=None)
    best_metric: int | float | None = None
    best_model_checkpoint: str | None = None
    epoch: int | float | None = None
    logging_steps: int | float | None = None
    eval_steps: int | float | None = None
    save_steps: int | float | None = None
    train_batch_size: int | None = None
    num_input_tokens_seen: int | None = None
    total_flos: int | float | None = None
    stateful_callbacks: dict[str, dict | list] | None = None


@strict
@dataclass(kw_only=True)
class TaskScores(schema.Open):
    """A task in a file of scores, with the keys that plots and tables use. Different tasks have different results."""

    family: str | None = None
    task: str | None = None
    split: str | None = None
    metric: str | None = None
    sentences: int | None = schema.count(default=None)
    shots: int | None = schema.count(default=None)
    draws: list[int | float] | None = schema.finite(default=None)
    spearman: int | float | None = schema.finite(default=None)
    alignment: int | float | None = schema.finite(default=None)
    uniformity: int | float | None = schema.finite(default=None)
    anisotropy: int | float | None = schema.finite(default=None)
    token_anisotropy: int | float | None = schema.finite(default=None)
    recall: dict[str, int | float] | None = schema.finite(default=None)
    average_without: dict[str, int | float] | None = schema.finite(default=None)
    without_frequent: dict[str, int | float] | None = schema.finite(default=None)
    without: dict | None = None
    ranks: list[list] | None = None

    def validate_ranks(self) -> None:
        """Raise ValueError unless each entry of the ranks consists of a query, an answer and the answer's rank."""
        for rank in self.ranks or ():
            if len(rank) != 3 or type(rank[0]) is not str or type(rank[1]) is not str or type(rank[2]) is not int:
                raise ValueError(f"ranks contains {rank!r:.60}; expected a query, an answer and a rank")

    def validate_numbers_of_tokens(self) -> None:
        """Raise ValueError unless the keys of `average_without` and `without_frequent` are numbers of tokens."""
        for name in {**(self.average_without or {}), **(self.without_frequent or {})}:
            if not re.fullmatch("[0-9]{1,9}", name):
                raise ValueError(f"the scores without frequent tokens have the key {name!r:.60}; expected a number")


@strict
@dataclass(kw_only=True)
class EvaluatedModel(schema.Open):
    """The model in a file of scores, as `dcpcse.evaluation.evaluation_result.describe_model` records it."""

    identity: dict = field(default_factory=dict)


@strict
@dataclass(kw_only=True)
class Scores(schema.Open):
    """A file of scores that `dcpcse.evaluation.evaluation_result` wrote. A null score counts as missing."""

    nan = True  # standard deviations of a single run, for instance
    scores_x100: dict[str, int | float | None] = schema.finite(default_factory=dict)
    averages_x100: dict[str, int | float | None] = schema.finite(default_factory=dict)
    tasks: dict[str, TaskScores] = field(default_factory=dict)
    mode: str | None = None
    truncate_dim: int | None = schema.size(default=None)
    complete: bool = True
    model: EvaluatedModel = field(default_factory=EvaluatedModel)
    protocol: dict = field(default_factory=dict)


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Return step → folder for all checkpoints of a run, in ascending order, including incomplete checkpoints."""
    if not folder.is_dir():
        return {}
    checkpoints = {int(match[1]): path for path in folder.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))}
    return {step: checkpoints[step] for step in sorted(checkpoints) if checkpoints[step].is_dir()}


def read_options(folder: Path) -> dict[str, Any]:
    """Return the options in the `run.yaml` of a run. Raises UserError if the file is missing or damaged."""
    return schema.read(RunOptions, Path(folder) / RUN_FILE, parse_yaml)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's `metrics.jsonl`, or [] without this file; an incomplete last line is left out.

    Raises UserError if dcpcse did not write one of the lines.
    """
    path = Path(folder) / METRICS
    return schema.read_lines(MetricsLine, path) if path.is_file() else []


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's `environment.json`, one per call of train.py, in order; [] without the file."""
    path = Path(folder) / ENVIRONMENT
    return schema.read(list[EnvironmentCall], path) if path.is_file() else []


def read_gains(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's `gain.json` (`GainEntry`), one per set of user data; [] without the file."""
    path = Path(folder) / GAIN
    return schema.read(list[GainEntry], path) if path.is_file() else []


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the Trainer state of a finished run or a checkpoint; None if the file does not exist."""
    path = Path(folder) / STATE
    return schema.read(TrainerRecord, path) if path.is_file() else None


def count_without_gain(state: Mapping[str, Any]) -> int:
    """Return how many evaluations in a row have not improved the metric of early stopping; 0 without early stopping.

    Args:
        state: A Trainer state, as `read_state` returns it.
    """
    callback = (state.get("stateful_callbacks") or {}).get("EarlyStoppingCallback")
    attributes = callback.get("attributes") if isinstance(callback, dict) else None
    count = attributes.get("early_stopping_patience_counter") if isinstance(attributes, dict) else None
    return count if isinstance(count, int) else 0


def require_scores(path: Path) -> dict[str, Any]:
    """Return the content of a file of scores that an option names. Raises UserError for any other file."""
    needed = "give a file of scores that dcpcse evaluate wrote"
    try:
        scores = read_scores(path)
    except UserError as error:
        problem = "not a JSON file" if isinstance(error.__cause__, JSONDecodeError | UnicodeDecodeError) else error
        raise OptionError("scores", path, str(problem), needed) from error
    if scores is None:
        raise OptionError("scores", path, "the file contains no scores", needed)
    return scores


def read_scores(path: Path) -> dict[str, Any] | None:
    """Return the content of a file that `evaluation.py --output_file` wrote; None for any other JSON file."""
    with schema.explained(path):
        text = read_text(path)
        content = parse_json(text)
        is_scores = isinstance(content, dict) and "scores_x100" in content
        return schema.parse(Scores, text) if is_scores else None


def mode_and_size(mode: str | None, truncate_dim: int | None) -> str:
    """Return a text for users: the mode of an evaluation and, for shortened embeddings, their size.

    Args:
        mode: The mode of evaluation.py, such as "test"; None if it is unknown.
        truncate_dim: Size of shortened embeddings, or None.
    """
    return f"{mode or 'unknown'}" + ("" if truncate_dim is None else f", first {truncate_dim} values")


def is_number(value: Any) -> bool:
    """Return whether a value from a file is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint in the folder of a run, even if it is incomplete; None if there is none."""
    return next(reversed(checkpoints_in(folder).values()), None)


Found = TypeVar("Found")

ATTEMPTS = 3
"""Maximum number of attempts to read a folder that a training changes. Replacing a result takes milliseconds."""


class ChangedByTraining(UserError):
    """A folder cannot be read because a running training has removed it or is replacing its files."""


def running_in(folder: str | Path) -> Path | None:
    """Return the folder of a running training, given this folder or a checkpoint in it; None if none is running."""
    path = _resolved(folder)
    run = path.parent if is_checkpoint_name(path.name) else path
    return run if is_locked(run) else None


def notify_of_running(folder: str | Path) -> None:
    """Log a message if a training is running in this folder, since the files may still change."""
    if run := running_in(folder):
        notify(f"a training is running in {run}: its files are shown in their current state")


def read_beside_training(
    folder: str | Path,
    read: Callable[[], Found],
    *,
    is_complete: Callable[[Found], bool] = lambda result: True,
    attempts: int = ATTEMPTS,
) -> Found:
    """Read the files of a folder, even while a training changes them.

    `read` is called again if a training is running in the folder and `read` raises an error or returns an incomplete
    result. If no training is running, an error of `read` is raised unchanged.

    Args:
        folder: The folder.
        read: The function that reads the files; its result is returned.
        is_complete: A function that returns whether a result is complete.
        attempts: Maximum number of calls.

    Raises:
        ChangedByTraining: If the folder is a checkpoint that was removed or replaced in the meantime, or if all
            attempts failed.
    """
    path = _resolved(folder)
    before, is_checkpoint = _identity(path), is_checkpoint_name(path.name)
    while True:
        attempts, result, error = attempts - 1, None, None
        try:
            result = read()
            if is_complete(result):
                return result
        except ChangedByTraining:
            raise
        except Exception as raised:
            error = raised
        run, now = running_in(path), _identity(path)
        if is_checkpoint and (before != now or (run and now is None)):
            raise _removed(folder, path) from error
        if run and not is_checkpoint and attempts:  # an existing checkpoint does not change
            continue
        if error is None:
            return result
        if run and not is_checkpoint:
            problem = " ".join(str(error).split())
            raise ChangedByTraining(
                f"{problem}; a training is running in {run} and may be replacing its files: try again, or wait until "
                "it ends"
            ) from error
        raise error


@contextlib.contextmanager
def explain_removal(checkpoint: Path | None, applies: Callable[[], bool]) -> Iterator[None]:
    """Replace an error in this context by ChangedByTraining if the checkpoint that is read has been removed.

    Args:
        checkpoint: The checkpoint. None: errors are not changed.
        applies: A function that returns whether the checkpoint may still be read. It is called only after an error.
    """
    try:
        yield
    except Exception as error:
        if checkpoint is None or isinstance(error, ChangedByTraining) or checkpoint.is_dir() or not applies():
            raise
        raise _removed(checkpoint, _resolved(checkpoint)) from error


def _removed(folder: str | Path, path: Path) -> ChangedByTraining:
    if (run := running_in(path)) is None:
        return ChangedByTraining(f"{folder} has been removed or replaced while it was read; give another checkpoint")
    newest = last_checkpoint(run)
    other = f"a newer one, such as {newest.name}" if newest else "one of its later checkpoints"
    return ChangedByTraining(
        f"{folder} is not there any more: a training is running in {run}, and it removes its older checkpoints; use "
        f"{other}, or wait until the training ends"
    )


def _resolved(folder: str | Path) -> Path:
    try:
        return Path(folder).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links or a NUL; the reader reports these
        return Path(folder).absolute()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a folder, which change if it is replaced; None if the folder is missing."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
