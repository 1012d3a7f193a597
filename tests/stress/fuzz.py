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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import senteval.data as eval_data
import senteval.labelled as labelled
import torch
from model_folders import earlier_record
from past_runs import make_run
from records import RUN_FILES, make_records
from senteval.errors import DataError
from tiny_encoders import SENTENCES, make_encoder

import dcpcse
from dcpcse.cli.commands.info import format_facts
from dcpcse.cli.parse import _read_config, training_parser
from dcpcse.data.corrupted_corpus import Corpus
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


@dataclass
class Tally:
    executions: int = 0
    successes: int = 0
    findings: Counter = field(default_factory=Counter)


# Mutations

INTERESTING = [
    b"",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n",
    b"\t",
    b'"',
    b"{",
    b"[",
    b"\xe2\x80\xa8",
    b"NaN",
    b"1e999",
]
INTERESTING += [
    b"-1",
    b"9" * 400,
    b"[MASK]",
    b"{sentence}",
    b"../",
    b"&a [*a]",
    b"!!int ''",
    b"\xed\xa0\x80",
    b"PK\3\4",
]
NEST = "brackets in brackets"
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**70,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "../x",
    "\ud800",
    [],
    {},
    [None],
]
VALUES += ["a" * 500, {"a": {}}, [[]], -(2**63), "cls", "bert", 10**7]


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
    kind = rng.randrange(8)
    if kind == 0 and content:
        spoilt = bytearray(content)
        spoilt[min(at, len(content) - 1)] ^= 1 << rng.randrange(8)
        return bytes(spoilt)
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[to:]
    if kind == 3:
        return content[:at] + rng.choice(INTERESTING) + content[at:]
    if kind == 4:
        return content[:at] + rng.choice(INTERESTING) + content[to:]
    if kind == 5:
        return content[:at] + content[at : at + 2000] * rng.choice((2, 3, 50)) + content[to:]
    if kind == 6:
        return content[:at] + other[rng.randrange(len(other) + 1) :]
    return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]


def _json(content: bytes, other: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    row = rng.randrange(len(lines))
    for text, put in (
        (content, lambda new: new),
        (lines[row], lambda new: b"\n".join([*lines[:row], new, *lines[row + 1 :]])),
    ):
        try:
            value = json.loads(text)
        except ValueError:
            continue
        return put(_dumped(_changed(value, rng), rng))
    return _bytes(content, other, rng)


def _dumped(value: Any, rng: random.Random) -> bytes:
    depth = rng.choice((50, 900, 100_000))
    return json.dumps(value).encode().replace(json.dumps(NEST).encode(), b"[" * depth + b"]" * depth)


def _changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced, dropped, doubled or nested."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        kind = rng.random()
        if kind < 0.15:
            return (
                {k: v for k, v in value.items() if k != key}
                if isinstance(value, dict)
                else value[:key] + value[key + 1 :]
            )
        if kind < 0.25:
            return (
                value | {rng.choice(["extra", key + "_" if isinstance(key, str) else "x"]): rng.choice(VALUES)}
                if isinstance(value, dict)
                else [*value, value[key]]
            )
        changed = value.copy()
        changed[key] = _changed(value[key], rng)
        return changed
    return NEST if rng.random() < 0.02 else rng.choice([*VALUES, [value], {"x": value}, str(value)])


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


def text_targets(cache: Path) -> Iterator[tuple[str, Target]]:
    rows = [(a, b) for a, b in zip(SENTENCES, reversed(SENTENCES), strict=True)]
    quoted = ["anchor,positive", *(f'"{a}","{b} ""so"" he said"' for a, b in rows)]
    objects = [{"anchor": a, "positive": b} for a, b in rows]
    training = {
        "txt": "\n".join(SENTENCES),
        "csv": "\n".join(quoted),
        "tsv": "\n".join(f"{a}\t{b}" for a, b in rows),
        "json": json.dumps(objects),
        "jsonl": "\n".join(map(json.dumps, objects)),
    }
    for kind, text in training.items():
        name = f"train.{kind}"
        seeds = [{name: text.encode()}, {name: text.replace("\n", "\r\n").replace("a", "é").encode()}]
        yield name, Target(seeds, lambda folder, name=name: load_training_file(folder / name, cache, refresh=True))
    yield (
        "text file",
        Target([{"a.txt": "\n".join(SENTENCES).encode()}], lambda folder: TextFile.read(folder / "a.txt", 4)),
    )
    vectors = "\n".join(f"{word} 0.5 -1e-3 {i}" for i, word in enumerate(["the", "a", "dog", "runs"]))
    yield "word vectors", Target([{"v.txt": vectors.encode()}], lambda folder: load_word_vectors(folder / "v.txt"))
    templates = [
        'This sentence of "{sentence}" means [MASK] .',
        '*cls*_This_"*sent_0*"_means*mask*.*sep+*',
        "{sentence} [PROMPT] [MASK]",
    ]
    yield "template", Target([{"t": text.encode()} for text in templates], _parse_template)
    yield "evaluation files", Target(list(_evaluation_seeds()), _read_evaluation)


def _parse_template(folder: Path) -> Template:
    return Template.parse((folder / "t").read_bytes().decode("utf-8", "replace"))


_READERS: dict[str, Callable[..., Any]] = {
    "stsb": eval_data.read_stsbenchmark,
    "sick": eval_data.read_sick,
    "sts": eval_data.read_sts_set,
    "classes": labelled.read_class_files,
    "sst2": labelled.read_sst_binary,
    "sst5": labelled.read_sst_fine,
    "trec": labelled.read_trec,
    "mrpc": labelled.read_mrpc,
    "entailment": labelled.read_sick_entailment,
    "clusters": labelled.read_clusters,
}


def _evaluation_seeds() -> Iterator[Files]:
    pairs = [(SENTENCES[i], SENTENCES[-i], f"{i % 5}.5") for i in range(1, 9)]
    sick = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    sick += [f"{i}\t{a}\t{b}\t{1 + i % 4}.5\tNEUTRAL" for i, (a, b, _) in enumerate(pairs)]
    mrpc = [
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        *(f"{i % 2}\t{i}\t{i}\t{a}\t{b}" for i, (a, b, _) in enumerate(pairs)),
    ]
    files = {
        "stsb": ["\n".join(f"g\tf\t2017\t{i}\t{gold}\t{a}\t{b}" for i, (a, b, gold) in enumerate(pairs))],
        "sick": ["\n".join(sick)],
        "sts": ["\n".join(f"{a}\t{b}" for a, b, _ in pairs), "\n".join(gold for *_, gold in pairs)],
        "classes": ["\n".join(SENTENCES), "\n".join(reversed(SENTENCES))],
        "sst2": ["\n".join(f"{a}\t{i % 2}" for i, a in enumerate(SENTENCES))],
        "sst5": ["\n".join(f"{i % 5} {a}" for i, a in enumerate(SENTENCES))],
        "trec": ["\n".join(f"HUM:ind {a}" for a in SENTENCES)],
        "mrpc": ["\n".join(mrpc)],
        "entailment": ["\n".join(sick)],
        "clusters": ["\n".join(f"{i % 3}\t{a}" for i, a in enumerate(SENTENCES))],
    }
    for name, texts in files.items():
        yield {f"{name}.{i}": text.encode() for i, text in enumerate(texts)}


def _read_evaluation(folder: Path) -> Any:
    paths = sorted(folder.iterdir())
    kind = paths[0].name.split(".")[0]
    reader = _READERS[kind]
    return (
        reader(*paths)
        if kind in ("classes", *_READERS) and kind not in ("stsb", "sick", "sts")
        else reader("set", *paths)
    )


def record_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    parser = training_parser()
    options = {
        "method": "dcpcse",
        "pre_seq_len": 10,
        "temp": 0.05,
        "train_file": "x.txt",
        "bf16": True,
        "report_to": ["none"],
    }
    yaml_text = (
        "method: dcpcse\npre_seq_len: 10\ntemp: 5e-2\nreport_to: [none]\nbf16: true\nseed: &s 1\ndata_seed: *s\n"
    )
    for name, text in (("options.yaml", yaml_text), ("options.json", json.dumps(options))):
        yield name, Target([{name: text.encode()}], lambda folder, name=name: _read_config(parser, folder / name))
    run = make_run(scratch / "run")
    yield "run records", Target([contents(run)], _read_run)
    for name, record in make_records(scratch / "records").items():
        if name not in (*RUN_FILES, "index", "corpus"):  # which have targets of their own
            yield name, Target([contents(record.folder)], record.read, (record.name,))
    lists = "relationships: [means, 'is [MASK]']\nprefixes: ['<{sentence}>', 'This sentence {sentence}']\n"
    yield "candidates", Target([{"c.yaml": lists.encode()}], lambda folder: read_candidates(str(folder / "c.yaml")))


def _read_run(folder: Path) -> None:
    run = read_run(folder)
    _ = (run.steps_done, run.steps_planned, run.finished, run.dev_scores, run.dev_score, run.commit)


def array_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(len(SENTENCES), 8)).astype(np.float32)
    place = scratch / "index"
    clustering = lambda rows: (rows[:2], np.arange(len(rows), dtype=np.int32) % 2)  # noqa: E731
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    facts = {"model": {"base": "x"}, "text": "y"}
    index_folder.write_index(place, False, len(SENTENCES), [(SENTENCES, unit)], clustering, 1, facts)
    yield "index", Target([contents(place)], _read_index)
    place = scratch / "corpus"
    place.mkdir()
    with Corpus.create(place, (4, 1, 6), 500) as add:
        add(np.full((4, 1, 6), 7))
    Corpus.finish(place, {"shape": [4, 1, 6], "data": "x", "vocabulary": "y"})
    yield "corpus", Target([contents(place)], lambda folder: Corpus.read(folder).require(data="x"))
    np.save(scratch / "v.npy", vectors)
    text = scratch / "v.txt"
    text.write_text("".join(f"{one}\n" for one in SENTENCES), encoding="utf-8")
    sha256 = hashlib.sha256(text.read_bytes()).hexdigest()
    record = {"made_of": {"model": {"base": "x"}, "text": {"lines": len(SENTENCES), "sha256": sha256}}}
    made = {"v.npy": (scratch / "v.npy").read_bytes(), "v.npy.json": json.dumps(record).encode()}
    yield "vectors of a file", Target([made], lambda folder: SentenceIndex.build(None, text, vectors=folder / "v.npy"))
    cache = EmbeddingCache(lambda texts: np.ones((len(texts), 4)), scratch / "kept", {"a": 1})
    cache(SENTENCES)
    cache.close()
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
    cache = EmbeddingCache(lambda texts: np.ones((len(texts), 4)), folder, {"a": 1})
    try:
        cache([*SENTENCES, "new"])
    finally:
        cache.close()


OPTIONS = {
    "dcpcse": {"method": "dcpcse", "pre_seq_len": 3, "mlp_only_train": True},
    "projection": {"method": "dcpcse", "pre_seq_len": 3, "prefix_projection": True, "prefix_hidden_size": 5},
    "promptbert": {"method": "promptbert"},
    "scpcse": {"method": "scpcse"},
    "simcse": {"method": "simcse"},
}


def model_targets(scratch: Path) -> Iterator[tuple[str, Target]]:
    base = make_encoder(scratch / "base", "bert")
    models = []
    for name, options in OPTIONS.items():
        build_method(load_backbone(str(base)), model_arguments(**options), ["anchor"]).model.save(scratch / name)
        models.append(contents(scratch / name))
    models += [_without_checksums(model) for model in models]
    frozen = [model for model in models if json.loads(model["dcpcse.json"])["backbone"] is None]
    trained = [model for model in models if model not in frozen]
    small = (
        "dcpcse.json",
        "adapter_config.json",
        "prompts.safetensors",
        "adapter_model.safetensors",
        "trained.safetensors",
    )
    words = (
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "modules.json",
        "model.safetensors",
        "backbone/config.json",
    )
    yield "dcpcse.json", Target(models, read_folder, ("dcpcse.json",))
    yield (
        "tensors",
        Target(
            [{"x.safetensors": model["trained.safetensors"]} for model in models if "trained.safetensors" in model],
            _read_tensors,
        ),
    )
    torch.save({"a": torch.ones(3), "b": torch.zeros(2, 2)}, scratch / "x.bin")
    yield "pickle", Target([{"x.bin": (scratch / "x.bin").read_bytes()}], lambda folder: load_pickle(folder / "x.bin"))
    yield (
        "info",
        Target(models, lambda folder: format_facts(describe_folder(folder, lambda line: None)), (*small, *words)),
    )
    yield (
        "load",
        Target(frozen, lambda folder: dcpcse.load(str(folder), base=str(base), device="cpu"), (*small, *words[:2])),
    )
    yield "load trained", Target(trained, lambda folder: dcpcse.load(str(folder), device="cpu"), (*small, *words))
    yield "encoder", Target([contents(base)], lambda folder: load_backbone(str(folder)), words)
    prompts = {name: content for name, content in models[0].items() if name.startswith("adapter")}
    yield "import", Target([prompts | {n: models[0][n] for n in words[:2]}], lambda folder: _import(folder, str(base)))


def _without_checksums(model: Files) -> Files:
    """As versions before checksums wrote it: what is spoilt is read then, and not refused for having been touched."""
    record = earlier_record(json.loads(model["dcpcse.json"]), checksums=False)
    return model | {"dcpcse.json": json.dumps(record).encode()}


def _read_tensors(folder: Path) -> None:
    read_header(folder / "x.safetensors")
    load_tensors(folder / "x.safetensors")


def _import(folder: Path, base: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        import_checkpoint(folder, Path(out) / "new", base)


# Running


class HangError(Exception):
    """An execution took too long."""


def _hang(*_: Any) -> None:
    raise HangError(f"more than {SECONDS_AN_EXECUTION} s")


def fuzz(name: str, target: Target, rng: random.Random, keep: Path, go_on: Callable[[int], bool]) -> Tally:
    """Executions of one target until `go_on`, given their number, says no."""
    tally, place = Tally(), Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    folder = place / "spoilt"
    while go_on(tally.executions):
        files = _spoilt(target, rng)
        _write(folder, files)
        tally.executions += 1
        signal.alarm(SECONDS_AN_EXECUTION)
        try:
            target.run(folder)
            tally.successes += 1
        except (UserError, DataError):
            pass
        except Exception as error:  # what is looked for
            _found(tally, _place_of(error), keep / name, files, traceback.format_exc())
        finally:
            signal.alarm(0)
    shutil.rmtree(place, ignore_errors=True)
    return tally


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
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.name}: {str(error).splitlines()[:1]}"[:200]


def _found(tally: Tally, where: str, keep: Path, files: Files, trace: str) -> None:
    key = where.split(": ")[0]
    if not any(one.split(": ")[0] == key for one in tally.findings):
        place = keep / f"{len(tally.findings)}"
        _write(place, files)
        (place / "traceback").write_text(f"{where}\n{trace}", encoding="utf-8")
    else:
        where = next(one for one in tally.findings if one.split(": ")[0] == key)
    tally.findings[where] += 1


def _counts(tally: Tally) -> tuple[int, int]:
    return tally.executions, len(tally.findings)


def _told(tally: Tally) -> str:
    executions, findings = _counts(tally)
    return f"{executions:8,} executions {tally.successes:8,} successes {findings:3} findings"


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
        targets = dict(
            [*text_targets(place / "cache"), *record_targets(place), *array_targets(place), *model_targets(place)]
        )
        if args.list or set(args.targets) - set(targets):
            print("\n".join(targets))
            return 0 if args.list else 2
        require_sound(targets)
        tallies = {}
        for name in args.targets or targets:
            end = time.monotonic() + args.seconds if args.seconds else None
            go_on = (lambda done: done < args.runs) if end is None else (lambda done, end=end: time.monotonic() < end)
            tally = tallies[name] = fuzz(
                name, targets[name], random.Random(f"{args.seed} {name}"), args.findings, go_on
            )
            print(f"{name:20} {_told(tally)}", flush=True)
            for where, count in tally.findings.most_common():
                print(f"    {count:6,} x {where}", flush=True)
    executions, findings = (sum(found) for found in zip(*map(_counts, tallies.values()), strict=True))
    print(f"in all {executions:,} executions, {findings} findings")
    return 1 if any(tally.findings for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
