"""Any other content of a file that is read back is accepted, or told in one line.

The absurd values in the files of encoders and runs were once found by tests/stress/fuzz.py.
"""

import contextlib
import copy
import itertools
import json
import random
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import RUN_FILES, make_records
from runs import refused
from tables import check_rows

from dcpcse.cli.commands.encode import encode_command
from dcpcse.encoders.backbones import load_backbone, load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.training.run_history import read_run
from dcpcse.utils import run_files
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import open_array

SEED = 25
MISSING = object()
DEEP = "brackets in brackets"
VALUES = [MISSING, None, "", "x", -1, 0, 1.5, True, [], {}, [None], {"a": None}, 10**400, float("nan"), "\ud800", DEEP]
WHOLE = [b"", b"null", b"[]", b'"x"', b"7", b"{}", b"\xff\xfe\0", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000]


def changed(content: Any) -> Iterator[Any]:
    """Every copy of the content in which one value, at any depth but only the first of a list, is another."""
    places = [[]]
    for path in places:
        inside = content
        for key in path:
            inside = inside[key]
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))[:1] if isinstance(inside, list) else ()
        places += [[*path, key] for key in keys]
    for *path, last in places[1:]:
        for value in VALUES:
            other = copy.deepcopy(content)
            inside = other
            for key in path:
                inside = inside[key]
            if value is MISSING:
                del inside[last]
            else:
                inside[last] = value
            yield other


def mutants(data: bytes, lines: bool) -> Iterator[bytes]:
    """Other contents of a file: other values, half of it, a repeated key, and things that are no record at all."""
    yield from (*WHOLE, data[: len(data) // 2], data.replace(b"{", b'{"a": 1, "a": 2, ', 1))
    if not lines:
        yield from map(dumped, changed(json.loads(data)))
        return
    rows = data.splitlines(keepends=True)
    for i, row in enumerate(rows):
        for other in (*map(dumped, changed(json.loads(row))), *WHOLE[1:6]):
            yield b"".join([*rows[:i], other + b"\n", *rows[i + 1 :]])


def dumped(content: Any) -> bytes:
    return json.dumps(content).replace(json.dumps(DEEP), "[" * 500 + "]" * 500).encode()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return make_records(tmp_path_factory.mktemp("records"))


KINDS = [
    *RUN_FILES,
    *("scores", "answer", "unit", "cosines", "tokens", "verification", "template scores", "index", "encoded file"),
    *("encode job", "vectors", "corpus", "seal", "holder", "summary of the data cache", "onnx", "adapter"),
    *("encoder config", "weight index", "pooling", "adaptation", "pretraining"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_any_other_content_of_a_record_is_read_or_told(kind, records, capsys):
    record = records[kind]
    path = record.folder / record.name
    right = path.read_bytes()
    found = list(dict.fromkeys(mutants(right, record.name.endswith(".jsonl"))))
    whole, others = found[: len(WHOLE)], found[len(WHOLE) :]
    if record.name.endswith(".yaml"):  # PyYAML takes seconds for very deep nesting
        whole = [data for data in whole if len(data) < 10_000]
    for data in (*whole, *random.Random(SEED).sample(others, min(record.sample, len(others)))):
        path.write_bytes(data)
        try:
            with contextlib.suppress(UserError):
                record.read(record.folder)
        except Exception as error:
            pytest.fail(f"seed {SEED}, {record.name} {data[:300]!r}: {type(error).__name__}: {error}")
    path.write_bytes(right)
    record.read(record.folder)


@pytest.fixture
def to_encode(tiny, tmp_path):
    """The words of a call of encode, and its output."""
    (tmp_path / "text.txt").write_text("A man plays.\nA dog runs.\n", encoding="utf-8")
    output = tmp_path / "v.npy"
    words = [tiny("bert"), str(tmp_path / "text.txt"), "--pooler", "avg", "--output", str(output)]
    return words, output


def test_a_record_of_encode_that_is_not_its_own_is_told_and_kept(to_encode, tool):
    words, output = to_encode
    contents = ("Monday: vectors", "7", '{"chunk": 0}', '{"made_of": {"text": "x"}, "bytes": 1}')
    for name, content in itertools.product(("v.npy.parts/job.json", "v.npy.json"), contents):
        record = output.parent / name
        record.parent.mkdir(exist_ok=True)
        record.write_text(content, encoding="utf-8")
        refused(tool, encode_command, words, "is damaged: ", "move it")
        assert record.read_text(encoding="utf-8") == content and not output.exists()
        record.unlink()


def test_a_shard_that_does_not_fit_is_never_joined(to_encode, tool):
    words, output = to_encode
    assert tool(encode_command, words).code == 0
    record = output.with_name("v.npy.json")
    made_of = json.loads(record.read_text(encoding="utf-8"))["made_of"]
    record.unlink()
    output.unlink()
    (parts := output.with_name("v.npy.parts")).mkdir()
    right = np.ones((2, 32), np.float32)
    for vectors, truncated in ((right[:, :3], 0), (np.ones((2, 32)), 0), (right, [0, 1]), (right, 0.5), (right, -1)):
        (parts / "job.json").write_text(json.dumps({"made_of": made_of, "chunks": 1}), encoding="utf-8")
        np.savez(parts / "00000000.npz", vectors=vectors, truncated=truncated)
        refused(tool, encode_command, words, "00000000.npz is damaged")
        assert not output.exists()


def test_a_kept_embedding_that_is_no_vector_of_this_encoder_is_told(tmp_path):
    def encode(texts):
        return np.ones((len(texts), 4), dtype=np.float32)

    cache = EmbeddingCache(encode, tmp_path, {"a": 1})
    cache(["one"])
    cache.close()

    def check(blob: Any, schema: str = "") -> None:
        crc = zlib.crc32(blob, zlib.crc32(b"one")) if isinstance(blob, bytes) else 0
        with contextlib.closing(sqlite3.connect(cache.path)) as database:
            database.execute("UPDATE vectors SET vector = ?, crc = ?", (blob, crc))
            if schema:
                database.execute("PRAGMA writable_schema = 1")
                database.execute(f"UPDATE sqlite_master SET sql = CAST(X'{schema}' AS TEXT)")
            database.commit()
        with pytest.raises(UserError, match=r"the embedding cache .* cannot be used"):
            EmbeddingCache(encode, tmp_path, {"a": 1})(["one", "two"])

    check_rows([None, 7, "text", b"\0" * 12, b"\0" * 3], check)
    check(b"\0" * 16, schema="435245415445205441424C4520FF8F")  # SQLite's own error is not a text


def test_a_file_that_is_not_an_array_is_a_value_error(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    assert np.array_equal(open_array(tmp_path / "a.npy"), np.arange(6.0).reshape(2, 3))
    head = b"\x93NUMPY\x01\x00"
    for content in (head + b"\x10\x00{'descr': ((((\n  ", b"PK\x03\x04 and no more", head + b"\x04\x00[[[[", b""):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"\S"):
            open_array(tmp_path / "a.npy")


def test_an_absurd_value_in_the_files_of_an_encoder_is_one_line(tiny, tmp_path):
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))

    def check(row: tuple[str, dict[str, Any]]) -> None:
        right = (folder / row[0]).read_text(encoding="utf-8")
        (folder / row[0]).write_text(json.dumps(json.loads(right) | row[1]), encoding="utf-8")
        with pytest.raises(UserError, match="cannot load the"):
            if row[0] == "config.json":
                load_backbone(str(folder))
            else:
                load_tokenizer(str(folder), LoadOptions())
        (folder / row[0]).write_text(right, encoding="utf-8")

    config = {"type_vocab_size": "two", "hidden_act": "no such", "num_attention_heads": 0, "model_type": ["bert"]}
    tokenizer = {"normalizer": {"type": "Nothing"}, "padding": "cls", "model": None}
    rows = [("config.json", {name: value}) for name, value in config.items()]
    rows += [("tokenizer.json", {name: value}) for name, value in tokenizer.items()]
    check_rows([*rows, ("tokenizer_config.json", {"tokenizer_class": 7})], check)


def test_a_run_with_absurd_records_is_read_with_its_problems(tmp_path):
    for state, options in (
        ({"log_history": [{"step": 1}, 7]}, {}),
        ({"max_steps": "many"}, {}),
        ({}, {"max_steps": "many", "num_train_epochs": "three", "metric_for_best_model": ["x"]}),
    ):
        (tmp_path / "run.yaml").write_text(json.dumps(options), encoding="utf-8")
        whole = {"global_step": 3, "max_steps": 4, "num_train_epochs": 1, "log_history": [{"step": 1}]} | state
        (tmp_path / "trainer_state.json").write_text(json.dumps(whole), encoding="utf-8")
        run = read_run(tmp_path)
        assert bool(run.problems) == bool(state)
        assert run.finished in (True, False) and run.dev_score is None


def test_a_line_of_metrics_that_is_wrong_is_named(tmp_path):
    deep = "[" * 200 + "]" * 200
    values = ("true", '1, "loss": "x"', '1, "loss": 1e999', '1, "step": 2', '1, "\\ud800": 2', f'1, "a": {deep}')
    for line in (*(f'{{"step": {value}}}' for value in values), "[" * 50_000, "{}", "7"):
        (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n' + line + "\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is damaged: "):
            run_files.read_metrics(tmp_path)


def test_options_and_scores_that_are_not_finite_are_read(tmp_path):
    (tmp_path / "run.yaml").write_text("max_grad_norm: .inf\n", encoding="utf-8")
    assert run_files.read_options(tmp_path) == {"max_grad_norm": float("inf")}
    scores = {"scores_x100": {"a": 1.0}, "tasks": {"a": {"family": "clustering", "nmi_std": float("nan")}}}
    (tmp_path / "s.json").write_text(json.dumps(scores), encoding="utf-8")
    assert run_files.read_scores(tmp_path / "s.json")["scores_x100"] == {"a": 1.0}
