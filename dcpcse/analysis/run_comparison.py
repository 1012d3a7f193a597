"""Compare the settings, last logged values, scores and environments of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.training.run_history import DEV_PREFIX, Run
from dcpcse.utils.run_files import is_number

PLACE_OPTIONS = ("output_dir",)
"""Options that always differ between runs and are therefore not compared."""


@dataclass(frozen=True)
class RunRow:
    """The values of one setting or measurement in all runs; None for a run without this value."""

    name: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        """Whether the values differ or some of them are missing."""
        return any(value != self.values[0] for value in self.values[1:])


def align_rows(columns: Sequence[Mapping[str, Any]]) -> list[RunRow]:
    """Return a row for every name that occurs in a column, sorted by name. A column contains the values of one run."""
    names = sorted({name for column in columns for name in column})
    return [RunRow(name, tuple(column.get(name) for column in columns)) for name in names]


def compare_settings(runs: Sequence[Run]) -> list[RunRow]:
    """Return a row per option of training runs, except the output folder, with its value in run.yaml of each run."""
    return [row for row in align_rows([run.options for run in runs]) if row.name not in PLACE_OPTIONS]


def compare_last_values(runs: Sequence[Run]) -> list[RunRow]:
    """Return a row per logged quantity, with its last value in each training run, without dev scores."""
    columns = []
    for run in runs:
        logged = [(name, value) for line in run.metrics for name, value in line.items() if is_number(value)]
        columns.append({name: value for name, value in logged if not name.startswith(DEV_PREFIX)})
    return align_rows(columns)


def compare_dev_scores(runs: Sequence[Run]) -> list[RunRow]:
    """Return two rows per dev metric, with its best and its last value in each training run."""
    kinds = ("best", "last")
    return align_rows(
        [
            {f"{name}, {kind}": getattr(score, kind) for name, score in run.dev_scores.items() for kind in kinds}
            for run in runs
        ]
    )


def compare_test_scores(reports: Sequence[Mapping[Path, Mapping[str, Any]]]) -> list[RunRow]:
    """Return a row per task and mode, with the score × 100 in each run's score files (`run_history.find_scores`)."""
    columns: list[dict[str, Any]] = []
    for of_run in reports:
        columns.append({})
        for path, report in of_run.items():
            for task, value in report["scores_x100"].items():
                name = f"{task}, {report.get('mode', 'unknown mode')}"
                # A second score file of the same mode gets separate rows.
                columns[-1][f"{name}, {path.name}" if name in columns[-1] else name] = value
    return align_rows(columns)


def compare_environments(runs: Sequence[Run]) -> list[RunRow]:
    """Return a row per version, hardware, commit and platform, with all values that a training run had, if resumed."""
    columns = []
    for run in runs:
        rows = [row for row in align_rows([_flatten(call) for call in run.environment]) if row.name != "from_step"]
        columns.append({row.name: " → ".join(dict.fromkeys(map(format_value, row.values))) for row in rows})
    return align_rows(columns)


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `{"versions": {"torch": …}}` into `{"torch": …}`; the names of groups are dropped."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flatten(value) if isinstance(value, dict) else {name: format_value(value)}
    return flat


def format_value(value: Any) -> str:
    """Format a setting as text."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value)) or "none"
    return "none" if value is None else str(value)
