"""Compare the start-up time of every command's help with the time of an import that train.py needs.

    python benchmarks/startup.py [--rounds 12] [--output_file startup.json]

The import is `python -c "from transformers import TrainingArguments, HfArgumentParser"`. Every round starts each
command once, in a new random order. A first round, which fills the file cache, is not counted. The script prints the
ratio of the medians with a 95 % bootstrap percentile interval over rounds. Wall time is the time that a user waits.
Processor time (user and system) varies less while other programs run.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from interleaved import ratio

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("plot predictions", "reproduce templates", "pretrain corrupt", "reproduce search")
YARDSTICK = "import of TrainingArguments"
COMMANDS = {
    YARDSTICK: ["-c", "from transformers import TrainingArguments, HfArgumentParser"],
    "train.py": ["train.py", "--help"],
    "evaluation.py": ["evaluation.py", "--help"],
    **{f"dcpcse {name}": ["-m", "dcpcse", *name.split(), "--help"] for name in NAMES},
}


def main() -> None:
    args = parse()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "SentEval")])}
    seconds = {name: {"wall": [], "processor": []} for name in COMMANDS}
    order = random.Random(0)
    for warm in range(args.rounds + 1):
        for name in order.sample(list(COMMANDS), len(COMMANDS)):
            taken = start(COMMANDS[name], environment)
            for clock in taken if warm else ():
                seconds[name][clock].append(taken[clock])
    rows = {name: {clock: compare(seconds, name, clock) for clock in seconds[name]} for name in COMMANDS}

    print(f"median, and ratio to the import (95 % interval), {args.rounds} rounds")
    print(f"{'':32}{'wall time':>31}{'processor time':>31}")
    for name, row in rows.items():
        cells = [f"{c['median']:.2f} s  {c['ratio']:.2f} ({c['low']:.2f} to {c['high']:.2f})" for c in row.values()]
        print(f"{name:32}" + "".join(f"{cell:>31}" for cell in cells))
    if args.output_file:
        content = {"rounds": args.rounds, "python": sys.version.split()[0], "commands": rows, "seconds": seconds}
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output_file")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error(f"--rounds {args.rounds}: at least 2 are needed for an interval")
    return args


def start(words: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a command and return its seconds of wall time and of processor time."""
    used, started = processor(), time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return {"wall": time.perf_counter() - started, "processor": processor() - used}


def processor() -> float:
    """Return the processor seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(seconds: dict[str, dict[str, list[float]]], name: str, clock: str) -> dict[str, float]:
    """Return a command's median seconds, and their ratio to the yardstick's median with its interval."""
    ours, yardstick = (seconds[one][clock] for one in (name, YARDSTICK))
    return {"median": statistics.median(ours), **ratio(ours, yardstick)}


if __name__ == "__main__":
    main()
