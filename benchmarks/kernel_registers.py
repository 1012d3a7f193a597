"""Compile the Triton kernels on a machine without a GPU, and print the registers, stack and shared memory of each.

    python benchmarks/kernel_registers.py [--capability 80 90] [--output_file kernel_registers.json]

The script needs Triton, for example in the environment of .ci/kernels.sh. The kernels are compiled for the
configurations in which they are tested, with the launch parameters that the kernels choose. Stack is the memory to
which registers are spilled, in bytes per thread. The figures are the output of cuobjdump, which Triton includes.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from dcpcse.encoders import layer_kernels, prefix_kernel
from dcpcse.encoders.prefix_kernel import Settings

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

ATTENTION = [
    # type, prompts, size of a head, tokens of the longest text, window
    (torch.bfloat16, 16, 64, 32, None),
    (torch.bfloat16, 0, 64, 32, None),
    (torch.bfloat16, 16, 64, 128, None),
    (torch.bfloat16, 16, 64, 512, 64),
    (torch.bfloat16, 128, 64, 32, None),
    (torch.bfloat16, 16, 32, 32, None),
    (torch.bfloat16, 16, 128, 32, None),
    (torch.bfloat16, 64, 128, 512, None),
    (torch.float16, 16, 64, 32, None),
    (torch.float32, 16, 64, 32, None),
    (torch.float32, 64, 128, 512, None),
]

LAYERS = [(torch.bfloat16, size) for size in (384, 768, 1024)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--output_file", type=Path)
    args = parser.parse_args()
    rows = []
    print(f"{'kernel':20}{'configuration':54}{'capability':>10}{'warps':>7}{'registers':>11}{'stack':>7}{'shared':>8}")
    for name, run in configurations():
        for capability in args.capability:
            for kernel, warps, figures in compiled(run, capability):
                rows.append(
                    {"kernel": kernel, "configuration": name, "capability": capability, "warps": warps, **figures}
                )
                numbers = (capability, warps, *figures.values())
                print(
                    f"{kernel:20}{name:54}"
                    + "".join(f"{n:>{w}}" for n, w in zip(numbers, (10, 7, 11, 7, 8), strict=True)),
                    flush=True,
                )
    if args.output_file:
        args.output_file.write_text(json.dumps({"triton": triton.__version__, "kernels": rows}, indent=2) + "\n")


def configurations() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each configuration, and a function that starts its kernels."""
    for dtype, prompts, dim, longest, window in ATTENTION:
        name = f"{str(dtype)[6:]}, {prompts} prompts, head {dim}, {longest} tokens" + f", window {window}" * bool(
            window
        )
        yield name, lambda case=(dtype, prompts, dim, longest, window): attention(*case)
    for dtype, size in LAYERS:
        yield f"{str(dtype)[6:]}, {size} units", lambda case=(dtype, size): add_norm(*case)


def attention(dtype: torch.dtype, prompts: int, dim: int, longest: int, window: int | None, heads: int = 2) -> None:
    """Start the attention kernels, both with dropout, as in training."""
    query, key, value = torch.zeros(longest, 3, heads, dim, dtype=dtype).unbind(1)
    tables = torch.zeros(prompts, 2, heads, dim).unbind(1) if prompts else None
    how = Settings(
        torch.tensor([0, longest], dtype=torch.int32),
        longest,
        dim**-0.5,
        window,
        dropout=0.1,
        prompt_dropout=0.1 if prompts else 0.0,
        seed=torch.zeros(1, dtype=torch.int64),
        prompt_seed=torch.zeros(1, dtype=torch.int64) if prompts else None,
    )
    output, sums = prefix_kernel.run_forward((query, key, value), tables, how, 0)
    gradients = torch.zeros(longest, 3, heads, dim, dtype=dtype).unbind(1)
    parts = torch.zeros(how.prompt_parts(output, tables[0]), prompts, 2, heads, dim) if prompts else None
    prefix_kernel.run_backward((query, key, value), tables, output, sums, output, how, 0, gradients, parts)


def add_norm(dtype: torch.dtype, size: int) -> None:
    """Start the kernels of dropout, residual and normalisation."""
    states, norm, seed = torch.zeros(16, size, dtype=dtype), torch.zeros(size), torch.zeros(1, dtype=torch.int64)
    _, normalized, deviations = layer_kernels.add_norm(states, states, norm, norm, 1e-12, seed, 0, dropout=0.1)
    layer_kernels.add_norm_backward(states, normalized, deviations, norm, seed, 0, dropout=0.1)


def compiled(run: Callable[[], object], capability: int) -> list[tuple[str, int, dict[str, int]]]:
    """Return name, warps and resources of the kernels that a function starts, which are compiled and not run."""
    results = []

    def start(kernel: Any, grid: Sequence[int], arguments: Sequence[Any], case: object, **options: Any) -> None:
        binary = kernel.warmup(*arguments, grid=grid, **options)
        figures = {**resources(binary.asm["cubin"]), "shared": binary.metadata.shared}
        results.append((kernel.__name__.strip("_"), binary.metadata.num_warps, figures))

    # Triton asks the driver only for what it compiles for; the number of the device separates what it has compiled.
    answers = {"target": GPUTarget("cuda", capability, 32), "device": capability}
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: answers["target"],
            get_current_device=lambda: answers["device"],
            get_current_stream=lambda device: 0,
        )
    )
    layer_kernels.start = prefix_kernel.start = start
    run()
    return results


def resources(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    names = {"registers": "REG", "stack": "STACK"}
    return {name: int(re.search(rf"\b{key}:(\d+)", report.stdout).group(1)) for name, key in names.items()}


if __name__ == "__main__":
    main()
