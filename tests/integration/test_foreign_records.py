"""Any other content of a file that is read back is accepted, or told in one line."""

import contextlib
import copy
import json
import random
import sqlite3
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from records import RUN_FILES, make_records

from dcpcse.cli.commands.encode import encode_command
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.utils import run_files
from dcpcse.utils.errors import UserError

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


@pytest.mark.parametrize("name", ["v.npy.parts/job.json", "v.npy.json"])
@pytest.mark.parametrize("content", ["Monday: vectors", "7", '{"chunk": 0}', '{"made_of": {"text": "x"}, "bytes": 1}'])
def test_a_record_of_encode_that_is_not_its_own_is_told_and_kept(name, content, to_encode, tool):
    words, output = to_encode
    record = output.parent / name
    record.parent.mkdir(exist_ok=True)
    record.write_text(content, encoding="utf-8")
    outcome = tool(encode_command, words)
    assert outcome.code == 2, outcome.err
    assert outcome.err.count("\n") == 1 and "is damaged: " in outcome.err and "move it" in outcome.err
    assert record.read_text(encoding="utf-8") == content and not output.exists()


def test_a_record_of_encode_without_a_count_is_not_a_finished_one(to_encode, tool):
    words, output = to_encode
    assert tool(encode_command, words).code == 0
    record = output.with_name("v.npy.json")
    content = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps({**content, "truncated": None}), encoding="utf-8")
    outcome = tool(encode_command, words)
    assert outcome.code == 2 and "is not the file that" in outcome.err


@pytest.mark.parametrize(
    "arrays",
    [
        {"vectors": np.ones((2, 3), np.float32), "truncated": 0},
        {"vectors": np.ones((2, 32)), "truncated": 0},
        {"vectors": np.ones((2, 32), np.float32), "truncated": [0, 1]},
        {"vectors": np.ones((2, 32), np.float32), "truncated": 0.5},
        {"vectors": np.ones((2, 32), np.float32), "truncated": -1},
    ],
    ids=["shape", "type", "counts", "half a count", "negative count"],
)
def test_a_shard_that_does_not_fit_is_never_joined(arrays, to_encode, tool):
    words, output = to_encode
    assert tool(encode_command, words).code == 0
    record = output.with_name("v.npy.json")
    made_of = json.loads(record.read_text(encoding="utf-8"))["made_of"]
    record.unlink()
    output.unlink()
    (parts := output.with_name("v.npy.parts")).mkdir()
    (parts / "job.json").write_text(json.dumps({"made_of": made_of, "chunks": 1}), encoding="utf-8")
    np.savez(parts / "00000000.npz", **arrays)
    outcome = tool(encode_command, words)
    assert outcome.code == 2 and "00000000.npz is damaged" in outcome.err and not output.exists()


@pytest.mark.parametrize("blob", [None, 7, "text", b"\0" * 12, b"\0" * 3], ids=str)
def test_a_kept_embedding_that_is_no_vector_of_this_encoder_is_told(blob, tmp_path):
    def encode(texts):
        return np.ones((len(texts), 4), dtype=np.float32)

    cache = EmbeddingCache(encode, tmp_path, {"a": 1})
    cache(["one"])
    cache.close()
    crc = zlib.crc32(blob, zlib.crc32(b"one")) if isinstance(blob, bytes) else 0
    with contextlib.closing(sqlite3.connect(cache.path)) as database:
        database.execute("UPDATE vectors SET vector = ?, crc = ?", (blob, crc))
        database.commit()
    with pytest.raises(UserError, match=r"the embedding cache .* cannot be used"):
        EmbeddingCache(encode, tmp_path, {"a": 1})(["one", "two"])


def test_options_and_scores_that_are_not_finite_are_read(tmp_path):
    (tmp_path / "run.yaml").write_text("max_grad_norm: .inf\n", encoding="utf-8")
    assert run_files.read_options(tmp_path) == {"max_grad_norm": float("inf")}
    scores = {"scores_x100": {"a": 1.0}, "tasks": {"a": {"family": "clustering", "nmi_std": float("nan")}}}
    (tmp_path / "s.json").write_text(json.dumps(scores), encoding="utf-8")
    assert run_files.read_scores(tmp_path / "s.json")["scores_x100"] == {"a": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": true}', "step is True; expected a whole number from 0 to"),
        ('{"step": 1, "loss": "x"}', "loss is 'x'; expected a number"),
        ('{"step": 1, "loss": 1e999}', "loss: inf is not a finite number"),
        ('{"step": 1, "loss": 1' + "0" * 400 + "}", "loss: 1000.* is not a finite number"),
        ('{"step": 1, "step": 2}', "step occurs 2 times"),
        ('{"step": 1, "\\ud800": 2}', "has surrogates"),
        ("[" * 50_000, "nested too deeply"),
        ('{"step": 1, "a": ' + "[" * 200 + "]" * 200 + "}", "nested more than 100 levels deep"),
        ("{}", r"lacks \['step'\]"),
        ("7", "it is 7; expected an object"),
    ],
)
def test_a_line_of_metrics_that_is_wrong_is_named_with_its_value(text, message, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n' + text + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"metrics\.jsonl, line 2 is damaged: .*{message}"):
        run_files.read_metrics(tmp_path)
