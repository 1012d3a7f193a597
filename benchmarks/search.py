"""Measure search over many vectors: time to build, memory, latency of one query and of a batch, recall of cells.

    python benchmarks/search.py [--rows 1000000] [--vectors REAL.npy] [--spread 0.5] [--dimension 384]
        [--num_cells 1000] [--num_cells_in_search 1 4 16 64 256] [--folder PLACE] [--output_file search.json]
    python benchmarks/search.py --precisions --vectors REAL.npy

With --precisions, the vectors themselves are searched, without noise: a random 1,000 of them are the queries, the
others the index, in each precision, without rescoring (0) and with 2, 4 and 10 candidates per result. recall is the
part of the `top_k` nearest in float32 that is found.

Rows are random vectors around centres. The centres are the embeddings in --vectors (a file of `dcpcse encode`), or by
default 10,000 synthetic vectors. The length of the noise is `spread` times the mean distance of the centres from their
mean. Queries are drawn in the same way.

Each backend runs in a separate process on a memory-mapped index folder. Times are processor times, which depend less
on other programs than elapsed times. Set OMP_NUM_THREADS=1. private_mb is the growth of the anonymous memory, which
the process itself needs. resident_peak_mb also contains pages of the mapped file that the system keeps in memory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dcpcse.encoders.quantization import CODE_TYPES
from dcpcse.inference.index.sentence_index import SentenceIndex

CENTRES = 10_000
"""Number of synthetic centres."""


def main() -> None:
    args = parse()
    if args.only:
        print(json.dumps(JOBS[args.only](args)))
        return
    if args.precisions:
        report(precisions(np.load(args.vectors), args.top_k))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        args.folder = name
        results = [measure(args, job) for job in ("built", "cells built", *EXACT, "ivf")]
    flat = [row for rows in results for row in (rows if isinstance(rows, list) else [rows])]
    report(flat)
    if args.output_file:
        settings = {key: value for key, value in vars(args).items() if key not in ("folder", "only")}
        settings |= {"cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS"), "numpy": np.__version__}
        content = json.dumps({"settings": settings, "results": flat}, indent=2)
        Path(args.output_file).write_text(content + "\n", encoding="utf-8")


def measure(args: argparse.Namespace, job: str) -> Any:
    """Run a job in its own process."""
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--folder", args.folder, "--only", job],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    print(f"{job}: done", file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])


class Drawn:
    """Rows drawn around centres, the same in every process; used as an encoder whose sentences are row numbers.

    seconds: processor time that drawing has taken.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        if args.vectors:
            self.centres = np.load(args.vectors).astype(np.float32)
        else:
            self.centres = np.random.default_rng(0).standard_normal((CENTRES, args.dimension), dtype=np.float32)
        distance = np.linalg.norm(self.centres - self.centres.mean(0), axis=1).mean()
        self.scale = args.spread * distance / np.sqrt(self.centres.shape[1])
        self.seconds = 0.0

    def encode(self, numbers: list[str], batch_size: int = 0) -> np.ndarray:
        started = time.process_time()
        rng = np.random.default_rng(int(numbers[0]) + 1)
        own = self.centres[rng.integers(len(self.centres), size=len(numbers))]
        rows = own + np.float32(self.scale) * rng.standard_normal(own.shape, dtype=np.float32)
        self.seconds += time.process_time() - started
        return rows

    def queries(self, count: int) -> np.ndarray:
        """Return vectors that are drawn like the rows, but are not among them."""
        return self.encode([str(10**9 + i) for i in range(count)])


def build(args: argparse.Namespace, name: str, **options: Any) -> dict[str, Any]:
    """Build an index folder from a text file with one number per line. The time of drawing the vectors is left out."""
    text, drawn = Path(args.folder, "text.txt"), Drawn(args)
    text.write_text("".join(f"{i}\n" for i in range(args.rows)), encoding="utf-8")
    before, started = private(), time.process_time()
    SentenceIndex.build(drawn, text, Path(args.folder, name), **options)
    seconds = time.process_time() - started - drawn.seconds
    size = sum(path.stat().st_size for path in Path(args.folder, name).iterdir())
    return {"what": f"build {name}", "seconds": seconds, "disk_mb": size / 1e6, **memory(before)}


def search(args: argparse.Namespace, name: str, backend: str, in_search: int | None = None) -> dict[str, Any]:
    """Measure latencies, recall and memory on a newly loaded index."""
    drawn = Drawn(args)
    one, batch = drawn.queries(1), drawn.queries(args.batch)
    before, started = private(), time.process_time()
    index = SentenceIndex.load(Path(args.folder, name), backend=backend)
    row = {"what": backend, "load_seconds": time.process_time() - started}
    if in_search:
        index.num_cells_in_search = in_search
        row["what"] = f"{backend}, {in_search} of {index.num_cells} cells"
    row["first_seconds"] = timed(lambda: index.search_vectors(one, args.top_k), 1)
    row["query_seconds"] = timed(lambda: index.search_vectors(one, args.top_k), args.repeats)
    found: list = []
    row["batch_seconds"] = timed(lambda: found.append(index.search_vectors(batch, args.top_k)), 1)
    rows = np.array([[hit.row for hit in hits] for hits in found[-1]])
    exact = Path(args.folder, "exact.npy")
    if not exact.exists():
        np.save(exact, rows)
    wanted = np.load(exact)
    row["recall"] = float(np.mean([len(set(a) & set(b)) / args.top_k for a, b in zip(rows, wanted, strict=True)]))
    return row | memory(before)


def precisions(vectors: np.ndarray, top_k: int) -> list[dict[str, Any]]:
    """Measure recall, bytes per vector, and latency of one query, for each precision and backend."""
    order = np.random.default_rng(0).permutation(len(vectors))
    queries, indexed = vectors[order[:1_000]], vectors[order[1_000:]]
    sentences, wanted, measured = [str(row) for row in range(len(indexed))], None, []
    for precision in CODE_TYPES:
        for backend in ("numpy", "faiss"):
            index = SentenceIndex.build(None, sentences, vectors=indexed, backend=backend, precision=precision)
            quantizer = index.quantizer
            for multiplier in (
                (0, 2, 4, 10) if quantizer.is_binary else (0, 4) if quantizer.ranges is not None else (4,)
            ):
                index.rescore_multiplier = multiplier
                rows = [{hit.row for hit in hits} for hits in index.search_vectors(queries, top_k)]
                wanted = wanted or rows
                recall = np.mean([len(a & b) / top_k for a, b in zip(rows, wanted, strict=True)])
                seconds = timed(lambda index=index: index.search_vectors(queries[:1], top_k), 20)
                size = quantizer.width * quantizer.dtype.itemsize
                measured.append(
                    {"what": f"{precision}, {backend}, {multiplier}", "bytes": size, "recall": float(recall)}
                    | {"query_seconds": seconds}
                )
    return measured


EXACT = ("numpy", "faiss", "auto")
JOBS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "built": lambda args: build(args, "exact"),
    "cells built": lambda args: build(args, "cells", backend="ivf", num_cells=args.num_cells),
    **{name: lambda args, name=name: search(args, "exact", name) for name in EXACT},
    "ivf": lambda args: [search(args, "cells", "ivf", number) for number in args.num_cells_in_search],
}


def timed(work: Callable[[], object], repeats: int) -> float:
    """Return the median of the seconds that the work takes."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def private() -> float:
    """Return the anonymous memory of this process in MB."""
    return _status("RssAnon")


def memory(before: float) -> dict[str, float]:
    return {"private_mb": private() - before, "resident_peak_mb": _status("VmHWM")}


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{name}:"))


def report(rows: list[dict[str, Any]]) -> None:
    columns = ("seconds", "disk_mb", "load_seconds", "first_seconds", "query_seconds", "batch_seconds", "recall")
    columns += ("private_mb", "resident_peak_mb", "bytes")
    print(f"{'':26}" + "".join(f"{name:>17}" for name in columns))
    for row in rows:
        cells = (
            f"{row[name]:,.0f}" if "mb" in name or name == "bytes" else f"{row[name]:.4f}"
            for name in columns
            if name in row
        )
        found = iter(cells)
        print(f"{row['what']:26}" + "".join(f"{next(found) if name in row else '':>17}" for name in columns))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1_000_000), ("dimension", 384), ("top_k", 10), ("batch", 256), ("repeats", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vectors", help=".npy file of real embeddings: the centres of the rows")
    parser.add_argument("--precisions", action="store_true", help="measure recall and bytes of each precision")
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--num_cells", type=int, default=1_000)
    parser.add_argument("--num_cells_in_search", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--folder", help="for the indexes, 3.2 GB (default: the folder of temporary files)")
    parser.add_argument("--output_file")
    parser.add_argument("--only", choices=list(JOBS), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
