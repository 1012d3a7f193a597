"""What a run leaves in its folder besides its model, read without torch; `dcpcse.training.run_recorder` writes it."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import parse_json, parse_yaml, read_text

RUN_FILE = "run.yaml"
"""Options of a run, in its folder and in each of its checkpoints."""

METRICS = "metrics.jsonl"
"""A line for each time something is logged: step, epoch, and the numbers."""

ENVIRONMENT = "environment.json"
"""Versions, hardware and commit: one entry for each call that trained the run."""

STATE = "trainer_state.json"
"""transformers' own record: in the folder of a run once it has ended, and in each of its checkpoints."""

RECORDS = (METRICS, ENVIRONMENT)

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Step → folder of every checkpoint of a run, whole or not, by rising steps."""
    if not folder.is_dir():
        return {}
    found = {int(match[1]): path for path in folder.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))}
    return {step: found[step] for step in sorted(found) if found[step].is_dir()}


def read_options(folder: Path) -> dict[str, Any]:
    """The options in a run's `run.yaml`; UserError without one."""
    path = Path(folder) / RUN_FILE
    options = _parsed(path, _text(path), parse_yaml)
    _require(isinstance(options, dict), path, "no option names and values")
    return options


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, [] without one; a last line that was cut off in writing is left out.

    UserError for a line that is none of ours.
    """
    path = Path(folder) / METRICS
    if not path.is_file():
        return []
    lines = [line for line in _text(path).splitlines(keepends=True) if line.endswith("\n")]
    return [_metrics_line(path, number, line) for number, line in enumerate(lines, start=1)]


def _metrics_line(path: Path, number: int, line: str) -> dict[str, Any]:
    where = f"{path}, line {number}"
    values = _parsed(where, line, parse_json)
    _require(isinstance(values, dict) and isinstance(values.get("step"), int), where, "no numbers of a step")
    return values


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """What each call that trained the run ran on, the first one first; [] where nothing is on record."""
    path = Path(folder) / ENVIRONMENT
    if not path.is_file():
        return []
    calls = _parsed(path, _text(path), parse_json)
    ours = isinstance(calls, list) and all(isinstance(call, dict) and "from_step" in call for call in calls)
    _require(ours, path, "no calls that trained a run")
    return calls


def read_state(folder: Path) -> dict[str, Any] | None:
    """What transformers wrote down at the end of a run, or with a checkpoint; None where it did not."""
    path = Path(folder) / STATE
    if not path.is_file():
        return None
    state = _parsed(path, _text(path), parse_json)
    _require(isinstance(state, dict) and isinstance(state.get("global_step"), int), path, "no global_step")
    for name, kinds in _STATE_TYPES.items():
        _require(isinstance(state.get(name), kinds), path, f"{name} {state.get(name)!r:.40}")
    return state


_STATE_TYPES = {
    "max_steps": (int, NoneType),
    "num_train_epochs": (int, float, NoneType),
    "log_history": (list, NoneType),
}


def require_scores(path: Path) -> dict[str, Any]:
    """The file of an evaluation that an option names; UserError for any other file."""
    needed = "give a file of evaluation.py --output_file"
    try:
        scores = read_scores(path)
    except UserError as error:
        problem = error if isinstance(error.__cause__, OSError) else "it holds no scores, and no JSON"
        raise UserError(f"--scores {path}: {problem}; {needed}") from error
    if scores is None:
        raise UserError(f"--scores {path}: it holds no scores; {needed}")
    return scores


def read_scores(path: Path) -> dict[str, Any] | None:
    """The file of an evaluation (`evaluation.py --output_file`); None for JSON of another kind."""
    report = _parsed(path, _text(path), parse_json)
    if not isinstance(report, dict) or not isinstance(report.get("scores_x100"), Mapping):
        return None
    return report


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not UTF-8") from error


def _parsed(where: Path | str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{where} is damaged: {' '.join(str(error).split())}") from error


def _require(holds: bool, where: Path | str, found: str) -> None:
    if not holds:
        raise UserError(f"{where} is damaged: it holds {found}")


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in the folder of a run, whole or not."""
    return next(reversed(checkpoints_in(folder).values()), None)
