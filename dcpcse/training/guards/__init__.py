"""Checks of a training: non-finite steps, missing gradients, nothing to learn, collapse, changed frozen weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames

from dcpcse.methods import Method
from dcpcse.training.guards.collapse import EFFECTIVE_RANK, CollapseMonitor, effective_rank
from dcpcse.training.guards.finite import (
    NON_FINITE,
    FiniteCheck,
    FrozenWeightsCheck,
    Locate,
    Pass,
    require_finite_weights,
)
from dcpcse.training.guards.gradients import GradientFlowCheck, NothingToLearnCheck

__all__ = ["NON_FINITE", "Guards", "Locate"]

FUSED_WITH_BACKWARD = ("lomo", "layerwise")
"""Parts of the names of optimisers that use gradients during the backward pass and then discard them."""


class Guards:
    """All checks that stop or warn when a training fails. The Trainer calls the methods and adds `callbacks`.

    Args:
        module: The training step.
        method: The method that is trained.
        args: Options of the run.
        locate: A function that finds rows in the training file (see `Locate`).
    """

    def __init__(self, module: nn.Module, method: Method, args: TrainingArguments, locate: Locate | None) -> None:
        self.method = method
        self.trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.gradient_flow = GradientFlowCheck(module)
        self.nothing_to_learn = NothingToLearnCheck(method, self.trained)
        self.finite = FiniteCheck(self.trained, Path(args.output_dir), locate, args.logging_nan_inf_filter)
        self.callbacks: Sequence[TrainerCallback] = (FrozenWeightsCheck(module), CollapseMonitor())
        optimizer = OptimizerNames(args.optim).value
        self._gradients_stay = not any(part in optimizer for part in FUSED_WITH_BACKWARD)
        self._anchors: Tensor | None = None

    def observe(self, rows: Sequence[int], batch: Mapping[str, Any], terms: Mapping[str, Tensor]) -> None:
        """Record the inputs and losses of a forward and backward pass for the checks.

        Args:
            rows: Row numbers in the training data.
            batch: The batch.
            terms: The detached losses by name.
        """
        self.finite.observe(Pass(rows, batch["input_ids"], terms))
        self.nothing_to_learn.observe(len(batch["input_ids"]), terms)
        anchors = self.method.anchors
        # The last batch of an epoch may be smaller, so the largest batch is kept.
        if anchors is not None and (self._anchors is None or len(anchors) >= len(self._anchors)):
            self._anchors = anchors

    def before_optimizer(self, number: int, settings: Mapping[str, Any], *, scaled: bool) -> None:
        """Raise UserError or warn if the losses or complete gradients of a step are bad, before gradients are clipped.

        Args:
            number: Number of the step.
            settings: Values to save with a bad step, including the `weights` of the losses.
            scaled: Whether the gradients are scaled for fp16.
        """
        self.finite.require(number, settings, scaled=scaled)
        if self._gradients_stay:
            self.gradient_flow.require()
        has_gradient = self._gradients_stay and not scaled
        self.nothing_to_learn.look(number, settings["weights"], has_gradient=has_gradient)

    def flush(self) -> None:
        """Raise UserError if the loss or gradient of any step so far is not finite.

        The Trainer calls this method before it logs, evaluates or saves.
        """
        self.finite.flush()

    def before_saving(self, step: int) -> None:
        """Raise UserError if the loss or gradient of any step so far, or a weight to be saved, is not finite."""
        self.flush()
        head = self.method.model.head
        buffers = {} if head is None else {f"head.{name}": buffer for name, buffer in head.named_buffers()}
        require_finite_weights({**self.trained, **buffers}, step)

    def figures(self) -> dict[str, float]:
        """Return a metric for the log: the effective rank of the largest batch of anchors since the last log entry.

        The result is {} if there were no anchors.
        """
        anchors, self._anchors = self._anchors, None
        return {} if anchors is None else {EFFECTIVE_RANK: effective_rank(anchors)}
