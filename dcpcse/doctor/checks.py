"""What a path is: the one place where kinds are told apart, and the checks that each kind gets."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from dcpcse.data.readers import READERS
from dcpcse.doctor import encoder_folder, environment, evaluation_data, model_folder, training_file
from dcpcse.doctor.findings import CheckReport, CheckSettings, Finding, Findings
from dcpcse.encoders.storage.manifest import CONFIG, MODEL_FOLDER_FILE, PEFT_CONFIG
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import RUN_FILE, STATE

Check = Callable[[Path, CheckSettings], Findings]

CHECKS: dict[str, tuple[Check, ...]] = {
    "training file": (training_file.check,),
    "model folder": (model_folder.check, model_folder.check_run),
    "run without a model": (model_folder.check_run,),
    "evaluation data": (evaluation_data.check,),
    "adapter of peft": (encoder_folder.check_adapter,),
    "encoder folder": (encoder_folder.check,),
    "environment": (environment.check,),
}
"""Kind → its checks; each gives findings about a path."""

_BY_FILE = {
    MODEL_FOLDER_FILE: "model folder",
    RUN_FILE: "run without a model",
    STATE: "run without a model",
    PEFT_CONFIG: "adapter of peft",
    CONFIG: "encoder folder",
}
"""A file that makes a folder one of a kind, the most telling first."""


def kind_of_path(path: Path) -> str | None:
    """The kind of a file or a folder; None for what is unknown here."""
    if os.path.isfile(path):
        return "training file" if path.suffix.lower() in READERS else None
    if not os.path.isdir(path):
        return None
    for name, kind in _BY_FILE.items():
        if (path / name).is_file():
            return kind
    return "evaluation data" if any((path / name).is_dir() for name in ("downstream", "clustering")) else None


def expand_path(path: Path) -> list[tuple[Path, str]]:
    """A path with its kind, or what lies in a folder of several such; UserError for nothing known."""
    if not os.path.exists(path):
        raise UserError(f"{path} is not there; give files and folders, or nothing for the environment")
    if kind := kind_of_path(path):
        return [(path, kind)]
    if os.path.isfile(path):
        raise UserError(f"{path} is no training file ({', '.join(READERS)}); of a model or an encoder give the folder")
    inside = [(one, kind) for one in _children(path) if (kind := kind_of_path(one))]
    if not inside:
        raise UserError(
            f"{path} holds nothing that is known here: no training file, model, run, encoder or evaluation data"
        )
    return inside


def _children(path: Path) -> Iterable[Path]:
    try:
        return sorted(one for one in path.iterdir() if not one.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot look into {path}: {error.strerror}") from error


def run_checks(path: Path, kind: str, settings: CheckSettings) -> CheckReport:
    """All checks of a kind on a path; what cannot be read at all is a fault."""
    findings: list[Finding] = []
    try:
        for check in CHECKS[kind]:
            findings.extend(check(path, settings))
    except OSError as error:
        findings.append(Finding("fault", "unreadable", f"{error.filename or path}: {error.strerror}"))
    except UserError as error:
        findings.append(Finding("fault", "unreadable", str(error)))
    return CheckReport(str(path), kind, findings)
