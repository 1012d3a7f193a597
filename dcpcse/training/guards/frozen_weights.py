"""Check that training does not change frozen weights.

A model folder identifies its frozen encoder by a fingerprint of the original weights.
"""

from typing import Any

from torch import nn
from transformers import TrainerCallback

from dcpcse.encoders.identity import weight_digest
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.safetensors_io import listed


class FrozenWeightsCheck(TrainerCallback):
    """Compares all frozen weights (encoder, generator, LM head) before and after training.

    Hashing takes about one second per gigabyte.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before: dict[str, bytes] = {}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before = frozen_digests(self.module)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Raise UserError if a frozen weight has changed. Called before the result is written."""
        after = frozen_digests(self.module)
        changed = [name for name, digest in self.before.items() if after.get(name) != digest]
        if changed:
            raise UserError(
                f"training has changed the frozen weights {listed(changed)}, so no result is written; train again, "
                f"and use another {spell('optim')} or another machine if it happens again"
            )


def frozen_digests(module: nn.Module) -> dict[str, bytes]:
    """Return name → digest of all frozen weights."""
    frozen = ((name, weight) for name, weight in module.named_parameters() if not weight.requires_grad)
    return {name: weight_digest(weight) for name, weight in frozen}
