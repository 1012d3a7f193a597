"""Measure `dcpcse encode` on files of increasing length: time per sentence and peak memory, with one process per file.

    python benchmarks/encode_growth.py --text LINES.txt --model_name_or_path ENCODER [--pooler avg] [--tiny]
        [--sizes 1000 10000 100000] [--output_file growth.json] [-- further options of dcpcse encode]

Each file contains the first lines of the text. Blank lines are left out, and the lines are repeated if there are too
few. Seconds and processor seconds include checking the file and loading the model, but not starting Python.
Milliseconds per sentence include only encoding and writing. Memory is the peak of the process that runs the command.
--tiny uses a random encoder with two layers, hidden size 32 and the tokenizer of ENCODER.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from dcpcse.cli.commands.encode import encode_parser
from dcpcse.inference.file_encoding import encode_file

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def main() -> None:
    args, options = parse()
    if args.only:
        print(json.dumps(measure(options)))
        return
    results = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        encoder = tiny_encoder(args.model_name_or_path, folder / "tiny") if args.tiny else args.model_name_or_path
        for size in args.sizes:
            text, output = folder / "text.txt", folder / f"{size}{args.extension}"
            write_lines(args.text, text, size)
            command = [str(encoder), str(text), "--output", str(output), "--pooler", args.pooler, *options]
            done = subprocess.run([sys.executable, __file__, "--only", "--", *command], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            results.append({"sentences": size, "text_bytes": text.stat().st_size, "file_bytes": output.stat().st_size})
            results[-1] |= json.loads(done.stdout.splitlines()[-1])
            output.unlink()
    report(results)
    if args.output_file:
        content = {"encoder": "tiny" if args.tiny else args.model_name_or_path, "options": options, "sizes": results}
        content |= {"threads": torch.get_num_threads(), "cores": os.cpu_count()}
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def measure(argv: list[str]) -> dict[str, Any]:
    """Encode one file in this process; return the times of the whole call and of encoding, and the peak memory."""
    encoder, args, places = encode_parser().parse_args_into_dataclasses(argv, look_for_args_file=False)
    started, processor = time.perf_counter(), time.process_time()
    written = encode_file(places.model, places.file, args, encoder)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = {"seconds": seconds, "seconds_encoding": written.seconds, "processor_seconds": processor}
    return {**times, "peak_bytes": peak}


def tiny_encoder(tokenizer: str, folder: Path) -> Path:
    """Save a random encoder with a real tokenizer, so that the times show the work around the encoder."""
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", vocab_size=len(loaded), **TINY)
    AutoModel.from_config(config).save_pretrained(folder)
    loaded.save_pretrained(folder)
    return folder


def write_lines(source: str, target: Path, count: int) -> None:
    """Write the first `count` lines that are not blank, repeated from the start if there are too few."""
    with open(target, "wb") as file:
        file.writelines(itertools.islice(endless(source), count))


def endless(source: str) -> Iterator[bytes]:
    while True:
        with open(source, "rb") as file:
            yield from (line.rstrip(b"\r\n") + b"\n" for line in file if line.strip())


def report(results: list[dict[str, Any]]) -> None:
    print(f"{'sentences':>11}{'text':>10}{'file':>11}{'seconds':>10}{'processor':>11}{'ms/sentence':>13}{'peak':>11}")
    for row in results:
        milliseconds = 1000 * row["seconds_encoding"] / row["sentences"]
        print(
            f"{row['sentences']:>11,}{row['text_bytes'] / 1e6:>7.1f} MB{row['file_bytes'] / 1e6:>8.1f} MB"
            f"{row['seconds']:>10.1f}{row['processor_seconds']:>11.1f}{milliseconds:>13.3f}"
            f"{row['peak_bytes'] / 1e6:>8.0f} MB"
        )


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the options after `--`, which are passed to the command."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", help="the encoder; with --tiny the source of the tokenizer")
    parser.add_argument("--pooler", default="avg")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--text")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--extension", default=".npy", choices=[".npy", ".arrow"])
    parser.add_argument("--folder", help="folder for temporary files (default: that of the system)")
    parser.add_argument("--output_file")
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(sys.argv[1:split])
    if not args.only and not (args.model_name_or_path and args.text):
        parser.error("--model_name_or_path and --text are required")
    return args, sys.argv[split + 1 :]


if __name__ == "__main__":
    main()
