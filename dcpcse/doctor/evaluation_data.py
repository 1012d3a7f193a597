"""Checks of a SentEval data folder: load each task as for evaluation, count its examples, and compare its files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from senteval.errors import DataError
from senteval.files import MissingFilesError, identify
from senteval.names import DEV_TASKS, FAMILIES

from dcpcse.doctor.findings import CheckSettings, Finding, Findings, fault, note, ok, warning

SPLITS = {"test": tuple(name for family in ("sts", "finetune", "transfer", "clustering") for name in FAMILIES[family])}
SPLITS["dev"] = tuple(name for name in SPLITS["test"] if name in DEV_TASKS)
"""Split → the tasks that are evaluated on this split and have their own files."""


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check that the files of each task exist, have the official size, and are identical to the known files."""
    absent = []
    for name in settings.progress(SPLITS["test"], len(SPLITS["test"]), "tasks"):
        finding = _task(path, name)
        if finding is None:
            absent.append(name)
        else:
            yield finding
    if absent:
        yield note("missing", f"{', '.join(absent)}: the folder has no files of these tasks")
    if len(absent) == len(SPLITS["test"]):
        yield fault("empty", "the folder has no known task; run SentEval/data/downstream/download_dataset.sh")


def _task(path: Path, name: str) -> Finding | None:
    """Return the finding for a task; None if the folder contains no files of this task."""
    from senteval.settings import settings_of_mode  # imports torch
    from senteval.tasks import TASKS

    loaded = []
    for mode in _modes(name):
        try:
            loaded.append(TASKS[name].load(path, settings_of_mode(mode)))
        except MissingFilesError as error:
            return None if error.all_of_them and not loaded else fault(name, str(error))
        except DataError as error:
            return fault(name, str(error))
    return _known(path, name, loaded)


def _modes(name: str) -> list[str]:
    return [mode for mode, tasks in SPLITS.items() if name in tasks]


def sentences(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the task and the text of each sentence in a folder; tasks that cannot be loaded are left out."""
    from senteval.settings import settings_of_mode  # imports torch
    from senteval.tasks import TASKS

    for name in SPLITS["test"]:
        for mode in _modes(name):
            with contextlib.suppress(DataError):  # `check` reports it
                yield from ((name, text) for text, _ in TASKS[name].load(path, settings_of_mode(mode)).located())


def _known(path: Path, name: str, loaded: list) -> Finding:
    files = identify([file for task in loaded for file in task.files()], path)
    if unknown := [file for file, facts in files.items() if not facts["known"]]:
        text = f"official size, but different contents from the known files: {', '.join(unknown)}"
        return warning(name, f"{text}; scores may differ from published ones")
    places = {(line.path, line.number, text) for task in loaded for text, line in task.located()}
    return ok(name, f"{len(files)} known files, {len(places):,} sentences")
