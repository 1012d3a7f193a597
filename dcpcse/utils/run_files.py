"""Readers of the records in the folder of a run, without torch; `dcpcse.training.run_recorder` writes them."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import parse_json, parse_yaml, read_text

RUN_FILE = "run.yaml"
"""The file with the options of a run, in its folder and in each of its checkpoints."""

METRICS = "metrics.jsonl"
"""The file of logged values, one line per log entry: step, epoch, and the values."""

ENVIRONMENT = "environment.json"
"""The file with versions, hardware and commit, one entry per call of train.py that trained the run."""

STATE = "trainer_state.json"
"""The file with the state of transformers' Trainer, in the folder of a finished run and in each checkpoint."""

RECORDS = (METRICS, ENVIRONMENT)

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def is_checkpoint_name(name: str) -> bool:
    """Return whether a checkpoint of a run has this name."""
    return bool(_CHECKPOINT.fullmatch(name))


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Return step → folder for all checkpoints of a run, in ascending order, including incomplete checkpoints."""
    if not folder.is_dir():
        return {}
    found = {int(match[1]): path for path in folder.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))}
    return {step: found[step] for step in sorted(found) if found[step].is_dir()}


def read_options(folder: Path) -> dict[str, Any]:
    """Return the options in the `run.yaml` of a run. Raises UserError if the file is missing or damaged."""
    path = Path(folder) / RUN_FILE
    options = _parsed(path, _text(path), parse_yaml)
    _require(isinstance(options, dict), path, "a mapping of option names to values")
    return options


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's `metrics.jsonl`, or [] without this file; an incomplete last line is left out.

    Raises UserError if dcpcse did not write one of the lines.
    """
    path = Path(folder) / METRICS
    if not path.is_file():
        return []
    lines = [line for line in _text(path).splitlines(keepends=True) if line.endswith("\n")]
    return [_metrics_line(path, number, line) for number, line in enumerate(lines, start=1)]


def _metrics_line(path: Path, number: int, line: str) -> dict[str, Any]:
    where = f"{path}, line {number}"
    values = _parsed(where, line, parse_json)
    _require(isinstance(values, dict) and isinstance(values.get("step"), int), where, "an object with a step")
    return values


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """Return the environment of each call that trained the run, in order; [] if no environment is recorded."""
    path = Path(folder) / ENVIRONMENT
    if not path.is_file():
        return []
    calls = _parsed(path, _text(path), parse_json)
    ours = isinstance(calls, list) and all(isinstance(call, dict) and "from_step" in call for call in calls)
    _require(ours, path, "a list of objects with from_step")
    return calls


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the Trainer state of a finished run or a checkpoint; None if the file does not exist."""
    path = Path(folder) / STATE
    if not path.is_file():
        return None
    state = _parsed(path, _text(path), parse_json)
    _require(isinstance(state, dict) and isinstance(state.get("global_step"), int), path, "a global_step")
    for name, kinds in _STATE_TYPES.items():
        _require(isinstance(state.get(name), kinds), path, f"a valid {name}, but found {state.get(name)!r:.40}")
    return state


_STATE_TYPES = {
    "max_steps": (int, NoneType),
    "num_train_epochs": (int, float, NoneType),
    "log_history": (list, NoneType),
}


def require_scores(path: Path) -> dict[str, Any]:
    """Return the content of a file of scores that an option names. Raises UserError for any other file."""
    needed = "give a file written by evaluation.py --output_file"
    try:
        scores = read_scores(path)
    except UserError as error:
        problem = error if isinstance(error.__cause__, OSError) else "not a JSON file"
        raise UserError(f"--scores {path}: {problem}; {needed}") from error
    if scores is None:
        raise UserError(f"--scores {path}: the file contains no scores; {needed}")
    return scores


def read_scores(path: Path) -> dict[str, Any] | None:
    """Return the content of a file that `evaluation.py --output_file` wrote; None for any other JSON file."""
    report = _parsed(path, _text(path), parse_json)
    if not isinstance(report, dict) or not isinstance(report.get("scores_x100"), Mapping):
        return None
    return report


def is_number(value: Any) -> bool:
    """Return whether a value from a file is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: not UTF-8") from error


def _parsed(where: Path | str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{where} is damaged: {' '.join(str(error).split())}") from error


def _require(valid: bool, where: Path | str, expected: str) -> None:
    if not valid:
        raise UserError(f"{where} is damaged: expected {expected}")


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint in the folder of a run, even if it is incomplete; None if there is none."""
    return next(reversed(checkpoints_in(folder).values()), None)
