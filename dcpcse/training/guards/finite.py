"""Stop a training with a non-finite loss or gradient, and check at the end that frozen weights have not changed."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import TrainerCallback

from dcpcse.encoders.identity import weight_digest
from dcpcse.utils.devices import Returning
from dcpcse.utils.distributed import cpu_group, world_size
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import write_atomic, write_json_atomic
from dcpcse.utils.private.models import norms as norms_of
from dcpcse.utils.run_files import last_checkpoint
from dcpcse.utils.tensor_files import listed

NON_FINITE = "non-finite"
"""Name of the folder, in the folder of a run, for the batches of non-finite steps."""

STEP, BATCH = "step.json", "batch.jsonl"
"""Files for a non-finite step: its losses with the names of non-finite tensors, and one line per example."""

Trained = Mapping[str, nn.Parameter]
"""The trained parameters by name."""

Locate = Callable[[Sequence[int]], Sequence[Mapping[str, Any]]]
"""Function from row numbers of the training data to the location and the sentences of each row."""


@dataclass(frozen=True)
class Pass:
    """Inputs of a forward and backward pass, and the loss terms that it computed.

    Args:
        rows: Row numbers of the examples in the training data; empty if unknown.
        input_ids: Token ids of the batch.
        terms: The unweighted loss terms by name.
    """

    rows: Sequence[int]
    input_ids: Tensor
    terms: Mapping[str, Tensor]


class _PendingCheck:
    """A check of whether values (n,) are finite in all processes. Only `is_bad` waits for the device."""

    def __init__(self, values: Tensor) -> None:
        bad = (~values.isfinite()).any().long()
        if world_size() > 1:  # the loss may be non-finite in one process only
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        self._bad = Returning(bad)
        self.is_immediate = self._bad.is_immediate

    def is_bad(self) -> bool:
        return bool(self._bad.read())


@dataclass(frozen=True)
class _Step:
    """The state of a step before its optimiser update.

    Args:
        norms: Gradient norms (n,) of the parameters in `names`.
    """

    number: int
    settings: Mapping[str, Any]
    passes: Sequence[Pass]
    norms: Tensor
    names: Sequence[str]
    check: _PendingCheck

    def bad_terms(self) -> list[str]:
        """Return the names of the loss terms that are not finite in at least one pass of this process."""
        return sorted({name for pass_ in self.passes for name, term in pass_.terms.items() if not term.isfinite()})

    def bad_gradients(self) -> list[str]:
        """Return the names of parameters with non-finite gradients."""
        return [name for name, fine in zip(self.names, self.norms.isfinite().tolist(), strict=True) if not fine]


@dataclass
class FiniteCheck:
    """Checks every step after its backward pass, before gradients are clipped and used by the optimiser.

    On a CPU, training stops at a bad step. On a GPU, waiting for the result of the check would be slow. The result is
    therefore read during the next step, or earlier if the run logs, evaluates or saves. A bad step can thus change the
    weights in memory, but not the saved weights.

    Args:
        trained: The trained parameters by name.
        folder: Folder of the run.
        locate: A function that finds rows in the training file (see `Locate`).
        ignore_losses: Whether to check only gradients.
    """

    trained: Trained
    folder: Path
    locate: Locate | None = None
    ignore_losses: bool = False
    _passes: list[Pass] = field(default_factory=list)
    _pending: _Step | None = None

    def observe(self, pass_: Pass) -> None:
        """Record a forward and backward pass of the current step."""
        self._passes.append(pass_)

    def require(self, number: int, settings: Mapping[str, Any], *, scaled: bool = False) -> None:
        """Raise UserError if this step or, on a GPU, the previous step is not finite.

        Args:
            number: Number of the step.
            settings: Values that are saved with a bad step, such as the learning rate.
            scaled: Whether the gradients are scaled for fp16. Scaled gradients are not checked, since the scaler skips
                steps that overflow.
        """
        passes, self._passes = self._passes, []
        step = self._step(number, settings, passes, scaled)
        if step is None:
            return
        previous, self._pending = self._pending, step
        if step.check.is_immediate:
            self.flush()
        elif previous is not None:
            self._stop_if_bad(previous)

    def flush(self) -> None:
        """Wait for the device, and raise UserError if a loss or gradient of the last step was not finite."""
        step, self._pending = self._pending, None
        if step is not None:
            self._stop_if_bad(step)

    def _step(self, number: int, settings: Mapping[str, Any], passes: Sequence[Pass], scaled: bool) -> _Step | None:
        gradients = {} if scaled else {name: p.grad for name, p in self.trained.items() if p.grad is not None}
        losses = [] if self.ignore_losses else [term for pass_ in passes for term in pass_.terms.values()]
        if not gradients and not losses:
            return None
        # A norm that overflows is also an error: clipping by this norm would set gradients to zero.
        norms = [norm.float() for norm in norms_of([*gradients.values()])] if gradients else []
        check = _PendingCheck(torch.stack([*(loss.detach().float() for loss in losses), *norms]))
        return _Step(number, settings, passes, torch.stack(norms) if norms else torch.zeros(0), [*gradients], check)

    def _stop_if_bad(self, step: _Step) -> None:
        if step.check.is_bad():
            saved = self._save(step)
            # The error is raised after all processes have saved, because the first process that ends terminates the
            # others.
            raise UserError(self._message(step, saved, _of_all_processes(step.bad_terms())))

    def _message(self, step: _Step, saved: str, terms: Sequence[Sequence[str]]) -> str:
        bad = sorted({name for names in terms for name in names})
        what = f"the loss {', '.join(bad)}" if bad else f"the gradient of {listed(step.bad_gradients())}"
        last = last_checkpoint(self.folder)
        before = f"the last checkpoint before it is {last.name}" if last else "there is no checkpoint before it"
        return f"{what} is not finite at step {step.number}; {saved}; {before}; try a lower {spell('learning_rate')}"

    def _save(self, step: _Step) -> str:
        """Save a bad step to the folder of the run, and return a phrase for the error message that says where."""
        folder = self.folder / NON_FINITE / f"step-{step.number}"
        path = folder if world_size() == 1 else folder / f"process-{dist.get_rank()}"
        try:
            write_atomic(path / BATCH, "".join(f"{json.dumps(line)}\n" for line in self._examples(step)))
            write_json_atomic(path / STEP, self._summary(step))
        except OSError as error:
            return f"its batch could not be saved ({error.strerror})"
        return f"its batch is in {folder}"

    def _examples(self, step: _Step) -> Iterable[dict[str, Any]]:
        for number, pass_ in enumerate(step.passes):
            known = self.locate is not None and pass_.rows
            located = self.locate(pass_.rows) if known else [{} for _ in pass_.input_ids]
            for example, ids in zip(located, pass_.input_ids.tolist(), strict=True):
                yield {"pass": number, **example, "input_ids": ids}

    def _summary(self, step: _Step) -> dict[str, Any]:
        losses = [{name: _number(term.item()) for name, term in pass_.terms.items()} for pass_ in step.passes]
        bad = {"losses": step.bad_terms(), "gradients": step.bad_gradients()}
        if step.check.is_immediate:  # otherwise the optimiser has already changed the weights
            bad["weights"] = _not_finite(self.trained)
        return {"step": step.number, **step.settings, "losses": losses, "not_finite": bad}


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if not tensor.isfinite().all()]


def _number(value: float) -> float | str:
    """Return a finite value unchanged, and any other value as a string, since JSON has no such numbers."""
    return value if math.isfinite(value) else str(value)


def _of_all_processes(value: Any) -> list[Any]:
    """Return the values of all processes, in the order of ranks."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=cpu_group())
    return values


def require_finite_weights(tensors: Mapping[str, Tensor], step: int) -> None:
    """Raise UserError if a trained weight is not finite, before weights are saved.

    Args:
        tensors: The trained weights by name.
        step: Number of finished steps, for the message.
    """
    if bad := _not_finite(tensors):
        raise UserError(
            f"the trained weights {listed(bad)} are not finite after step {step} and are not saved; try a lower "
            f"{spell('learning_rate')}"
        )


class FrozenWeightsCheck(TrainerCallback):
    """Compares all frozen weights (encoder, generator, LM head) before and after training.

    Hashing takes about one second per gigabyte.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before: dict[str, bytes] = {}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before = frozen_digests(self.module)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Raise UserError if a frozen weight has changed, before the result is written."""
        after = frozen_digests(self.module)
        changed = [name for name, digest in self.before.items() if after.get(name) != digest]
        if changed:
            raise UserError(
                f"training has changed the frozen weights {listed(changed)}, so no result is written; train again, "
                f"and use another {spell('optim')} or another machine if it happens again"
            )


def frozen_digests(module: nn.Module) -> dict[str, bytes]:
    """Return the digests of all frozen weights, by name."""
    frozen = ((name, weight) for name, weight in module.named_parameters() if not weight.requires_grad)
    return {name: weight_digest(weight) for name, weight in frozen}
