"""Settings, last values, scores and environments of runs beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.training.run_history import DEV_PREFIX, Run
from dcpcse.utils.run_files import is_number

PLACE_OPTIONS = ("output_dir",)
"""Settings that differ between any two runs."""

_KINDS = ("best", "last")


@dataclass(frozen=True)
class RunRow:
    """One setting or number of all runs; None where a run does not have it."""

    name: str
    values: tuple[Any, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs disagree, or some of them do not have it."""
        return any(value != self.values[0] for value in self.values[1:])


def align_rows(columns: Sequence[Mapping[str, Any]]) -> list[RunRow]:
    """A row for every name that any of the runs has, in order of the names."""
    names = sorted({name for column in columns for name in column})
    return [RunRow(name, tuple(column.get(name) for column in columns)) for name in names]


def compare_settings(runs: Sequence[Run]) -> list[RunRow]:
    """All options of run.yaml but the run's own place."""
    return [row for row in align_rows([run.options for run in runs]) if row.name not in PLACE_OPTIONS]


def compare_last_values(runs: Sequence[Run]) -> list[RunRow]:
    """The last value of everything that was logged but dev scores; `step` is the number of the last line's."""
    return align_rows([_last_values(run) for run in runs])


def _last_values(run: Run) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for line in run.metrics:
        last |= {name: value for name, value in line.items() if is_number(value) and not name.startswith(DEV_PREFIX)}
    return last


def compare_dev_scores(runs: Sequence[Run]) -> list[RunRow]:
    """Last and best value of every dev metric, as logged."""
    return align_rows(
        [
            {f"{name}, {kind}": getattr(score, kind) for name, score in run.dev_scores.items() for kind in _KINDS}
            for run in runs
        ]
    )


def compare_test_scores(reports: Sequence[Mapping[Path, Mapping[str, Any]]]) -> list[RunRow]:
    """Scores × 100 of the evaluations of each run (`run_history.find_scores`), by task and mode."""
    return align_rows([_test_scores(of_run) for of_run in reports])


def _test_scores(reports: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for path, report in reports.items():
        for task, value in report["scores_x100"].items():
            name = f"{task}, {report.get('mode', 'unknown mode')}"
            # Two files of the same kind: each speaks for itself.
            scores[f"{name}, {path.name}" if name in scores else name] = value
    return scores


def compare_environments(runs: Sequence[Run]) -> list[RunRow]:
    """Versions, hardware, commit and platform; of a run that several calls trained, all that they ran on, in order."""
    return align_rows([_environment(run) for run in runs])


def _environment(run: Run) -> dict[str, str]:
    of_calls = [
        _flat({name: value for name, value in call.items() if name != "from_step"}) for call in run.environment
    ]
    return {row.name: " → ".join(dict.fromkeys(map(format_value, row.values))) for row in align_rows(of_calls)}


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"versions": {"torch": …}}` as `{"torch": …}`; the groups' own names are left out."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: format_value(value)}
    return flat


def format_value(value: Any) -> str:
    """A setting in words."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value)) or "none"
    return "none" if value is None else str(value)
