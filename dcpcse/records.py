"""What a run leaves behind besides its model: the curve of its metrics, and what it ran on."""

import json
import math
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .evaluator import versions
from .paths import write_whole

METRICS = "metrics.jsonl"
"""A line for each time something is logged: step, epoch, and the numbers."""

ENVIRONMENT = "environment.json"
"""Versions, hardware and commit: one entry for each call that trained the run."""

RECORDS = (METRICS, ENVIRONMENT)


class MetricsFile(TrainerCallback):
    """Keeps everything that is logged in `metrics.jsonl`; a resumed run drops the lines of steps that it repeats."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the file anew, or keep what was logged up to the step that the run goes on from."""
        if not state.is_world_process_zero:
            return
        kept = [line for line in read_metrics(self.path.parent) if line["step"] <= state.global_step > 0]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_whole(self.path, lambda file: file.write(text.encode()))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a line. A number that is not finite is written as null: JSON has no other word for it."""
        if not state.is_world_process_zero or not logs:
            return
        numbers = {name: value if math.isfinite(value) else None for name, value in logs.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **numbers}) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, [] without one; a last line that was cut off in writing is left out."""
    path = Path(folder) / METRICS
    return list(_whole_lines(path)) if path.is_file() else []


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def write_environment(folder: Path, step: int) -> None:
    """Write what a run is trained on; a call that goes on from a step adds itself to the ones before it."""
    before = [call for call in read_environment(folder) if step and call["from_step"] < step]
    text = json.dumps([*before, {"from_step": step, **environment()}], indent=2) + "\n"
    write_whole(folder / ENVIRONMENT, lambda file: file.write(text.encode()))


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """What each call that trained a run ran on, the first one first; [] where nothing is on record."""
    path = Path(folder) / ENVIRONMENT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def environment() -> dict[str, Any]:
    """Versions of all libraries that a number could depend on, the hardware, and the commit of this program."""
    return {"versions": versions(), "hardware": hardware(), "commit": commit(), "platform": platform.platform()}


def hardware() -> dict[str, Any]:
    """Processor, its cores that torch uses, and GPUs."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def commit() -> str | None:
    """Commit of the checkout that this runs from, with -dirty where files differ; None outside of one."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
