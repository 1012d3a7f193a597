"""Recognise the kind of a path, and run the checks for this kind."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from dcpcse.data.readers import READERS, format_of
from dcpcse.doctor import environment, evaluation_data, model_folder, training_file
from dcpcse.doctor.findings import CheckReport, CheckSettings, Finding, Findings, fault, note
from dcpcse.encoders.storage.manifest import CONFIG, MODEL_FOLDER_FILE, PEFT_CONFIG
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import RUN_FILE, STATE, read_beside_training, running_in

Check = Callable[[Path, CheckSettings], Findings]

CHECKS: dict[str, tuple[Check, ...]] = {
    "training file": (training_file.check,),
    "model folder": (model_folder.check, model_folder.check_run),
    "run without a model": (model_folder.check_run,),
    "evaluation data": (evaluation_data.check,),
    "retrieval data": (evaluation_data.check_retrieval,),
    "adapter of peft": (model_folder.check_adapter,),
    "encoder folder": (model_folder.check_encoder,),
    "environment": (environment.check,),
}
"""Kind of a path → its checks, each of which yields findings."""

_BY_FILE = {
    MODEL_FOLDER_FILE: "model folder",
    RUN_FILE: "run without a model",
    STATE: "run without a model",
    PEFT_CONFIG: "adapter of peft",
    CONFIG: "encoder folder",
    "corpus.jsonl": "retrieval data",
    "corpus.jsonl.gz": "retrieval data",
}
"""Name of a file → kind of the folder that contains the file. The first match counts."""


def kind_of_path(path: Path) -> str | None:
    """Return the kind of a file or folder (a key of `CHECKS`), such as `training file`; None if it is unknown."""
    if os.path.isfile(path):
        return "training file" if format_of(path) in READERS else None
    if not os.path.isdir(path):
        return None
    for name, kind in _BY_FILE.items():
        if (path / name).is_file():
            return kind
    return "evaluation data" if any((path / name).is_dir() for name in ("downstream", "clustering")) else None


def expand_path(path: Path) -> list[tuple[Path, str]]:
    """Return [(path, kind)] or, for a folder of unknown kind, the files and folders in it with their kinds.

    Raises UserError if no kind is known.
    """
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist; give existing files and folders, or no path to check the environment")
    if kind := kind_of_path(path):
        return [(path, kind)]
    if os.path.isfile(path):
        raise UserError(
            f"{path} is not a training file ({', '.join(READERS)}); for a model or encoder give its folder"
        )
    inside = [(child, kind) for child in _children(path) if (kind := kind_of_path(child))]
    if not inside:
        raise UserError(
            f"{path} contains nothing to check; give a training file, model, run, encoder or evaluation data"
        )
    return inside


def _children(path: Path) -> Iterable[Path]:
    try:
        return sorted(child for child in path.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def run_checks(path: Path, kind: str, settings: CheckSettings) -> CheckReport:
    """Run all checks for this kind on a path. If the path cannot be read, the report contains a fault."""

    def find() -> list[Finding]:
        findings: list[Finding] = []
        try:
            for check in CHECKS[kind]:
                findings.extend(check(path, settings))
        except OSError as error:
            findings.append(fault("unreadable", f"{error.filename or path}: {error.strerror}"))
        except UserError as error:
            findings.append(fault("unreadable", str(error)))
        return findings

    def is_complete(findings: list[Finding]) -> bool:
        return path.exists() and not any(finding.level == "fault" for finding in findings)

    findings = read_beside_training(path, find, is_complete=is_complete)
    if run := running_in(path):
        findings.append(note("running", f"a training is running in {run}: this is its current state"))
    return CheckReport(str(path), kind, findings)
