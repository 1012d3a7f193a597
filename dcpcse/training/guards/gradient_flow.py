"""The gradient reaches all that is trained: looked at once, in the first step that can tell."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from dcpcse.encoders.prompts import PromptTable
from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_io import listed

PATIENCE = 10
"""Steps whose every gradient is zero, as that of a loss of zero is, until that is an error of its own."""

CAUSES = (
    "does the encoder's attention leave prompts out, is activation checkpointing reentrant, a tensor on the way "
    "detached, or the loss flat (a batch of one sentence, a tiny --temp, a term of weight 0)?"
)


@dataclass(frozen=True)
class _Group:
    """A part of what is trained, by how the names of its parameters start.

    present: whether all of them have a gradient, or any. alive: whether all of these are more than zeros, or any;
    None: zeros are fine.
    """

    what: str
    starts: tuple[str, ...]
    present: Callable[[Iterable[bool]], bool]
    alive: Callable[[Iterable[bool]], bool] | None


GROUPS = (
    # Every prompt of every layer stands before every sentence, or in it.
    _Group("prompts", ("model.encoder.prompt.", "model.encoder.shallow.", "model.encoder.cls_prompt."), all, all),
    # Single gradients may be zero: denoising takes the bias of a LayerNorm away with the template's vector.
    _Group("head", ("model.head.",), all, any),
    # Architectures hold weights that their own forward pass leaves out, and the gradient of a key's bias is zero.
    _Group("encoder", ("model.encoder.backbone.",), any, any),
    # A term may have the weight 0, and a batch no masked token: zeros are right then.
    _Group("objectives", ("losses.",), any, None),
)

Sizes = dict[str, float | None]
"""Part → largest number of its gradient, None without one."""


class GradientFlowCheck:
    """Asks the first step that has a finite gradient whether all that is trained has got its part of it."""

    def __init__(self, module: nn.Module) -> None:
        """module: the training step, whose names of parameters the groups go by."""
        self.trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.tables = {
            f"{name}.weight": part for name, part in module.named_modules() if isinstance(part, PromptTable)
        }
        self.waiting = PATIENCE

    def require_graph(self, loss: Tensor) -> None:
        """UserError for a loss that hangs on nothing that is trained."""
        if not loss.requires_grad:
            raise UserError(f"the loss hangs on none of {listed(self.trained)}, which are trained: {CAUSES}")

    def require(self) -> None:
        """UserError that names what got none, and likely causes; called after a backward pass, before clipping.

        Gradients that are not finite (the first ones of fp16, whose scale is still too large) tell nothing.
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
    """What a group lacks, in words; zeros: whether these count already."""
    own = {name: size for name, size in sizes.items() if name.startswith(group.starts)}
    if not own:
        return []
    absent = [name for name, size in own.items() if size is None]
    if not group.present(size is not None for size in own.values()):
        return [f"no gradient reaches the {group.what} ({listed(absent)})"]
    there = {name: size for name, size in own.items() if size is not None}
    if zeros and group.alive and not group.alive(size > 0 for size in there.values()):
        return [f"the gradient of the {group.what} is zero ({listed([n for n, size in there.items() if not size])})"]
    return []
