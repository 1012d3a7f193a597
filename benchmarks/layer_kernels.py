"""Check and time the kernels of frozen layers on a GPU, and the training step that uses them.

    python benchmarks/layer_kernels.py [--output_file FILE] [--only step losses profile errors times] [--pairs 256 512]
    TRITON_INTERPRET=1 python benchmarks/layer_kernels.py --device cpu [--only errors bytes]

step      time of a training step with the shape of BERT-base: with the kernels, without the kernels, with the public
          technique, and with full fine-tuning; also the time that the CPU needs to start the work of a step
losses    the losses of 20 steps without dropout, with and without the kernels
profile   the kernels of a step by kind, and the kernels that need most of the time
errors    differences of outputs and gradients from PyTorch in float64, divided by the largest value. The reference
          uses the dropout mask that NumPy computes from the same Philox counters. The part also checks that a second
          run returns the same bits.
times     (not by default) time of the forward and backward pass in bfloat16 at 10,922 rows, for the kernels and for
          the operations that they replace
bytes     (only on the CPU) number of bytes that the operations of a step read and write, with and without the kernels,
          counted from the shapes of their tensors; also the time for this number of bytes at 3 TB/s

If a part fails, the error is reported and the next part runs. On the CPU, no times are measured, and all parts except
bytes have tiny sizes.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "SentEval")]

from dcpcse.encoders import layer_kernels as kernels  # noqa: E402
from dcpcse.encoders import prefix_kernel  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEED, NUMBER = 9_876_543_210_123, 5


def main() -> None:
    args = parse()
    print(device_name(args.device), "torch", torch.__version__, flush=True)
    result: dict[str, Any] = {"device": device_name(args.device), "torch": torch.__version__}
    for name in args.only:
        start = time.perf_counter()
        try:
            for row, figures in PARTS[name](args):
                result.setdefault(name, {})[row] = figures
                shown = "  ".join(f"{key} {figure:,.5g}" for key, figure in figures.items())
                print(f"{name:8}{row:46}{shown}", flush=True)
        except Exception:  # the machine is lent for minutes: the other parts still run
            result[f"{name} failed"] = traceback.format_exc()
            print(f"{name} FAILED\n{traceback.format_exc()[-3000:]}", flush=True)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        if args.output_file:
            args.output_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output_file", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--pairs", type=int, nargs="+", default=[256, 512])
    args = parser.parse_args()
    args.only = args.only or (["errors"] if args.device == "cpu" else ["step", "losses", "profile", "errors"])
    return args


def device_name(device: str) -> str:
    return "CPU" if device == "cpu" else torch.cuda.get_device_name()


Rows = Iterator[tuple[str, dict[str, float]]]


def errors(args: argparse.Namespace) -> Rows:
    """Compare the kernels with float64."""
    sizes = itertools.product((24, 64), (1, 5)) if args.device == "cpu" else ((384, 333), (768, 10_922), (1024, 1))
    for (size, rows), dtype, dropout in itertools.product(sizes, DTYPES, (0.0, 0.1)):
        name = f"{str(dtype)[6:]} {rows}x{size} dropout {dropout}"
        yield name, add_norm_errors(rows, size, dtype, dropout, args.device)


def add_norm_errors(rows: int, size: int, dtype: torch.dtype, dropout: float, device: str) -> dict[str, float]:
    states, residual, gradient = (drawn(rows, size, dtype=dtype, device=device) for _ in range(3))
    weight, bias = 1 + 0.1 * drawn(size, device=device), drawn(size, device=device)
    norm, mask_of = (weight, bias, 1e-12), (torch.tensor([SEED], device=device), NUMBER)

    def ours() -> tuple[Tensor, ...]:
        output, *kept = run(kernels.add_norm, dtype, states, residual, *norm, *mask_of, dropout=dropout)
        back = run(kernels.add_norm_backward, dtype, gradient, *kept, weight, *mask_of, dropout=dropout)
        return output, *back

    # Rounding to dtype is part of the inputs.
    exact = [tensor.double().requires_grad_() for tensor in (states, residual)]
    total = exact[0] + exact[1]
    if dropout:
        total = exact[0] * torch.from_numpy(mask(rows, size, dropout)).to(device) / (1 - dropout) + exact[1]
    output = F.layer_norm(total, (size,), weight.double(), bias.double(), 1e-12)
    expected = (output.detach(), *torch.autograd.grad(output, exact, gradient.double()))
    return compared(ours, expected, ("output", "states", "residual"))


def drawn(*shape: int, dtype: torch.dtype = torch.float32, device: str) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def run(kernel: Callable, dtype: torch.dtype, *tensors: Any, **options: Any) -> Any:
    """Run a kernel; in Triton's interpreter, which is wrong in bfloat16, with float32 tensors of the same values."""
    if dtype != torch.bfloat16 or tensors[0].is_cuda:
        return kernel(*tensors, **options)
    wide = (t.float() if isinstance(t, Tensor) and t.is_floating_point() else t for t in tensors)
    return tuple(t.to(dtype) if t.dim() == 2 else t for t in kernel(*wide, **options))


def compared(ours: Callable[[], tuple[Tensor, ...]], expected: tuple[Tensor, ...], names: tuple) -> dict[str, float]:
    found, again = ours(), ours()
    errors = {
        name: float((a.double() - b).abs().max() / b.abs().max())
        for name, a, b in zip(names, found, expected, strict=True)
    }
    return {**errors, "same bits": float(all(map(torch.equal, found, again)))}


@cache
def mask(rows: int, size: int, dropout: float, seed: int = SEED, number: int = NUMBER) -> np.ndarray:
    """Return which elements dropout keeps, by Philox4x32 (Salmon et al., 2011) of the kernels' counters."""
    columns = 1 << (size - 1).bit_length()
    words = philox(rows * columns // 4, number + kernels.STREAM, seed)
    return words.reshape(rows, columns)[:, :size] >= round(dropout * 2**32)


def philox(counters: int, last: int, seed: int) -> np.ndarray:
    """Return the four random 32-bit words of each of the counters (0, 0, 0, last), (1, 0, 0, last), ..."""
    low, shift = np.uint64(2**32 - 1), np.uint64(32)
    state = [np.arange(counters, dtype=np.uint64), *(np.full(counters, n, np.uint64) for n in (0, 0, last))]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(kernels.ROUNDS):
        left, right = state[0] * np.uint64(0xD2511F53), state[2] * np.uint64(0xCD9E8D57)
        first, second = (np.uint64(key) for key in keys)
        state = [right >> shift ^ state[1] ^ first, right & low, left >> shift ^ state[3] ^ second, left & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(state, axis=1)


def times(args: argparse.Namespace) -> Rows:
    """Time the kernels and the operations of autocast."""
    tensors = [drawn(64 * 2**20, dtype=torch.bfloat16, device=args.device) for _ in range(2)]
    milliseconds = timed([lambda: tensors[0].copy_(tensors[1])])
    yield "copy of 128 MiB", {"ms": milliseconds, "GB/s": 2 * tensors[0].nbytes / milliseconds / 1e6}
    for size in (768, 1024, 384):
        yield from add_norm_times(10_922, size, args.device)


def add_norm_times(rows: int, size: int, device: str) -> Rows:
    half, sets = torch.bfloat16, range(3)
    states, residual, gradient = ([drawn(rows, size, dtype=half, device=device) for _ in sets] for _ in range(3))
    norm = drawn(size, device=device), drawn(size, device=device), 1e-12
    mask_of = torch.tensor([SEED], device=device), NUMBER
    kept = [kernels.add_norm(s, r, *norm, *mask_of)[1:] for s, r in zip(states, residual, strict=True)]
    for rate in (0.1, 0.0):
        forward = [partial(kernels.add_norm, states[i], residual[i], *norm, *mask_of, dropout=rate) for i in sets]
        given = [(gradient[i], *kept[i], norm[0], *mask_of) for i in sets]
        backward = [partial(kernels.add_norm_backward, *given[i], dropout=rate) for i in sets]
        yield f"add_norm {rows}x{size} dropout {rate}", both(forward, backward, states[0].nbytes, 4, 4 if rate else 3)
    for name, dtype in (("autocast", torch.float32), ("bfloat16", half)):
        sums = [residual[i].to(dtype).requires_grad_() for i in sets]
        leaves = [states[i].clone().requires_grad_() for i in sets]
        weight, bias = (part.to(dtype) for part in norm[:2])

        def normed(
            i: int, sums: list = sums, leaves: list = leaves, weight: Tensor = weight, bias: Tensor = bias
        ) -> Any:
            return F.layer_norm(F.dropout(leaves[i], 0.1) + sums[i], (size,), weight, bias, 1e-12)

        inputs = [[leaves[i], sums[i]] for i in sets]
        yield f"{name} add_norm {rows}x{size}", autograd(normed, inputs, [gradient[i].to(dtype) for i in sets])


def both(forward: list, backward: list, size: int, passes: int, passes_back: int) -> dict[str, float]:
    """Return milliseconds of both directions and the bandwidth; passes: over a tensor of this size, in bytes."""
    there, back = timed(forward), timed(backward)
    return {
        "forward ms": there,
        "backward ms": back,
        "forward GB/s": passes * size / there / 1e6,
        "backward GB/s": passes_back * size / back / 1e6,
    }


def autograd(function: Callable[[int], Tensor], inputs: list, gradients: list) -> dict[str, float]:
    """Time forward and backward of PyTorch's operations; the backward pass by a difference."""

    def complete(i: int) -> None:
        torch.autograd.grad(function(i), inputs[i], gradients[i])

    sets = range(len(inputs))
    forward = timed([lambda i=i: function(i) for i in sets])
    return {"forward ms": forward, "backward ms": timed([lambda i=i: complete(i) for i in sets]) - forward}


def timed(functions: list[Callable[[], object]], calls: int = 12) -> float:
    """Return the median milliseconds of a call, from replays of a graph of calls that take turns."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for function in functions:
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(calls):
            functions[call % len(functions)]()
    seconds = []
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / calls)
    return statistics.median(seconds[2:])


SIDES = ("packed", "without kernels", "past_key_values, SDPA", "SimCSE", "SimCSE, packed")


def step(args: argparse.Namespace) -> Rows:
    """Time whole steps in turn, and how long the CPU takes to start one."""
    for pairs in args.pairs:
        steps = {name: one for name, one in step_sides(args, pairs, SIDES).items() if runs(name, one)}
        if "packed" not in steps:
            print("step    with Triton's own way to start kernels:", flush=True)
            start_by_triton()
            steps |= {name: one for name, one in step_sides(args, pairs, ["packed"]).items() if runs(name, one)}
        for name, seconds in timed_steps(steps, 2 if args.device == "cpu" else 15).items():
            whole, host = (1000 * statistics.median(part) for part in zip(*seconds, strict=True))
            yield f"{name}, {pairs} pairs", {"ms": whole, "CPU ms": host}


def start_by_triton() -> None:
    for module in (kernels, prefix_kernel):
        module.start = lambda kernel, grid, arguments, case, **options: kernel[grid](*arguments, **options)


def runs(name: str, one: Callable[[], object]) -> bool:
    """Return whether a side's first step succeeds, and report why it does not."""
    start = time.perf_counter()
    try:
        one()
    except Exception:
        print(f"step    {name} FAILED\n{traceback.format_exc()[-3000:]}", flush=True)
        return False
    print(f"step    first step of {name}: {time.perf_counter() - start:.1f} s", flush=True)
    return True


def timed_steps(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each step, and those until it waits for the GPU; the first rounds are not counted."""
    synchronize, waits, seconds = torch.cuda.synchronize, [0.0], {name: [] for name in steps}

    def noted() -> None:
        waits.append(time.perf_counter())
        synchronize()

    torch.cuda.synchronize = noted
    try:
        for turn in range(3 + rounds):
            for name, one in steps.items():
                begin = time.perf_counter()
                one()
                if turn >= 3:
                    seconds[name].append((time.perf_counter() - begin, waits[-1] - begin))
    finally:
        torch.cuda.synchronize = synchronize
    return seconds


def step_sides(
    args: argparse.Namespace, pairs: int, names: Sequence[str], dropout: float = 0.1, full_size: bool = False
) -> dict[str, Callable[[], Any]]:
    import step_speed
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data/encoder")
    hidden, layers, heads = (64, 2, 2) if args.device == "cpu" and not full_size else (768, 12, 12)
    case = argparse.Namespace(
        text=ROOT / "data/sample/sentences.txt",
        lines=pairs,
        max_seq_length=32,
        prompt=16,
        hidden=hidden,
        layers=layers,
        heads=heads,
        dropout=dropout,
        device=args.device,
        bf16=True,
    )
    return step_speed.sides(case, step_speed.texts(case, tokenizer), tokenizer, list(names))


def losses(args: argparse.Namespace) -> Rows:
    """Train without dropout with and without the kernels."""
    import step_speed

    step_speed.LEARNING_RATE = 1e-2
    sides = step_sides(args, args.pairs[0], ("packed", "without kernels"), dropout=0.0)
    step_speed.LEARNING_RATE = 1e-5
    taken = {name: [float(one()) for _ in range(20)] for name, one in sides.items()}
    pairs = [*zip(*taken.values(), strict=True)]
    for number in (0, 1, 4, 9, 19):
        yield f"step {number + 1}", dict(zip(taken, pairs[number], strict=True))
    yield "largest relative difference", {"": max(abs(a - b) / b for a, b in pairs)}


KINDS = {
    "products": ("nvjet", "gemm", "cutlass::Kernel"),
    "attention": ("_forward_kernel", "_backward_kernel", "fmha", "flash"),
    "dropout, residual and normalisation": ("_add_norm",),
    "GELU": ("Gelu", "gelu"),
    "copies": ("copy", "Memcpy", "Memset", "Cat", "Fill", "index", "gather", "scatter"),
    "sums": ("reduce",),
}
"""Kind → parts of names of kernels; the first kind that fits counts."""


def profile(args: argparse.Namespace) -> Rows:
    """Return the time of a step's kernels by kind, and those that take most of it."""
    one = step_sides(args, args.pairs[0], ["packed"])["packed"]
    for _ in range(3):
        one()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as record:
        for _ in range(3):
            one()
    events = [e for e in record.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    events = [e for e in events if not e.key.startswith("Optimizer.")]
    events.sort(key=lambda event: -event.self_device_time_total)
    kinds: dict[str, list] = {}
    for event in events:
        kind = next((kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)), "others")
        kinds.setdefault(kind, []).append(event)
    for kind, members in {"all kernels": events, **kinds}.items():
        milliseconds = sum(e.self_device_time_total for e in members) / 3000
        yield kind, {"ms": milliseconds, "calls": sum(e.count for e in members) / 3}
    for number, event in enumerate(events[:24]):
        name = event.key.replace("void ", "").replace("at::native::", "")
        yield f"{number + 1:2} {name[:100]}", {"ms": event.self_device_time_total / 3000, "calls": event.count / 3}
    print(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50))


MEMORY_BANDWIDTH = 3e12
"""Bytes a second, about those of an H100."""

OPERATIONS = {
    "products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "linear"),
    "attention": ("_forward_kernel", "_backward_kernel", "attention"),
    "dropout, residual and normalisation": (
        *("_add_norm_forward", "_add_norm_backward", "native_layer_norm", "native_layer_norm_backward"),
        *("native_dropout", "native_dropout_backward", "add", "add_"),
    ),
    "GELU": ("gelu", "gelu_backward"),
    "copies": (
        "_to_copy",
        "copy_",
        "cat",
        "stack",
        "clone",
        "index",
        "index_select",
        "index_copy",
        "index_add",
        "gather",
    ),
}
"""Kind → names of operations and kernels."""


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write: those of every tensor that goes in or comes out, but for views.

    Matrix products are not computed, since only their shapes matter. Dropout and attention count as the one operation
    that they are on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.patches = ExitStack()

    def __enter__(self) -> "Traffic":
        for module, name, function in (
            (kernels, "start", self.start),
            (prefix_kernel, "start", self.start),
            (F, "scaled_dot_product_attention", self.attention),
        ):
            self.patches.enter_context(patch.object(module, name, function))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.patches.close()
        super().__exit__(*error)

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = operation.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm"):
            first, second = args[-2:]
            result = first.new_empty((*first.shape[:-1], second.shape[-1]))
        else:
            result = operation(*args, **(kwargs or {}))
        if not operation.is_view and not name.startswith(("empty", "new_empty", "detach", "_unsafe_view")):
            self.count(name, (args, kwargs, result))
        return result

    def count(self, name: str, tensors: Any) -> None:
        kind = next((kind for kind, names in OPERATIONS.items() if name in names), f"others: {name}")
        # Expanded tensors are read from their storage.
        sizes = (min(t.nbytes, t.untyped_storage().nbytes()) for t in tree_leaves(tensors) if isinstance(t, Tensor))
        self.bytes[kind] += sum(sizes)
        self.calls[kind] += 1

    def start(self, kernel: Any, grid: tuple[int, int, int], arguments: Sequence[Any], *args: Any, **kw: Any) -> None:
        """Count a kernel instead of running it."""
        self.count(kernel.__name__, arguments)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **kw: Any
    ) -> Tensor:
        return _CountedAttention.apply(self, attn_mask, query, key, value)


class _CountedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, traffic: Traffic, mask: Tensor | None, *states: Tensor) -> Tensor:
        query, _, value = states
        output = query.new_empty((*query.shape[:-1], value.shape[-1]))
        traffic.count("attention", (states, mask, output))
        ctx.traffic, ctx.mask = traffic, mask
        ctx.save_for_backward(*states, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *states, output = ctx.saved_tensors
        gradients = [torch.empty_like(part) for part in states]
        ctx.traffic.count("attention", (states, output, gradient, gradients, ctx.mask))
        return None, None, *gradients


def traffic(args: argparse.Namespace) -> Rows:
    """Count the bytes of a step with and without the kernels."""
    if args.device != "cpu":
        return
    import step_speed

    def dropout(states: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return torch.native_dropout(states, p, True)[0] if training and p else states

    names = ("packed", "without kernels")
    with (
        patch.object(step_speed, "uses_kernels", lambda attention, *_: attention != "torch"),  # on the CPU too
        patch.object(prefix_kernel, "_emulates", lambda states: False),  # copies that only the interpreter needs
        patch.object(F, "dropout", dropout),
    ):
        steps = {pairs: step_sides(args, pairs, names, full_size=True) for pairs in args.pairs}
        for pairs, name in itertools.product(args.pairs, names):
            with Traffic() as counted:
                steps[pairs][name]()
            yield f"{name}, {pairs} pairs", figures(counted.bytes.total(), counted.calls.total())
            for kind, size in counted.bytes.most_common(8):
                yield f"{name}, {pairs} pairs: {kind}", figures(size, counted.calls[kind])


def figures(size: int, calls: int) -> dict[str, float]:
    return {"GB": size / 1e9, "ms at 3 TB/s": 1000 * size / MEMORY_BANDWIDTH, "calls": calls}


PARTS = {"step": step, "losses": losses, "profile": profile, "errors": errors, "times": times, "bytes": traffic}


if __name__ == "__main__":
    main()
