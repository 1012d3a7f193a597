"""What the pretended device must notice and what it must not, for the tests of the device itself."""

from collections.abc import Iterator
from typing import Any

import device
import torch
import torch.distributed as dist
from torch import nn

from dcpcse.utils.distributed import all_gather_int

WAITING = {
    "item": lambda here: here.sum().item(),
    "bool": lambda here: bool(here.any()),
    "a copy to the CPU": lambda here: here.cpu(),
    "the size of nonzero": lambda here: here.nonzero(),
    "a boolean index": lambda here: here[here > 0],
    "an index on the CPU": lambda here: here[torch.tensor([1, 0])],
    "a number on the device": lambda here: torch.tensor(3, device=here.device),
    "an unpinned copy": lambda here: torch.ones(3).to(here.device, non_blocking=True),
    "a blocking copy": lambda here: torch.ones(3).pin_memory().to(here.device),
    "a copy into a tensor": lambda here: here[0].copy_(torch.ones(3)),
    "an event": lambda here: torch.cuda.current_stream().record_event().synchronize(),
    "the device": lambda here: torch.cuda.synchronize(),
}
"""Name → function of a tensor (2, 3) of the device that waits once."""

FREE = {
    "a number by a kernel": lambda here: torch.full((), 3, device=here.device),
    "a pinned copy": lambda here: torch.ones(3).pin_memory().to(here.device, non_blocking=True),
    "a copy to pinned memory": lambda here: here.to("cpu", non_blocking=True),
    "an index on the device": lambda here: here[torch.zeros(1, dtype=torch.long, device=here.device)],
    "a number of the CPU": lambda here: here * torch.tensor(2.0),
    "a chosen class": lambda here: nn.functional.one_hot(here.argmax(1), num_classes=3),
}
"""Name → function that does not wait."""

REFUSED = {
    "a sum over two devices": lambda here: here + torch.ones(3),
    "a product over two devices": lambda here: here @ torch.ones(3, 2),
    "an array": lambda here: here.detach().numpy(),
    "a CPU tensor in the NCCL group": lambda here: dist.all_reduce(torch.ones(1)),
    "a tensor of the device in the gloo group": lambda here: dist.all_reduce(here, group=device.GLOO),
    "uneven tensors": lambda here: dist.all_gather([here[:1], here[:1]], here),
}
"""Name → function that raises an error on CUDA, in one process or in several."""


def checks() -> Iterator[dict[str, Any]]:
    """Report the expected and the found outcome of each function: a number of waits, or an error."""
    cases = [(WAITING, 1), (FREE, 0), (REFUSED, "error")]
    for name, function, expected in ((name, f, expected) for group, expected in cases for name, f in group.items()):
        here = torch.arange(6.0).view(2, 3).pin_memory().to(device.CUDA, non_blocking=True)
        device.reset()
        with device.two_processes():
            try:
                function(here)
                found = device.WAITS.total()
            except (RuntimeError, TypeError):
                found = "error"
        yield {"case": name, "mode": "check", "expected": expected, "found": found}
    device.reset()
    with device.two_processes():
        found = [all_gather_int(3), device.EXCHANGES.total()]
    yield {"case": "an exchange of CPUs", "mode": "check", "expected": [[3, 3], 1], "found": found}
