"""Check and time the Triton kernels on a GPU.

    python benchmarks/attention_kernels.py [--part attention] [--output_file attention_kernels.json] [--seconds 60]
    TRITON_INTERPRET=1 python benchmarks/attention_kernels.py --device cpu

The first table compares outputs and gradients with a reference: a loop over texts in float64. The reference uses the
same dropout masks, which PyTorch computes from the same counters. An error is the largest difference divided by the
largest value.

The second table contains the times of the attention of one layer of BERT-base, for 512 texts of 21 tokens on average
and 16 prompts. It compares several ways to launch the kernels, the attention function without kernels, and SDPA on
padded rows.

Each row is printed when it is ready. If a row fails, the error is printed instead, and the next row runs. --device cpu
tests the script with small sizes in Triton's interpreter. The interpreter is slow, so its times have no meaning.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.encoders.philox import PROMPT_KEYS, PROMPT_VALUES, PROMPT_WEIGHTS, WEIGHTS, kept
from dcpcse.encoders.prefix_kernel import Launch, Settings, attend, run_backward, run_forward

SEED, PROMPT_SEED = 1234567890123, 987654321987
LAYER = 3
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """A configuration to check. indexed: texts have different prompts of one table, which get no gradient."""

    dtype: torch.dtype
    prompts: int
    dim: int
    lengths: tuple[int, ...]
    window: int | None = None
    dropout: float = 0.0
    prompt_dropout: float = 0.0
    indexed: bool = False
    heads: int = 3
    launch: Launch | None = None

    def __str__(self) -> str:
        parts = [str(self.dtype).removeprefix("torch."), f"P {self.prompts}", f"dim {self.dim}"]
        parts += [f"tokens {min(self.lengths)} to {max(self.lengths)}"]
        parts += [f"window {self.window}"] if self.window else []
        parts += [f"dropout {self.dropout}, {self.prompt_dropout}"] if self.dropout or self.prompt_dropout else []
        parts += ["indexed"] if self.indexed else []
        parts += [str(self.launch)] if self.launch else []
        return ", ".join(parts)


SHORT = (21, 1, 32, 17, 2, 30, 16, 9, 25, 31, 8, 32)
LONG = (1, 33, 64, 100, 257, 512)


def cases() -> Iterator[Case]:
    """Yield the configurations, the most important first."""
    both = {"dropout": 0.1, "prompt_dropout": 0.1}
    half = torch.bfloat16
    yield Case(half, 16, 64, SHORT, **both, heads=12)
    yield Case(half, 16, 64, SHORT, heads=12)
    yield Case(torch.float32, 16, 64, SHORT, **both)
    yield Case(torch.float16, 16, 64, SHORT, **both)
    yield Case(half, 16, 64, LONG, **both)
    yield Case(half, 0, 64, SHORT, dropout=0.1)
    yield Case(half, 1, 64, SHORT, **both)
    yield Case(half, 128, 64, SHORT, **both)
    yield Case(torch.float32, 16, 64, LONG)
    yield Case(torch.float32, 0, 64, LONG, dropout=0.1)
    yield Case(half, 16, 64, LONG, window=65, **both)
    yield Case(half, 16, 64, LONG, window=5)
    yield Case(half, 16, 64, LONG, indexed=True)
    yield Case(half, 16, 32, LONG, **both)
    yield Case(half, 16, 128, LONG, **both)
    yield Case(torch.float32, 128, 32, SHORT, **both)
    yield Case(torch.float32, 16, 128, LONG, **both)
    yield Case(torch.float16, 128, 128, LONG, **both)
    yield Case(half, 128, 128, LONG)
    yield Case(torch.float32, 128, 128, SHORT, **both)
    yield Case(torch.float16, 1, 32, LONG, window=33)
    yield Case(half, 16, 64, (16, 3, 1), **both)


def toy_cases() -> Iterator[Case]:
    both = {"dropout": 0.1, "prompt_dropout": 0.1}
    for dtype in TOLERANCE:
        yield Case(dtype, 16, 32, (21, 1, 32), **both, heads=2)
    yield Case(torch.float32, 3, 32, (40, 5), window=7, heads=1)
    yield Case(torch.float32, 16, 32, (17, 5, 3), indexed=True, heads=2)


@dataclass(frozen=True)
class Inputs:
    """Inputs of a case: queries, keys and values in one tensor, a table of prompts, and a gradient of the output."""

    states: Tensor
    table: Tensor
    gradient: Tensor
    settings: Settings
    case: Case

    @classmethod
    def of(cls, case: Case, device: str) -> "Inputs":
        torch.manual_seed(0)
        width, texts = case.heads * case.dim, len(case.lengths)
        tokens, rows = sum(case.lengths), case.prompts * (2 if case.indexed else 1)
        states = torch.randn(tokens, 3 * width).to(device, case.dtype)
        table = torch.randn(rows, 6 * width).to(device)
        gradient = torch.randn(tokens, width).to(device, case.dtype)
        starts = torch.tensor([0, *itertools.accumulate(case.lengths)], dtype=torch.int32, device=device)
        settings = Settings(
            starts,
            max(case.lengths),
            case.dim**-0.5,
            case.window,
            case.dropout,
            case.prompt_dropout,
            torch.tensor([SEED], device=device),
            torch.tensor([PROMPT_SEED], device=device),
            forward=case.launch,
            backward=case.launch,
        )
        if case.indexed:
            number = torch.arange(texts, dtype=torch.int32, device=device)
            counts = torch.where(number % 3 == 2, case.prompts // 2, case.prompts).int()
            chosen = {"first_prompts": number % 2 * case.prompts, "prompt_counts": counts * (number % 4 > 0).int()}
            settings = replace(settings, **chosen, most_prompts=case.prompts)
        return cls(states, table, gradient, settings, case)

    def results(self, attention: Callable[..., Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
        """Return the output and the gradients of states and table; dtype: convert the inputs to it first."""
        states, table = (part.detach().to(dtype or part.dtype).requires_grad_() for part in (self.states, self.table))
        case, trained = self.case, self.case.prompts and not self.case.indexed
        parts = [part.unflatten(1, (case.heads, case.dim)) for part in states.chunk(3, 1)]
        columns = table.requires_grad_(bool(trained)).unflatten(1, (6, case.heads, case.dim))
        prompts = (columns[:, 2], columns[:, 3]) if case.prompts else None
        out = attention(*parts, prompts, self.settings, LAYER).flatten(1)
        out.backward(self.gradient.to(out.dtype))
        gradients = [*states.grad.chunk(3, 1), *([table.grad] if trained else [])]
        return [out.detach(), *gradients]


def loop(query: Tensor, key: Tensor, value: Tensor, prompts: Any, how: Settings, layer: int) -> Tensor:
    """Compute the attention text by text and head by head; the arguments are those of `attend`."""
    outputs, heads = [], query.shape[1]
    bounds = how.starts.tolist()
    texts, most = len(bounds) - 1, how.most_prompts or (0 if prompts is None else len(prompts[0]))
    # The masks of all texts and heads, for the longest text.
    masks_of = {}
    for kind, seed, rate, shape in (
        (WEIGHTS, SEED, how.dropout, (how.longest, how.longest)),
        (PROMPT_WEIGHTS, SEED, how.dropout, (how.longest, most)),
        (PROMPT_KEYS, PROMPT_SEED, how.prompt_dropout, (most, query.shape[2])),
        (PROMPT_VALUES, PROMPT_SEED, how.prompt_dropout, (most, query.shape[2])),
    ):
        if rate and min(shape):
            masks_of[kind] = kept(seed, rate, kind, layer, heads, texts, shape).to(query.device)
    for text, (start, end) in enumerate(itertools.pairwise(bounds)):
        length = end - start
        for head in range(heads):

            def mask(kind: int, rows: int, columns: int, text: int = text, head: int = head) -> Tensor:
                return masks_of[kind][text, head, :rows, :columns].to(query)

            q, k, v = (part[start:end, head] for part in (query, key, value))
            scores = q @ k.T * how.scale
            if how.window is not None:
                place = torch.arange(length, device=q.device)
                scores = scores.masked_fill((place[:, None] - place).abs() >= how.window, -torch.inf)
            masks = [mask(WEIGHTS, length, length)] if how.dropout else []
            if prompts is not None:
                first, count = 0, len(prompts[0])
                if how.prompt_counts is not None:
                    first, count = int(how.first_prompts[text]), int(how.prompt_counts[text])
                own = [part[first : first + count, head] for part in prompts]
                if how.prompt_dropout:
                    for index, kind in enumerate((PROMPT_KEYS, PROMPT_VALUES)):
                        own[index] = own[index] * mask(kind, *own[index].shape) / (1 - how.prompt_dropout)
                scores, v = torch.cat([q @ own[0].T * how.scale, scores], dim=1), torch.cat([own[1], v])
                masks = [mask(PROMPT_WEIGHTS, length, count), *masks] if how.dropout else []
            weights = scores.softmax(1)
            if how.dropout:
                weights = weights * torch.cat(masks, dim=1) / (1 - how.dropout)
            outputs.append(weights @ v)
    texts = [torch.stack(outputs[first : first + heads], dim=1) for first in range(0, len(outputs), heads)]
    return torch.cat(texts)


def check(case: Case, device: str) -> dict[str, Any]:
    """Return the errors of a case, and whether a second run gave the same bits."""
    start = time.perf_counter()
    inputs = Inputs.of(case, device)
    found, again = inputs.results(attend), inputs.results(attend)
    wanted = inputs.results(loop, torch.float64)
    names = ["out", "query", "key", "value", "prompts"]
    # A missing gradient or NaN is an error of infinity.
    errors = {
        name: float(torch.nan_to_num((a.double() - b).abs(), nan=torch.inf).max() / b.abs().max())
        for name, a, b in zip(names, found, wanted, strict=False)
    }
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    right = max(errors.values()) <= TOLERANCE[case.dtype]
    return {"case": str(case), "right": right, "same bits": same, **errors, "s": round(time.perf_counter() - start, 1)}


def guarded(work: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a function, or the error that it raised."""
    try:
        return work(*args)
    except BaseException as error:
        reason = f"{type(error).__name__}: {str(error)[-600:]}"
        return {"case": str(args[0]), "failed": reason, "trace": traceback.format_exc()[-2000:]}


def show(row: dict[str, Any]) -> None:
    if "failed" in row:
        print(f"{row['case']:75} FAILED {row['failed']}", flush=True)
        return
    numbers = " ".join(
        f"{name} {value:.1e}" for name, value in row.items() if isinstance(value, float) and name != "s"
    )
    verdict = ("ok  " if row["right"] else "WRONG") + ("" if row["same bits"] else " OTHER BITS")
    print(f"{row['case']:75} {verdict} {numbers} {row['s']} s", flush=True)


def checks(args: argparse.Namespace, pool: concurrent.futures.Executor | None) -> list[dict[str, Any]]:
    rows = []
    chosen = list(cases() if args.device == "cuda" else toy_cases())
    if pool is None:
        results = (guarded(check, case, args.device) for case in chosen)
    else:
        # The kernels that are timed are compiled at the same time.
        first, last = chosen[:5], chosen[5:]
        futures = [pool.submit(guarded, check, case, args.device) for case in first]
        futures += [pool.submit(guarded, warm, *each, training_case(args), args.device) for each in launches()]
        futures += [pool.submit(guarded, check, case, args.device) for case in last]
        results = in_time(futures, args.deadline - 0.35 * args.seconds)
    for row in filter(None, results):
        show(row)
        rows.append(row)
    print(f"{sum(row.get('right', False) for row in rows)} of {len(chosen)} right", flush=True)
    return rows


def in_time(futures: Sequence[concurrent.futures.Future], deadline: float) -> Iterator[Any]:
    """Yield the results of futures as they come, until the deadline."""
    try:
        for future in concurrent.futures.as_completed(futures, timeout=max(1.0, deadline - time.monotonic())):
            yield future.result()
    except (concurrent.futures.TimeoutError, concurrent.futures.BrokenExecutor) as error:
        print(f"stopped waiting: {type(error).__name__}; {sum(not f.done() for f in futures)} not done", flush=True)
    for future in futures:
        future.cancel()


def training_case(args: argparse.Namespace) -> Case:
    """Return the attention of a training step: 256 pairs of sentences; toy sizes on a CPU."""
    texts, heads, dim = (512, 12, 64) if args.device == "cuda" else (4, 2, 32)
    random = torch.Generator().manual_seed(0)
    lengths = (21.3 + 6.5 * torch.randn(texts, generator=random)).round().int().clamp(5, 32).tolist()
    return Case(torch.bfloat16, 16, dim, tuple(lengths), dropout=0.1, prompt_dropout=0.1, heads=heads)


# block, texts, warps, stages, registers
FORWARDS = [
    Launch(32, 1, 1),
    Launch(32, 2, 1, 1, 168),
    Launch(32, 2, 2),
    Launch(32, 1, 2, 1, 168),
    Launch(32, 2, 2, 1, 168),
    Launch(32, 1, 2, 1, 128),
    Launch(32, 1, 4, 1, 128),
]
BACKWARDS = [
    Launch(32, 2, 2),
    Launch(32, 8, 2),
    Launch(32, 4, 2, 1, 168),
    Launch(32, 4, 4),
    Launch(32, 4, 4, 1, 168),
    Launch(32, 4, 4, 1, 128),
    Launch(32, 8, 4, 1, 128),
]


def launches() -> list[tuple[Launch | None, bool]]:
    """Return the ways to launch the kernels that are timed, and whether each is of the backward pass."""
    return [(launch, back) for back, all_ in ((False, FORWARDS), (True, BACKWARDS)) for launch in (None, *all_)]


def warm(launch: Launch, backward: bool, case: Case, device: str) -> dict[str, Any]:
    """Compile one kernel by running it on few texts."""
    Sweep(replace(case, lengths=case.lengths[:8]), device, sets=1).side(launch, backward)()
    synchronize(device)
    return {}


class Sweep:
    """The attention of one layer, with several sets of inputs in turn, which do not fit into the cache together."""

    def __init__(self, case: Case, device: str, sets: int = 3) -> None:
        self.device, self.sets = device, []
        for _ in range(sets):
            inputs = Inputs.of(case, device)
            states = [part.unflatten(1, (case.heads, case.dim)) for part in inputs.states.chunk(3, 1)]
            states = [part.contiguous() for part in states]  # as three linear layers leave them
            table = inputs.table.unflatten(1, (6, case.heads, case.dim))
            gradient = inputs.gradient.unflatten(1, (case.heads, case.dim))
            self.sets.append((states, (table[:, 2], table[:, 3]), gradient, inputs.settings))
        self.done = [run_forward(states, prompts, how, LAYER) for states, prompts, _, how in self.sets]

    def side(self, launch: Launch | None, backward: bool) -> Callable[[], None]:
        sets = [(*parts, replace(how, forward=launch, backward=launch)) for *parts, how in self.sets]

        def forward() -> None:
            for states, prompts, _, how in sets:
                run_forward(states, prompts, how, LAYER)

        def back() -> None:
            for (states, prompts, gradient, how), (out, lse) in zip(sets, self.done, strict=True):
                gradients = torch.empty((3, *out.shape), dtype=out.dtype, device=out.device).unbind()
                shape = (how.prompt_parts(out, prompts[0]), len(prompts[0]), 2, *out.shape[1:])
                parts = torch.empty(shape, device=out.device)
                run_backward(states, prompts, out, lse, gradient, how, LAYER, gradients, parts)
                parts.sum(0)

        return back if backward else forward


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object], device: str, rounds: int = 20) -> float:
    """Return the median time of one call: on a GPU, of replays of one CUDA graph, so that the host is not measured."""
    if device == "cpu":
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
        times = []
        for _ in range(rounds):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
    return statistics.median(times)


def times(args: argparse.Namespace) -> list[dict[str, Any]]:
    case, rows = training_case(args), []
    every = launches() if args.device == "cuda" else [(None, False), (None, True)]
    sweep = Sweep(case, args.device)
    tokens, width = sum(case.lengths), case.heads * case.dim
    each = 2 * tokens * width / 1e6
    print(f"{len(case.lengths)} texts, {tokens} tokens; queries: {each:.1f} MB", flush=True)

    def add(name: str, work: Callable[[], object], sets: int, megabytes: float | None) -> None:
        def measure(name: str) -> dict[str, Any]:
            ms = milliseconds(work, args.device) / sets
            return {"case": name, "ms": ms, "MB": megabytes, "GB/s": megabytes and megabytes / ms}

        if args.device == "cuda" and time.monotonic() > args.deadline:
            print(f"{name}: no time left", flush=True)
            return
        row = guarded(measure, name)
        rows.append(row)
        if "failed" in row:
            print(f"{name:60} FAILED {row['failed']}", flush=True)
        else:
            speed = f"{megabytes:7.1f} MB {row['GB/s']:7.0f} GB/s" if megabytes else ""
            print(f"{name:60} {row['ms']:8.4f} ms {speed}", flush=True)

    references(case, args.device, add)
    for launch, back in every:
        name = ("backward " if back else "forward ") + ("default" if launch is None else str(launch))
        # Inputs read and outputs written once: queries, keys, values, output; in the backward pass 5 read, 3 written.
        add(name, sweep.side(launch, back), len(sweep.sets), (8 if back else 4) * each)
    del sweep
    others = {"no dropout": replace(case, dropout=0.0, prompt_dropout=0.0)}
    if args.device == "cuda":
        random = torch.Generator().manual_seed(0)
        long = tuple(torch.randint(10, 512, (64,), generator=random).tolist())
        others["float32"] = replace(case, dtype=torch.float32)
        others["64 texts of 10 to 511 tokens"] = replace(case, lengths=long)
    for name, other in others.items():
        if other.lengths != case.lengths or other.dtype != case.dtype:
            references(other, args.device, lambda of, *rest, name=name: add(f"{name}: {of}", *rest), rows=False)
        size = other.dtype.itemsize * sum(other.lengths) * other.heads * other.dim / 1e6
        for back in (False, True):
            try:
                work = Sweep(other, args.device)
            except Exception as error:
                print(f"{name} FAILED {error}", flush=True)
                break
            title = f"{name}: " + ("backward" if back else "forward")
            add(title, work.side(None, back), len(work.sets), (8 if back else 4) * size)
    return rows


def references(case: Case, device: str, add: Callable[..., None], rows: bool = True) -> None:
    """Time the attention function without kernels, and with `rows` SDPA alone on rows that are already padded."""
    from dcpcse.encoders.attention import ForwardPass, prefix_attention
    from dcpcse.encoders.packing import Packing

    lengths, width = torch.tensor(case.lengths), max(case.lengths)
    packing = Packing.of(torch.arange(width) < lengths[:, None]).to(device)
    inputs = Inputs.of(case, device)
    parts = inputs.states.unflatten(1, (3, case.heads, case.dim)).transpose(1, 2).unbind(2)  # 3 × (T, heads, dim)
    states = [part.contiguous().transpose(0, 1).unsqueeze(0).requires_grad_() for part in parts]
    table = inputs.table[:, : 2 * case.heads * case.dim].clone().requires_grad_()
    gradient = inputs.gradient.unflatten(1, (case.heads, case.dim)).unsqueeze(0)
    module = SimpleNamespace(layer_idx=0, is_causal=False, training=True)

    def prefix() -> tuple[Tensor, Tensor]:
        drawn = F.dropout(table.expand(len(lengths), -1, -1), case.prompt_dropout)
        return drawn.unflatten(2, (2, case.heads, case.dim)).permute(2, 0, 3, 1, 4).unbind()

    def without(backward: bool) -> Callable[[], object]:
        def work() -> object:
            options = {"prefix": prefix(), "packing": packing, "dropout": case.dropout, "scaling": case.dim**-0.5}
            out, _ = prefix_attention(module, *states, None, forward_pass=ForwardPass(), **options)
            return torch.autograd.grad(out, [*states, table], gradient) if backward else out

        return work

    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    add("torch: packed, with drawing of prompts, forward", without(False), 1, None)
    add("torch: packed, with drawing of prompts, forward and backward", without(True), 1, None)
    if not rows:
        return
    padded = [packing.to_rows(part.detach().squeeze(0).transpose(0, 1)).transpose(1, 2) for part in states]
    padded = [part.contiguous().requires_grad_() for part in padded]
    full = [F.pad(part.detach(), (0, 0, case.prompts, 0)).requires_grad_() for part in padded[1:]]
    mask = F.pad(packing.real[:, None, None], (case.prompts, 0), value=True).expand(-1, -1, width, -1)
    upstream = torch.randn_like(padded[0])

    def sdpa(backward: bool) -> Callable[[], object]:
        def work() -> object:
            out = F.scaled_dot_product_attention(padded[0], *full, attn_mask=mask, dropout_p=case.dropout)
            return torch.autograd.grad(out, [padded[0], *full], upstream) if backward else out

        return work

    add("torch: SDPA alone on padded rows, forward", sdpa(False), 1, None)
    add("torch: SDPA alone on padded rows, forward and backward", sdpa(True), 1, None)


def attention(args: argparse.Namespace, pool: concurrent.futures.Executor | None) -> dict[str, Any]:
    return {"checks": checks(args, pool), "times": times(args)}


PARTS = {"attention": attention}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=[*PARTS])
    parser.add_argument("--output_file", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=60, help="time for each part")
    parser.add_argument("--processes", type=int, default=min(15, os.cpu_count() or 1), help="that compile kernels")
    args = parser.parse_args()
    result = {}
    pool = None
    if args.device == "cuda":
        print(torch.cuda.get_device_name(), torch.__version__, flush=True)
        spawn = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(args.processes, spawn, torch.set_num_threads, (1,))
    for part in args.part:
        args.deadline = time.monotonic() + args.seconds
        result[part] = guarded(PARTS[part], args, pool)
        if "failed" in result[part]:
            print(result[part]["trace"], flush=True)
        if args.output_file:
            args.output_file.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if pool is not None:
        processes = list(pool._processes.values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


if __name__ == "__main__":
    main()
