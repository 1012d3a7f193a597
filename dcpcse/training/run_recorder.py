"""Write the records of a run during training: metrics and environment. `run_files` reads them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dcpcse.utils.environment import system_info
from dcpcse.utils.files import open_append, write_atomic, write_json_atomic
from dcpcse.utils.run_files import ENVIRONMENT, METRICS, read_environment


class MetricsFile(TrainerCallback):
    """Writes all log entries to `metrics.jsonl`. A resumed run removes the lines of the steps that it repeats."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Create the file, with the entries up to the step from which the run resumes."""
        self.follow(state)

    def follow(self, state: TrainerState) -> None:
        """Rewrite the file with the log entries in this state; entries of later steps are dropped."""
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
        """Add a line. Numbers that are not finite are written as null, since JSON cannot represent them."""
        if not state.is_world_process_zero or not logs:
            return
        with open_append(self.path) as file:
            file.write(_line(state.global_step, logs))


def _line(step: int, logs: Mapping[str, float]) -> str:
    numbers = {name: value if math.isfinite(value) else None for name, value in logs.items() if name != "step"}
    return json.dumps({"step": step, **numbers}) + "\n"


def write_environment(folder: Path, step: int) -> None:
    """Write the environment of this call of train.py, keeping those of earlier calls.

    Args:
        folder: The folder of the run.
        step: The step from which the call resumes, or 0. Calls that started at or after this step are dropped.
    """
    before = [call for call in read_environment(folder) if step and call["from_step"] < step]
    write_json_atomic(folder / ENVIRONMENT, [*before, {"from_step": step, **system_info()}])
