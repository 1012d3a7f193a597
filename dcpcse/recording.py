"""Writing down, while a run is trained, the curve of its metrics and what it runs on; `dcpcse.records` reads it."""

import json
import math
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .evaluator import versions
from .paths import write_whole
from .records import ENVIRONMENT, METRICS, read_environment


class MetricsFile(TrainerCallback):
    """Keeps everything that is logged in `metrics.jsonl`; a resumed run drops the lines of steps that it repeats."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the file anew, or keep what was logged up to the step that the run goes on from."""
        self.follow(state)

    def follow(self, state: TrainerState) -> None:
        """Hold what the run has logged until this state, and nothing that was lost after it."""
        if state.is_world_process_zero:
            write_whole(self.path, "".join(_line(entry["step"], entry) for entry in state.log_history))

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
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(state.global_step, logs))


def _line(step: int, logs: Mapping[str, float]) -> str:
    numbers = {name: value if math.isfinite(value) else None for name, value in logs.items() if name != "step"}
    return json.dumps({"step": step, **numbers}) + "\n"


def write_environment(folder: Path, step: int) -> None:
    """Write what a run is trained on; a call that goes on from a step adds itself to the ones before it."""
    before = [call for call in read_environment(folder) if step and call["from_step"] < step]
    write_whole(folder / ENVIRONMENT, json.dumps([*before, {"from_step": step, **environment()}], indent=2) + "\n")


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
    command = ["git", "-C", str(Path(__file__).parent), *_DESCRIBE.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


_DESCRIBE = "describe --always --dirty --abbrev=40 --exclude=*"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
