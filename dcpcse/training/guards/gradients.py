"""Check that gradients reach all trained parameters, and warn if the first steps have nothing to learn."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from dcpcse.encoders.prompts import PromptTable
from dcpcse.methods import Method
from dcpcse.utils.console import warn
from dcpcse.utils.distributed import world_size
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.tensor_files import listed

PATIENCE = 10
"""Number of first steps in which all gradients may be zero, for example if the loss is zero, without an error."""

CAUSES = (
    "check whether the encoder's attention ignores the prompts, activation checkpointing is reentrant, a tensor is "
    "detached, or the loss is constant (a batch of one sentence, a tiny --temp, a term of weight 0)"
)


@dataclass(frozen=True)
class _Group:
    """A group of trained parameters, selected by the prefixes of their names.

    Args:
        present: `all` if every parameter must have a gradient, `any` if at least one parameter must have a gradient.
        alive: `all` if every gradient must be nonzero, `any` if at least one gradient must be nonzero, None if all
            gradients may be zero.
        part: A part of the names of the parameters.
    """

    name: str
    starts: tuple[str, ...]
    present: Callable[[Iterable[bool]], bool]
    alive: Callable[[Iterable[bool]], bool] | None
    part: str = ""


GROUPS = (
    # Every prompt of every layer is visible to, or part of, every sentence.
    _Group("prompts", ("model.encoder.prompt.", "model.encoder.shallow.", "model.encoder.cls_prompt."), all, all),
    # Some gradients may be zero: denoising cancels the bias of a LayerNorm.
    _Group("head", ("model.head.",), all, any),
    # At first, the matrices B of a LoRA adapter are zero, and therefore the gradients of the matrices A too.
    _Group("LoRA adapter", ("model.encoder.backbone.",), all, any, part=".lora_"),
    # Architectures contain weights that their forward pass does not use, and the gradient of a key's bias is zero.
    _Group("encoder", ("model.encoder.backbone.",), any, any),
    # Gradients are zero if a term has the weight 0 or a batch has no masked token.
    _Group("objectives", ("losses.",), any, None),
)

Sizes = dict[str, float | None]
"""Name of a parameter (and layer) → largest absolute value of its gradient, or None without a gradient."""


class GradientFlowCheck:
    """Checks, at the first step with finite gradients, that gradients reach all trained parameters.

    Args:
        module: The training step, whose parameters are checked.
    """

    def __init__(self, module: nn.Module) -> None:
        self.trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.tables = {
            f"{name}.weight": part for name, part in module.named_modules() if isinstance(part, PromptTable)
        }
        self.waiting = PATIENCE

    def require_graph(self, loss: Tensor) -> None:
        """Raise UserError if the loss does not depend on any trained parameter."""
        if not loss.requires_grad:
            raise UserError(f"the loss depends on none of the trained parameters {listed(self.trained)}: {CAUSES}")

    def require(self) -> None:
        """Raise UserError, with likely causes, if parameters get no gradient. Call this before gradients are clipped.

        A step with non-finite gradients is not checked. In fp16, the first steps can have such gradients, while the
        loss scale is too large.
        """
        if not self.waiting:
            return
        sizes = self._sizes()
        if not all(size is None or math.isfinite(size) for size in sizes.values()):
            return
        flat = not any(sizes.values())
        self.waiting = self.waiting - 1 if flat else 0
        missing = [line for group in GROUPS for line in _missing(group, sizes, zeros=not self.waiting)]
        if missing:
            raise UserError(f"{'; '.join(missing)}: {CAUSES}")

    def _sizes(self) -> Sizes:
        sizes: Sizes = {}
        for name, weight in self.trained.items():
            if weight.grad is None or name not in self.tables:
                sizes[name] = None if weight.grad is None else weight.grad.abs().max().item()
            else:
                layers = weight.grad.unflatten(1, (self.tables[name].shape.layers, -1)).abs().amax((0, 2)).tolist()
                sizes |= {f"{name} (layer {i})": size for i, size in enumerate(layers)}
        return sizes


def _missing(group: _Group, sizes: Sizes, *, zeros: bool) -> list[str]:
    """Describe the missing gradients of a group.

    Args:
        zeros: Whether zero gradients count as missing.
    """
    group_sizes = {name: size for name, size in sizes.items() if name.startswith(group.starts) and group.part in name}
    if not group_sizes:
        return []
    absent = [name for name, size in group_sizes.items() if size is None]
    if not group.present(size is not None for size in group_sizes.values()):
        return [f"no gradient reaches the {group.name} ({listed(absent)})"]
    present = {name: size for name, size in group_sizes.items() if size is not None}
    if zeros and group.alive and not group.alive(size > 0 for size in present.values()):
        return [f"the gradient of the {group.name} is zero ({listed([n for n, size in present.items() if not size])})"]
    return []


STEPS = 5
"""Number of first steps whose median is compared with the limits."""

SOLVED = 1e-3
"""A task counts as solved if the loss is at most this share of the loss of guessing.

For batches of 64 this is a loss of 4.2e-3: the positive has a probability of 99.6 %. The share is below 3e-4 where a
sentence encoder has nothing to learn, and above 4e-3 in other trainings (docs/training.md).
"""

NOISE = 1e-8
"""A gradient counts as zero if its root mean square per weight is at most this (Adam's epsilon)."""

Terms = Mapping[str, Tensor]
"""The unweighted terms of a loss by name."""


@dataclass(frozen=True)
class _Step:
    """The weighted loss and the gradient norm of a step, as a tensor (2,), and the loss of guessing (0 if unknown).

    The norm is infinite if the gradient is scaled for fp16, or if the optimiser has already used it.
    """

    loss_and_norm: Tensor
    chance: float


class NothingToLearnCheck:
    """Warns once, after the first 5 steps, if the loss or the gradient was near zero in these steps.

    Adam divides the gradient of a weight by the size of the gradient, so even a tiny gradient causes full steps. The
    loss is the weighted sum of all terms. It is compared with the loss of guessing among the candidates of the first
    loss with negatives. For methods without negatives, only the gradient is checked. A resumed run is not checked.

    Args:
        method: The method that is trained.
        trained: The trained parameters by name.
    """

    def __init__(self, method: Method, trained: Mapping[str, nn.Parameter]) -> None:
        self.method = method
        self.trained = trained
        self._passes: list[tuple[int, Terms]] = []
        self._steps: list[_Step] = []
        self._is_over = False

    def observe(self, examples: int, terms: Terms) -> None:
        """Record the losses of a forward and backward pass.

        Args:
            examples: Number of examples in this process.
            terms: The unweighted losses by name.
        """
        if not self._is_over:
            self._passes.append((examples, terms))

    def look(self, number: int, weights: Mapping[str, float], *, has_gradient: bool) -> None:
        """Record a step before its gradients are clipped; warn after the last recorded step if necessary.

        Args:
            number: Number of the step, from 1.
            weights: The weight of each loss, by name.
            has_gradient: Whether the gradients still exist and are not scaled for fp16.
        """
        if self._is_over:
            return
        passes, self._passes = self._passes, []
        self._steps.append(self._step(passes, weights, has_gradient))
        self._is_over = number >= STEPS
        if number == STEPS == len(self._steps) and (problem := self._problem()):
            warn(f"there is nothing to learn: {problem}, or lower {spell('learning_rate')}")

    def _step(self, passes: Sequence[tuple[int, Terms]], weights: Mapping[str, float], has_gradient: bool) -> _Step:
        losses = [sum(weights.get(name, 1.0) * term.float() for name, term in terms.items()) for _, terms in passes]
        # An overridden `compute_loss` has no terms, and the loss of guessing is unknown.
        is_known = all(terms.keys() <= weights.keys() for _, terms in passes)
        negatives = self.method.negatives(passes[0][0] * world_size()) if is_known else None
        loss = torch.stack(losses).mean()
        gradients = [weight.grad for weight in self.trained.values() if weight.grad is not None]
        norm = get_total_norm(gradients) if has_gradient and gradients else torch.full_like(loss, math.inf)
        return _Step(torch.stack([loss, norm.float()]), math.log1p(negatives or 0))

    def _problem(self) -> str | None:
        """Return what is wrong and what to do; None if the training can learn.

        This waits for a GPU, but only once per run.
        """
        loss, norm = torch.stack([step.loss_and_norm for step in self._steps]).median(dim=0).values.tolist()
        chance = median(step.chance for step in self._steps)
        size = sum(weight.numel() for weight in self.trained.values())
        if chance and abs(loss) <= SOLVED * chance:
            return (
                f"the loss of the first {STEPS} steps is {loss:.1e}, where that of guessing is {chance:.2f}; the "
                "encoder solves the task, and the optimiser makes full steps of the noise that is left; raise "
                f"{spell('temp')}, give harder data or hard negatives"
            )
        if norm <= NOISE * math.sqrt(size):
            return (
                f"the gradient of the first {STEPS} steps has the norm {norm:.1e} over {size:,} weights, and the "
                "optimiser makes full steps from rounding errors; give harder data"
            )
        return None
