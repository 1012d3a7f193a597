"""Compare memory and step time of D2CSE (one frozen encoder, used twice) and DiffCSE (trained encoder, discriminator).

    python benchmarks/crtd_memory.py --model_name_or_path ENCODER --generator_name MASKED_LM [--batch_size 64]
        [--max_seq_length 32] [--steps 5] [--device cpu] [--output_file crtd_memory.json]

Both methods use the same sentences, generator, masks and optimiser (AdamW). They do complete training steps:
corruption of the sentences, two forward passes, backward pass and update. Each method runs in a separate process.

The report contains the exact sizes of the weights, the gradients and the two moments of the optimiser. It also
contains the peak memory: on a GPU the peak that torch allocated, on a CPU the peak of the process. With --random, all
models have random weights, the shape of BERT-base and the tokenizer of ENCODER.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from dcpcse.data.collator import ViewCollator
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import build_method, model_arguments
from dcpcse.training.step import TrainingStep

WORDS = (
    "the",
    "a",
    "man",
    "woman",
    "dog",
    "cat",
    "plays",
    "runs",
    "sees",
    "old",
    "red",
    "house",
    "river",
    "in",
    "near",
)
METHODS = {"d2cse": {"pre_seq_len": 16, "learning_rate": 1e-2}, "diffcse": {"learning_rate": 7e-6}}


def main() -> None:
    args = parse()
    if args.only:
        print(json.dumps(measure(args)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        encoder = random_encoder(args, Path(folder)) if args.random else args.model_name_or_path
        generator = encoder if args.random else args.generator_name
        for method in METHODS:
            words = ["--only", method, "--model_name_or_path", str(encoder), "--generator_name", str(generator)]
            words += [word for name in SHARED for word in (f"--{name}", str(getattr(args, name)))]
            done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            results[method] = json.loads(done.stdout.splitlines()[-1])
    report(results)
    if args.output_file:
        Path(args.output_file).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train one method for a few steps; return seconds per step, trained parameters, bytes of state, peak memory."""
    options = dict(METHODS[args.only])
    learning_rate = options.pop("learning_rate")
    torch.manual_seed(0)
    method_args = model_arguments(method=args.only, generator_name=args.generator_name, **options)
    method = build_method(load_backbone(args.model_name_or_path), method_args, ["anchor"])
    device = torch.device(args.device)
    step = TrainingStep(method).to(device).train()
    trained = [p for p in step.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    collator = ViewCollator(method.model.tokenizer, method.views, args.max_seq_length)
    generator = torch.Generator().manual_seed(1)
    seconds, losses = [], []
    for _ in range(args.steps + 1):
        picks = torch.randint(len(WORDS), (args.batch_size, args.max_seq_length), generator=generator).tolist()
        batch = collator([{"anchor": " ".join(WORDS[i] for i in row)} for row in picks])
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        started = time.perf_counter()
        loss = sum(method.terms[name].weight * term for name, term in step(**batch).items())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    numbers = sum(p.numel() for p in trained)
    return {
        "seconds_a_step": sorted(seconds[1:])[len(seconds[1:]) // 2],
        "trained": numbers,
        "weights_bytes": sum(p.numel() * p.element_size() for p in step.parameters()),
        "training_state_bytes": 3 * 4 * numbers,  # gradients and two moments
        "peak_bytes": peak,
        "loss": losses[-1],
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }


def random_encoder(args: argparse.Namespace, folder: Path) -> Path:
    """Save a model with random weights of BERT-base's shape and the tokenizer of the given encoder."""
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer))
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def report(results: dict[str, dict[str, Any]]) -> None:
    one, other = results["d2cse"], results["diffcse"]
    names = {
        "seconds_a_step": ("s", 1),
        "trained": ("M", 1e6),
        "weights_bytes": ("MB", 1e6),
        "training_state_bytes": ("MB", 1e6),
        "peak_bytes": ("MB", 1e6),
    }
    print(f"{'':22}{'D2CSE':>14}{'DiffCSE':>14}{'ratio':>10}   on {one['device']}")
    for name, (unit, scale) in names.items():
        ratio = other[name] / one[name]
        print(f"{name:22}{one[name] / scale:>11.2f} {unit:2}{other[name] / scale:>11.2f} {unit:2}{ratio:>10.2f}")


SHARED = ("batch_size", "max_seq_length", "steps", "device")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--generator_name", help="default: the encoder itself, with --random")
    parser.add_argument("--random", action="store_true", help="BERT-base's shape with the encoder's tokenizer")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output_file")
    parser.add_argument("--only", choices=METHODS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.random and not args.generator_name:
        parser.error("--generator_name is needed without --random")
    return args


if __name__ == "__main__":
    main()
