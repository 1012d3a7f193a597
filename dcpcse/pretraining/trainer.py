"""Train a language model on next tokens, then on masked tokens, with logits at the predicted positions only."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

from dcpcse.utils import schema
from dcpcse.utils.console import notify
from dcpcse.utils.devices import release_memory
from dcpcse.utils.files import remove, write_json_atomic
from dcpcse.utils.private.trainer import HookedTrainer, safe_globals
from dcpcse.utils.run_files import checkpoints_in
from dcpcse.utils.signals import DeferredSignal

DRAWN_FROM = "masks_rng_state.pth"
"""The file in a checkpoint with the random state from which the masks of the next batch were drawn."""

COMPLETE = "complete.json"
"""The last file that is written to a checkpoint."""


@strict
@dataclass(kw_only=True)
class Complete(schema.Open):
    """The content of `COMPLETE`: the seconds of training so far."""

    seconds: int | float = schema.finite()


class MaskedLMTrainer(HookedTrainer):
    """A transformers Trainer for BERT and RoBERTa that computes logits at the masked positions only.

    Without the logits of the other positions, a step of a small model with a vocabulary of 8,000 takes about 2/3 of
    the time. batches: those of the evaluation. characters (vocabulary,): length of each token. causal_steps: number of
    steps at the start in which the model predicts next tokens.
    """

    def __init__(
        self,
        *args: Any,
        batches: Sequence[Mapping[str, Tensor]],
        characters: np.ndarray,
        causal_steps: int = 0,
        **others: Any,
    ) -> None:
        super().__init__(*args, eval_dataset=[0], **others)
        self.causal_steps = causal_steps
        self.batches, self.characters = batches, torch.from_numpy(characters)
        self.model_accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it among accumulated batches
        self.remove_callback(PrinterCallback)

    def compute_loss(self, model: nn.Module, inputs: Mapping[str, Tensor], *args: Any, **others: Any) -> Tensor:
        """Return the mean cross entropy (nats) of the next tokens or of the masked ones, 0 if no token is masked."""
        logits_of = next_token_logits if self.state.global_step < self.causal_steps else masked_logits
        # Mixed precision is set up for the model's forward, which is not called.
        with self.accelerator.autocast():
            logits, labels = logits_of(model, inputs)
        return F.cross_entropy(logits.float(), labels, reduction="mean" if len(labels) else "sum")

    def repeat_masks(self, checkpoint: Path) -> None:
        """Let the first two batches of a resumed run have the masks that they would have had without the interruption.

        Must be called before `train`.
        """
        drawn_from = torch.load(checkpoint / DRAWN_FROM, weights_only=True)
        with safe_globals():  # allows the numpy types of random states, as Trainer does
            after = torch.load(checkpoint / "rng_state.pth", weights_only=True)["cpu"]
        self.data_collator.states = (drawn_from, after)

    def save_random_state(self, folder: Path) -> None:
        """Save the states of the random generators, and that from which the masks of the next batch are drawn."""
        super().save_random_state(folder)
        torch.save(self.data_collator.drawn_from, folder / DRAWN_FROM)

    def load_random_state(self, checkpoint: Path | None) -> None:
        """Restore the states, unless the first batches of a resumed run were drawn already."""
        # Trainer calls this after the first batches of a resumed run were drawn, or before the first one of a pass.
        now, drawn = torch.get_rng_state(), not self.data_collator.states
        super().load_random_state(checkpoint)
        self.data_collator.states = ()
        if drawn:
            torch.set_rng_state(now)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **others: Any) -> dict[str, float]:
        """Return and log loss (nats a token), accuracy and bits per character at the masked tokens held out."""
        started = time.perf_counter()
        figures = measure(self.model, map(self.to_device, self.batches), self.characters)
        figures["runtime"] = time.perf_counter() - started
        figures = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        self.log(figures)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures


@torch.no_grad()
def measure(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], characters: Tensor) -> dict[str, float]:
    """Return the figures of a model at the masked tokens of batches, which are on its device.

    loss: mean cross entropy in nats. masked_accuracy: in percent. bits_per_character: the sum of -log2 p over the
    masked tokens, divided by the number of their characters. characters (vocabulary,): length of each token.
    """
    model.eval()
    loss, right, count, letters = 0.0, 0, 0, 0
    for batch in batches:
        logits, labels = masked_logits(model, batch)
        loss += F.cross_entropy(logits.double(), labels, reduction="sum").item()
        right += int((logits.argmax(-1) == labels).sum())
        count += len(labels)
        letters += int(characters[labels.cpu()].sum())
    return {
        "loss": loss / count,
        "masked_accuracy": 100 * right / count,
        "bits_per_character": loss / math.log(2) / letters,
    }


def masked_logits(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the logits (n, vocabulary) at the n masked positions of a batch, and the original tokens (n,)."""
    hidden = model.base_model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
    chosen = inputs["labels"].flatten() != -100
    places = chosen.nonzero().squeeze(-1)
    logits = _head(model)(hidden.flatten(0, 1).index_select(0, places))
    return logits, inputs["labels"].flatten().index_select(0, places)


def next_token_logits(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return logits (n, vocabulary) for the n next tokens of a batch, and these tokens (n,).

    The model reads the tokens as they were before masking, and a position attends to itself and those before it. The
    special tokens that end lines are predicted too; padding is not.
    """
    labels, present = inputs["labels"], inputs["attention_mask"].bool()
    ids = torch.where(labels == -100, inputs["input_ids"], labels)
    earlier = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
    hidden = model.base_model(ids, earlier & present[:, None, None, :]).last_hidden_state[:, :-1]
    following = present[:, 1:]
    return _head(model)(hidden[following]), ids[:, 1:][following]


def _head(model: nn.Module) -> nn.Module:
    return model.get_submodule("cls" if hasattr(model, "cls") else "lm_head")


class Progress(TrainerCallback):
    """Prints a line per log entry with speed and time left, stops after a signal, and marks complete checkpoints.

    before: seconds of training before this call.
    """

    def __init__(self, stop: DeferredSignal, before: float) -> None:
        self.stop, self.before = stop, before
        self._started, self._first, self._seen = time.monotonic(), 0, 0

    @property
    def seconds(self) -> float:
        """Seconds of training so far, in all calls."""
        return self.before + time.monotonic() - self._started

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._started, self._first, self._seen = time.monotonic(), state.global_step, state.num_input_tokens_seen

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float], **others: Any) -> None:
        if "loss" in logs:
            text = f"training loss {logs['loss']:.3f}"
        elif "eval_loss" in logs:
            accuracy, bits = logs["eval_masked_accuracy"], logs["eval_bits_per_character"]
            text = f"held-out text: masked accuracy {accuracy:.2f} %, {bits:.3f} bits per character"
        else:
            return
        notify(f"step {state.global_step:,} of {state.max_steps:,}: {text}{self._left(state)}")

    def _left(self, state: Any) -> str:
        done, left = state.global_step - self._first, state.max_steps - state.global_step
        if not done or not left:
            return ""
        seconds = time.monotonic() - self._started
        speed = (state.num_input_tokens_seen - self._seen) / seconds
        return f"; {speed:,.0f} tokens/s, {timedelta(seconds=round(seconds / done * left))} left"

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        # The number of masked tokens differs between steps, and so do the sizes of tensors.
        release_memory(args.device, state.global_step)
        if self.stop.number:
            control.should_training_stop = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_json_atomic(checkpoint / COMPLETE, {"seconds": self.seconds})


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder; remove incomplete ones, left behind by a kill."""
    checkpoints = checkpoints_in(folder).values()
    for checkpoint in checkpoints:
        if not (checkpoint / COMPLETE).is_file():
            remove(checkpoint)
    return next((path for path in reversed(list(checkpoints)) if path.exists()), None)


def seconds_before(checkpoint: Path) -> float:
    """Return the seconds of training until a checkpoint."""
    return schema.read(Complete, checkpoint / COMPLETE)["seconds"]
