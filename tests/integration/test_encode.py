"""Encoding a file: the vectors of `encode` in the order of the lines, whatever happens on the way."""

import contextlib
import fcntl
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
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from numpy.testing import assert_allclose
from runs import ROOT, files, ray_processes, refused, wait_for

from dcpcse.cli.commands.encode import encode_command
from dcpcse.data.text_file import TextFile
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.file_encoding import ray_workers
from dcpcse.inference.file_encoding.chunk_encoder import EncodeJob
from dcpcse.inference.file_encoding.workers import ModelFacts, _serve
from dcpcse.utils.errors import UserError

LINES = 60
CHUNK = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Here and in processes that are started: files are compared to the last bit, which the threads decide."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def texts(sentences) -> list[str]:
    """Sentences of all lengths, with what other readers take for the end of a line, and blanks that belong to them."""
    made = [" ".join(sentences[(i * 5 + j) % 12] for j in range(i % 4 + 1)) + f" {i}" for i in range(LINES)]
    return ["mark", "a\u2028b\x85c\x0bd", "  blanks ", *made[3:]]


@pytest.fixture(scope="module")
def text(texts, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts[:5]).encode() + b"\n" + "\n".join(texts[5:]).encode())
    return path


@pytest.fixture(scope="module")
def expected(tiny, texts) -> np.ndarray:
    """All sentences at once, by the model alone."""
    return plain_encoder(load_backbone(tiny("bert")), "avg").encode(texts)


def command(encoder: str, text: Path, output: Path, *options: object) -> list[str]:
    words = [encoder, text, "--output", output, "--pooler", "avg", "--device", "cpu", "--chunk_size", CHUNK, *options]
    return [str(word) for word in words]


def journal(output: Path) -> Path:
    return output.with_name(output.name + ".journal")


def partial(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def finished(output: Path) -> int:
    """Chunks on record."""
    return max(0, journal(output).read_bytes().count(b"\n") - 1) if journal(output).exists() else 0


@pytest.fixture
def encoded(monkeypatch) -> list[list[str]]:
    """What goes through the model in this process, call by call."""
    calls, original = [], SentenceEncoder.encode

    def recording(self, sentences, *args, **kwargs):
        if sentences:  # no sentence is encoded to try the options
            calls.append(list(sentences))
        return original(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", recording)
    return calls


@contextlib.contextmanager
def meanwhile(action) -> Iterator[None]:
    """Do something in a thread, which is waited for."""
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def test_row_i_of_an_npy_file_is_line_i(tiny, text, texts, expected, encoded, tool, tmp_path):
    output = tmp_path / "new" / "out.npy"
    outcome = tool(encode_command, command(tiny("bert"), text, output))
    assert outcome.code == 0
    found = np.load(output, mmap_mode="r")
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert_allclose(found, expected, atol=1e-6)
    assert encoded == [texts[i : i + CHUNK] for i in range(0, LINES, CHUNK)]
    assert set(files(output.parent)) == {"out.npy", "out.npy.journal"}
    assert f"{LINES} x 32 float32" in outcome.said
    assert f"{LINES}/{LINES}" in outcome.err
    assert "sentences/s" in outcome.err


def test_an_arrow_file_opens_in_arrow_and_in_datasets(tiny, text, texts, expected, tool, tmp_path):
    output = tmp_path / "out.arrow"
    options = ("--with_sentences", "--normalize", "--dtype", "float16")
    assert tool(encode_command, command(tiny("bert"), text, output, *options)).code == 0
    with pa.memory_map(str(output)) as file:
        table = pa.ipc.open_stream(file).read_all()
    assert table.schema.field("vector").type.list_size == 32
    assert table.schema.field("vector").type.value_type == pa.float16()
    assert table["sentence"].to_pylist() == texts
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert_allclose(np.array(table["vector"].to_pylist(), dtype=np.float32), unit, atol=1e-3)
    assert Dataset.from_file(str(output))[LINES - 1]["sentence"] == texts[-1]


def test_an_arrow_file_may_hold_vectors_alone(tiny, text, expected, tool, tmp_path):
    output = tmp_path / "out.arrow"
    assert tool(encode_command, command(tiny("bert"), text, output)).code == 0
    table = pa.ipc.open_stream(output.read_bytes()).read_all()
    assert table.column_names == ["vector"]
    assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)


def test_a_trained_folder_needs_no_pooler(train, tiny, train_txt, text, texts, tool, tmp_path):
    folder = train(tiny("bert"), train_txt).folder
    output = tmp_path / "out.npy"
    assert tool(encode_command, [str(folder), str(text), "--output", str(output), "--device", "cpu"]).code == 0
    assert_allclose(np.load(output), SentenceEncoder.load(folder, device="cpu").encode(texts), atol=1e-6)


def program(argv: list[str]) -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen([sys.executable, "-m", "dcpcse", "encode", *argv], env=environment, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def killed(tiny, text, tmp_path_factory) -> Path:
    """Where a run of two processes and chunks of one line was killed in the middle, with no warning."""
    output = tmp_path_factory.mktemp("killed") / "out.npy"
    running = program(command(tiny("bert"), text, output, "--chunk_size", 1, "--num_processes", 2))
    wait_for(lambda: finished(output) >= 3 or running.poll() is not None)
    workers = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert 3 <= finished(output) < LINES
    assert not output.exists()
    assert len(workers) >= 2
    assert not psutil.wait_procs(workers, timeout=30)[1], "workers outlive the run"
    return output


@pytest.fixture
def left(killed, tmp_path) -> Path:
    """A copy of what the killed run left."""
    shutil.copytree(killed.parent, tmp_path / "left")
    return tmp_path / "left" / killed.name


def whole(tool, tiny, text, tmp_path, *options: object) -> bytes:
    """What an uninterrupted run writes."""
    output = tmp_path / "whole.npy"
    assert tool(encode_command, command(tiny("bert"), text, output, *options)).code == 0
    return output.read_bytes()


def test_a_killed_run_goes_on_to_the_same_bytes(left, tiny, text, texts, tool, encoded, tmp_path):
    done = finished(left)
    assert tool(encode_command, command(tiny("bert"), text, left, "--chunk_size", 1)).code == 0
    assert encoded == [[line] for line in texts[done:]]
    assert left.read_bytes() == whole(tool, tiny, text, tmp_path, "--chunk_size", 1)


def test_bytes_that_are_not_on_record_do_not_count(left, tiny, text, texts, tool, encoded, tmp_path):
    """A run may be killed between any two of: bytes of a chunk, its line in the journal, half a line."""
    done = finished(left)
    with open(partial(left), "ab") as file:
        file.write(b"half a chunk" * 10_000)  # more than is left to write
    with open(journal(left), "ab") as file:
        file.write(b'{"chunk": 9')
    argv = command(tiny("bert"), text, left, "--chunk_size", 1)
    assert tool(encode_command, argv).code == 0
    assert encoded == [[line] for line in texts[done:]]
    assert "whole already" in tool(encode_command, argv).said
    assert left.read_bytes() == whole(tool, tiny, text, tmp_path, "--chunk_size", 1)


def test_a_run_killed_before_the_last_step_encodes_nothing_again(tiny, text, tool, encoded, tmp_path):
    output = tmp_path / "out.arrow"
    argv = command(tiny("bert"), text, output)
    tool(encode_command, argv)
    bytes_before = output.read_bytes()
    output.rename(partial(output))
    encoded.clear()
    assert tool(encode_command, argv).code == 0
    assert encoded == []
    assert output.read_bytes() == bytes_before


def test_the_same_command_on_a_whole_file_does_nothing(tiny, text, tool, encoded, tmp_path):
    output = tmp_path / "out.npy"
    argv = command(tiny("bert"), text, output)
    tool(encode_command, argv)
    before, times = files(tmp_path), [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    encoded.clear()
    again = tool(encode_command, argv)
    assert (again.code, encoded) == (0, [])
    assert "whole already" in again.said
    assert (files(tmp_path), [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]) == (before, times)


def test_a_whole_file_that_was_moved_away_is_made_anew(tiny, text, tool, tmp_path):
    output = tmp_path / "out.npy"
    argv = command(tiny("bert"), text, output)
    tool(encode_command, argv)
    moved = output.rename(tmp_path / "moved.npy")
    assert "is gone" in tool(encode_command, argv).said
    assert output.read_bytes() == moved.read_bytes()


OTHERS = {  # what is another in the second command → what the error names
    "model": (lambda argv, tiny, text: [tiny("bert", seed=7), *argv[1:]], "another model (base "),
    "pooler": (lambda argv, tiny, text: [*argv, "--pooler", "avg_top2"], "pooling avg, now avg_top2"),
    "file": (lambda argv, tiny, text: [argv[0], str(other_text(text)), *argv[2:]], "another text"),
    "type": (lambda argv, tiny, text: [*argv, "--dtype", "float16"], "dtype float32, now float16"),
    "unit length": (lambda argv, tiny, text: [*argv, "--normalize"], "normalize False, now True"),
    "precision": (lambda argv, tiny, text: [*argv, "--bf16"], "bf16 False, now True"),
    "chunks": (lambda argv, tiny, text: [*argv, "--chunk_size", "5"], "chunk_size 1, now 5"),
    "pads": (lambda argv, tiny, text: [*argv, "--packing", "False"], "packing True, now False"),
    "batch": (lambda argv, tiny, text: [*argv, "--batch_size", "5"], "batch_size 128, now 5"),
}


def other_text(text: Path) -> Path:
    other = text.with_name("other.txt")
    other.write_bytes(text.read_bytes().replace(b"flute", b"piano"))
    return other


@pytest.mark.parametrize("case", OTHERS)
def test_a_run_of_something_else_is_not_gone_on_with(case, left, tiny, text, tool):
    change, message = OTHERS[case]
    argv = change(command(tiny("bert"), text, left, "--chunk_size", 1), tiny, text)
    before = files(left.parent)
    refused(tool, encode_command, argv, message, "--overwrite")
    assert files(left.parent) == before


def test_overwrite_replaces_what_is_of_something_else(left, tiny, text, tool, encoded, tmp_path):
    options = ("--chunk_size", 1, "--dtype", "float16", "--overwrite")
    assert tool(encode_command, command(tiny("bert"), text, left, *options)).code == 0
    assert len(encoded) == LINES
    assert left.read_bytes() == whole(tool, tiny, text, tmp_path, *options)


def test_overwrite_still_goes_on_with_its_own(left, tiny, text, tool, encoded):
    done = finished(left)
    assert tool(encode_command, command(tiny("bert"), text, left, "--chunk_size", 1, "--overwrite")).code == 0
    assert len(encoded) == LINES - done


@pytest.mark.parametrize("end", ["", ".partial"])
def test_a_file_of_unknown_origin_is_not_overwritten(end, tiny, text, tool, tmp_path):
    path = tmp_path / f"out.npy{end}"
    path.write_bytes(b"years of work")
    argv = command(tiny("bert"), text, tmp_path / "out.npy")
    refused(tool, encode_command, argv, str(path), "--overwrite")
    assert set(files(tmp_path)) == {path.name}
    assert path.read_bytes() == b"years of work"
    assert tool(encode_command, [*argv, "--overwrite"]).code == 0
    assert np.load(tmp_path / "out.npy").shape == (LINES, 32)


def test_two_runs_do_not_write_one_file(left, tiny, text, tool):
    with open(journal(left), "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused(
            tool, encode_command, command(tiny("bert"), text, left, "--chunk_size", 1), "another process is writing"
        )


def test_a_damaged_partial_file_is_refused(left, tiny, text, tool):
    os.truncate(partial(left), 130)
    refused(
        tool, encode_command, command(tiny("bert"), text, left, "--chunk_size", 1), "shorter than its journal says"
    )


BAD = {  # what is given → what the error names
    "missing file": ({"file": "nowhere.txt"}, ["nowhere.txt", "does not exist"]),
    "a folder for a file": ({"file": "."}, ["folder"]),
    "empty file": ({"content": b""}, ["is empty"]),
    "blank line": ({"content": b"one\ntwo\n \t\nfour\n"}, ["text.txt, line 3", "blank"]),
    "blank first line": ({"content": b"\xef\xbb\xbf\none\n"}, ["text.txt, line 1", "blank"]),
    "latin-1": ({"content": b"one\ncaf\xe9\n"}, ["text.txt, line 2", "0xe9", "UTF-8"]),
    "NUL": ({"content": b"one\ntwo\0\n"}, ["text.txt, line 2", "NUL"]),
    "unknown extension": ({"output": "out.csv"}, ["'.csv'", ".npy", ".arrow"]),
    "no extension": ({"output": "out"}, ["no extension"]),
    "a folder for the output": ({"output": "folder.npy"}, ["is a folder"]),
    "a place that cannot be": ({"output": "text.txt/out.npy"}, ["cannot write"]),
    "sentences in npy": ({"options": ["--with_sentences"]}, ["--with_sentences", ".arrow"]),
    "no such model": ({"model": "./nowhere"}, ["nowhere", "does not exist"]),
    "no such pooler": ({"options": ["--pooler", "max"]}, ["pooler"]),
    "a base for a plain encoder": ({"options": ["--base", "x"]}, ["--base"]),
    "no chunk": ({"options": ["--chunk_size", "0"]}, ["--chunk_size 0"]),
    "no process": ({"options": ["--num_processes", "0"]}, ["--num_processes 0"]),
    "too short a length": ({"options": ["--max_seq_length", "1"]}, ["max_length 1"]),
    "no such device": ({"options": ["--device", "cuda:99"]}, ["cuda:99"]),
    "misspelt option": ({"options": ["--normalise", "True"]}, ["--normalize"]),
    "a Ray client": ({"options": ["--ray", "ray://head:10001"]}, ["--ray auto"]),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_get_one_line(case, tiny, tool, tmp_path, monkeypatch):
    given, parts = BAD[case]
    if case == "a Ray client":
        pytest.importorskip("ray", reason="needs Ray Data (pip install ray[data])")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "text.txt").write_bytes(given.get("content", b"one\ntwo\nthree\n"))
    model, file = given.get("model", tiny("bert")), given.get("file", "text.txt")
    argv = command(model, Path(file), Path(given.get("output", "out.npy")), "--chunk_size", 1)
    refused(tool, encode_command, [model, *argv[1:], *given.get("options", [])], *parts)
    assert set(files(tmp_path)) <= {"folder.npy", "text.txt", "out.npy.journal", "out.npy.partial"}


def test_output_is_needed(tiny, text, tool):
    refused(tool, encode_command, [tiny("bert"), str(text)], "--output is missing")


def test_texts_that_are_cut_are_counted_once_for_the_whole_file(tiny, tool, tmp_path):
    text, output = tmp_path / "long.txt", tmp_path / "out.npy"
    text.write_text("short\n" + "flute " * 200 + "\nshort\n" + "garden " * 100 + "\n", encoding="utf-8")
    argv = command(tiny("bert"), text, output, "--chunk_size", 1)
    said = tool(encode_command, argv).said
    assert "2 texts are longer" in said
    assert "of 1 texts" not in said
    assert [json.loads(line)["cut"] for line in journal(output).read_text().splitlines()[1:]] == [0, 1, 0, 1]


def test_a_vector_that_the_type_cannot_hold_is_named_by_its_line(tiny, text, tool, tmp_path, monkeypatch):
    original = SentenceEncoder.encode

    def huge(self, sentences, *args, **kwargs):
        vectors = original(self, sentences, *args, **kwargs)
        vectors[[text.endswith(" 21") for text in sentences]] *= 1e6
        return vectors

    monkeypatch.setattr(SentenceEncoder, "encode", huge)
    argv = command(tiny("bert"), text, tmp_path / "out.npy")
    refused(tool, encode_command, [*argv, "--dtype", "float16"], "text.txt, line 22", "not finite in float16")
    assert tool(encode_command, [*argv, "--overwrite"]).code == 0


def test_a_file_that_changes_under_way_is_noticed(tiny, texts, tool, tmp_path, monkeypatch):
    text, original = tmp_path / "text.txt", SentenceEncoder.encode
    text.write_text("\n".join(texts), encoding="utf-8")

    def slow(self, sentences, *args, **kwargs):
        with text.open("a") as file:
            file.write("one more\n")
        return original(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", slow)
    refused(tool, encode_command, command(tiny("bert"), text, tmp_path / "out.npy"), "has changed")
    assert not (tmp_path / "out.npy").exists()


def test_a_disk_that_is_full_ends_with_one_line_and_can_be_gone_on_with(tiny, text, tool, tmp_path, monkeypatch):
    from dcpcse.inference.file_encoding import journal as module

    original, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) == 8:
            raise OSError(28, "No space left on device")
        original(handle)

    monkeypatch.setattr(module.os, "fsync", full)
    output = tmp_path / "out.npy"
    refused(tool, encode_command, command(tiny("bert"), text, output), "No space left on device", "goes on")
    monkeypatch.undo()
    assert 0 < finished(output) < LINES // CHUNK
    assert tool(encode_command, command(tiny("bert"), text, output)).code == 0
    assert output.read_bytes() == whole(tool, tiny, text, tmp_path)


def test_bf16_is_near(tiny, text, expected, tool, tmp_path):
    output = tmp_path / "out.npy"
    assert tool(encode_command, command(tiny("bert"), text, output, "--bf16")).code == 0
    found = np.load(output)
    assert found.dtype == np.float32
    assert not np.allclose(found, expected, atol=1e-6)
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99


def test_two_processes_write_what_one_does(tiny, text, tool, tmp_path):
    output = tmp_path / "two.npy"
    assert tool(encode_command, command(tiny("bert"), text, output, "--num_processes", 2)).code == 0
    assert output.read_bytes() == whole(tool, tiny, text, tmp_path)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_ends_the_run_with_one_line_and_nothing_is_lost(tiny, text, texts, tool, encoded, tmp_path):
    output = tmp_path / "out.npy"
    argv = command(tiny("bert"), text, output, "--chunk_size", 1, "--num_processes", 2)

    def kill() -> None:
        wait_for(lambda: finished(output) >= 3)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with meanwhile(kill):
        refused(tool, encode_command, argv, "a worker process ended (exit code -9", "the same command goes on")
    assert not multiprocessing.active_children()
    done = finished(output)
    assert 3 <= done < LINES
    assert tool(encode_command, argv[:-2]).code == 0  # the number of processes may be another
    assert encoded == [[line] for line in texts[done:]]
    assert output.read_bytes() == whole(tool, tiny, text, tmp_path, "--chunk_size", 1)


@pytest.fixture
def mistaken(tiny) -> EncodeJob:
    """A job that was begun with another model than its workers find."""
    job = EncodeJob(tiny("bert"), EncoderArguments(pooler_type="avg"), "float32", False, None, False)
    return replace(job, identity=ModelFacts.of(job.load("cpu"), job, "cpu").identity | {"trained": "0"})


MISTAKE = "is another model to one of the workers (trained differ)"


def test_a_worker_sends_back_what_the_user_can_mend(mistaken, text, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its Ctrl-C
    ours, theirs = multiprocessing.Pipe()
    _serve(theirs, mistaken, TextFile.read(text, CHUNK), "cpu", None)
    answer = ours.recv()
    assert isinstance(answer, UserError)
    assert MISTAKE in str(answer)


def test_ray_that_is_not_installed_is_named(tiny, text, tool, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--ray", "local")
    refused(tool, encode_command, argv, "pip install ray[data]")


def test_ray_of_this_machine_ends_with_the_work(tiny, text, tool, tmp_path):
    pytest.importorskip("ray", reason="needs Ray Data (pip install ray[data])")
    argv = command(tiny("bert"), text, tmp_path / "out.npy")
    tool(encode_command, argv)
    again = tool(encode_command, [*argv, "--ray", "local"])
    assert again.code == 0
    assert not ray_processes("")
    assert "whole already" in again.said


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:9", "head"])
def test_a_cluster_that_is_not_there_gets_one_line(address, tiny, text, tool, tmp_path):
    pytest.importorskip("ray", reason="needs Ray Data (pip install ray[data])")
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--ray", address)
    refused(tool, encode_command, argv, f"--ray {address}", "cannot connect to a cluster")


def test_a_cluster_that_has_crashed_is_not_waited_for(tiny, text, tool, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="needs Ray Data (pip install ray[data])")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:9", encoding="utf-8")
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--ray", "auto")
    refused(tool, encode_command, argv, "--ray auto", "cannot connect to a cluster", "refused")


def test_a_ray_cluster_goes_on_with_a_killed_run_and_loses_nothing_by_a_killed_worker(
    cluster, left, tiny, text, tool, tmp_path
):
    done, killed = finished(left), []

    def kill() -> None:
        wait_for(lambda: finished(left) >= done + 3)
        killed.append(ray_processes("MapWorker")[0])
        killed[0].kill()

    with meanwhile(kill):
        assert tool(encode_command, command(tiny("bert"), text, left, "--chunk_size", 1, "--ray", cluster)).code == 0
    assert killed
    assert left.read_bytes() == whole(tool, tiny, text, tmp_path, "--chunk_size", 1)


def test_more_workers_than_a_ray_cluster_has_room_for_are_refused(cluster, tiny, text, tool, tmp_path):
    argv = command(tiny("bert"), text, tmp_path / "out.npy", "--ray", cluster, "--num_processes", 3)
    refused(tool, encode_command, argv, "--num_processes 3", "2 workers on cpu")


def test_a_ray_worker_sends_back_what_the_user_can_mend(mistaken, text):
    row = ray_workers._read({"number": 1}, TextFile.read(text, CHUNK))
    answer = ray_workers._Actor(mistaken, "cpu", None)(row)
    with pytest.raises(UserError, match=re.escape(MISTAKE)):
        ray_workers._as_vectors(1, answer, mistaken)


def test_a_file_that_changes_under_a_ray_run_is_noticed(mistaken, text, tmp_path):
    changed = shutil.copy(text, tmp_path / "changed.txt")
    known = TextFile.read(changed, CHUNK)
    changed.write_text("another\n")
    with pytest.raises(UserError, match="has changed"):
        ray_workers._as_vectors(
            1, ray_workers._Actor(mistaken, "cpu", None)(ray_workers._read({"number": 1}, known)), mistaken
        )
