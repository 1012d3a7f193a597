"""Run everything that is to be measured on a GPU, and write one JSON file and a table (see gpu.sh).

    python benchmarks/gpu.py --output_dir DIR [--minutes 9.5] [--only PART ...] [--device cpu --toy]

The parts run one after another, each in processes of their own; gpu.json is rewritten after each of them, so that it
holds what is finished if the command is stopped. A part that fails is recorded with the end of its output, and the
next one runs. A part is not started if less than a minute is left.

tests      the tests of tests/integration/test_cuda.py
products   matrix products of 8,192 rows: the peak that shares refer to
steps      step_speed.py: a step of DCPCSE, of the public technique and of full fine-tuning, several batch sizes
methods    dcpcse.train with every method: time of a step with data and transfers, host waits, memory
large      a batch of 4,096 and of 65,536 by the gradient cache
encode     encode_speed.py, in float32 and bfloat16
processes  the training of `methods` in two processes (NCCL), if there are two devices

The encoder has BERT-base's shape, random weights, and the tokenizer of data/encoder; --toy takes a tiny one and few
steps, which tests this script on a CPU.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
SENTENCES = ROOT / "data/sample/sentences.txt"
TOKENIZER = ROOT / "data/encoder"
LEAST_SECONDS = 60
"""A part is started if at least this many seconds are left."""


def main() -> None:
    args = parse()
    if args.train:
        return train_one(json.loads(args.train))
    if args.toy:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # a C++ compiler would take most of the time
    deadline = time.monotonic() + 60 * args.minutes
    args.output_dir.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"settings": {**vars(args), "output_dir": None}, **environment(args.device)}
    with tempfile.TemporaryDirectory() as folder:
        args.encoder = folder
        save_encoder(folder, args.toy)
        for part in args.only:
            result[part] = {"not run": "no time left"}
            if deadline - time.monotonic() >= LEAST_SECONDS:
                result[part] = attempt(partial(PARTS[part], args, deadline))
            written = args.output_dir / "gpu.json.part"
            written.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            os.replace(written, args.output_dir / "gpu.json")
            print(f"{part}: {deadline - time.monotonic():.0f} s left", flush=True)
    text = table_of(result)
    (args.output_dir / "gpu.md").write_text(text, encoding="utf-8")
    print(text)
    if failed := [part for part in args.only if '"failed"' in json.dumps(result[part])]:
        raise SystemExit(f"failed: {', '.join(failed)}; gpu.json has the end of the output")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("result/gpu"))
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is visible; --device cpu --toy tries the script")
    return args


def environment(device: str) -> dict[str, Any]:
    """Return the versions and the device."""
    import transformers

    found = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    if device == "cuda":
        found |= {"device": torch.cuda.get_device_name(), "devices": torch.cuda.device_count()}
        found |= {"cuda": torch.version.cuda, "memory_gb": torch.cuda.get_device_properties(0).total_memory / 1e9}
    return found


def save_encoder(folder: str, toy: bool) -> None:
    """Write a BERT with random weights and a masked-LM head, which generators need."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **shape(toy))).save_pretrained(folder)


def shape(toy: bool) -> dict[str, int]:
    """Return the sizes of the encoder: those of BERT-base, or tiny ones."""
    if not toy:
        return {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    return {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of a part or of a piece of one, or why there is none.

    Whatever goes wrong: time on a GPU is short, and the rest is to run.
    """
    try:
        return work()
    except Exception as error:
        output = str(getattr(error, "output", None) or "")
        return {"failed": f"{type(error).__name__}: {str(error)[-500:]}", "output": output[-3000:]}


def call(command: Sequence[str], deadline: float, **environment: str) -> str:
    """Run a command until the deadline, and return its output. Raises CalledProcessError with the output."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=max(1.0, deadline - time.monotonic()),
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    return done.stdout


def script(name: str, deadline: float, *options: Any) -> dict[str, Any]:
    """Run a benchmark of this folder, and return what it writes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        command = [sys.executable, f"benchmarks/{name}", *map(str, options), "--output_file", str(file)]
        call(command, deadline)
        return json.loads(file.read_text(encoding="utf-8"))


def tests(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Run the tests that compare a GPU with the CPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integration/test_cuda.py"]
    command += ["-k", "equal_those and dcpcse"] if args.toy else []
    return {"last line": call(command, deadline, DCPCSE_TEST_DEVICE=args.device).strip().splitlines()[-1]}


def products(args: argparse.Namespace, deadline: float) -> dict[str, float]:
    """Return the TFLOP/s of square matrix products by precision."""
    size, found = 64 if args.toy else 8192, {}
    for name in ("float32", "bfloat16", "float16"):
        a, b = (torch.randn(size, size, device=args.device, dtype=getattr(torch, name)) for _ in range(2))
        seconds = statistics.median(timed(partial(torch.mm, a, b), args.device, 10))
        found[name] = 2 * size**3 / seconds / 1e12
    return found


def timed(work: Callable[[], object], device: str, rounds: int) -> list[float]:
    """Return the seconds of each call after three that are not counted."""
    seconds = []
    for place in range(rounds + 3):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        if place >= 3:
            seconds.append(time.perf_counter() - start)
    return seconds


def synchronize(device: str) -> None:
    """Wait until the device has finished."""
    if device == "cuda":
        torch.cuda.synchronize()


def step_options(args: argparse.Namespace, lines: int, bf16: bool) -> list[Any]:
    """Return the options of step_speed.py."""
    sizes = shape(args.toy)
    size = ["--hidden", sizes["hidden_size"], "--layers", sizes["num_hidden_layers"]]
    size += ["--heads", sizes["num_attention_heads"], "--rounds", 2 if args.toy else 20]
    data = ["--tokenizer", TOKENIZER, "--text", SENTENCES, "--lines", lines, "--device", args.device]
    return [*data, *size, *(["--bf16"] if bf16 else []), *(["--times_only"] if args.toy else [])]


def steps(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return batch size and precision → the sides of step_speed.py."""
    found = {}
    sizes = ((4, True),) if args.toy else ((256, True), (512, True), (64, True), (256, False))
    for lines, bf16 in sizes:
        name = f"{lines} pairs, {'bfloat16' if bf16 else 'float32'}"
        sides = ["compiled layers", "padded", "past_key_values, SDPA", "SimCSE", "SimCSE, packed", "products"]
        given = [*step_options(args, lines, bf16), "--sides", *sides]
        found[name] = attempt(lambda given=given: script("step_speed.py", deadline, *given))
    return found


def large(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return the time and memory of large batches, in chunks of 256 sentences."""
    found = {}
    for lines, chunk in ((8, 4),) if args.toy else ((4096, 256), (65536, 256)):
        given = [*step_options(args, chunk, True), "--large", lines]
        found[f"{lines} pairs"] = attempt(lambda given=given: script("step_speed.py", deadline, *given))
    return found


def encode(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return the time of `encode` and of sentence-transformers."""
    given = ["--model_name_or_path", args.encoder, "--text", SENTENCES, "--device", args.device]
    given += ["--rounds", 1 if args.toy else 5, "--sentences", 40 if args.toy else 20_000]
    return script("encode_speed.py", deadline, *given)


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
"""Method → whether it trains on triplets, and the option that takes a second encoder."""


def trainings(toy: bool) -> list[dict[str, Any]]:
    """Return the trainings to measure, the most important first."""
    batch = 4 if toy else 256
    found = [{"method": name, "batch": batch, "bf16": True} for name in METHODS]
    found += [{"method": name, "batch": size, "bf16": True} for name in ("dcpcse", "simcse") for size in (64, 512)]
    found += [{"method": "dcpcse", "batch": batch, "bf16": True, **way} for way in WAYS]
    found += [{"method": name, "batch": batch, "bf16": False} for name in METHODS]
    return found[:1] if toy else found


WAYS = (
    {"packing": False},
    {"flex_attention": True},
    {"torch_compile": True, "pad_to_max_length": True},
    {"compile_layers": True},
    {"dataloader_num_workers": 0},
    {"tuning": "lora"},
)
"""Other ways to do the same training, as options of train.py."""


def methods(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return training → milliseconds a step, host waits of a step, and peak memory."""
    found = {}
    for one in trainings(args.toy):
        if deadline - time.monotonic() < 20:
            break
        found[label(one)] = attempt(lambda one=one: train_apart(args, one, deadline, [sys.executable]))
    return found


def processes(args: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Return the same for two processes with a device each (with --toy, on the CPU)."""
    if not args.toy and torch.cuda.device_count() < 2:
        return {"not run": "there is one device"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    chosen = trainings(args.toy)[: len(METHODS)]
    return {label(one): attempt(lambda one=one: train_apart(args, one, deadline, launcher)) for one in chosen}


def label(training: Mapping[str, Any]) -> str:
    """Return the name of a training in tables."""
    options = {name: value for name, value in training.items() if name not in ("method", "batch", "bf16")}
    precision = "bfloat16" if training["bf16"] else "float32"
    return ", ".join(
        [training["method"], str(training["batch"]), precision, *(f"{k} {v}" for k, v in options.items())]
    )


def train_apart(
    args: argparse.Namespace, training: Mapping[str, Any], deadline: float, launcher: Sequence[str]
) -> dict[str, Any]:
    """Run a training in processes of its own, and return the line that the first of them prints."""
    given = json.dumps({**training, "encoder": args.encoder, "device": args.device, "steps": 4 if args.toy else 40})
    out = call([*launcher, __file__, "--device", args.device, "--train", given], deadline)
    return json.loads(re.findall(r"^MEASURED (.*)$", out, re.MULTILINE)[-1])


def train_one(given: dict[str, Any]) -> None:
    """Train in this process, and print the figures of the later half of the steps."""
    import dcpcse

    batch, steps, device = given.pop("batch"), given.pop("steps"), given.pop("device")
    method, encoder, bf16 = given.pop("method"), given.pop("encoder"), given.pop("bf16")
    texts = SENTENCES.read_text(encoding="utf-8").splitlines()
    texts = (texts * (batch * steps // len(texts) + 1))[: batch * steps]
    second = METHODS[method].get("second_encoder")
    options = {second: encoder} if second else {}
    data = texts
    if METHODS[method].get("triplets"):
        third = len(texts) // 3
        data = [*zip(texts, texts[third:] + texts[:third], texts[2 * third :] + texts[: 2 * third], strict=True)]
    clock = clock_class()(device, steps)
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
            bf16=bf16,
            logging_steps=1000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=device == "cpu",
            callbacks=[clock],
            **options,
            **given,
        )
    if int(os.environ.get("RANK", 0)) == 0:
        print("MEASURED", json.dumps(clock.figures()))


def clock_class() -> type:
    """Return the class of the callback that measures; transformers is imported only where something is trained."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Measures the later half of the steps as a whole, and counts the host waits of one step before them."""

        def __init__(self, device: str, steps: int) -> None:
            self.device, self.first, self.last = device, steps // 2, steps
            self.since = self.until = 0.0
            self.waits: list[str] = []
            self.context: warnings.catch_warnings | None = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.device == "cuda" and state.global_step == self.first - 1:
                self.context = warnings.catch_warnings(record=True)
                self.caught = self.context.__enter__()
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.context is not None:
                torch.cuda.set_sync_debug_mode("default")
                self.context.__exit__(None, None, None)
                self.context = None
                found = [one for one in self.caught if "synchronizing" in str(one.message)]
                self.waits = [f"{Path(one.filename).name}:{one.lineno}" for one in found]
            if state.global_step in (self.first, self.last):
                synchronize(self.device)
                self.since, self.until = self.until, time.perf_counter()

        def figures(self) -> dict[str, Any]:
            each = (self.until - self.since) / (self.last - self.first)
            peak = torch.cuda.max_memory_allocated() / 1e6 if self.device == "cuda" else None
            return {"ms": 1000 * each, "peak_mb": peak, "waits": self.waits if self.device == "cuda" else None}

    return Clock


def table_of(result: Mapping[str, Any]) -> str:
    """Return the figures as tables in Markdown."""
    lines = [f"# {result.get('device', 'CPU')}, torch {result['torch']}, transformers {result['transformers']}", ""]
    peak = result.get("products", {}).get("bfloat16")
    for name, one in result.get("steps", {}).items():
        lines += [
            f"## Step, {name}",
            "",
            "| | ms | times packed | share of the peak | peak MB |",
            "|---|---|---|---|---|",
        ]
        if "sides" not in one:
            lines += [str(one), ""]
            continue
        for side, row in one["sides"].items():
            share = ""
            if peak and "flop" in one and not side.startswith("products"):
                flop = one["flop"]["full" if side.startswith("SimCSE") else "frozen"]
                share = f"{100 * flop / row['median'] / 1e12 / peak:.1f} %"
            ms, memory = 1000 * row["median"], row.get("peak_mb", 0)
            lines.append(f"| {side} | {ms:.2f} | {row['ratio']:.2f} | {share} | {memory:,.0f} |")
        lines.append("")
    for part in ("methods", "processes"):
        rows = result.get(part, {})
        lines += [
            f"## {part.capitalize()}, with data and transfers",
            "",
            "| | ms a step | waits | peak MB |",
            "|---|---|---|---|",
        ]
        for name, one in rows.items():
            if not isinstance(one, dict) or "ms" not in one:
                lines.append(f"| {name} | {one if isinstance(one, str) else one.get('failed')} | | |")
                continue
            waits = "" if one["waits"] is None else len(one["waits"])
            memory = "" if one["peak_mb"] is None else f"{one['peak_mb']:,.0f}"
            lines.append(f"| {name} | {one['ms']:.1f} | {waits} | {memory} |")
        lines.append("")
    lines += ["## Others", "", "| | |", "|---|---|"]
    lines += [
        f"| matrix products, {name} | {value:.1f} TFLOP/s |" for name, value in result.get("products", {}).items()
    ]
    for size, one in result.get("large", {}).items():
        for name, row in one.get("large", {"": one}).items():
            shown = f"{row['seconds']:.2f} s, {row['peak_mb']:,.0f} MB" if "seconds" in row else row.get("failed")
            lines.append(f"| gradient cache, {size}: {name} | {shown} |")
    for name, row in result.get("encode", {}).get("sides", {}).items():
        lines.append(f"| encode, {name} | {row['median']:.2f} s ({row['ratio']:.2f}) |")
    lines.append(f"| tests | {result.get('tests', {}).get('last line', 'failed or not run')} |")
    return "\n".join([*lines, ""])


PARTS: Mapping[str, Callable[[argparse.Namespace, float], Any]] = {
    "tests": tests,
    "products": products,
    "steps": steps,
    "methods": methods,
    "large": large,
    "encode": encode,
    "processes": processes,
}


if __name__ == "__main__":
    main()
