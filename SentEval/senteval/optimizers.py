"""Create optimisers of SentEval's classifiers from their names, for stacks of independent classifiers.

All optimisers here are elementwise, so classifiers that are stacked in one tensor train like separate classifiers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, optim

from senteval.errors import DataError, quote, shown

OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    "adadelta": optim.Adadelta,
    "adagrad": optim.Adagrad,
    "adam": optim.Adam,
    "adamax": optim.Adamax,
    "asgd": optim.ASGD,
    "rmsprop": optim.RMSprop,
    "sgd": optim.SGD,
}


def parse_optimizer(description: str) -> tuple[type[optim.Optimizer], dict[str, float]]:
    """Return the class and the options of a description such as "adam" or "sgd,lr=0.1".

    Raises DataError if the description is malformed, if the name is unknown, or if sgd has no learning rate.
    """
    if not isinstance(description, str):
        raise DataError(f"optim is {shown(description)}; a string such as 'adam' or 'sgd,lr=0.1' is needed")
    name, *settings = description.split(",")
    if name not in OPTIMIZERS:
        raise DataError(f"unknown optimiser {quote(name)}; choose one of {', '.join(OPTIMIZERS)}")
    options = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            options[key.strip()] = float(value)
        except ValueError as error:
            raise DataError(
                f"optimiser {quote(description)}: {quote(setting)} does not have the form option=number"
            ) from error
    if name == "sgd" and "lr" not in options:
        raise DataError("optimiser 'sgd' needs a learning rate, such as 'sgd,lr=0.1'")
    if "weight_decay" in options:
        raise DataError(f"optimiser {quote(description)}: leave weight_decay out; the protocol selects it")
    return OPTIMIZERS[name], options


def build_optimizer(description: str, weights: Sequence[Tensor]) -> optim.Optimizer:
    """Create the optimiser that a description names, for the weights. Raises DataError if an option is unknown."""
    kind, options = parse_optimizer(description)
    try:
        return kind(list(weights), **options)
    except (TypeError, ValueError) as error:
        raise DataError(f"optimiser {quote(description)}: {error}") from error


def keep_first(optimizer: optim.Optimizer, weights: Sequence[Tensor], keep: Tensor) -> list[Tensor]:
    """Keep only the entries `keep` of the first dimension of weights and optimiser state. Return the new weights."""
    kept = [weight.detach()[keep].requires_grad_() for weight in weights]
    for old, new in zip(weights, kept, strict=True):
        state = optimizer.state.pop(old, {})  # plain SGD has no state
        # State of a different shape, such as a step count, is shared by all entries.
        optimizer.state[new] = {
            name: value[keep] if torch.is_tensor(value) and value.shape == old.shape else value
            for name, value in state.items()
        }
    optimizer.param_groups[0]["params"] = kept
    return kept
