"""Measure memory and time of the contrastive loss, in chunks of rows and with the matrix of all similarities.

    python benchmarks/loss_chunk.py [--rows 65536] [--whole 8192] [--width 768] [--chunk 1024] [--rounds 3]
        [--device cpu] [--output_file loss_chunk.json]

Each case computes the loss of random anchors and positives, and its gradient, with the code that training uses:

whole     --whole rows, with the matrix of all similarities
chunked   --whole rows, in chunks of --chunk anchors
large     --rows rows, in chunks of --chunk anchors, measured only once

Each measurement runs in a separate process. Peak memory is the memory that the loss and its gradient need in addition
to the embeddings: on a CPU the memory of the process, on a GPU the memory that torch allocates. The script prints the
elapsed time and the CPU time of all threads, on which other programs have little effect.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from dcpcse.losses import Contrastive, EncodedBatch


def main() -> None:
    args = parse()
    if args.only:
        print(json.dumps(measure(args)))
        return
    order = [*["whole", "chunked"] * (args.rounds - 1), "large", "whole", "chunked"]
    found: dict[str, list[dict[str, float]]] = {}
    for side in order:
        found.setdefault(side, []).append(_alone(side))
    sides = {
        side: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for side, runs in found.items()
    }
    print(f"{'':10}{'rows':>8}{'chunk':>8}{'peak':>12}{'time':>10}{'CPU time':>11}   ratios to whole")
    for side, row in sides.items():
        ratios = [row[key] / sides["whole"][key] for key in ("peak_mb", "seconds", "cpu_seconds")]
        rows, chunk = _shape(args, side)
        print(
            f"{side:10}{rows:>8,}{chunk or '':>8}{row['peak_mb']:>9,.0f} MB{row['seconds']:>8.1f} s"
            f"{row['cpu_seconds']:>9.1f} s   {ratios[0]:.2f}, {ratios[1]:.1f}, {ratios[2]:.1f}"
        )
    print(f"one matrix of {args.rows:,} x {args.rows:,} numbers in float32 takes {4 * args.rows**2 / 1e6:,.0f} MB")
    if args.output_file:
        settings = {**vars(args), "torch": torch.__version__, "threads": torch.get_num_threads()}
        content = {"settings": settings, "sides": sides, "runs": found}
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Compute loss and gradient of a side once; return seconds and the peak of memory above that of the embeddings."""
    rows, chunk = _shape(args, args.only)
    warm_up, batch = _batch(args, 8), _batch(args, rows)
    _compute(warm_up, chunk and 4)  # imports modules of torch
    _finish(args)
    before, start, cpu_start = _peak(args), time.perf_counter(), time.process_time()
    loss = _compute(batch, chunk)
    _finish(args)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mb": _peak(args) - before, "loss": loss.item()}


def _batch(args: argparse.Namespace, rows: int) -> EncodedBatch:
    """Return random embeddings; the cosines of pairs are near 0.7, so that neither all nor no anchors are solved."""
    random = torch.Generator().manual_seed(0)
    anchors, noise = (torch.randn(rows, args.width, generator=random).to(args.device) for _ in range(2))
    views = {"anchor": anchors.requires_grad_(), "positive": (anchors.detach() + noise).requires_grad_()}
    return EncodedBatch(None, torch.empty(0), torch.empty(0), views)


def _compute(batch: EncodedBatch, chunk: int | None) -> torch.Tensor:
    loss_fn = Contrastive()
    loss_fn.row_chunk = chunk
    loss = loss_fn(batch)
    loss.backward()
    return loss


def _shape(args: argparse.Namespace, side: str) -> tuple[int, int | None]:
    """Return the number of rows of a side, and of anchors in a chunk."""
    return args.rows if side == "large" else args.whole, None if side == "whole" else args.chunk


def _alone(side: str) -> dict[str, float]:
    command = [sys.executable, *sys.argv, "--only", side]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


def _peak(args: argparse.Namespace) -> float:
    if args.device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def _finish(args: argparse.Namespace) -> None:
    if args.device != "cpu":
        torch.cuda.synchronize()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 65536), ("whole", 8192), ("width", 768), ("chunk", 1024), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output_file")
    parser.add_argument("--only", choices=("whole", "chunked", "large"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
