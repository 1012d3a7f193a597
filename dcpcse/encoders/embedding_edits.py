"""What is changed behind the embedding layer."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class EmbeddingEdits:
    """What rows find changed behind the embedding layer.

    zeroed (N, L, 1 or H), boolean: elements that become zero. shift (N, L, H): is added then.
    """

    zeroed: Tensor | None = None
    shift: Tensor | None = None
