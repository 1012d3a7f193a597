"""A file of each kind that is read back, with what reads it, for the tests and the fuzzer."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from past_runs import make_run

from dcpcse.analysis.plots import alignment_uniformity, scores, training_curves
from dcpcse.cli.commands.info import format_facts
from dcpcse.cli.main import find_command
from dcpcse.data.corrupted_corpus import Corpus
from dcpcse.data.duplicates import DuplicateCounts
from dcpcse.data.training_data import CacheSummary
from dcpcse.doctor import model_folder
from dcpcse.doctor.findings import CheckSettings
from dcpcse.encoders.quantization import Quantizer
from dcpcse.encoders.safe_loading import find_weights
from dcpcse.experiments import hyperparameter_search, template_search
from dcpcse.experiments.adaptation import record as adaptation
from dcpcse.experiments.reproduction import results
from dcpcse.experiments.reproduction.run_unit import is_finished
from dcpcse.experiments.verification.report import require_report_room
from dcpcse.inference.file_encoding.shards import Shards
from dcpcse.inference.index import index_folder
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.public_checkpoints.read import read_checkpoint
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.interop.onnx_encoder import OnnxEncoder
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.pretraining.record import FORMAT
from dcpcse.pretraining.run import run_pretraining
from dcpcse.training import atomic_save, publish
from dcpcse.training.callbacks import write_environment
from dcpcse.utils import locks, schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import file_sha256

SHA = "0" * 64


@dataclass(frozen=True)
class Record:
    """A file in a folder, what reads it, and how many of its mutants are tried, chosen by `SEED`."""

    folder: Path
    name: str
    read: Callable[[Path], Any]
    sample: int = 60


def all_of(*reads: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Call all functions, also after one of them has raised UserError."""

    def read(folder: Path) -> None:
        for one in reads:
            with contextlib.suppress(UserError):
                one(folder)

    return read


def check(check: Callable[[Path, CheckSettings], Any]) -> Callable[[Path], list]:
    return lambda folder: list(check(folder, CheckSettings()))


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


TASKS = {
    "STS12": {"family": "sts", "task": "STS12", "split": "test", "sets": {"all": {"pearson": {"all": 0.5}}}},
    "MR": {"family": "fewshot", "task": "MR-fewshot", "draws": [60.0, 61.5], "shots": 16},
    "B-geometry": {
        **{"family": "geometry", "task": "B-geometry", "split": "test", "sentences": 9, "spearman": 70.5},
        **{"alignment": 0.2, "uniformity": -2.5, "without_frequent": {"8": 60.5}, "recall": {"1": 50.0}},
        "ranks": [["a query", "an answer", 3]],
    },
    "STS-frequent": {"family": "frequent", "task": "STS", "split": "test", "average_without": {"0": 7.0, "8": 6.0}},
}
SCORES = {
    **{"complete": True, "mode": "test", "scores_x100": {"STS12": 70.5}, "averages_x100": {"sts": 70.5}},
    **{"model": {"method": "dcpcse", "identity": {"trained": "x"}}, "protocol": {"kfold": 10}, "tasks": TASKS},
}
STATE = {
    **{"global_step": 4, "max_steps": 4, "num_train_epochs": 2, "best_global_step": 2, "best_metric": 0.5},
    "log_history": [{"step": 1, "loss": 2.0, "eval_stsb_spearman": 0.5}],
    "stateful_callbacks": {"a": {"args": {}}},
}
ADAPTER = {"peft_type": "PREFIX_TUNING", "base_model_name_or_path": "x/y", "revision": None, "num_virtual_tokens": 3}
CONFIG = {"model_type": "bert", "hidden_size": 4, "architectures": ["BertModel"], "_name_or_path": "x"}
OCCURRENCES = {"count": 1, "lines": [2]}
SUMMARY = {
    **{"columns": ["a", "b"], "dropped": 0, "dropped_lines": [3], "unit": "line", "classes": {}, "scores": [0.5]},
    "problems": ["the column 'a' has numbers"],
    "repeats": {"duplicates": OCCURRENCES, "identical": OCCURRENCES, "contradictory": OCCURRENCES}
    | {"relabelled": OCCURRENCES, "rows": 4, "pairs": 1},
}
MADE_OF = {"format": 1, "model": {"base": "x"}, "text": {"lines": 2, "sha256": SHA}, "options": {"dtype": "float32"}}
ANSWER = {"rows": [{"name": "x/length-4", "cells": {"avg": {"values": [7.0], "published": 8.0, "comparable": True}}}]}
PREDICTED = {"sentence": "s", "first": ["a", "b"], "second": ["c"]}


def make_records(root: Path) -> dict[str, Record]:
    """Write a record of each kind."""
    found = {}

    def add(name: str, file: str, content: Any, read: Callable[[Path], Any], folder: Path | None = None) -> None:
        folder = folder or root / name.replace(" ", "-")
        if content is not None:
            write(folder / file, content)
        found[name] = Record(folder, file, read)

    run = make_run(root / "run")
    options = {"max_steps": 4, "num_train_epochs": 3.0, "seed": 7, "metric_for_best_model": "loss"}
    for file, content in (("run.yaml", options), ("trainer_state.json", STATE), ("scores.json", SCORES)):
        write(run / file, content)
    write(run / "gain.json", GAINS)
    shutil.copytree(run, root / "other")
    compare = ["--compare", str(run), str(root / "other"), "--json", str(root / "c.json"), "--overwrite"]
    reads = (describe, lambda _: find_command("plot runs")(compare), check(model_folder.check_run))
    for name, file in RUN_FILES.items():
        more = {"environment": [rewrite_environment], "metrics": [read_curves]}.get(name, [])
        found[name] = Record(run, file, all_of(*reads, *more), sample=20)
    plots = (
        lambda path: scores.gather_fewshot(SimpleNamespace(scores=[str(path)])),
        lambda path: scores.gather_frequent(SimpleNamespace(scores=[str(path)])),
        lambda path: alignment_uniformity._read_point("a", path, "test"),
    )
    row = SimpleNamespace(
        **{"columns": ("first", "second"), "predict": {"sentence": "s", "first": ["a"], "second": ["b"]}},
        **{"similarity": (), "family": "sts", "answer": ("a query", "an answer"), "name": "r", "assumed": None},
        **{"published": {}, "best": {}, "worst": {}, "reported": "mean"},
    )
    steps = dict.fromkeys(("evaluate", "similarity", "predict"), ())
    unit = SimpleNamespace(row=row, seed=1, steps=steps, commands={"train": ["--x", "1"]}, name="u")

    def of_unit(read: Callable[[Any], Any]) -> Callable[[Path], Any]:
        return lambda folder: read(SimpleNamespace(**{**vars(unit), "folder": folder}))

    reads = [lambda folder, plot=plot: plot(folder / "scores.json") for plot in plots]
    reads += [lambda folder: publish._read_scores(folder, {"trained": "x"}, [])]
    reads += [lambda folder: results.figures_of(row, schema.read(results.Scores, folder / "scores.json"))]
    add("scores", "scores.json", SCORES, all_of(*reads))
    read_answer = lambda folder: scores.read_prompt_lengths(folder / "answer.json", None, "avg")  # noqa: E731
    add("answer", "answer.json", ANSWER, read_answer)
    add("unit", "unit.json", {"made_of": {"command": {"train": ["--x", "1"]}}, "name": "u"}, of_unit(is_finished))
    similar = {"sentences": ["a", "b"], "score": 0.5}
    row.similarity = ("a", "b")
    for name, line in (lines := {"cosines": similar, "tokens": PREDICTED}).items():
        read = of_unit(lambda unit: results.collect_result(unit.row, [unit], True))
        add(name, f"{name}.jsonl", line, read)
        for file, content in (("scores.json", SCORES), *((f"{other}.jsonl", lines[other]) for other in lines)):
            write(root / name / file, content)
    verified = {"row": "r", "checkpoint": {"weights_sha256": {"a": SHA}}}
    weights = SimpleNamespace(weights={"a": SHA})
    add("verification", "verification.json", verified, lambda path: require_report_room(path, weights, row, False))
    content = {"made_of": {"data": ["a"]}, "scores": {"t": 50.5}}
    add("template scores", "scores.json", content, lambda path: template_search._job(path, {"data": ["a"]}).read())
    trial = {"made_of": {"options": {"learning_rate": 0.1}}, "stage": "s", "number": 0, "score": 0.5}
    add("search trial", "try-1/trial.json", trial, lambda folder: read_search(folder).table())
    made = root / "index"
    unit_rows = np.eye(4, 8, dtype=np.float32)
    facts = {"model": {"base": "x"}, "text": "y"}
    rows, clustering = [(list("abcd"), unit_rows)], lambda rows: (rows[:2], CELLS)
    index_folder.write_index(made, False, 4, rows, Quantizer.fit("float32", unit_rows), clustering, 1, facts)
    add("index", index_folder.RECORD, None, lambda folder: SentenceIndex.load(folder), made)
    output = root / "output/v.npy"
    output.parent.mkdir()
    output.write_bytes(b"x" * 9)

    def start(folder: Path) -> None:
        Shards(folder / "v.npy", MADE_OF, 1, lambda number: (2, 4), "float32").start(False)

    read = lambda path: Shards(path / "v.npy", MADE_OF, 1, None, "float32").finished() or start(path)  # noqa: E731
    add("encoded file", "v.npy.json", {"made_of": MADE_OF, "truncated": 0, "bytes": 9}, read, output.parent)
    (output.parent / "v.npy.parts").mkdir()
    add("encode job", "v.npy.parts/job.json", {"made_of": MADE_OF, "chunks": 1}, start)
    text = root / "text.txt"
    text.write_text("a\nb\n", encoding="utf-8")
    made_of = MADE_OF | {"text": {"lines": 2, "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}}
    build = lambda folder: SentenceIndex.build(None, text, vectors=folder / "v.npy")  # noqa: E731
    add("vectors", "v.npy.json", {"made_of": made_of, "truncated": 0, "bytes": 1}, build)
    np.save(root / "vectors/v.npy", np.eye(2, 4, dtype=np.float32))
    corpus = root / "corpus"
    corpus.mkdir()
    with Corpus.create(corpus, (4, 1, 6), 500) as add_rows:
        add_rows(np.zeros((4, 1, 6)))
    record = {"shape": [4, 1, 6], "data": "x", "vocabulary": "y", "views": ["anchor"], "max_seq_length": 32}
    read_corpus = lambda folder: Corpus.read(folder).require(data="x", views=["anchor"])  # noqa: E731
    add("corpus", "corpus.json", record, read_corpus, corpus)
    sealed = root / "seal"
    sealed.mkdir()
    (sealed / "file").write_text("x")
    atomic_save._seal(sealed, {"processes": 1, "training file": SHA})
    add("seal", atomic_save.SEAL, None, atomic_save.read_seal, sealed)
    holder = {"process": 7, "host": "h", "since": "s"}
    add("holder", locks.LOCK, holder, lambda folder: locks._holder(folder / locks.LOCK))
    summary = lambda path: DuplicateCounts.of(schema.read(CacheSummary, path / "s.json")["repeats"]).share(8)  # noqa: E731
    add("summary of the data cache", "s.json", SUMMARY, summary)
    settings = {"format": 1, "dimension": 4, "max_tokens": 8}
    settings["text"] = {"final_period": True, "strip": False, "prepend": ""}
    encoder = object.__new__(OnnxEncoder)

    def read_settings(folder: Path) -> None:
        encoder.folder = folder
        encoder._text = encoder._settings()["text"]
        encoder._prepared("a sentence", "")

    add("onnx", "encoder.json", settings, read_settings)
    for name in ("model.onnx", "tokenizer.json"):
        (root / "onnx" / name).touch()
    examine = (describe, check(model_folder.check_adapter), read_checkpoint)
    add("adapter", "adapter_config.json", ADAPTER, all_of(*examine))
    examine = (describe, check(model_folder.check_encoder), read_checkpoint, find_weights)
    add("encoder config", "config.json", CONFIG, all_of(*examine))
    add("weight index", "model.safetensors.index.json", {"weight_map": {"a": "b.safetensors"}}, all_of(*examine))
    write(root / "weight-index/config.json", CONFIG)
    pooled = root / "pooling"
    add("pooling", "1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode": None}, describe, pooled)
    write(pooled / "config.json", CONFIG)
    write(pooled / "modules.json", [])
    held_out = root / "held_out.txt"
    held_out.write_text("Another text.\n", encoding="utf-8")
    how = PretrainingArguments(output_dir=str(root / "pretraining"), resume=True, validation_file=str(held_out))
    facts = {"file": text.name, **made_of["text"]}
    other_facts = {**facts, "file": held_out.name, "sha256": file_sha256(held_out)}
    pretrained = {
        **{"format": FORMAT, "finished": True, "options": how.recorded(), "text": facts, "base": None},
        "validation_text": other_facts,
        **{"tokenizer": {"tokenizer.json": SHA}, "unigram": ACCURACY, "figures": ACCURACY, "steps": 4, "seconds": 1.5},
        **{"curve": [{"step": 4, "tokens_seen": 9, "loss": 2.5, **ACCURACY}], "training_log": [{"step": 1}]},
    }
    add("pretraining", "pretraining.json", pretrained, lambda folder: run_pretraining(text, how, lambda record: None))
    made_of = {"encoder": SHA, "data": SHA, "seed": 42, "minutes": 10.0}
    trial = {"setting": {"temp": 0.1}, "outcome": "pruned", "scores": {"20": 50.5}, "steps": 20, "seconds": 1.5}
    adapted = {"format": 1, "state": "interrupted", "made_of": made_of, "trials": [trial], "seconds": 9.5}
    adapted |= {"result": None}
    add("adaptation", adaptation.RECORD, adapted, lambda folder: adaptation.Record(folder, made_of, {}).resume())
    return found


ACCURACY = {"masked_accuracy": 30.5, "bits_per_character": 1.5}
GAINS = [
    {"data": "a.tsv", "sha256": SHA, "metric": "spearman", "representation": "mean pooling", "untouched": 70.5}
    | {"outcomes": [0.5, -0.5], "trained": 71.5, "interval": [-1.0, 3.0], "chose": False},
    {"data": "b.tsv", "sha256": SHA, "metric": "accuracy", "representation": "pooler avg", "untouched": 50.0}
    | {"outcomes": [1, 0], "trained": None, "interval": None},
]
RUN_FILES = {"run options": "run.yaml", "metrics": "metrics.jsonl", "environment": "environment.json"}
RUN_FILES |= {"trainer state": "trainer_state.json", "scores of a run": "scores.json", "gains of a run": "gain.json"}
CELLS = np.array([0, 1, 0, 1], dtype=np.int32)


def read_search(folder: Path) -> hyperparameter_search.Trials:
    """Read a trial, as the search that it belongs to does."""
    trials = object.__new__(hyperparameter_search.Trials)
    trials.folder = folder
    return trials


def describe(folder: Path) -> None:
    facts = describe_folder(folder, lambda line: None)
    format_facts(facts)
    json.dumps(facts, ensure_ascii=False).encode()


def rewrite_environment(folder: Path) -> None:
    path = folder / "environment.json"
    before = path.read_bytes()
    write_environment(folder, 3)
    path.write_bytes(before)


def read_curves(folder: Path) -> None:
    curves = training_curves.gather(SimpleNamespace(runs=[str(folder)]))
    for name in training_curves.metric_names(curves):
        training_curves.series(*curves.values(), name)
