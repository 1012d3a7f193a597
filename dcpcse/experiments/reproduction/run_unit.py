"""Run units one after another or on a Ray cluster.

Each training and each evaluation runs in its own process, so that finished work is kept if a later process crashes.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.experiments.reproduction.units import PRINTED, TRAININGS, UNIT_SCORES, RunUnit, command_of
from dcpcse.utils import schema
from dcpcse.utils.environment import system_info
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import open_append, remove, write_atomic
from dcpcse.utils.locks import exclusive_lock
from dcpcse.utils.parsing import read_bytes
from dcpcse.utils.ray_cluster import connected, machines
from dcpcse.utils.run_files import Scores, checkpoints_in

logger = logging.getLogger(__name__)

RECORD, LOG = "unit.json", "log.txt"

RETRIES = 3
"""How often a unit is restarted from its last checkpoint on another worker, if its worker is lost."""


@strict
@dataclass(kw_only=True)
class UnitRecord(schema.Open):
    """The record of a unit, with the options by which it is recognised."""

    digest: str


class UnitFailedError(UserError):
    """A command of a unit has failed. The message contains the last line of its log and the path of the log."""


def is_finished(unit: RunUnit) -> bool:
    """Whether all measurements of a unit exist. Raises UserError if they were obtained with other options."""
    record = _read(UnitRecord, unit.folder / RECORD)
    if record and record["digest"] != unit.digest:
        raise UserError(
            f"{unit.folder} contains {unit.name} with other options, see {unit.folder / RECORD}; choose another "
            "--output_dir, or use the same options"
        )
    if not record or not all((unit.folder / PRINTED[step]).is_file() for step in unit.steps if step in PRINTED):
        return False
    scores = _read(Scores, unit.folder / UNIT_SCORES) if "evaluate" in unit.steps else {"complete": True}
    return bool(scores and scores.get("complete"))


def run_unit(unit: RunUnit) -> None:
    """Train and evaluate a unit. An interrupted unit is resumed; a finished one is left unchanged.

    Raises UnitFailedError if a command fails, and UserError if another process is running this unit.
    """
    if is_finished(unit):
        return
    unit.folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(unit.folder, f"{unit.name} in {unit.folder}"):
        facts = {"name": unit.name, "seed": unit.seed, "digest": unit.digest, "commands": unit.commands}
        facts["environment"] = system_info()
        _write(unit.folder / RECORD, facts)
        started = time.monotonic()
        for step, words in unit.steps.items():
            if step in TRAININGS:
                _train(unit, step, words)
            elif step in PRINTED:
                _keep_output(unit, step, words)
            else:
                _call(unit, [step, *words, "--overwrite"])  # replaces the output of an interrupted evaluation
        _write(unit.folder / RECORD, {**facts, "seconds_of_last_try": time.monotonic() - started})


def _train(unit: RunUnit, step: str, words: Sequence[str]) -> None:
    """Train a model of a unit, or resume its training. The checkpoints of a finished model are deleted."""
    model = unit.folder / TRAININGS[step]
    if not is_model_folder(model):
        _call(unit, ["train", *words, "--resume"])
    for checkpoint in checkpoints_in(model).values():  # a checkpoint takes gigabytes if the encoder is trained
        remove(checkpoint)


def _keep_output(unit: RunUnit, step: str, words: Sequence[str]) -> None:
    """Run a command and write the lines of JSON that it prints to a file of the unit."""
    printed = _call(unit, [*command_of(step).split(), *words], capture=True)
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    write_atomic(unit.folder / PRINTED[step], "".join(f"{line}\n" for line in lines))


def _call(unit: RunUnit, words: Sequence[str], capture: bool = False) -> str:
    """Run a command of this package in a child process that ends when this process does.

    Its output is appended to the log of the unit; with `capture`, what it prints to stdout is returned instead.
    """
    command = [sys.executable, "-m", "dcpcse.cli.child", str(os.getpid()), *words]
    with open_append(unit.folder / LOG) as log:
        log.write(f"$ python -m dcpcse {' '.join(words)}\n")
        log.flush()
        stdout = subprocess.PIPE if capture else log
        done = subprocess.run(command, stdout=stdout, stderr=log, check=False, encoding="utf-8")
    if done.returncode:
        raise UnitFailedError(f"{unit.name}: {words[0]} ended with {done.returncode}: {last_line(unit.folder / LOG)}")
    return done.stdout or ""


def last_line(log: Path) -> str:
    """Return the last line of a log, or its last error line, with the path of the log."""
    text = read_bytes(log).decode(errors="replace")
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "no output")
    return f"{said} (full log: {log})"


def _read(kind: type, path: Path) -> dict[str, Any] | None:
    try:
        return schema.read(kind, path) if path.is_file() else None
    except UserError as error:
        raise UserError(f"{error}; delete it to run its unit again") from error


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def run_sequentially(units: Sequence[RunUnit]) -> dict[str, str]:
    """Run units in turn, even if some fail. Returns row → why one of its units failed."""
    failures: dict[str, str] = {}
    with logging_redirect_tqdm(), tqdm(units, unit="unit") as bar:
        for unit in bar:
            bar.set_description(unit.name)
            logger.info("%s: see %s for its progress", unit.name, unit.folder / LOG)
            try:
                run_unit(unit)
            except UserError as error:
                logger.warning("%s", error)
                failures[unit.row.name] = str(error)
    return failures


def run_on_ray(units: Sequence[RunUnit], address: str) -> dict[str, str]:
    """Run units on a Ray cluster, one at a time per GPU or machine. Returns row → why one of its units failed.

    All machines must see the output folder at the same path.
    """
    failures: dict[str, str] = {}
    with connected(address) as ray, logging_redirect_tqdm(), tqdm(total=len(units), unit="unit") as bar:
        nodes = machines(ray)
        gpus = any(node.get("GPU") for node in nodes)
        needs = {"num_gpus": 1} if gpus else {"num_cpus": int(min(node["CPU"] for node in nodes))}
        task = ray.remote(max_retries=RETRIES, **needs)(_outcome)
        waiting = {task.remote(unit): unit for unit in units}
        while waiting:
            (ready,), _ = ray.wait(list(waiting))
            unit = waiting.pop(ready)
            try:
                problem = ray.get(ready)
            except ray.exceptions.RayError as error:
                problem = f"{unit.name}: its worker was lost {RETRIES + 1} times ({str(error).splitlines()[-1]:.120})"
            if problem:
                logger.warning("%s", problem)
                failures[unit.row.name] = problem
            bar.update()
    return failures


def _outcome(unit: RunUnit) -> str:
    """Run a unit in a worker; return why it failed, or "". The reason is returned because Ray wraps raised errors."""
    try:
        run_unit(unit)
    except UserError as error:
        return str(error)
    return ""
