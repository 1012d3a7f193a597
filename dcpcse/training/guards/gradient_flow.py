"""Check that the gradient reaches all trained parameters, once, at the first step with finite gradients."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from dcpcse.encoders.prompts import PromptTable
from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_io import listed

PATIENCE = 10
"""Number of first steps in which all gradients may be zero, for example if the loss is zero, without an error."""

CAUSES = (
    "check whether the encoder's attention ignores the prompts, activation checkpointing is reentrant, a tensor is "
    "detached, or the loss is constant (a batch of one sentence, a tiny --temp, a term of weight 0)"
)


@dataclass(frozen=True)
class _Group:
    """A group of trained parameters, selected by the prefixes of their names.

    present: `all` if every parameter must have a gradient, `any` if one parameter suffices. alive: `all` if every
    gradient must be nonzero, `any` if one nonzero gradient suffices, None if all may be zero. part: a part of their
    names.
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
    """Checks at the first step with finite gradients that they reach all trained parameters.

    Args:
        module: The training step; `GROUPS` refers to the names of its parameters.
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
        """Raise UserError, with likely causes, if parameters get no gradient. Called before gradients are clipped.

        Steps with non-finite gradients (the first ones of fp16, while its scale is too large) are skipped.
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
    """Describe the missing gradients of a group. zeros: whether zero gradients count as missing."""
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
