"""Any other content of a file that is read back is accepted, or told in one line."""

import contextlib
import json
import sqlite3
import zlib

import numpy as np
import pytest

from dcpcse.cli.commands.encode import encode_command
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.utils.errors import UserError


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
    assert outcome.err.count("\n") == 1 and "was not written by dcpcse encode" in outcome.err
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
