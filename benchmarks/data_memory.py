"""Measure the memory of training on Python objects with increasing numbers of sentences.

    python benchmarks/data_memory.py [--model_name_or_path ENCODER] [--sizes 50000 500000 5000000] [--steps 300]
        [--kind Dataset IterableDataset] [--folder FOLDER] [--output_file memory.json]

Each size runs in a separate process. A generator produces different sentences of 9 words each. The dataset is made by
`datasets.Dataset.from_generator`, which writes the sentences to FOLDER, or by `IterableDataset.from_generator`.
`dcpcse.train` then trains a random encoder with two layers, hidden size 32 and the tokenizer of ENCODER. It reads the
rows, counts duplicates, draws a random order and does the training steps.

Memory is the peak of the anonymous memory of the process (RssAnon in /proc/self/status, read every 5 ms). Pages of
memory-mapped files, which the system drops when memory is short, are not part of it. Their peak (RssFile) is reported
separately. `before` is the anonymous memory after the imports and after the dataset was made.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

import dcpcse
from dcpcse.utils.packages import EMBEDDED_ENCODER

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
WORDS = ("the", "old", "man", "sees", "a", "red", "house", "near", "that", "river", "while", "two", "young", "dogs")


def main() -> None:
    args = parse()
    if args.only:
        print(json.dumps(measure(args)))
        return
    results = []
    for kind in args.kind:
        for size in args.sizes:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                options = ["--kind", kind, "--sizes", str(size), "--steps", str(args.steps), "--folder", folder]
                command = [
                    sys.executable,
                    __file__,
                    "--only",
                    "--model_name_or_path",
                    args.model_name_or_path,
                    *options,
                ]
                done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            results.append({"kind": kind, "sentences": size, **json.loads(done.stdout.splitlines()[-1])})
            print(results[-1])
    if args.output_file:
        Path(args.output_file).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train on one dataset in this process; return the seconds, and the memory in MB."""
    folder, (size,), (kind,) = Path(args.folder), args.sizes, args.kind
    encoder = tiny_encoder(args.model_name_or_path, folder / "encoder")
    if kind == "Dataset":
        arguments = {"cache_dir": str(folder / "datasets"), "gen_kwargs": {"size": size}}
        data = datasets.Dataset.from_generator(sentences, **arguments)
    else:
        data = datasets.IterableDataset.from_generator(sentences, gen_kwargs={"size": size})
    before, started = memory()["RssAnon"], time.perf_counter()
    with Peaks() as peaks:
        dcpcse.train(
            encoder,
            data,
            method="dcpcse",
            max_steps=args.steps,
            learning_rate=5e-5,  # these two are those of the published figures
            per_device_train_batch_size=8,
            cache_dir=str(folder / "cache"),
            output_dir=folder / "run",
            disable_tqdm=True,
        )
    return {"before": before, "peak": peaks.mb["RssAnon"], "files": peaks.mb["RssFile"]} | {
        "seconds": round(time.perf_counter() - started, 1)
    }


def sentences(size: int) -> Iterator[dict[str, str]]:
    """Yield different sentences: their words are the digits of a number."""
    base = len(WORDS)
    for number in range(size):
        yield {"text": " ".join(WORDS[number // base**place % base] for place in range(9))}


def memory() -> dict[str, float]:
    """Return the present memory of this process in MB, by kind."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {kind: round(int(fields[kind].split()[0]) / 1024, 1) for kind in ("RssAnon", "RssFile")}


class Peaks:
    """A context in which a thread records the peak of each kind of memory."""

    def __enter__(self) -> "Peaks":
        self.mb = memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.mb = {kind: max(value, self.mb[kind]) for kind, value in memory().items()}

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def tiny_encoder(tokenizer: str, folder: Path) -> Path:
    """Save a random encoder with a real tokenizer."""
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model("bert", vocab_size=len(loaded), **TINY)).save_pretrained(folder)
    loaded.save_pretrained(folder)
    return folder


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help = "the source of the tokenizer (default: data/encoder)"
    parser.add_argument("--model_name_or_path", default=str(EMBEDDED_ENCODER), help=help)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50_000, 500_000, 5_000_000])
    parser.add_argument("--kind", nargs="+", choices=["Dataset", "IterableDataset"], default=["Dataset"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", help="folder for temporary files (default: that of the system)")
    parser.add_argument("--output_file")
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
