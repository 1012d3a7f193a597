"""Report once, soon after the start, how long a training will take that cannot end within days."""

import time
from datetime import timedelta

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dcpcse.utils.console import notify
from dcpcse.utils.errors import spell

STEPS, SECONDS = 10, 20.0
"""The pace is known after this number of steps or this time, whichever comes first; the first step is left out."""

LONG = timedelta(days=3)
"""Only trainings with more time left are reported."""


class PaceCallback(TrainerCallback):
    """Logs a line if the remaining steps would take more than `LONG` at the pace of the first steps."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._done = False

    def on_train_begin(self, *args: object, **kwargs: object) -> None:
        self._first, self._done = None, False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self._done or not state.is_world_process_zero:
            return
        now = time.monotonic()
        if self._first is None:  # the first step also starts the workers of the data loader and compiles
            self._first = state.global_step, now
            return
        steps, seconds = state.global_step - self._first[0], now - self._first[1]
        if steps < STEPS and seconds < SECONDS:
            return
        self._done = True
        pace, left = seconds / steps, state.max_steps - state.global_step
        if pace * left > LONG.total_seconds():
            notify(
                f"at {pace:.2g} s per step, the remaining {left:,} steps take {in_days(pace * left)}; is "
                f"{spell('max_steps')} or {spell('num_train_epochs')} too large? The training goes on and can be "
                "stopped at any step"
            )


def in_days(seconds: float) -> str:
    """Return a long duration in days, or in years from two years on."""
    days = seconds / 86_400
    return f"{days:,.1f} days" if days < 2 * 365 else f"{days / 365.25:,.1f} years"
