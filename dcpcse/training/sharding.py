"""A frozen encoder whose layers are split over all processes (FSDP2).

Each process keeps its part of every layer; a layer is whole only while it computes, forward and backward. All that is
trained is small and stays whole in each process, where DDP averages its gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn

from dcpcse.utils.errors import UserError


def shard_layers(backbone: nn.Module) -> list[nn.Module]:
    """Split the layers of a frozen backbone over all processes; they are its own modules, changed in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # a second to import, for those who ask for it

    device = next(backbone.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    return [fully_shard(layer, mesh=mesh, reshard_after_forward=True) for layer in layers_of(backbone)]


def layers_of(backbone: nn.Module) -> Sequence[nn.Module]:
    """The layers of an encoder; UserError where they are not in one list."""
    lists = (module for module in backbone.modules() if isinstance(module, nn.ModuleList))
    for modules in lists:
        if len(modules) == backbone.config.num_hidden_layers:
            return list(modules)
    raise UserError(f"--shard_encoder: {backbone.config.model_type} has no list of its layers; leave it out")


@contextmanager
def unsharded(layers: Sequence[nn.Module]) -> Iterator[None]:
    """For a while with whole layers: processes may then encode at their own pace, without waiting for each other."""
    for layer in layers:
        layer.set_reshard_after_forward(False)
        layer.unshard()
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()
