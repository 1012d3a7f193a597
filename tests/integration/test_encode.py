"""`dcpcse encode`: the vectors of `SentenceEncoder.encode` in the order of the lines, whatever interrupts the work."""

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pytest
from datasets import Dataset
from numpy.testing import assert_allclose
from runs import ROOT, files, refused, wait_for

import dcpcse
from dcpcse.cli.commands.encode import encode_command
from dcpcse.cli.runner import run
from dcpcse.data.text_file import TextFile
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encode_options import PrecisionOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.file_encoding import shards
from dcpcse.inference.file_encoding.encode_job import Chunk, EncodeJob
from dcpcse.inference.similarity import normalize_rows
from dcpcse.utils import job_folder
from dcpcse.utils.errors import UserError
from dcpcse.utils.work_units import WorkerProcesses

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = 60
CHUNK = 2
DONE = 3
"""Chunks that an interrupted run has finished."""


@pytest.fixture(scope="module")
def texts(sentences) -> list[str]:
    """Sentences of all lengths, with characters that other readers take for line ends, and with outer blanks."""
    made = [" ".join(sentences[(i * 5 + j) % 12] for j in range(i % 4 + 1)) + f" {i}" for i in range(LINES)]
    return ["mark", "a\u2028b\x85c\x0bd", "  blanks ", *made[3:]]


@pytest.fixture(scope="module")
def text(texts, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts[:5]).encode() + b"\n" + "\n".join(texts[5:]).encode())
    return path


def command(encoder: str, text: Path, output: Path, *options: object) -> list[str]:
    words = [encoder, text, "--output", output, "--pooler", "avg", "--device", "cpu", "--chunk_size", CHUNK, *options]
    return [str(word) for word in words]


def shards_of(output: Path) -> list[Path]:
    return sorted(Path(f"{output}.parts").glob("*.npz"))


@pytest.fixture(scope="module")
def reference(tiny, text, tmp_path_factory) -> bytes:
    """The output of an uninterrupted run."""
    output = tmp_path_factory.mktemp("reference") / "out.npy"
    assert run(encode_command, command(tiny("bert"), text, output)) == 0
    return output.read_bytes()


@pytest.fixture(scope="module")
def expected(tiny, texts) -> np.ndarray:
    """All sentences encoded at once, without `dcpcse encode`."""
    return plain_encoder(load_backbone(tiny("bert")), "avg").encode(texts)


@pytest.fixture
def encoded(monkeypatch) -> list[list[str]]:
    """The sentences of every call of `SentenceEncoder.encode` in this process."""
    calls, original = [], SentenceEncoder.encode

    def recording(self, sentences, *args, **kwargs):
        if sentences:  # the options are checked with an empty list
            calls.append(list(sentences))
        return original(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", recording)
    return calls


@pytest.fixture(scope="module")
def interrupted(tiny, text, tmp_path_factory) -> Path:
    """The output of a run that Ctrl-C ended after `DONE` chunks."""
    output, original = tmp_path_factory.mktemp("interrupted") / "out.npy", SentenceEncoder.encode

    def interrupting(self, sentences, *args, **kwargs):
        if len(shards_of(output)) == DONE:
            raise KeyboardInterrupt
        return original(self, sentences, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", interrupting)
        assert run(encode_command, command(tiny("bert"), text, output)) == 130
    assert len(shards_of(output)) == DONE
    return output


@pytest.fixture
def left(interrupted, tmp_path) -> Path:
    """A copy of the files left behind by the interrupted run."""
    shutil.copytree(interrupted.parent, tmp_path / "left")
    return tmp_path / "left" / interrupted.name


@contextlib.contextmanager
def meanwhile(action) -> Iterator[None]:
    """Run a function in a thread during the block."""
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def test_a_column_of_a_table_is_encoded_as_the_lines_of_a_text_file(tiny, texts, tmp_path, tool):
    texts = texts[:9]
    rows = [{"id": i, "text": text, "other": None} for i, text in enumerate(texts)]
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    pd.DataFrame(rows).to_json(tmp_path / "table.jsonl", orient="records", lines=True)
    pd.DataFrame(rows).to_parquet(tmp_path / "table.parquet")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text.strip() for text in texts) + "\n", encoding="utf-8")
    encode_command(command(tiny("bert"), lines, tmp_path / "lines.npy"))
    for kind in ("csv", "jsonl", "parquet"):
        table, output = tmp_path / f"table.{kind}", tmp_path / f"{kind}.npy"
        encode_command(command(tiny("bert"), table, output, "--column", "text"))
        assert output.read_bytes() == (tmp_path / "lines.npy").read_bytes()
        assert {path.name for path in tmp_path.glob(f"*{kind}.npy*")} == {output.name, f"{output.name}.json"}
    encode_command(command(tiny("bert"), lines, tmp_path / "csv.npy"))  # the same texts: nothing is left to encode
    words = command(tiny("bert"), tmp_path / "table.csv", tmp_path / "new.npy")
    refused(tool, encode_command, words, "is a table (.csv)", "choose its column by --column NAME")
    refused(tool, encode_command, [*words, "--column", "txt"], "has no column 'txt'; choose from 'id', 'text'")
    refused(tool, encode_command, [*words, "--column", "other"], "line 2, column 'other': is blank; remove the row")
    assert not [*tmp_path.glob("*new*")]


def test_row_i_of_an_npy_file_is_line_i(tiny, text, texts, expected, encoded, tool, tmp_path):
    output = tmp_path / "new" / "out.npy"
    outcome = tool(encode_command, command(tiny("bert"), text, output, "--chunk_size", 8))
    assert outcome.code == 0
    found = np.load(output, mmap_mode="r")
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert_allclose(found, expected, atol=1e-6)
    assert encoded == [texts[i : i + 8] for i in range(0, LINES, 8)]
    assert set(files(output.parent)) == {"out.npy", "out.npy.json"}
    assert f"{LINES} x 32 float32" in outcome.said
    assert f"{LINES}/{LINES}" in outcome.err
    assert "sentences/s" in outcome.err


@pytest.mark.parametrize("with_sentences", [True, False])
def test_an_arrow_file_opens_in_arrow_and_in_datasets(with_sentences, tiny, text, texts, expected, tool, tmp_path):
    output = tmp_path / "out.arrow"
    argv = command(tiny("bert"), text, output, "--normalize", "--dtype", "float16", "--with_sentences", with_sentences)
    assert tool(encode_command, argv).code == 0
    table = pa.ipc.open_stream(output.read_bytes()).read_all()
    assert table.column_names == (["sentence", "vector"] if with_sentences else ["vector"])
    assert table.schema.field("vector").type == pa.list_(pa.field("item", pa.float16(), nullable=False), 32)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert_allclose(np.array(table["vector"].to_pylist(), dtype=np.float32), unit, atol=1e-3)
    if with_sentences:
        assert table["sentence"].to_pylist() == texts
        assert Dataset.from_file(str(output))[LINES - 1]["sentence"] == texts[-1]


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_an_interrupted_run_resumes_to_the_same_bytes(options, left, tiny, text, texts, tool, encoded, reference):
    Path(f"{left}.parts/00000003.npz.part").write_bytes(b"half a chunk")
    os.truncate(shards_of(left)[-1], 100)  # after a power failure, a name may be left without its content
    assert tool(encode_command, command(tiny("bert"), text, left, *options)).code == 0
    assert encoded == [texts[i : i + CHUNK] for i in range((DONE - 1) * CHUNK, LINES, CHUNK)]
    assert left.read_bytes() == reference
    assert set(files(left.parent)) == {"out.npy", "out.npy.json"}


def test_a_killed_run_leaves_no_process_and_resumes_to_the_same_bytes(tiny, text, tool, tmp_path):
    output, whole = tmp_path / "out.npy", tmp_path / "whole.npy"
    argv = command(tiny("bert"), text, output, "--chunk_size", 1)
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, "-m", "dcpcse", "encode", *argv, "--num_processes", "2"]
    running = subprocess.Popen(program, env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(shards_of(output)) >= DONE or running.poll() is not None)
    workers = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert DONE <= len(shards_of(output)) < LINES
    assert len(workers) >= 2
    assert not psutil.wait_procs(workers, timeout=30)[1], "workers outlive the run"
    assert tool(encode_command, argv).code == 0
    assert tool(encode_command, [str(whole) if word == str(output) else word for word in argv]).code == 0
    assert output.read_bytes() == whole.read_bytes()


def test_a_damaged_shard_is_named(left, tiny, text, tool):
    path = shards_of(left)[1]
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # inside the vectors
    path.write_bytes(content)
    refused(tool, encode_command, command(tiny("bert"), text, left), "00000001.npz", "is damaged", "remove it")


KILLED = {  # the moment of the kill → files that a run killed right after joining would have, but this one has not
    "before joining": ["out.npy", "out.npy.json"],
    "before the record": ["out.npy.json"],
    "before removing shards": [],
    "while removing shards": ["out.npy.parts/00000000.npz", "out.npy.parts/00000003.npz"],
}


@pytest.mark.parametrize("moment", KILLED)
def test_a_run_killed_in_its_last_steps_encodes_nothing_again(
    moment, tiny, text, tool, encoded, reference, tmp_path, monkeypatch
):
    output = tmp_path / "out.npy"
    argv = command(tiny("bert"), text, output)
    with monkeypatch.context() as patch:
        patch.setattr(shards.Shards, "_remove", lambda self: None)
        tool(encode_command, argv)
    for name in KILLED[moment]:
        (tmp_path / name).unlink()
    encoded.clear()
    assert tool(encode_command, argv).code == 0
    assert encoded == []
    assert output.read_bytes() == reference
    assert set(files(tmp_path)) == {"out.npy", "out.npy.json"}


def test_the_same_command_on_a_finished_file_does_nothing(tiny, text, tool, encoded, tmp_path):
    output, argv = tmp_path / "out.npy", command(tiny("bert"), text, tmp_path / "out.npy")
    tool(encode_command, argv)
    before, times = files(tmp_path), [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    encoded.clear()
    again = tool(encode_command, argv)
    assert (again.code, encoded) == (0, []) and "is complete" in again.said
    assert (files(tmp_path), [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]) == (before, times)
    moved = output.rename(tmp_path / "moved.npy")
    assert tool(encode_command, argv).code == 0
    assert output.read_bytes() == moved.read_bytes()


OTHERS = {  # what differs in the second command → what the error names
    ("--pooler", "avg_top2"): "pooling avg, now avg_top2",
    ("--dtype", "float16"): "dtype float32, now float16",
    ("--normalize",): "normalize False, now True",
    ("--bf16",): "bf16 None, now True",
    ("--chunk_size", "5"): "chunk_size 2, now 5",
    ("--packing", "False"): "packing True, now False",
    ("--batch_size", "5"): "batch_size 128, now 5",
}


def test_the_shards_of_a_different_command_are_not_used(left, tiny, text, tool, tmp_path):
    relu, other = shutil.copytree(tiny("bert"), tmp_path / "relu"), tmp_path / "other.txt"
    content = json.loads((relu / "config.json").read_text(encoding="utf-8"))
    (relu / "config.json").write_text(json.dumps(content | {"hidden_act": "relu"}), encoding="utf-8")
    other.write_bytes(text.read_bytes().replace(b"flute", b"piano"))
    before, usual = files(left.parent), command(tiny("bert"), text, left)
    calls = [([*usual, *options], message) for options, message in OTHERS.items()]
    calls.append(([tiny("bert", seed=7), *usual[1:]], "a different model (base "))
    calls.append(([str(relu), *usual[1:]], "(configuration.hidden_act default, now relu)"))
    calls.append(([usual[0], str(other), *usual[2:]], "a different text"))
    for argv, message in calls:
        refused(tool, encode_command, argv, message, "--overwrite")
    assert files(left.parent) == before


def test_overwrite_replaces_the_files_of_a_different_command_at_the_end(
    left, tiny, text, tool, encoded, reference, monkeypatch
):
    other = command(tiny("bert"), text, left, "--dtype", "float16", "--overwrite")
    assert tool(encode_command, other).code == 0
    assert len(encoded) == LINES // CHUNK
    argv = command(tiny("bert"), text, left)

    encode = SentenceEncoder.encode

    def ctrl_c(self, sentences, *args, **kwargs):
        if sentences:
            raise KeyboardInterrupt
        return encode(self, sentences, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", ctrl_c)
        assert tool(encode_command, [*argv, "--overwrite"]).code == 130
    assert np.load(left).dtype == np.float16
    assert tool(encode_command, argv).code == 0
    assert left.read_bytes() == reference


def test_a_record_never_describes_a_different_file(tiny, text, tool, tmp_path, monkeypatch):
    """If the work ends between the new output and its record, the record of the old output is gone."""
    original, argv = job_folder.write_json_atomic, command(tiny("bert"), text, tmp_path / "out.npy")
    tool(encode_command, argv)

    def failing(path, content):
        if path.name == "out.npy.json":
            raise OSError(28, "No space left on device")
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(job_folder, "write_json_atomic", failing)
        refused(tool, encode_command, [*argv, "--normalize", "--overwrite"], "No space left on device")
    refused(tool, encode_command, argv, "normalize True, now False")
    assert tool(encode_command, [*argv, "--normalize"]).code == 0


@pytest.mark.parametrize(
    ("name", "works_with_overwrite"),
    [
        ("out.npy", True),
        ("out.npy.parts/joined", True),
        ("out.npy.json", False),
        ("out.npy.parts/00000001.npz", False),
        ("out.npy.parts", False),  # a file that is in the way of the folder
    ],
)
def test_a_file_of_unknown_origin_is_not_overwritten(name, works_with_overwrite, tiny, text, tool, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"years of work")
    before, argv = files(tmp_path), command(tiny("bert"), text, tmp_path / "out.npy")
    refused(tool, encode_command, argv, "out.npy")
    if not works_with_overwrite:
        refused(tool, encode_command, [*argv, "--overwrite"], path.name)
    assert files(tmp_path) == before
    if works_with_overwrite:
        assert tool(encode_command, [*argv, "--overwrite"]).code == 0
        assert np.load(tmp_path / "out.npy").shape == (LINES, 32)
        assert name == "out.npy" or path.read_bytes() == b"years of work"


def test_links_beside_the_output_are_not_written_through(tiny, text, tool, tmp_path):
    (tmp_path / "mine").write_bytes(b"years of work")
    (tmp_path / "out.npy.parts").mkdir()
    for name in ("out.npy", "out.npy.parts/joined", "out.npy.parts/00000001.npz", "out.npy.parts/.dcpcse.lock"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--overwrite")
    refused(tool, encode_command, argv, ".dcpcse.lock is a link")
    (tmp_path / "out.npy.parts/.dcpcse.lock").unlink()
    refused(tool, encode_command, argv, "00000001.npz")
    (tmp_path / "out.npy.parts/00000001.npz").unlink()
    assert tool(encode_command, argv).code == 0
    assert np.load(tmp_path / "out.npy").shape == (LINES, 32)
    assert (tmp_path / "mine").read_bytes() == b"years of work"
    os.mkfifo(tmp_path / "pipe.npy")
    argv = command(tiny("bert"), text, tmp_path / "pipe.npy", "--overwrite")
    refused(tool, encode_command, argv, "is a pipe or a device")


@pytest.mark.parametrize("write", [DONE, LINES // CHUNK + 1], ids=["shard", "output"])
def test_a_full_disk_ends_with_one_line_and_the_run_resumes(write, tiny, text, tool, reference, tmp_path, monkeypatch):
    output, original, calls = tmp_path / "out.npy", shards.fsync, []

    def full(path):
        calls.append(path)
        if len(calls) == write:
            raise OSError(28, "No space left on device")
        original(path)

    argv = command(tiny("bert"), text, output)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "fsync", full)
        refused(tool, encode_command, argv, "No space left on device", "repeat the same command")
    assert not output.exists()
    assert tool(encode_command, argv).code == 0
    assert output.read_bytes() == reference


def test_mistakes_get_one_line_and_write_nothing(tiny, text, tool, tmp_path, monkeypatch):
    """Further cases are in bad_inputs.py."""
    output = tmp_path / "out.npy"
    refused(tool, encode_command, command(tiny("bert"), tmp_path, output), "folder")
    refused(tool, encode_command, command(tiny("bert"), text, output, "--with_sentences"), ".arrow")
    assert not files(tmp_path)


def test_truncated_texts_are_counted_once_for_the_whole_file(tiny, tool, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("short\n" + "flute " * 200 + "\nshort\n" + "garden " * 100 + "\n", encoding="utf-8")
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--chunk_size", 1)
    first, again = (tool(encode_command, argv).said for _ in range(2))
    assert "2 texts are longer" in first and "of 1 texts" not in first and "2 texts are longer" in again


def test_a_vector_that_the_dtype_cannot_represent_is_named_by_its_line(tiny, text, tool, tmp_path, monkeypatch):
    original = SentenceEncoder.encode

    def huge(self, sentences, *args, **kwargs):
        vectors = original(self, sentences, *args, **kwargs)
        vectors[[text.endswith(" 21") for text in sentences]] *= 1e6
        return vectors

    monkeypatch.setattr(SentenceEncoder, "encode", huge)
    argv = command(tiny("bert"), text, tmp_path / "out.npy")
    parts = ("text.txt, line 22", "not finite in float16", "--dtype float32")
    refused(tool, encode_command, [*argv, "--dtype", "float16"], *parts)
    assert tool(encode_command, [*argv, "--overwrite"]).code == 0


def test_a_file_that_changes_meanwhile_is_noticed(tiny, texts, tool, tmp_path, monkeypatch):
    text, original = tmp_path / "text.txt", SentenceEncoder.encode
    text.write_text("\n".join(texts), encoding="utf-8")

    def slow(self, sentences, *args, **kwargs):
        with text.open("a") as file:
            file.write("one more\n")
        return original(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", slow)
    refused(tool, encode_command, command(tiny("bert"), text, tmp_path / "out.npy"), "changed while")
    assert not shards_of(tmp_path / "out.npy")


def test_changed_lines_of_the_same_size_and_time_are_noticed(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one\ntwo\nsix\n")
    os.utime(path, ns=(1, 1))
    file = TextFile.read(path, 2)
    path.write_text("one\ntwo\nten\n")
    os.utime(path, ns=(1, 1))
    file.require_unchanged()  # by its size and its time
    assert next(file.read_chunks([0])) == ["one", "two"]
    with pytest.raises(UserError, match="has changed while"):
        next(file.read_chunks([1]))


def test_a_prompt_is_chosen_by_its_name_and_recorded_as_text(tiny, text, texts, tmp_path):
    """An index of the file, with the same prompts, uses the vectors."""
    output, words = (
        tmp_path / "out.npy",
        ["--prompts", "query=query: ", "passage=passage: ", "--prompt_name", "document"],
    )
    assert run(encode_command, command(tiny("bert"), text, output, *words)) == 0
    model = dcpcse.load(tiny("bert"), pooler="avg", prompts={"query": "query: ", "passage": "passage: "}, device="cpu")
    expected = model.encode([f"passage: {line}" for line in texts])
    np.testing.assert_allclose(np.load(output), expected, atol=1e-6)
    assert json.loads((tmp_path / "out.npy.json").read_text())["made_of"]["options"]["prompt_text"] == "passage: "
    index = dcpcse.SentenceIndex.build(model, text, vectors=output)
    (hit,) = index.search(texts[3], 1)
    scores = normalize_rows(expected) @ normalize_rows(model.encode([f"query: {texts[3]}"]))[0]
    assert hit.score == pytest.approx(scores.max(), abs=1e-6)


def test_shortened_vectors_are_recorded_and_reported_once(tiny, text, tool, expected, tmp_path):
    output, lengths = tmp_path / "out.npy", np.linalg.norm(expected[:, :8], axis=1, keepdims=True)
    argv = command(tiny("bert"), text, output, "--truncate_dim", 8)
    for options, vectors in (([], expected[:, :8]), (["--normalize", "--overwrite"], expected[:, :8] / lengths)):
        outcome = tool(encode_command, [*argv, *options])
        assert outcome.said.count("truncate_dim 8: the model was not trained for shortened embeddings") == 1
        assert_allclose(np.load(output), vectors, atol=1e-6)
    assert json.loads((tmp_path / "out.npy.json").read_text())["made_of"]["options"]["truncate_dim"] == 8
    refused(tool, encode_command, [*argv[:-2], "--normalize"], "truncate_dim 8, now None")


@pytest.mark.parametrize("precision", ["uint8", "binary"])
def test_codes_have_the_ranges_of_the_first_lines_and_are_recorded(precision, tiny, text, tool, expected, tmp_path):
    util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
    codes = util.quantize_embeddings(expected, precision)
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--precision", precision)
    assert f"{LINES} x {codes.shape[1]} {precision}" in tool(encode_command, argv).said
    vectors = np.load(tmp_path / "out.npy")
    assert (vectors.dtype, vectors.shape) == (codes.dtype, codes.shape)
    assert (vectors != codes).mean() < 0.01 and np.abs(vectors.astype(int) - codes)[vectors != codes].max(
        initial=0
    ) <= 1
    record = json.loads((tmp_path / "out.npy.json").read_text())["made_of"]["options"]
    assert record["precision"] == precision
    assert "no line was left" in tool(encode_command, argv).said
    if precision == "uint8":
        assert_allclose(record["calibration"], [expected.min(0), expected.max(0)], atol=1e-6)
        argv = command(tiny("bert"), text, tmp_path / "out.arrow", "--precision", precision)
        assert tool(encode_command, argv).code == 0
        table = pa.ipc.open_stream((tmp_path / "out.arrow").read_bytes()).read_all()
        assert table.schema.field("vector").type.value_type == pa.uint8()
        np.testing.assert_array_equal(np.array(table["vector"].to_pylist()), vectors)
    refused(tool, encode_command, [*argv, "--dtype", "float16"], "contradicts", "--precision")


def test_a_killed_worker_ends_the_run_with_one_line_and_two_others_finish_the_work(left, tiny, text, tool, reference):
    argv = command(tiny("bert"), text, left, "--num_processes", 2)

    def kill() -> None:
        wait_for(multiprocessing.active_children)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with meanwhile(kill):
        refused(tool, encode_command, argv, "a worker process ended with exit code -9", "repeat the same command")
    assert not multiprocessing.active_children()
    assert DONE <= len(shards_of(left)) < LINES // CHUNK
    assert tool(encode_command, argv).code == 0
    assert left.read_bytes() == reference
    assert not multiprocessing.active_children()


@pytest.fixture
def mistaken(tiny) -> EncodeJob:
    """A job that was identified with a different model from the one that its workers load."""
    job = EncodeJob(tiny("bert"), EncoderArguments(pooler_type="avg"), PrecisionOptions(), "float32")
    job, _ = job.identify(job.load("cpu"), "cpu")
    job.identity["trained"] = "0"
    return job


def test_workers_return_the_mistakes_of_the_user_and_end(mistaken):
    outcomes = [
        outcome for _, outcome in WorkerProcesses(1, "cpu").run(mistaken.start, [Chunk(0, ["one"]), Chunk(1, ["two"])])
    ]
    assert [type(error) for error in outcomes] == [UserError] * 2
    message = r"is a different model on one of the workers \(trained differ\)"
    assert all(re.search(message, str(error)) for error in outcomes)
    assert not multiprocessing.active_children()
