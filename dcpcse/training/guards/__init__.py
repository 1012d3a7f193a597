"""What training watches: steps that are not finite, gradients that do not arrive, collapse, frozen weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments
from transformers.training_args import OptimizerNames

from dcpcse.methods import Method
from dcpcse.training.guards.collapse import EFFECTIVE_RANK, CollapseMonitor, effective_rank
from dcpcse.training.guards.finite import NON_FINITE, FiniteCheck, Locate, Pass, require_finite_weights
from dcpcse.training.guards.frozen_weights import FrozenWeightsCheck
from dcpcse.training.guards.gradient_flow import GradientFlowCheck

__all__ = ["NON_FINITE", "Guards", "Locate"]

FUSED_WITH_BACKWARD = ("lomo", "layerwise")
"""In the names of optimisers that use a gradient inside the backward pass and leave none to look at."""


class Guards:
    """The guards of a run, told by the Trainer what happens; `callbacks` are those that it calls by itself."""

    def __init__(self, module: nn.Module, method: Method, args: TrainingArguments, locate: Locate | None) -> None:
        """module: the training step of the method. locate: see `Locate`."""
        self.method = method
        self.trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.gradient_flow = GradientFlowCheck(module)
        self.finite = FiniteCheck(self.trained, Path(args.output_dir), locate, args.logging_nan_inf_filter)
        self.callbacks: Sequence[TrainerCallback] = (FrozenWeightsCheck(module), CollapseMonitor())
        optimizer = OptimizerNames(args.optim).value
        self._gradients_stay = not any(part in optimizer for part in FUSED_WITH_BACKWARD)
        self._anchors: Tensor | None = None

    def observe(self, rows: Sequence[int], batch: Mapping[str, Any], terms: Mapping[str, Tensor]) -> None:
        """A forward and backward pass is done; rows: of the training data; terms: without gradients."""
        self.finite.observe(Pass(rows, batch["input_ids"], terms))
        anchors = self.method.anchors
        # The last batch of an epoch may be a small one.
        if anchors is not None and (self._anchors is None or len(anchors) >= len(self._anchors)):
            self._anchors = anchors

    def before_optimizer(self, number: int, settings: Mapping[str, Any], *, scaled: bool) -> None:
        """The gradients of a step are complete, and not clipped yet; see `FiniteCheck.require`."""
        self.finite.require(number, settings, scaled=scaled)
        if self._gradients_stay:
            self.gradient_flow.require()

    def flush(self) -> None:
        """UserError if a step so far was not finite; before anything is logged, measured or written."""
        self.finite.flush()

    def before_saving(self, step: int) -> None:
        """UserError if what is about to be written is not finite."""
        self.flush()
        head = self.method.model.head
        buffers = {} if head is None else {f"head.{name}": buffer for name, buffer in head.named_buffers()}
        require_finite_weights({**self.trained, **buffers}, step)

    def figures(self) -> dict[str, float]:
        """For the log, of this process: how its embeddings lie since the last time; nothing without any."""
        anchors, self._anchors = self._anchors, None
        return {} if anchors is None else {EFFECTIVE_RANK: effective_rank(anchors)}
