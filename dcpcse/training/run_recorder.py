"""Writing down, while a run is trained, the curve of its metrics and what it runs on; `run_files` reads it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dcpcse.utils.environment import system_info
from dcpcse.utils.files import write_atomic, write_json_atomic
from dcpcse.utils.run_files import ENVIRONMENT, METRICS, read_environment


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
            write_atomic(self.path, "".join(_line(entry["step"], entry) for entry in state.log_history))

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
    write_json_atomic(folder / ENVIRONMENT, [*before, {"from_step": step, **system_info()}])
