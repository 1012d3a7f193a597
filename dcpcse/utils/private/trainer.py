"""The private names of transformers' Trainer, as methods with public names that a subclass overrides or calls."""

from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import safe_globals

from dcpcse.utils.private import require_names

__all__ = [
    "DEFAULT_PROGRESS_CALLBACK",
    "ExportableState",
    "HookedTrainer",
    "safe_globals",
]
"""The imported names are not private, but undocumented."""

require_names(
    transformers.Trainer,
    *("_save", "_save_checkpoint", "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state"),
    *("_load_from_checkpoint", "_load_best_model", "_maybe_log_save_evaluate", "_prepare_inputs"),
)


class HookedTrainer(transformers.Trainer):
    """A Trainer of transformers whose subclasses override the methods below instead of private methods."""

    def save_weights(self, folder: Path) -> None:
        """Save the model; transformers calls this in the processes that save."""
        super()._save(str(folder))

    def save_checkpoint(self) -> None:
        """Save a checkpoint of the current step."""
        super()._save_checkpoint(self.model, None)

    def load_checkpoint(self, folder: Path) -> None:
        """Load the weights of a checkpoint from which the training resumes."""
        super()._load_from_checkpoint(str(folder))

    def load_best_model(self) -> None:
        """Load the weights of the best checkpoint at the end of the training."""
        super()._load_best_model()

    def after_step_is_saved(self) -> None:
        """A hook that is called after the log entry, the evaluation and the checkpoint of a step."""

    def save_training_state(self, folder: Path) -> None:
        """Save the optimiser, the schedule, the gradient scaler and the random states; every process must call it."""
        self._save_optimizer_and_scheduler(str(folder))
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))

    def to_device(self, inputs: Any) -> Any:
        """Return a batch on the device of the training."""
        return self._prepare_inputs(inputs)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        self.save_weights(Path(output_dir or self.args.output_dir))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.save_checkpoint()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.load_checkpoint(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        self.load_best_model()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.after_step_is_saved()
