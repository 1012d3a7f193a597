"""The CPU copies of tensors of a batch, from which a training step reads what it must know on the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

ON_HOST = "on_host"
"""Name of the CPU copies in a batch."""


@dataclass(frozen=True)
class OnHost:
    """Some tensors of a batch by their names, as they were before the batch was moved to a device.

    What moves a batch to a device moves tensors, containers and objects with a method `to`; this object stays where it
    is. A step can therefore read token ids and lengths without waiting for a GPU.
    """

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, batch: Mapping[str, Any], prefixes: Sequence[str]) -> "OnHost":
        """Return the tensors of a collated batch whose names begin with one of the prefixes."""
        wanted = tuple(prefixes)
        return cls({name: t for name, t in batch.items() if isinstance(t, Tensor) and name.startswith(wanted)})

    def split(self, count: int) -> list["OnHost"]:
        """Split the examples as `Tensor.tensor_split` does."""
        parts = zip(*(tensor.tensor_split(count) for tensor in self.tensors.values()), strict=True)
        return [OnHost(dict(zip(self.tensors, part, strict=True))) for part in parts]


def on_host(batch: Mapping[str, Any], name: str) -> Tensor:
    """Return a tensor of a batch on the CPU. Without CPU copies in the batch, this waits for the tensor's device."""
    copies = batch.get(ON_HOST)
    return batch[name].cpu() if copies is None else copies.tensors[name]
