"""Split the layers of a frozen encoder over all processes (FSDP2).

Each process keeps one shard of every layer. A process has a complete layer only during the forward and backward pass
of this layer. The trained weights are small, so every process keeps all of them and DDP averages their gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn

from dcpcse.utils.errors import UserError


def shard_layers(backbone: nn.Module) -> list[nn.Module]:
    """Shard the layers of a frozen backbone over all processes, in place, and return them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # imported here because it takes a second and is rarely needed

    device = next(backbone.parameters()).device.type
    how = {"mesh": init_device_mesh(device, (dist.get_world_size(),)), "reshard_after_forward": True}
    # Trained weights inside the layers, of a LoRA adapter, are kept by every process like all others.
    trained = {weight for weight in backbone.parameters() if weight.requires_grad}
    return [fully_shard(layer, ignored_params=trained, **how) for layer in layers_of(backbone, "--shard_encoder")]


def layers_of(backbone: nn.Module, option: str) -> Sequence[nn.Module]:
    """Return the layers of an encoder. Raises UserError, which names the option, if they are not in one ModuleList."""
    lists = (module for module in backbone.modules() if isinstance(module, nn.ModuleList))
    for modules in lists:
        if len(modules) == backbone.config.num_hidden_layers:
            return list(modules)
    raise UserError(f"{option}: the layers of {backbone.config.model_type} are not in one list; leave out {option}")


@contextmanager
def unsharded(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Keep complete layers in every process within the context, so that processes can encode independently."""
    for layer in layers:
        layer.set_reshard_after_forward(False)
        layer.unshard()
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()
