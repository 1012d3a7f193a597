"""Run units one after another or on a Ray cluster.

Each training and each evaluation runs in a separate process. Finished work is not lost if a later process crashes.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub.dataclasses import strict
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.experiments.reproduction.units import PRINTED, TRAININGS, UNIT_SCORES, RunUnit, command_of
from dcpcse.utils import schema
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import open_append, remove, write_atomic
from dcpcse.utils.job_folder import JobFolder
from dcpcse.utils.parsing import read_bytes
from dcpcse.utils.run_files import Scores, checkpoints_in
from dcpcse.utils.work_units import workers

logger = logging.getLogger(__name__)

RECORD, LOG = "unit.json", "log.txt"


@strict
@dataclass(kw_only=True)
class UnitRecord(schema.Open):
    """The record of the training and evaluation of a `RunUnit`.

    Args:
        commands: The commands in the form of `RunUnit.commands`. Only records of earlier versions have this entry.
    """

    made_of: dict | None = None
    commands: dict = field(default_factory=dict)


def _job(unit: RunUnit) -> JobFolder:
    return JobFolder(
        unit.folder,
        RECORD,
        {"command": unit.commands},
        str(unit.folder),
        kind=UnitRecord,
        convert=lambda record: {**record, "made_of": record.get("made_of") or {"command": record.get("commands")}},
        remedy="use the same options, or another --output_dir",
    )


def is_finished(unit: RunUnit) -> bool:
    """Return whether all measurements of a unit exist. Raises UserError if they were made with other options."""
    record = _job(unit).read()
    if record is None or not all((unit.folder / PRINTED[step]).is_file() for step in unit.steps if step in PRINTED):
        return False
    path = unit.folder / UNIT_SCORES
    return "evaluate" not in unit.steps or (path.is_file() and schema.read(Scores, path).get("complete") is True)


def run_unit(unit: RunUnit) -> None:
    """Train and evaluate a unit. An interrupted unit is resumed; a finished unit stays unchanged.

    Raises UserError if a command fails, or if another process is running this unit.
    """
    if is_finished(unit):
        return
    job, facts = _job(unit), {"name": unit.name, "seed": unit.seed, "environment": system_info()}
    with job.lock():
        job.write(facts)
        started = time.monotonic()
        for step, words in unit.steps.items():
            if step in TRAININGS:
                train_once(words, unit.folder / TRAININGS[step], unit.folder / LOG)
            elif step in PRINTED:
                _keep_output(unit, step, words)
            else:
                # --overwrite replaces the output of an interrupted evaluation.
                run_command([step, *words, "--overwrite"], unit.folder / LOG)
        job.write({**facts, "seconds_of_last_try": time.monotonic() - started})


def train_once(words: Sequence[str], model: Path, log: Path) -> None:
    """Train a model with these arguments of train.py, or resume its training; a finished model is left unchanged.

    After the training, its checkpoints are deleted.
    """
    if not is_model_folder(model):
        run_command(["train", *words, "--resume"], log)
    for checkpoint in checkpoints_in(model).values():  # a checkpoint takes gigabytes if the encoder is trained
        remove(checkpoint)


def _keep_output(unit: RunUnit, step: str, words: Sequence[str]) -> None:
    """Run a command and write the lines of JSON that it prints to a file of the unit."""
    printed = run_command([*command_of(step).split(), *words], unit.folder / LOG, capture=True)
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    write_atomic(unit.folder / PRINTED[step], "".join(f"{line}\n" for line in lines))


def run_command(words: Sequence[str], log: Path, capture: bool = False) -> str:
    """Run a command of this package in a child process, which ends when this process ends.

    The output of the command is appended to the log. With `capture`, stdout is returned instead of logged. If the
    command fails, UserError is raised with the last line of the log.
    """
    command = [sys.executable, "-m", "dcpcse.cli.child", str(os.getpid()), *words]
    with open_append(log) as file:
        file.write(f"$ python -m dcpcse {' '.join(words)}\n")
        file.flush()
        stdout = subprocess.PIPE if capture else file
        done = subprocess.run(command, stdout=stdout, stderr=file, check=False, encoding="utf-8")
    if done.returncode:
        raise UserError(f"{words[0]} ended with exit code {done.returncode}: {last_line(log)}")
    return done.stdout or ""


def last_line(log: Path) -> str:
    """Return the last error line of a log or, without an error, the last line, with the path of the log."""
    text = read_bytes(log).decode(errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "no output")
    return f"{said} (full log: {log})"


def run_units(units: Sequence[RunUnit], ray: str | None) -> dict[str, str]:
    """Run units one after another, or on a Ray cluster one at a time per GPU or machine. Return the failures.

    A failed unit does not stop the other units. All machines must have the output folder at the same path. The result
    contains, for each row with a failed unit, the reason of a failure.
    """
    failures: dict[str, str] = {}
    # In this process, the commands of the units choose the device.
    team = workers(ray, device=None if ray else "cpu")
    with team as running, logging_redirect_tqdm(), tqdm(total=len(units), unit="unit") as bar:
        for unit, outcome in running.run(_start, _announced(units, bar)):
            if isinstance(outcome, UserError):
                failures[unit.row.name] = f"{unit.name}: {outcome}"
                logger.warning("%s", failures[unit.row.name])
            bar.update()
    return failures


def _start(device: str) -> Callable[[RunUnit], None]:
    return run_unit


def _announced(units: Sequence[RunUnit], bar: tqdm) -> Iterator[RunUnit]:
    for unit in units:
        bar.set_description(unit.name)
        logger.info("%s: see %s for its progress", unit.name, unit.folder / LOG)
        yield unit
