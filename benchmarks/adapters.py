"""Measure many adapters on one encoder in one process: memory, time to switch, and throughput of mixed batches.

    python benchmarks/adapters.py --adapter FOLDER --text LINES.txt [--counts 1 10 100] [--sentences 400] [--rounds 5]
        [--max_seq_length 128] [--device cpu] [--processor_time] [--output_file adapters.json]

FOLDER is an output folder of train.py with deep prompts or a LoRA adapter. The adapters are copies of this folder.
Noise with a tenth of the standard deviation of a tensor is added to each tensor.

memory      growth of the process since the first adapter, after free memory is released
switch      time to encode a sentence right after a change of the adapter, and again with the same adapter
throughput  time to encode all sentences in three cases, measured in turn: with one adapter; with a random adapter for
            each sentence, in mixed batches; and with the same random adapters, one adapter after another

With --processor_time, the processor time of this process is measured instead of the elapsed time. This is meant for
machines that other programs use at the same time.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleaved import in_turn, table

import dcpcse
from dcpcse.encoders.storage.manifest import MODEL_FOLDER_FILE, adapter_file, checksums, read_record, record_digest
from dcpcse.inference.adapters import Adapters
from dcpcse.utils.devices import release_memory
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.tensor_files import load_tensors, save_tensors

OWN_MODELS = 3
"""Number of adapters that are also loaded with separate encoders, to compare vectors, memory and time."""


def main() -> None:
    args = parse()
    with open(args.text, encoding="utf-8") as file:
        sentences = [line.strip() for line in file if line.strip()][: args.sentences]
    with tempfile.TemporaryDirectory() as place:
        folders = {f"task {i}": moved(Path(args.adapter), Path(place) / str(i), i) for i in range(max(args.counts))}
        adapters, memory = loaded(folders, sorted(args.counts), args)
        results = {"memory": memory, "switch": switched(adapters, sentences[0], args.clock)}
        results |= throughput(adapters, sentences, args)
        results |= {"own_models": own_models(adapters, folders, sentences, args)}
    print(f"largest difference to models of their own: {results['own_models']['largest_difference']:.1e}")
    if args.output_file:
        settings = {
            **vars(args),
            "clock": args.clock.__name__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        content = {"settings": settings, **results}
        Path(args.output_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def moved(source: Path, folder: Path, seed: int) -> Path:
    """Copy a model folder and add noise to the adapter of the copy; return the new folder."""
    shutil.copytree(source, folder)
    record, random = read_record(folder), torch.Generator().manual_seed(seed)
    path = folder / adapter_file(record)
    tensors = load_tensors(path)
    noise = {name: torch.randn(tensor.shape, generator=random) for name, tensor in tensors.items()}
    save_tensors(path, {name: tensor + 0.1 * tensor.std() * noise[name] for name, tensor in tensors.items()})
    record["sha256"] = checksums(folder, record)
    record["record_sha256"] = record_digest(record)
    write_json_atomic(folder / MODEL_FOLDER_FILE, record)
    return folder


def loaded(
    folders: dict[str, Path], counts: list[int], args: argparse.Namespace
) -> tuple[Adapters, list[dict[str, float]]]:
    """Load all adapters; return them and the memory of the process, in bytes, for each number of adapters."""
    names, rows = list(folders), []
    adapters = Adapters.load({names[0]: folders[names[0]]}, device=args.device)
    adapters[names[0]].encode(["a"])
    first, own = resident(), own_bytes(adapters, names[0])
    print(f"{'adapters':>10}{'process':>12}{'grown by':>12}{'their tensors':>16}{'seconds to load one':>22}")
    for count in counts:
        start, before = args.clock(), len(adapters.names)
        for name in names[before:count]:
            adapters.add(name, folders[name])
        seconds = (args.clock() - start) / max(1, count - before)
        rows.append({"adapters": count, "resident": resident(), "grown": resident() - first})
        rows[-1] |= {"tensors": (count - 1) * own, "seconds_each": seconds}
        megabytes = "".join(
            f"{rows[-1][key] / 1e6:>{width - 3},.1f} MB"
            for key, width in (("resident", 12), ("grown", 12), ("tensors", 16))
        )
        print(f"{count:>10}{megabytes}{seconds:>22.3f}")
    return adapters, rows


def own_bytes(adapters: Adapters, name: str) -> int:
    model = adapters[name]
    own = [tensor for part in model.encoder.parts().values() for tensor in part.values()]
    own += [] if model.head is None else list(model.head.parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in own)


def resident() -> int:
    release_memory(torch.device("cpu"))
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def switched(adapters: Adapters, sentence: str, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of the first and of the second encoding of a sentence after a switch."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for name in random.Random(0).choices(adapters.names, k=200):
        for taken in seconds:
            start = clock()
            adapters.encode([sentence], name)
            taken.append(clock() - start)
    first, after = map(statistics.median, seconds)
    print(f"one sentence: {1000 * first:.2f} ms after a switch, {1000 * after:.2f} ms without")
    return {"first": first, "next": after}


def throughput(adapters: Adapters, sentences: list[str], args: argparse.Namespace) -> dict[str, Any]:
    one = adapters.names[0]
    drawn = {
        count: random.Random(count).choices(adapters.names[:count], k=len(sentences))
        for count in args.counts
        if count > 1
    }
    sides = {"one adapter": lambda: adapters.encode(sentences, one, max_length=args.max_seq_length)}
    for count, names in drawn.items():
        sides |= {
            f"{count} in mixed batches": lambda names=names: adapters.encode(
                sentences, names, max_length=args.max_seq_length
            ),
            f"{count} one after another": lambda names=names: apart(adapters, sentences, names, args.max_seq_length),
        }
    seconds = in_turn(sides, args.rounds, clock=args.clock)
    rows = table(seconds, "one adapter")
    print(f"{len(sentences) / rows['one adapter']['median']:,.0f} sentences a second by one adapter")
    return {"throughput": rows, "seconds": seconds}


def apart(adapters: Adapters, sentences: list[str], names: list[str], max_length: int) -> np.ndarray:
    """Return the vectors of the mixed batches, encoding the sentences of one adapter after another."""
    vectors = np.empty((len(sentences), adapters[names[0]].dimension), np.float32)
    for name in dict.fromkeys(names):
        rows = [i for i, own in enumerate(names) if own == name]
        vectors[rows] = adapters.encode([sentences[i] for i in rows], name, max_length=max_length)
    return vectors


def own_models(
    adapters: Adapters, folders: dict[str, Path], sentences: list[str], args: argparse.Namespace
) -> dict[str, float]:
    """Return memory and load time of models with separate encoders, and how far vectors of mixed batches differ."""
    names = list(folders)[-OWN_MODELS:]
    owners = [names[i % len(names)] for i in range(len(sentences))]
    mixed = adapters.encode(sentences, owners, max_length=args.max_seq_length)
    before, start = resident(), args.clock()
    models = {name: dcpcse.load(folders[name], device=args.device) for name in names}
    seconds, grown = (args.clock() - start) / len(names), (resident() - before) / len(names)
    print(f"a model of its own: {seconds:.2f} s to load, {grown / 1e6:,.1f} MB")
    difference = 0.0
    for name in names:
        rows = [i for i, owner in enumerate(owners) if owner == name]
        own = models[name].encode([sentences[i] for i in rows], max_length=args.max_seq_length)
        difference = max(difference, float(np.abs(own - mixed[rows]).max()))
    return {"seconds_each": seconds, "grown_each": grown, "largest_difference": difference}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--text", required=True, help="a text file, a sentence a line")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 10, 100])
    for name, default in (("sentences", 400), ("rounds", 5), ("max_seq_length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    clocks = {"const": time.process_time, "default": time.perf_counter}
    parser.add_argument("--processor_time", dest="clock", action="store_const", **clocks)
    parser.add_argument("--output_file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
