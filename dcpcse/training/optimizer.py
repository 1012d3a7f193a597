"""The optimiser of older public code, which transformers no longer contains."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW without the correction of its averages for their start at zero (`--adam_bias_correction False`).

    For the gradient g of a parameter p: m ← β₁·m + (1−β₁)·g, v ← β₂·v + (1−β₂)·g², p ← p − lr·m / (√v + eps), and
    then p ← p − lr·weight_decay·p. This is AdamW of transformers 4 with `correct_bias=False`, which the public code of
    SBERT and ConSERT uses. Its first steps are longer than those of AdamW, by a factor of up to (1−β₁) / √(1−β₂).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update all parameters that have a gradient. closure: function that computes and returns the loss."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                state, gradient = self.state[weight], weight.grad
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
                mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
                square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                weight.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-group["lr"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
        return loss
