"""Run tests and measurements on a GPU, and write the figures to gpu.json and gpu.md (see gpu.sh).

    python benchmarks/gpu.py --output_dir DIR [--minutes 7] [--only PART ...] [--device cpu --toy]

The parts below run one after another, the most important part first. Each part has a share of the time and is stopped
when this share is used up. After every part, both files are written (gpu.md contains tables), and the tables are
printed. Each row of a table is measured in a separate process. If a process fails or is stopped, its row contains the
reason, gpu.json contains the end of its output, and the next process runs.

tests      the tests of tests/integration/test_cuda.py
steps      step_speed.py: a step on 256 pairs with DCPCSE, with the public technique and with full fine-tuning
products   products of matrices of 8,192 rows, which show the speed that the GPU can reach
methods    dcpcse.train with every method: time of a step, including data and transfers, and memory
sizes      step_speed.py with other batch sizes and in float32
large      a batch of 16,384 pairs by the gradient cache
encode     encode_speed.py
processes  trainings in two processes (NCCL), if there are two devices

The encoder has the shape of BERT-base, random weights, and the tokenizer of data/encoder. --toy uses a tiny encoder
and few steps, to test this script on a CPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, TrainerCallback

import dcpcse
from dcpcse.utils.files import write_atomic, write_json_atomic

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ROOT / "data/sample/sentences.txt"
TOKENIZER = ROOT / "data/encoder"

Rows = dict[str, dict[str, Any]]
"""Rows of the table of a part: name → column → figure. A row without figures has the column `failed` or `not run`."""


@dataclass(frozen=True)
class Piece:
    """A program that measures some rows of a part.

    command: the program; `{file}` among its words is the JSON file that it writes. rows: function of its output and of
    the content of the file. in_turn: whether the program writes the file after each row, so that the rows of a program
    that ends early count.
    """

    name: str
    command: Sequence[Any]
    rows: Callable[[str, Any], Rows]
    in_turn: bool = False


def main() -> None:
    args = parse()
    if args.child:
        child, options = json.loads(args.child)
        for rows in {"products": products_here, "training": trainings_here}[child](**options):
            if os.environ.get("RANK", "0") == "0":
                write_json_atomic(args.output_file, rows)
        return
    os.environ["DCPCSE_TEST_DEVICE"] = args.device
    args.output_dir.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"environment": environment(args.device), "parts": {}}
    with tempfile.TemporaryDirectory() as folder:
        args.encoder = folder
        save_encoder(folder, args.toy)
        for part in args.only:
            rows = result["parts"][part] = {}
            pieces, seconds = PARTS[part]
            deadline = time.monotonic() + seconds * args.minutes / MINUTES
            for piece in pieces(args):
                rows |= run(piece, deadline)
            write_json_atomic(args.output_dir / "gpu.json", result)
            write_atomic(args.output_dir / "gpu.md", tables(result))
            print(tables(result), flush=True)
    if failed := [part for part, rows in result["parts"].items() if any("failed" in row for row in rows.values())]:
        raise SystemExit(f"failed: {', '.join(failed)}; gpu.json has the end of the output")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("result/gpu"))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts; each has its share")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--output_file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available() and not args.child:
        raise SystemExit("no CUDA device is visible; --device cpu --toy tries the script")
    return args


def environment(device: str) -> dict[str, Any]:
    """Return the versions and the device."""
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    if device == "cpu":
        return {"device": "CPU", **versions}
    memory = torch.cuda.get_device_properties(0).total_memory / 1e9
    devices = {"device": torch.cuda.get_device_name(), "devices": torch.cuda.device_count(), "memory_gb": memory}
    return {**devices, **versions, "cuda": torch.version.cuda}


def save_encoder(folder: str, toy: bool) -> None:
    """Write a BERT with random weights and a masked-LM head, which generators need."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.save_pretrained(folder)
    hidden, layers, heads = shape(toy)
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=4 * hidden, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)


def shape(toy: bool) -> tuple[int, int, int]:
    """Return hidden size, layers and heads of the encoder: those of BERT-base, or tiny ones."""
    return (32, 2, 2) if toy else (768, 12, 12)


def run(piece: Piece, deadline: float) -> Rows:
    """Return the rows of a piece, or one row that says why there are none. Its processes end at the deadline."""
    seconds = deadline - time.monotonic()
    if seconds < 1:
        return {piece.name: {"not run": "no time left"}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        words = [str(file) if word == "{file}" else str(word) for word in piece.command]
        # `timeout` ends the processes that the program has started, too.
        words = ["timeout", "--kill-after=5", f"{seconds:.0f}", *words]
        done = subprocess.run(
            words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        written = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    if not done.returncode:
        return piece.rows(done.stdout, written)
    stopped = f"stopped after {seconds:.0f} s; "
    reason = (stopped if done.returncode in (124, 137) else "") + last_line(done.stdout)
    failure = {piece.name: {"failed": reason, "output": done.stdout[-3000:]}}
    return (written or {}) | failure if piece.in_turn else failure


def last_line(output: str) -> str:
    return (output.strip().splitlines() or [""])[-1]


def tests(args: argparse.Namespace) -> Iterator[Piece]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integration/test_cuda.py"]
    command += ["-k", "equal_those and dcpcse"] if args.toy else ["-n", 5]
    yield Piece("test_cuda.py", command, lambda output, _: {"test_cuda.py": {"result": last_line(output)}})


def step(args: argparse.Namespace, lines: int, precision: str, sides: Sequence[str]) -> Piece:
    """Return the piece of step_speed.py that compares the packed step with other sides."""
    name = f"{lines} pairs, {precision}"

    def rows(_: str, written: Mapping[str, Any]) -> Rows:
        return {f"{name}: {side}": figures(side, row, written["flop"]) for side, row in written["sides"].items()}

    def figures(side: str, row: Mapping[str, float], flop: Mapping[str, float]) -> dict[str, float]:
        speed = flop["full" if side.startswith("SimCSE") else "frozen"] / row["median"] / 1e12
        times = {"ms": round(1000 * row["median"], 2), "times packed": round(row["ratio"], 2)}
        return {**times, "TFLOP/s": round(speed, 1), **memory(row.get("peak_mb"))}

    command = [*step_speed(args, lines, precision), *(["--times_only"] if args.toy else []), "--sides", *sides]
    return Piece(name, command, rows)


def step_speed(args: argparse.Namespace, lines: int, precision: str) -> list[Any]:
    hidden, layers, heads = shape(args.toy)
    command = [sys.executable, "benchmarks/step_speed.py", "--tokenizer", TOKENIZER, "--text", SENTENCES]
    command += ["--lines", lines, "--device", args.device, *(["--bf16"] if precision == "bfloat16" else [])]
    command += ["--hidden", hidden, "--layers", layers, "--heads", heads, "--rounds", 2 if args.toy else 20]
    return [*command, "--output_file", "{file}"]


def memory(megabytes: float | None) -> dict[str, int]:
    return {} if megabytes is None else {"peak MB": round(megabytes)}


def steps(args: argparse.Namespace) -> Iterator[Piece]:
    others = ["past_key_values, SDPA", "SimCSE", "SimCSE, packed", "padded"]
    yield step(args, 4 if args.toy else 256, "bfloat16", others)


def sizes(args: argparse.Namespace) -> Iterator[Piece]:
    for lines, precision in ((2, "float32"),) if args.toy else ((512, "bfloat16"), (64, "bfloat16"), (256, "float32")):
        yield step(args, lines, precision, ["past_key_values, SDPA"])


def large(args: argparse.Namespace) -> Iterator[Piece]:
    lines, chunk = (8, 4) if args.toy else (16_384, 256)

    def rows(_: str, written: Mapping[str, Any]) -> Rows:
        return {
            name: {"seconds": round(row["seconds"], 2), **memory(row["peak_mb"])}
            for name, row in written["large"].items()
        }

    yield Piece(f"{lines} pairs", [*step_speed(args, chunk, "bfloat16"), "--large", lines], rows)


def encode(args: argparse.Namespace) -> Iterator[Piece]:
    def rows(_: str, written: Mapping[str, Any]) -> Rows:
        return {
            name: {"seconds": round(row["median"], 2), "times dcpcse": round(row["ratio"], 2)}
            for name, row in written["sides"].items()
        }

    command = [sys.executable, "benchmarks/encode_speed.py", "--model_name_or_path", args.encoder, "--text", SENTENCES]
    command += ["--rounds", 1 if args.toy else 5, "--sentences", 40 if args.toy else 20_000, "--device", args.device]
    yield Piece("encode", [*command, "--output_file", "{file}"], rows)


def child(args: argparse.Namespace, work: str, launcher: Sequence[str] = (), **options: Any) -> Piece:
    """Return a piece whose work is a function of this file, which yields the rows after each of them."""
    words = [*launcher, __file__, "--device", args.device, "--output_file", "{file}"]
    command = [sys.executable, *words, "--child", json.dumps([work, {"device": args.device, **options}])]
    return Piece(work, command, lambda _, written: written, in_turn=True)


def products(args: argparse.Namespace) -> Iterator[Piece]:
    yield child(args, "products", size=64 if args.toy else 8192)


def products_here(size: int, device: str) -> Iterator[Rows]:
    """Yield the speed of square matrix products by precision."""
    rows = {}
    for precision in ("float32", "bfloat16", "float16"):
        a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
        seconds = []
        for _ in range(13):
            start = time.perf_counter()
            torch.mm(a, b)
            synchronize(device)
            seconds.append(time.perf_counter() - start)
        rows[precision] = {"TFLOP/s": round(2 * size**3 / statistics.median(seconds[3:]) / 1e12, 1)}
        yield rows


def synchronize(device: str) -> None:
    """Wait until the device has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


METHODS: Mapping[str, Mapping[str, Any]] = {
    "dcpcse": {},
    "scpcse": {},
    "promptbert": {},
    "conpvp": {},
    "simcse": {},
    "esimcse": {},
    "d2cse": {"second_encoder": "generator_name"},
    "diffcse": {"second_encoder": "generator_name"},
    "sbert": {"triplets": True},
    "consert": {},
    "rankcse": {"second_encoder": "teacher"},
    "cosent": {"triplets": True},
    "angle": {"triplets": True},
}
"""Method, the most important first → whether it trains on triplets, and the option that takes a second encoder."""


def methods(args: argparse.Namespace, launcher: Sequence[str] = ()) -> Iterator[Piece]:
    batch, steps = (4, 4) if args.toy else (256, 40)
    chosen = [*METHODS][: 2 if args.toy else None]
    yield child(args, "training", launcher, methods=chosen, batch=batch, steps=steps, encoder=args.encoder)


def processes(args: argparse.Namespace) -> Iterator[Piece]:
    """The same in two processes with a device each; with --toy, on the CPU."""
    if args.toy or torch.cuda.device_count() > 1:
        yield from methods(args, ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"])


def trainings_here(methods: Sequence[str], batch: int, device: str, **options: Any) -> Iterator[Rows]:
    """Train with one method after another, in one process, and yield the rows until then."""
    rows: Rows = {}
    for method in methods:
        try:
            rows[f"{method}, {batch} rows, bfloat16"] = train_here(method, batch=batch, device=device, **options)
        except Exception as error:  # of any kind: the other methods can still be measured
            rows[f"{method}, {batch} rows, bfloat16"] = {"failed": f"{type(error).__name__}: {error}"}
        yield rows


def train_here(method: str, encoder: str, batch: int, steps: int, device: str) -> dict[str, float]:
    """Train, and return the milliseconds of a step and the peak memory."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()
    texts = (texts * (batch * steps // len(texts) + 1))[: batch * steps]
    second = METHODS[method].get("second_encoder")
    data = texts
    if METHODS[method].get("triplets"):
        third = len(texts) // 3
        data = [*zip(texts, texts[third:] + texts[:third], texts[2 * third :] + texts[: 2 * third], strict=True)]
    clock = Clock(device, steps)
    with tempfile.TemporaryDirectory() as folder:
        dcpcse.train(
            encoder,
            data,
            method=method,
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=1e-5,
            max_seq_length=32,
            bf16=True,
            logging_steps=1000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=device == "cpu",
            callbacks=[clock],
            **({second: encoder} if second else {}),
        )
    peak = torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else None
    return {"ms": round(clock.milliseconds(), 1), **memory(peak)}


class Clock(TrainerCallback):
    """Measures the later half of the steps as a whole."""

    def __init__(self, device: str, steps: int) -> None:
        self.device, self.first, self.last = device, steps // 2, steps
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in (self.first, self.last):
            synchronize(self.device)
            self.times.append(time.perf_counter())

    def milliseconds(self) -> float:
        return 1000 * (self.times[1] - self.times[0]) / (self.last - self.first)


def tables(result: Mapping[str, Any]) -> str:
    """Return the figures as tables in Markdown, one for each part."""
    lines = [f"# {', '.join(f'{name} {value}' for name, value in result['environment'].items())}"]
    for part, rows in result["parts"].items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row if column != "output"))
        cells = [["", *columns], ["---"] * (len(columns) + 1)]
        cells += [[name, *(shown(row.get(column, "")) for column in columns)] for name, row in rows.items()]
        lines += ["", f"## {part.capitalize()}", "", *(f"| {' | '.join(row)} |" for row in cells)]
    return "\n".join([*lines, ""])


def shown(figure: Any) -> str:
    return str(figure).replace("|", "/") if isinstance(figure, str) else f"{figure:,}"


MINUTES = 7
PARTS: Mapping[str, tuple[Callable[[argparse.Namespace], Iterator[Piece]], int]] = {
    "tests": (tests, 80),
    "steps": (steps, 45),
    "products": (products, 10),
    "methods": (methods, 110),
    "sizes": (sizes, 45),
    "large": (large, 60),
    "encode": (encode, 25),
    "processes": (processes, 30),
}
"""Name → function that returns the pieces, and their seconds of MINUTES; the rest is for the encoder and the start."""


if __name__ == "__main__":
    main()
