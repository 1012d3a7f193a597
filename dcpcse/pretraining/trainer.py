"""Train a language model on next tokens, then on masked tokens, with logits only at the predicted positions."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.pretraining.data import IGNORED, MaskedBatch, Masking
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import remove, staging_folder
from dcpcse.utils.private.arguments import OneGpuArguments
from dcpcse.utils.private.trainer import ExportableState, HookedTrainer
from dcpcse.utils.run_files import checkpoints_in
from dcpcse.utils.signals import DeferredSignal

STEPS_OF_TIME = 10**7
"""Number of steps into which a schedule in minutes is divided; also the maximum number of steps of such a training."""

KEPT = 2
"""Number of checkpoints that are kept."""


def trainer_arguments(args: PretrainingArguments, *, measures_first: bool) -> transformers.TrainingArguments:
    """Return the arguments of transformers' Trainer for a pretraining.

    Args:
        args: The options of the pretraining.
        measures_first: Whether the model is also evaluated on the held-out text before the first step.
    """
    same = {field.name: getattr(args, field.name) for field in fields(args)}
    schedule = "constant_with_warmup" if args.lr_scheduler_type == "constant" else args.lr_scheduler_type
    own = {
        "max_steps": args.max_steps or STEPS_OF_TIME,
        "lr_scheduler_type": schedule,
        "per_device_train_batch_size": 1,  # an item of the data is a batch
        "torch_compile": False,  # only the layers are compiled
        "train_sampling_strategy": "sequential",
        "eval_strategy": "steps",
        "eval_on_start": measures_first,
        "save_strategy": "steps",
        "optim": "adamw_torch_fused",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,  # batches are made on the device
        "logging_nan_inf_filter": False,  # this would wait for the device in every step
    }
    known = {field.name for field in fields(OneGpuArguments)}
    try:
        return OneGpuArguments(**{name: value for name, value in {**same, **own}.items() if name in known})
    except ValueError as error:  # mixed precision that the device lacks
        raise UserError(" ".join(str(error).split())) from error


class Progress(TrainerCallback, ExportableState):
    """Prints a line per log entry, and stops the training when its steps or minutes are over, or after a signal.

    After a signal, a checkpoint is saved. Checkpoints contain the attributes below, so a resumed training
    continues to count.

    Attributes:
        seconds: The duration of the training so far.
        causal_steps: The number of steps so far in which next tokens were predicted.
    """

    def __init__(self, args: PretrainingArguments, stop: DeferredSignal) -> None:
        self.args, self.stop = args, stop
        self.causal_steps = self._tokens = 0
        self._before, self._started = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Duration of the training so far in seconds, including the time before the training was resumed."""
        return self._before + time.monotonic() - self._started

    def state(self) -> dict[str, Any]:
        """Return the state of this callback that transformers' Trainer saves in checkpoints."""
        return {"args": {}, "attributes": {"seconds": self.seconds, "causal_steps": self.causal_steps}}

    def done(self, steps: float) -> float:
        """Return the finished share of the training, by its number of steps or, if --minutes is given, by the time."""
        return steps / self.args.max_steps if self.args.minutes is None else self.seconds / (60 * self.args.minutes)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        saved = state.stateful_callbacks[type(self).__name__]["attributes"]
        self._before, self.causal_steps = saved["seconds"], saved["causal_steps"]
        self._started, self._tokens = time.monotonic(), state.num_input_tokens_seen

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.stop.number or self.done(state.global_step) >= 1:
            control.should_training_stop = True
            control.should_save = bool(self.stop.number)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **others: Any) -> None:
        if "loss" in logs:
            text = f"training loss {logs['loss']:.3f}"
        elif "eval_loss" in logs:
            accuracy, bits = logs["eval_masked_accuracy"], logs["eval_bits_per_character"]
            text = f"held-out text: masked accuracy {accuracy:.2f} %, {bits:.3f} bits per character"
        else:
            return
        whole = "" if self.args.max_steps is None else f" of {self.args.max_steps:,}"
        notify(f"step {state.global_step:,}{whole}: {text}{self._left(state)}")

    def _left(self, state: Any) -> str:
        tokens, done = state.num_input_tokens_seen - self._tokens, self.done(state.global_step)
        if not tokens or done >= 1:
            return ""
        speed = tokens / (time.monotonic() - self._started)
        return f"; {speed:,.0f} tokens/s, {timedelta(seconds=round(self.seconds * (1 - done) / done))} left"


class MaskedLMTrainer(HookedTrainer):
    """A transformers Trainer for BERT and RoBERTa that computes logits only at the predicted positions.

    Without the logits of the other positions, a step of a small model with a vocabulary of 8,000 takes about 2/3 of
    the time.

    Args:
        masking: Draws the masks of the training batches.
        batches: The masked batches of the held-out text, on the device of the model.
        bits: The number of bits per character that a loss of one nat per token equals.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: transformers.TrainingArguments,
        data: torch.utils.data.Dataset,
        *,
        progress: Progress,
        masking: Masking,
        batches: Sequence[MaskedBatch],
        bits: float,
    ) -> None:
        super().__init__(model, args, itemgetter(0), data, eval_dataset=[0], callbacks=[progress])
        self.progress, self.masking, self.batches, self.bits = progress, masking, batches, bits
        self.model_accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it among accumulated batches
        self.remove_callback(PrinterCallback)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return transformers' schedule of the learning rate.

        With --minutes, the schedule follows the elapsed time instead of the number of steps.
        """
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        shapes = scheduler.lr_lambdas
        scheduler.lr_lambdas = [
            lambda step, shape=shape: shape(self.progress.done(step) * num_training_steps) for shape in shapes
        ]
        return scheduler

    def compute_loss(self, model: nn.Module, inputs: Mapping[str, Tensor], *args: Any, **others: Any) -> Tensor:
        """Return the mean cross entropy (nats) of the next tokens or the masked tokens; 0 if no token is masked."""
        causal = self.progress.done(self.state.global_step + 1) <= self.progress.args.causal_share
        # Mixed precision is set up for the model's forward, which is not called.
        with self.accelerator.autocast():
            if causal:
                logits, labels = next_token_logits(model, inputs["input_ids"])
            else:
                logits, labels = masked_logits(model, self.masking(**inputs))
        if self.accelerator.sync_gradients:  # the last batch of the step
            self.progress.causal_steps += causal
        self.state.num_input_tokens_seen += inputs["input_ids"].numel()
        return F.cross_entropy(logits.float(), labels, reduction="sum") / (labels != IGNORED).sum().clamp(min=1)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **others: Any) -> dict[str, float]:
        """Return and log the loss, the accuracy and the bits per character at masked tokens of the held-out text.

        The loss is in nats per token.
        """
        started = time.perf_counter()
        with self.accelerator.autocast():
            figures = measure(self.model, self.batches)
        figures |= {"bits_per_character": self.bits * figures["loss"]}
        figures |= {"runtime": time.perf_counter() - started, "tokens_seen": self.state.num_input_tokens_seen}
        figures = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    def save_checkpoint(self) -> None:
        """Save a checkpoint atomically, under its final name only when it is complete, and remove old checkpoints."""
        output, name = Path(self.args.output_dir), f"checkpoint-{self.state.global_step}"
        with staging_folder(output / name) as part:
            self.args.output_dir = str(part)
            try:
                super().save_checkpoint()
            finally:
                self.args.output_dir = str(output)
            os.replace(part / name, output / name)
        for old in list(checkpoints_in(output).values())[:-KEPT]:
            remove(old)


@torch.no_grad()
def measure(model: PreTrainedModel, batches: Sequence[MaskedBatch]) -> dict[str, float]:
    """Return the loss (mean cross entropy in nats) and the accuracy (in percent) at the masked tokens of batches."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=model.device)
    for batch in batches:
        logits, labels = masked_logits(model, batch)
        loss = F.cross_entropy(logits.double(), labels, reduction="sum")
        sums += torch.stack([loss, (logits.argmax(-1) == labels).sum(), (labels != IGNORED).sum()])
    loss, right, count = sums.tolist()
    return {"loss": loss / count, "masked_accuracy": 100 * right / count}


def masked_logits(model: nn.Module, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    """Return the logits (n, vocabulary) at the n predicted positions of a batch, and their labels (n,)."""
    hidden = model.base_model(batch.ids).last_hidden_state
    rows = torch.arange(len(hidden), device=hidden.device)[:, None] * hidden.shape[1]
    places = (batch.places + rows).flatten()
    return _head(model)(hidden.flatten(0, 1).index_select(0, places)), batch.labels.flatten()


def next_token_logits(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (n, vocabulary) for the next tokens in windows (N, L), and the next tokens (n,); n = N · (L - 1).

    Each position attends to itself and to earlier positions. The special tokens at the end of lines are predicted too.
    """
    hidden = model.base_model(ids, is_causal=True).last_hidden_state[:, :-1]
    return _head(model)(hidden.flatten(0, 1)), ids[:, 1:].flatten()


def _head(model: nn.Module) -> nn.Module:
    return model.get_submodule("cls" if hasattr(model, "cls") else "lm_head")
