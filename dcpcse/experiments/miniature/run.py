"""Run the units of the miniature, several at the same time, each in a process of its own."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dcpcse.experiments.miniature.measurement import SCORES
from dcpcse.experiments.miniature.search import search_record
from dcpcse.experiments.miniature.units import LOG, RECORD, MiniaturePlan, Unit, read_trials
from dcpcse.experiments.reproduction.run_unit import last_line
from dcpcse.utils import schema
from dcpcse.utils.environment import system_info
from dcpcse.utils.files import open_append, write_json_atomic

logger = logging.getLogger(__name__)

SEARCH = "search.json"
"""The file with the learning rates that were tried and chosen, in the output folder."""

POLL_SECONDS = 0.2


class Process(Protocol):
    """A running process: `subprocess.Popen`."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Start = Callable[[Unit], Process]


@dataclass
class UnitProgress:
    """The progress of a run, and how long the rest takes: estimates, corrected by the units that have finished."""

    plan: MiniaturePlan
    jobs: int
    estimated: float = 0.0
    actual: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    def finished(self, unit: Unit, seconds: float, code: int) -> None:
        """Record a unit whose process has ended, and log it with the time that is left."""
        if not unit.is_done:
            self.failures[unit.name] = f"{unit.name}: its process ended with {code}: {last_line(unit.folder / LOG)}"
            logger.warning("%s", self.failures[unit.name])
            return
        self.estimated, self.actual = self.estimated + unit.seconds, self.actual + seconds
        left = self.plan.estimates()
        done = self.plan.total - len(left)
        result = f"failed: {unit.failure}" if unit.failure else _headline(unit)
        time_left = f"; about {duration(self.seconds_left(left))} left" if left else ""
        logger.info("%d of %d: %s: %s (%.0f s)%s", done, self.plan.total, unit.name, result, seconds, time_left)

    def seconds_left(self, left: Mapping[str, float]) -> float:
        """Return the estimated time for the units that are left. left: unit → seconds on one core."""
        pace = self.actual / self.estimated if self.estimated else 1.0
        return sum(left.values()) * pace / self.jobs


def _headline(unit: Unit) -> str:
    """Return the main scores of a finished unit."""
    path = unit.folder / SCORES
    if not path.is_file():
        return "finished"
    scores = schema.read(dict, path)["scores"]
    average = f"STS average {scores['avg']:.2f}, " if "avg" in scores else ""
    return f"{average}STS-B dev {scores['stsb_dev']:.2f}"


def duration(seconds: float) -> str:
    """Return a duration in words, such as `1 h 20 min`."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def run_units(plan: MiniaturePlan, jobs: int, start: Start) -> dict[str, str]:
    """Run all units that are not finished, `jobs` at the same time. Returns unit → why it did not finish.

    A unit that ends with an error is not run again; the others continue. The processes end if this function is
    interrupted.
    """
    progress = UnitProgress(plan, jobs)
    running: dict[Path, tuple[Unit, Process, float]] = {}
    try:
        while True:
            waiting = [
                unit for unit in plan.next_units() if unit.folder not in running and unit.name not in progress.failures
            ]
            for unit in waiting[: jobs - len(running)]:
                _prepare(unit)
                logger.info("%s: started, see %s", unit.name, unit.folder / LOG)
                running[unit.folder] = unit, start(unit), time.monotonic()
            if not running:
                break
            for unit, process, since in _ended(running):
                del running[unit.folder]
                progress.finished(unit, time.monotonic() - since, process.poll())
                write_json_atomic(plan.output / SEARCH, search_record(read_trials(plan.output)))
    finally:
        for _, process, _ in running.values():
            process.terminate()
        for _, process, _ in running.values():
            process.wait()
    return {**plan.blocked(), **progress.failures}


def _ended(running: Mapping[Path, tuple[Unit, Process, float]]) -> list[tuple[Unit, Process, float]]:
    """Wait until at least one process has ended, and return those that have."""
    while not (ended := [job for job in running.values() if job[1].poll() is not None]):
        time.sleep(POLL_SECONDS)
    return ended


def _prepare(unit: Unit) -> None:
    """Write the record of a unit, which its process reads."""
    record = {
        "name": unit.name,
        "digest": unit.digest,
        "commands": [list(words) for words in unit.commands],
        "measured": dict(unit.measured),
        "inputs": dict(unit.inputs),
        "environment": system_info(),
    }
    write_json_atomic(unit.folder / RECORD, record)


def process_starter(places: Mapping[str, str], threads: int, keep_models: bool) -> Start:
    """Return the function that starts the process of a unit; what it prints is appended to the log of the unit.

    places: name in braces → path. threads: number of threads of each process.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    facts = json.dumps({"places": dict(places), "keep_models": keep_models})

    def start(unit: Unit) -> Process:
        command = [sys.executable, "-m", "dcpcse.cli.miniature_child", str(os.getpid()), str(unit.folder), facts]
        with open_append(unit.folder / LOG) as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    return start
