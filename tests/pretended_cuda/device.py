"""A pretended cuda:0 on a CPU: its tensors have values, obey CUDA's rules, and log what a host would wait for.

`pretend` makes this process believe in the device, for good; the process must have no other use. A `DeviceTensor` says
that it is on cuda:0 and keeps its values in a CPU tensor. An operation on tensors of two devices raises an error, as
on CUDA. The waits and kernels of torch's code for CUDA are counted; nothing is measured on a GPU.
"""

import contextlib
import os
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

CUDA = torch.device("cuda", 0)
ROOT = Path(__file__).parents[2]

WAITS = Counter()
"""(what the host waits for, the lines of the project that led to it) → number of times."""

KERNELS = Counter()
"""Operation → number of kernels, of those that tests count."""

EXCHANGES = Counter()
"""Collective operation → number of times that the CPUs of several processes exchanged something by it."""

READS = {"_local_scalar_dense": 1, "equal": 1, "multinomial": 2}
"""Operations that read on the host, and how often. multinomial checks its probabilities with two of them."""

OF_UNKNOWN_SIZE = {"nonzero", "masked_select", "bincount", "_unique2", "unique_dim", "unique_consecutive"}
"""Operations whose number of results depends on values; the host reads it to allocate them."""

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}

NO_SCALARS = {"cat", "stack", "index_select", "index_copy", "gather", "scatter", "embedding", "mm", "bmm", "addmm"}
"""Operations for which a CPU tensor without dimensions does not count as a number."""


def reset() -> None:
    """Forget what was logged."""
    for log in (WAITS, KERNELS, EXCHANGES):
        log.clear()


def wait(what: str) -> None:
    """Log a wait, with the last lines of the package that led to it."""
    lines = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
    own = [f"{file.relative_to(ROOT)}:{line}" for file, line in lines if file.is_relative_to(ROOT / "dcpcse")]
    WAITS[what, " < ".join(own[:-4:-1]) or "the backward pass, or a library"] += 1


class DeviceTensor(Tensor):
    """A tensor that says that it is on cuda:0; `values` is a CPU tensor."""

    @staticmethod
    def __new__(cls, values: Tensor) -> "DeviceTensor":
        facts = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        made = Tensor._make_wrapper_subclass(cls, values.shape, device=CUDA, **facts)
        made.values = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return run(operation, args, kwargs or {})

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"DeviceTensor{tuple(self.shape)}"


class Factories(TorchDispatchMode):
    """Catches operations without a tensor of the device among their arguments: factories, and copies to the device."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return run(operation, args, kwargs or {})


def with_tensors(change, tree):
    """Change the tensors of arguments or results; `torch.utils._pytree` would take half of the time of a step."""
    if isinstance(tree, Tensor):
        return change(tree)
    return type(tree)(with_tensors(change, part) for part in tree) if isinstance(tree, list | tuple) else tree


def values_of(tensor: Tensor) -> Tensor:
    return tensor.values if isinstance(tensor, DeviceTensor) else tensor


def run(operation, args, kwargs):
    """Log an operation if it concerns the device, and compute it on the CPU."""
    tensors: list[Tensor] = []
    with_tensors(tensors.append, (args, (*kwargs.values(),)))
    here, target = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)], kwargs.get("device")
    to_device = bool(here) if target is None else torch.device(target).type == "cuda"
    if not here and not to_device:
        return operation(*args, **kwargs)
    name = operation.overloadpacket.__name__
    if name == "_to_copy":
        log_copy(args[0], to_device, asynchronous=kwargs.get("non_blocking", False))
    elif name == "copy_":
        log_copy(args[1], isinstance(args[0], DeviceTensor), asynchronous=(*args, False)[2])
    else:
        require_one_device(name, args, tensors)
        log_operation(name, args, kwargs)
    options = {name: with_tensors(values_of, option) for name, option in kwargs.items()}
    options |= {} if target is None else {"device": torch.device("cpu")}
    with _disable_current_modes():
        made = operation(*with_tensors(values_of, args), **options)
    if not to_device:
        return made
    given = {id(tensor.values): tensor for tensor in here}  # operations in place return what they were given
    return with_tensors(lambda tensor: given[id(tensor)] if id(tensor) in given else DeviceTensor(tensor), made)


def log_copy(source: Tensor, to_device: bool, asynchronous: bool) -> None:
    if isinstance(source, DeviceTensor) == to_device:
        return
    if not to_device:  # torch copies to new pinned memory if it need not wait
        if not asynchronous:
            wait("a copy to the CPU")
    elif not source.is_pinned():
        wait("a copy to the device from memory that is not pinned")
    elif not asynchronous:
        wait("a blocking copy to the device from pinned memory")


def require_one_device(name: str, args, tensors) -> None:
    """Raise RuntimeError if tensors are on two devices. CPU tensors may be indices, or numbers if they are scalars."""
    indices = args[1] if name in INDEXING and isinstance(args[0], DeviceTensor) else ()
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
    elsewhere = [tensor for tensor in elsewhere if not any(tensor is index for index in indices)]
    if any(tensor.dim() or name in NO_SCALARS for tensor in elsewhere):
        found = [f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors]
        raise RuntimeError(f"tensors are on at least two devices, cuda:0 and cpu: aten::{name} of {found}")


def log_operation(name: str, args, kwargs) -> None:
    for _ in range(READS.get(name, 0)):
        wait(f"the result of {name}")
    if name in OF_UNKNOWN_SIZE or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        wait(f"the size of the result of {name}")
    for index in args[1] if name in INDEXING else ():
        if index is not None and index.dtype == torch.bool:
            wait("the size of a boolean index")
        if index is not None and not isinstance(index, DeviceTensor):
            wait("a copy of an index to the device")
    KERNELS[name] += name == "_fused_adamw_"


class Attention(torch.autograd.Function):
    """Scaled dot-product attention by that of the CPU."""

    @staticmethod
    def forward(ctx, of_cpu, query, key, value, mask, dropout, causal, scale):
        inputs = [tensor.values.detach().requires_grad_() for tensor in (query, key, value)]
        how = {"attn_mask": None if mask is None else mask.values, "dropout_p": dropout, "is_causal": causal}
        with _disable_current_modes(), torch.enable_grad():
            output = of_cpu(*inputs, **how, scale=scale)
        ctx.graph = output, inputs
        return DeviceTensor(output.detach())

    @staticmethod
    def backward(ctx, gradient):
        with _disable_current_modes():
            gradients = torch.autograd.grad(*ctx.graph, gradient.values)
        return None, *map(DeviceTensor, gradients), *[None] * 4


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """In place of that of torch, which chooses among kernels that a build for CPUs lacks."""
    inputs = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
    if not any(isinstance(tensor, DeviceTensor) for tensor in inputs):
        return ATTENTION_OF_CPU(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if not all(isinstance(tensor, DeviceTensor) for tensor in inputs):
        raise RuntimeError("tensors are on at least two devices, cuda:0 and cpu: attention")
    return Attention.apply(ATTENTION_OF_CPU, query, key, value, attn_mask, dropout_p, is_causal, scale)


ATTENTION_OF_CPU = F.scaled_dot_product_attention

PINNED: dict[int, Tensor] = {}
"""Address of pinned memory → a tensor in it, which is kept so that no other gets this address."""


def pin_memory(tensor: Tensor, device=None) -> Tensor:
    if isinstance(tensor, DeviceTensor):
        raise RuntimeError("only CPU tensors can be pinned")
    pinned = tensor.clone()
    PINNED[pinned.untyped_storage().data_ptr()] = pinned
    return pinned


def is_pinned(tensor: Tensor, device=None) -> bool:
    return not isinstance(tensor, DeviceTensor) and tensor.untyped_storage().data_ptr() in PINNED


class Event:
    """An event of the only stream."""

    def synchronize(self) -> None:
        wait("an event")


class Stream:
    """The only stream."""

    def record_event(self) -> Event:
        return Event()

    def synchronize(self) -> None:
        wait("the stream")


ANSWERS = {
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), True),
    **{"device_count": 1, "current_device": 0, "get_device_capability": (9, 0), "current_stream": Stream()},
    **dict.fromkeys(("_lazy_init", "set_device", "empty_cache", "manual_seed", "manual_seed_all", "set_rng_state")),
    **dict.fromkeys(("is_current_stream_capturing", "_is_in_bad_fork"), False),
}
"""Function of torch.cuda → what it returns."""


def start(kernel, grid, arguments, case, **options) -> None:
    """Run a Triton kernel of the project in Triton's interpreter; bfloat16, which it computes wrongly, in float32."""
    KERNELS[kernel.__name__.strip("_")] += 1
    with _disable_current_modes():
        values = [values_of(one) if isinstance(one, Tensor) else one for one in arguments]
        half = [isinstance(one, Tensor) and one.dtype == torch.bfloat16 for one in values]
        wide = [one.float() if is_half else one for one, is_half in zip(values, half, strict=True)]
        kernel[grid](*wide)
        for one, result, is_half in zip(values, wide, half, strict=True):
            if is_half:
                one.copy_(result)


def interpret_kernels() -> None:
    """Let the device run the project's Triton kernels in the interpreter."""
    from dcpcse.encoders import frozen_layers, layer_kernels, prefix_kernel

    def is_frozen(part, parameter, kinds) -> bool:
        """As there, but for the type of a parameter, which is a DeviceTensor here."""
        trained = parameter.requires_grad and torch.is_grad_enabled()
        return type(part) in kinds and parameter.dtype == torch.float32 and not trained

    frozen_layers._is_frozen = is_frozen
    emulated = prefix_kernel._emulated

    def on_device(states: Tensor | None) -> Tensor | None:
        if not isinstance(states, DeviceTensor) or not prefix_kernel._emulates(states):
            return states
        with _disable_current_modes():
            return DeviceTensor(emulated(states.values))

    prefix_kernel._emulated = on_device
    layer_kernels.start = prefix_kernel.start = start


def pretend() -> None:
    """Believe in cuda:0 from now on. The process has preloaded the compiled device.cpp."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpret_kernels()
    F.scaled_dot_product_attention = attention
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(number, device=...) makes a CPU tensor, and copies it
    torch.__future__.set_swap_module_params_on_conversion(True)  # a weight that moves remains the same object
    # Tensors of inference mode have no version, which a wrapper needs.
    torch.inference_mode = lambda mode=True: torch.no_grad() if isinstance(mode, bool) else torch.no_grad(mode)
    Tensor.pin_memory, Tensor.is_pinned = pin_memory, is_pinned
    for name, answer in ANSWERS.items():
        setattr(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    torch.cuda.synchronize = lambda *args: wait("the device")
    torch.cuda.get_rng_state = lambda *args: torch.get_rng_state()
    Factories().__enter__()


NCCL, GLOO = object(), object()


def require_group(what: str, tensor: Tensor, group) -> None:
    """Raise RuntimeError if a group cannot exchange a tensor."""
    if isinstance(tensor, DeviceTensor) == (group is GLOO):
        raise RuntimeError(f"{what}: the {'gloo' if group is GLOO else 'NCCL'} group does not take {tensor.device}")
    if not tensor.is_contiguous():
        raise RuntimeError(f"{what}: the tensor is not contiguous")


def all_gather(parts, tensor, group=None) -> None:
    require_group("all_gather", tensor, group)
    EXCHANGES["all_gather"] += group is GLOO
    for part in parts:
        require_group("all_gather", part, group)
        if (part.shape, part.dtype) != (tensor.shape, tensor.dtype):
            raise RuntimeError(f"all_gather: {part} does not take {tensor}")
        part.copy_(tensor)


def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None) -> None:
    require_group("all_reduce", tensor, group)
    EXCHANGES["all_reduce"] += group is GLOO
    tensor.mul_(2 if op == dist.ReduceOp.SUM else 1)


@contextlib.contextmanager
def two_processes() -> Iterator[None]:
    """Be one of two processes with the same rows. NCCL exchanges tensors of the device, and gloo those of CPUs."""
    answers = {"is_available": True, "is_initialized": True, "get_world_size": 2, "get_rank": 0, "new_group": GLOO}
    functions = {name: lambda *args, _answer=answer, **kwargs: _answer for name, answer in answers.items()}
    functions |= {"all_gather": all_gather, "all_reduce": all_reduce}
    with patch.multiple(dist, **functions, group=SimpleNamespace(WORLD=NCCL)):
        yield
