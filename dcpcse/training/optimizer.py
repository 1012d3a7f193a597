"""The AdamW of older public code, and groups of parameters with a separate learning rate or warm-up."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import SchedulerType, TrainingArguments, get_scheduler

from dcpcse.methods import ParameterGroup

WITHOUT_WARMUP = ("reduce_lr_on_plateau", "greedy")
"""Schedules that depend on scores or losses, and cannot be combined with a warm-up."""


class UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW without bias correction (`--adam_bias_correction False`).

    For the gradient g of a parameter p: m ← β₁·m + (1−β₁)·g, v ← β₂·v + (1−β₂)·g², p ← p − lr·m / (√v + eps), and then
    p ← p − lr·weight_decay·p. The optimiser is the same as AdamW of transformers 4 with `correct_bias=False`, which
    the public code of SBERT and ConSERT uses. The first steps are longer than the first steps of AdamW, by a factor of
    up to (1−β₁) / √(1−β₂).

    Args:
        params: The parameters, as in `torch.optim`.
        lr: Learning rate.
        betas: β₁ and β₂.
        eps: Number that is added to √v.
        weight_decay: Rate of decay of the weights, which is multiplied by lr.
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
        """Update all parameters that have a gradient.

        Args:
            closure: Function that computes and returns the loss.
        """
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


def split_groups(optimizer: torch.optim.Optimizer, groups: Sequence[ParameterGroup]) -> None:
    """Move the parameters of each group to separate groups of the optimiser, with the learning rate of the group.

    Args:
        optimizer: The optimiser, which is changed.
        groups: The groups of parameters (`Method.groups`).
    """
    for target in groups:
        members = {id(parameter) for parameter in target.parameters}
        missing = len(members) - sum(id(p) in members for group in optimizer.param_groups for p in group["params"])
        if missing:
            raise ValueError(f"{missing} parameters of the group {target.name} are not trained by the optimiser")
        for group in list(optimizer.param_groups):  # one group with weight decay, and one without
            moved = [parameter for parameter in group["params"] if id(parameter) in members]
            if not moved:
                continue
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in members]
            rate = group["lr"] if target.learning_rate is None else target.learning_rate
            optimizer.add_param_group({**group, "params": moved, "lr": rate, "name": target.name})


def own_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the current learning rate of each group that `split_groups` made, as `learning_rate_NAME` → rate."""
    return {f"learning_rate_{group['name']}": group["lr"] for group in optimizer.param_groups if "name" in group}


def with_own_warmups(
    schedule: LambdaLR, groups: Sequence[ParameterGroup], args: TrainingArguments, steps: int
) -> LambdaLR:
    """Return a learning-rate schedule in which some groups of parameters have a separate warm-up.

    Args:
        schedule: The schedule of the parameters that are in none of the groups.
        groups: The groups of parameters (`Method.groups`).
        args: Options of the run.
        steps: Number of steps of the run.
    """
    factors = {group.name: _factor(args, group, steps) for group in groups if group.warmup_steps is not None}
    of_groups = zip(schedule.optimizer.param_groups, schedule.lr_lambdas, strict=True)
    return LambdaLR(schedule.optimizer, [factors.get(group.get("name"), factor) for group, factor in of_groups])


def _factor(args: TrainingArguments, group: ParameterGroup, steps: int) -> Callable[[int], float]:
    """Return a function of the step: the learning rate of a group with its warm-up, divided by the highest rate."""
    warmup, rate = group.warmup_steps, args.learning_rate if group.learning_rate is None else group.learning_rate
    count = int(warmup) if warmup >= 1 else math.ceil(steps * warmup)  # read like --warmup_steps
    constant = args.lr_scheduler_type == SchedulerType.CONSTANT
    kind = SchedulerType.CONSTANT_WITH_WARMUP if constant else args.lr_scheduler_type
    any_optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)  # some schedules end at a given rate
    return get_scheduler(kind, any_optimizer, count, steps, args.lr_scheduler_kwargs).lr_lambdas[0]
