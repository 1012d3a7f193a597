"""Mutation fuzzing of all that reads foreign files: anything but success or one line for the user is a finding.

    python tests/stress/fuzz.py --list
    python tests/stress/fuzz.py --runs 5000                    so many executions of each target
    python tests/stress/fuzz.py load info --seconds 600        some targets, so long each

Files that are right are spoilt, one or two of a folder at a time: bits flipped, bytes cut, put in, doubled, spliced
from another file; in JSON a value replaced, dropped, nested; in safetensors the header as JSON. Each target prints its
executions, how many ended in success, and its findings by place; what led to each lies in --findings.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import torch
from model_folders import earlier_record
from past_runs import make_run
from records import RUN_FILES, make_records
from senteval import DataError, load_suite
from senteval_tiny import unofficial, write_tiny_clustering, write_tiny_task, write_tiny_transfer
from tiny_encoders import SENTENCES, make_encoder

import dcpcse
from dcpcse.cli.commands.info import format_facts
from dcpcse.cli.parse import _read_config, training_parser
from dcpcse.data.text_file import TextFile
from dcpcse.data.training_data import load_training_file
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.storage.model_folder import read_contents as read_folder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained import load_word_vectors
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.experiments.template_search import read_candidates
from dcpcse.inference.index import index_folder
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.interop.convert import import_checkpoint
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.methods import build_method, model_arguments
from dcpcse.training.run_history import read_run
from dcpcse.utils.errors import UserError
from dcpcse.utils.safetensors_header import read_header
from dcpcse.utils.tensor_files import load_pickle, load_tensors

SECONDS_AN_EXECUTION = 20
"""Longer is a finding too."""

Files = dict[str, bytes]


@dataclass(frozen=True)
class Target:
    """seeds: folders that are right, as relative path → content. run: reads a folder. spoil: what is mutated."""

    seeds: list[Files]
    run: Callable[[Path], Any]
    spoil: tuple[str, ...] = ()


# Mutations

INTERESTING = [b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b'"', b"{", b"[", b"\xe2\x80\xa8", b"NaN"]
INTERESTING += [b"1e999", b"-1", b"9" * 400, b"[MASK]", b"{sentence}", b"../", b"&a [*a]", b"!!int ''"]
INTERESTING += [b"\xed\xa0\x80", b"PK\3\4"]
NEST = "brackets in brackets"
VALUES = [None, True, False, 0, -1, 1.5, 2**70, -(2**63), 10**7, float("nan"), float("inf"), "", "x", "\0", "../x"]
VALUES += ["\ud800", "a" * 500, "cls", "bert", [], {}, [None], [[]], {"a": {}}]


def mutate(content: bytes, other: bytes, name: str, rng: random.Random) -> bytes:
    """Another content, by one to three mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        fitting = [_bytes]
        if name.endswith((".json", ".jsonl", ".journal")):
            fitting += [_json] * 3
        if name.endswith(".safetensors"):
            fitting += [_header] * 2
        try:
            content = rng.choice(fitting)(content, other, rng)
        except RecursionError:  # nested by the mutation before
            content = _bytes(content, other, rng)
    return content


def _bytes(content: bytes, other: bytes, rng: random.Random) -> bytes:
    at, to = sorted(rng.choices(range(len(content) + 1), k=2))
    flipped = bytes([content[at] ^ 1 << rng.randrange(8)]) if at < len(content) else b""
    middle, rest = rng.choice(
        [
            *[(flipped, at + 1), (b"", len(content)), (b"", to)],
            *[(rng.choice(INTERESTING), at), (rng.choice(INTERESTING), to), (rng.randbytes(rng.randrange(1, 9)), at)],
            *[(content[at : at + 2000] * rng.choice((2, 3, 50)), to), (other[rng.randrange(len(other) + 1) :], None)],
        ]
    )
    return content[:at] + middle + (b"" if rest is None else content[rest:])


def _json(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The whole as JSON, or a line of it."""
    lines = content.split(b"\n")
    row = rng.randrange(len(lines))
    for before, text, after in (([], content, []), (lines[:row], lines[row], lines[row + 1 :])):
        with contextlib.suppress(ValueError):
            return b"\n".join([*before, _dumped(_changed(json.loads(text), rng), rng), *after])
    return _bytes(content, other, rng)


def _dumped(value: Any, rng: random.Random) -> bytes:
    depth = rng.choice((50, 900, 100_000))
    return json.dumps(value).encode().replace(json.dumps(NEST).encode(), b"[" * depth + b"]" * depth)


def _changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced, dropped, doubled or nested."""
    if not value or not isinstance(value, (dict, list)) or rng.random() < 0.1:
        return NEST if rng.random() < 0.02 else rng.choice([*VALUES, [value], {"x": value}, str(value)])
    items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    key, kind = rng.choice([*items]), rng.random()
    if kind < 0.15:
        del items[key]
    elif kind < 0.25:
        items[rng.choice(["extra", f"{key}_"])] = rng.choice([*VALUES, items[key]])
    else:
        items[key] = _changed(items[key], rng)
    return items if isinstance(value, dict) else [*items.values()]


def _header(content: bytes, other: bytes, rng: random.Random) -> bytes:
    try:
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + size])
    except (struct.error, ValueError):
        return _bytes(content, other, rng)
    text = _dumped(_changed(header, rng), rng)
    length = len(text) if rng.random() < 0.8 else rng.choice((0, 1, 2**31, 2**63, len(text) + 1))
    return struct.pack("<Q", length) + text + content[8 + size :]


# Targets


def contents(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def text_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    rows, cache = [*zip(SENTENCES, reversed(SENTENCES), strict=True)], scratch / "cache"
    quoted = ["anchor,positive", *(f'"{a}","{b} ""so"" he said"' for a, b in rows)]
    objects = [{"anchor": a, "positive": b} for a, b in rows]
    lines = {"txt": SENTENCES, "csv": quoted, "tsv": map("\t".join, rows), "jsonl": map(json.dumps, objects)}
    for kind, of_kind in {**lines, "json": [json.dumps(objects)]}.items():
        name, text = f"train.{kind}", "\n".join(of_kind)
        seeds = [{name: text.encode()}, {name: text.replace("\n", "\r\n").replace("a", "é").encode()}]
        yield name, Target(seeds, lambda folder, name=name: load_training_file(folder / name, cache, refresh=True))
    seeds = [{"a.txt": "\n".join(SENTENCES).encode()}]
    yield "text file", Target(seeds, lambda folder: TextFile.read(folder / "a.txt", 4))
    vectors = "\n".join(f"{word} 0.5 -1e-3 {i}" for i, word in enumerate(["the", "a", "dog", "runs"]))
    yield "word vectors", Target([{"v.txt": vectors.encode()}], lambda folder: load_word_vectors(folder / "v.txt"))
    templates = ['This sentence of "{sentence}" means [MASK] .', '*cls*_This_"*sent_0*"_means*mask*.*sep+*']
    templates.append("{sentence} [PROMPT] [MASK]")
    parse = lambda folder: Template.parse((folder / "t").read_bytes().decode("utf-8", "replace"))  # noqa: E731
    yield "template", Target([{"t": text.encode()} for text in templates], parse)
    yield "evaluation files", Target([*_evaluation_seeds(scratch / "evaluation")], _read_evaluation)


def _evaluation_seeds(scratch: Path) -> Iterator[Files]:
    """The files of a task, in a folder with its name."""
    for name in ("STS12", "STSBenchmark", "SICKRelatedness"):
        write_tiny_task(scratch / name, name, "test")
    for name in ("CR", "SST2", "SST5", "TREC", "MRPC", "SICKEntailment"):
        write_tiny_transfer(scratch / name, name)
    write_tiny_clustering(scratch / "Tweet", "Tweet")
    for folder in sorted(scratch.iterdir()):
        yield {f"{folder.name}/{name}": content for name, content in contents(folder).items()}


def _read_evaluation(folder: Path) -> None:
    (place,) = folder.iterdir()
    load_suite([place.name], place, unofficial())


def record_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    parser = training_parser()
    options = {"method": "dcpcse", "pre_seq_len": 10, "temp": 0.05, "report_to": ["none"], "bf16": True}
    yaml_text = "method: dcpcse\ntemp: 5e-2\nreport_to: [none]\nbf16: true\nseed: &s 1\ndata_seed: *s\n"
    for name, text in (("options.yaml", yaml_text), ("options.json", json.dumps(options))):
        yield name, Target([{name: text.encode()}], lambda folder, name=name: _read_config(parser, folder / name))
    run = make_run(scratch / "run")
    yield "run records", Target([contents(run)], _read_run)
    for name, record in make_records(scratch / "records").items():
        if name == "index":
            yield name, Target([contents(record.folder)], _read_index)
        elif name not in RUN_FILES:
            yield name, Target([contents(record.folder)], record.read, () if name == "corpus" else (record.name,))
    lists = "relationships: [means, 'is [MASK]']\nprefixes: ['<{sentence}>', 'This sentence {sentence}']\n"
    yield "candidates", Target([{"c.yaml": lists.encode()}], lambda folder: read_candidates(str(folder / "c.yaml")))


def _read_run(folder: Path) -> None:
    run = read_run(folder)
    _ = (run.steps_done, run.steps_planned, run.finished, run.dev_scores, run.dev_score, run.commit)


def array_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    np.save(scratch / "v.npy", np.random.default_rng(0).normal(size=(len(SENTENCES), 8)).astype(np.float32))
    text = scratch / "v.txt"
    text.write_text("".join(f"{one}\n" for one in SENTENCES), encoding="utf-8")
    sha256 = hashlib.sha256(text.read_bytes()).hexdigest()
    record = {"made_of": {"model": {"base": "x"}, "text": {"lines": len(SENTENCES), "sha256": sha256}}}
    made = {"v.npy": (scratch / "v.npy").read_bytes(), "v.npy.json": json.dumps(record).encode()}
    yield "vectors of a file", Target([made], lambda folder: SentenceIndex.build(None, text, vectors=folder / "v.npy"))
    _read_kept(scratch / "kept")
    yield "kept embeddings", Target([contents(scratch / "kept")], _read_kept)


def _read_index(folder: Path) -> None:
    record = folder / index_folder.RECORD
    with contextlib.suppress(Exception):  # the maker of a hostile folder writes the right sums
        content = json.loads(record.read_text(encoding="utf-8"))
        content["sha256"] = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
        record.write_text(json.dumps(content), encoding="utf-8")
    index = SentenceIndex.load(folder)
    index.search_vectors(np.ones((1, index.dimension)), len(index))


def _read_kept(folder: Path) -> None:
    with contextlib.closing(EmbeddingCache(lambda texts: np.ones((len(texts), 4)), folder, {"a": 1})) as cache:
        cache([*SENTENCES, folder.name])


OPTIONS = [
    {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": True},
    {"method": "dcpcse", "pre_seq_len": 3, "prefix_projection": True, "prefix_hidden_size": 5},
    *({"method": method} for method in ("promptbert", "scpcse", "simcse")),
]


def model_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    base = make_encoder(scratch / "base", "bert")
    models = []
    for number, options in enumerate(OPTIONS):
        model = build_method(load_backbone(str(base)), model_arguments(**options), ["anchor"]).model
        model.save(scratch / f"{number}")
        models.append(contents(scratch / f"{number}"))
    models += [_without_checksums(model) for model in models]
    frozen = [model for model in models if json.loads(model["dcpcse.json"])["backbone"] is None]
    trained = [model for model in models if model not in frozen]
    small = ("dcpcse.json", "adapter_config.json", "prompts.safetensors")
    small += ("adapter_model.safetensors", "trained.safetensors")
    words = ("tokenizer.json", "tokenizer_config.json", "config.json", "modules.json")
    words += ("model.safetensors", "backbone/config.json")
    yield "dcpcse.json", Target(models, read_folder, ("dcpcse.json",))
    tensors = [{"x.safetensors": model["trained.safetensors"]} for model in models if "trained.safetensors" in model]
    read = lambda folder: (read_header(folder / "x.safetensors"), load_tensors(folder / "x.safetensors"))  # noqa: E731
    yield "tensors", Target(tensors, read)
    torch.save({"a": torch.ones(3), "b": torch.zeros(2, 2)}, scratch / "x.bin")
    yield "pickle", Target([{"x.bin": (scratch / "x.bin").read_bytes()}], lambda folder: load_pickle(folder / "x.bin"))
    info = lambda folder: format_facts(describe_folder(folder, lambda line: None))  # noqa: E731
    yield "info", Target(models, info, (*small, *words))
    load = lambda folder, **base: dcpcse.load(str(folder), device="cpu", **base)  # noqa: E731
    yield "load", Target(frozen, lambda folder: load(folder, base=str(base)), (*small, *words[:2]))
    yield "load trained", Target(trained, load, (*small, *words))
    yield "encoder", Target([contents(base)], lambda folder: load_backbone(str(folder)), words)
    prompts = {name: content for name, content in models[0].items() if name.startswith("adapter")}
    yield "import", Target([prompts | {n: models[0][n] for n in words[:2]}], lambda folder: _import(folder, str(base)))


def _without_checksums(model: Files) -> Files:
    """As versions before checksums wrote it: what is spoilt is read then, and not refused for having been touched."""
    record = earlier_record(json.loads(model["dcpcse.json"]), checksums=False)
    return model | {"dcpcse.json": json.dumps(record).encode()}


def _import(folder: Path, base: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        import_checkpoint(folder, Path(out) / "new", base)


# Running


class HangError(Exception):
    """An execution took too long."""


def _hang(*_: Any) -> None:
    raise HangError(f"more than {SECONDS_AN_EXECUTION} s")


def fuzz(target: Target, rng: random.Random, keep: Path, go_on: Callable[[int], bool]) -> tuple[int, int, Counter]:
    """Executions of one target until `go_on`, given their number, says no; how many, how many succeed, findings."""
    executions, successes, findings = 0, 0, Counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        while go_on(executions):
            files = _spoilt(target, rng)
            _write(Path(place) / "spoilt", files)
            executions += 1
            signal.alarm(SECONDS_AN_EXECUTION)
            try:
                target.run(Path(place) / "spoilt")
                successes += 1
            except (UserError, DataError):
                pass
            except Exception as error:  # what is looked for
                if (where := _place_of(error)) not in findings:
                    _write(keep / f"{len(findings)}", {**files, "traceback": traceback.format_exc().encode()})
                findings[where] += 1
            finally:
                signal.alarm(0)
    return executions, successes, findings


def require_sound(targets: dict[str, Target]) -> None:
    """Every seed is read as it is; a target that refuses its own seeds would find nothing."""
    with tempfile.TemporaryDirectory() as place:
        for name, target in targets.items():
            for seed in target.seeds:
                _write(Path(place) / "seed", seed)
                try:
                    target.run(Path(place) / "seed")
                except Exception as error:
                    raise SystemExit(f"{name}: a seed is refused ({error})") from error


def _spoilt(target: Target, rng: random.Random) -> Files:
    files, other = dict(rng.choice(target.seeds)), rng.choice(target.seeds)
    names = [name for name in files if not target.spoil or name in target.spoil]
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2)))):
        files[name] = mutate(files[name], rng.choice(list(other.values())), name, rng)
    return files


def _write(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _place_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/dcpcse/" in frame.filename or "/senteval/" in frame.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--list", action="store_true", help="name the targets")
    parser.add_argument("--runs", type=int, default=1000, help="executions of each target")
    parser.add_argument("--seconds", type=float, help="time for each target, instead of --runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="folder for what led to findings")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(open(os.devnull, "w")):
        place = Path(scratch)
        makers = (text_targets, record_targets, array_targets, model_targets)
        targets = dict(pair for maker in makers for pair in maker(place))
        if args.list or set(args.targets) - set(targets):
            print("\n".join(targets))
            return 0 if args.list else 2
        require_sound(targets)
        total, problems = 0, 0
        for name in args.targets or targets:
            end = time.monotonic() + args.seconds if args.seconds else None
            go_on = (lambda done: done < args.runs) if end is None else (lambda done, end=end: time.monotonic() < end)
            rng = random.Random(f"{args.seed} {name}")
            executions, successes, findings = fuzz(targets[name], rng, args.findings / name, go_on)
            print(
                f"{name:20} {executions:8,} executions {successes:8,} successes {len(findings):3} findings", flush=True
            )
            for where, count in findings.most_common():
                print(f"    {count:6,} x {where}", flush=True)
            total, problems = total + executions, problems + len(findings)
    print(f"in all {total:,} executions, {problems} findings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
