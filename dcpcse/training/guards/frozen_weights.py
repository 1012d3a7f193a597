"""Frozen weights are the same after training as before: a result names its encoder by their fingerprint."""

from typing import Any

from torch import nn
from transformers import TrainerCallback

from dcpcse.encoders.backbones import weight_digest
from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_io import listed


class FrozenWeightsCheck(TrainerCallback):
    """Compares every frozen weight with what it was when training began: of encoder, generator and LM head.

    A process looks at its own part of a split encoder. Both looks together hash some gigabytes in as many seconds.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before: dict[str, bytes] = {}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before = frozen_digests(self.module)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """UserError if a weight is another one: nothing has been written as the result yet."""
        after = frozen_digests(self.module)
        changed = [name for name, digest in self.before.items() if after.get(name) != digest]
        if changed:
            raise UserError(
                f"training has changed the frozen weights {listed(changed)}, which nothing may: no result is written; "
                "train again, with another --optim or on another machine if it happens again"
            )


def frozen_digests(module: nn.Module) -> dict[str, bytes]:
    """A digest of each frozen weight by name; of this process's part where it is split."""
    frozen = ((name, weight) for name, weight in module.named_parameters() if not weight.requires_grad)
    return {name: weight_digest(_own_part(weight)) for name, weight in frozen}


def _own_part(weight: nn.Parameter) -> Any:
    return weight.to_local() if hasattr(weight, "to_local") else weight
