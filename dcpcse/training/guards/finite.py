"""Losses and gradients that are not finite stop training at their step, and the batch is kept to be looked at."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dcpcse.utils.distributed import cpu_group, world_size
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_atomic
from dcpcse.utils.run_files import last_checkpoint
from dcpcse.utils.safetensors_io import listed

NON_FINITE = "non-finite"
"""Folder of a run that keeps the batches of steps that were not finite."""

STEP, BATCH = "step.json", "batch.jsonl"
"""What is kept of a step: its losses and what is not finite; a line for each example."""

Trained = Mapping[str, nn.Parameter]
"""What is trained, by name."""

Locate = Callable[[Sequence[int]], Sequence[Mapping[str, Any]]]
"""Rows of the training data → what can be told of each: its place in the file, its texts."""


@dataclass(frozen=True)
class Pass:
    """What went into a forward and backward pass, and the unweighted terms that came out.

    rows: of the training data, one an example; none where they are not known.
    """

    rows: Sequence[int]
    input_ids: Tensor
    terms: Mapping[str, Tensor]


class _PendingCheck:
    """Whether all of these numbers (n,) of all processes are finite, asked for without waiting for their device."""

    def __init__(self, numbers: Tensor) -> None:
        bad = (~numbers.isfinite()).any().long()
        if world_size() > 1:  # the loss of one process may be the only one that is not
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        self.at_once = not bad.is_cuda
        self._bad = bad.to("cpu", non_blocking=bad.is_cuda)
        self._there = None if self.at_once else torch.cuda.current_stream().record_event()

    def is_bad(self) -> bool:
        if self._there is not None:
            self._there.synchronize()
        return bool(self._bad)


@dataclass(frozen=True)
class _Step:
    """A step up to its optimiser: its passes, the norm of each gradient (n,) and the parameters these belong to."""

    number: int
    settings: Mapping[str, Any]
    passes: Sequence[Pass]
    norms: Tensor
    names: Sequence[str]
    answer: _PendingCheck

    def bad_terms(self) -> list[str]:
        """Names of terms that are not finite in one of the passes of this process."""
        return sorted({name for one in self.passes for name, term in one.terms.items() if not term.isfinite()})

    def bad_gradients(self) -> list[str]:
        """Names of parameters whose gradient is not finite."""
        return [name for name, fine in zip(self.names, self.norms.isfinite().tolist(), strict=True) if not fine]


@dataclass
class FiniteCheck:
    """Looks at every step after its backward pass, before gradients are clipped and the optimiser uses them.

    On a CPU training stops there. A GPU would have to be waited for: its answer is read while the next step computes,
    and before anything is logged, measured or written, so that nothing of a bad step is left but weights in memory.
    folder: of the run. ignore_losses: only gradients count.
    """

    trained: Trained
    folder: Path
    locate: Locate | None = None
    ignore_losses: bool = False
    _passes: list[Pass] = field(default_factory=list)
    _asked: _Step | None = None

    def observe(self, one: Pass) -> None:
        """Remember a pass until its step ends."""
        self._passes.append(one)

    def require(self, number: int, settings: Mapping[str, Any], *, scaled: bool = False) -> None:
        """UserError if this step, or on a GPU the one before it, is not finite.

        settings: what else is to be written down. scaled: gradients are fp16's, whose scaler leaves out steps that
        overflow.
        """
        passes, self._passes = self._passes, []
        step = self._step(number, settings, passes, scaled)
        if step is None:
            return
        before, self._asked = self._asked, step
        if step.answer.at_once:
            self.flush()
        elif before is not None:
            self._stop_if_bad(before)

    def flush(self) -> None:
        """UserError if the last step was not finite; waits for the device."""
        step, self._asked = self._asked, None
        if step is not None:
            self._stop_if_bad(step)

    def _step(self, number: int, settings: Mapping[str, Any], passes: Sequence[Pass], scaled: bool) -> _Step | None:
        gradients = {} if scaled else {name: p.grad for name, p in self.trained.items() if p.grad is not None}
        losses = [] if self.ignore_losses else [term for one in passes for term in one.terms.values()]
        if not gradients and not losses:
            return None
        # A norm that overflows is as bad: clipping by it leaves zeros.
        norms = [norm.float() for norm in torch._foreach_norm([*gradients.values()])] if gradients else []
        answer = _PendingCheck(torch.stack([*(loss.detach().float() for loss in losses), *norms]))
        return _Step(number, settings, passes, torch.stack(norms) if norms else torch.zeros(0), [*gradients], answer)

    def _stop_if_bad(self, step: _Step) -> None:
        if step.answer.is_bad():
            kept = self._kept(step)
            # After it has been kept: the first process that ends takes the others with it.
            raise UserError(self._said(step, kept, _each_processes(step.bad_terms())))

    def _said(self, step: _Step, kept: str, terms: Sequence[Sequence[str]]) -> str:
        bad = sorted({name for own in terms for name in own})
        what = f"the loss {', '.join(bad)}" if bad else f"the gradient of {listed(step.bad_gradients())}"
        last = last_checkpoint(self.folder)
        left = f"{last.name}, of before, is whole" if last else "no checkpoint was written before"
        return f"{what} is not finite at step {step.number}; {kept}; {left}; try a lower --learning_rate"

    def _kept(self, step: _Step) -> str:
        """Write the step into the folder of the run; gives a line that says where it is."""
        place = self.folder / NON_FINITE / f"step-{step.number}"
        own = place if world_size() == 1 else place / f"process-{dist.get_rank()}"
        try:
            write_atomic(own / BATCH, "".join(f"{json.dumps(line)}\n" for line in self._examples(step)))
            write_atomic(own / STEP, json.dumps(self._summary(step), indent=2) + "\n")
        except OSError as error:
            return f"its batch could not be kept ({error.strerror})"
        return f"its batch is in {place}"

    def _examples(self, step: _Step) -> Iterable[dict[str, Any]]:
        for number, one in enumerate(step.passes):
            known = self.locate is not None and one.rows
            told = self.locate(one.rows) if known else [{} for _ in one.input_ids]
            for example, ids in zip(told, one.input_ids.tolist(), strict=True):
                yield {"pass": number, **example, "input_ids": ids}

    def _summary(self, step: _Step) -> dict[str, Any]:
        losses = [{name: _number(term.item()) for name, term in one.terms.items()} for one in step.passes]
        bad = {"losses": step.bad_terms(), "gradients": step.bad_gradients()}
        if step.answer.at_once:  # later they are those of after the step, which it has ruined
            bad["weights"] = _not_finite(self.trained)
        return {"step": step.number, **step.settings, "losses": losses, "not_finite": bad}


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if not tensor.isfinite().all()]


def _number(value: float) -> float | str:
    """JSON has no word for what is not finite."""
    return value if math.isfinite(value) else str(value)


def _each_processes(thing: Any) -> list[Any]:
    """That of every process, in the order of ranks."""
    if world_size() == 1:
        return [thing]
    things: list[Any] = [None] * world_size()
    dist.all_gather_object(things, thing, group=cpu_group())
    return things


def require_finite_weights(tensors: Mapping[str, Tensor], step: int) -> None:
    """UserError, before anything is written, for trained weights that are not finite."""
    if bad := _not_finite(tensors):
        raise UserError(
            f"the trained weights {listed(bad)} are not finite after step {step}, and are not written; try a lower "
            "--learning_rate"
        )
