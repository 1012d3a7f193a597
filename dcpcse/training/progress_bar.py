"""The progress bar of training: without log entries, which transformers prints between its updates, and its end."""

from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from dcpcse.utils.private.trainer import DEFAULT_PROGRESS_CALLBACK


class Silent(TrainerCallback):
    """Prints nothing."""

    def on_log(self, *args: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Remove the entry `total_flos`, as transformers' own callbacks do before the log is recorded."""
        (logs or {}).pop("total_flos", None)


class ProgressBar(Silent, ProgressCallback):
    """Shows the number of finished steps only, in a notebook as on a terminal."""


def print_no_log(trainer: Trainer) -> None:
    """Let a trainer print no log entries; with `--disable_tqdm True` it prints nothing at all."""
    callbacks, replaced = trainer.callback_handler.callbacks, (PrinterCallback, DEFAULT_PROGRESS_CALLBACK)
    for index, callback in enumerate(callbacks):
        if type(callback) in replaced:
            callbacks[index] = Silent() if trainer.args.disable_tqdm else ProgressBar()


def close_bars(callbacks: list[TrainerCallback]) -> None:
    """Close the bars of a training that an error or an interruption has ended: later bars would be drawn below."""
    for callback in callbacks:
        if isinstance(callback, ProgressCallback) and callback.training_bar is not None:
            callback.training_bar.close()
            callback.training_bar = None
