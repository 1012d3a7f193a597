"""`dcpcse encode`: the vectors of `SentenceEncoder.encode` in the order of the lines, whatever interrupts the work."""

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pytest
from datasets import Dataset
from numpy.testing import assert_allclose
from runs import Outcome, files, refused, wait_for

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
from dcpcse.utils import job_folder, work_units
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = 60
CHUNK = 2
DONE = 3
"""Chunks that an interrupted run has finished."""

ENCODE = SentenceEncoder.encode


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


def options_of(output: Path) -> dict[str, object]:
    """The options in the record of an output."""
    return json.loads(Path(f"{output}.json").read_text())["made_of"]["options"]


@pytest.fixture
def encode(tiny, text, tool) -> Callable[..., Outcome | None]:
    """encode(output, *options, text=..., parts=()) → how it ended: well, or refused with a line that has the parts."""

    def call(output: Path, *options: object, text: Path = text, parts: tuple[str, ...] = ()) -> Outcome | None:
        argv = command(tiny("bert"), text, output, *options)
        if parts:
            return refused(tool, encode_command, argv, *parts)
        outcome = tool(encode_command, argv)
        assert outcome.code == 0, outcome.err
        return outcome

    return call


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
    calls = []

    def recording(self, sentences, *args, **kwargs):
        if sentences:  # the options are checked with an empty list
            calls.append(list(sentences))
        return ENCODE(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", recording)
    return calls


@pytest.fixture(scope="module")
def interrupted(tiny, text, tmp_path_factory) -> Path:
    """The output of a run that Ctrl-C ended after `DONE` chunks."""
    output = tmp_path_factory.mktemp("interrupted") / "out.npy"

    def interrupting(self, sentences, *args, **kwargs):
        if len(shards_of(output)) == DONE:
            raise KeyboardInterrupt
        return ENCODE(self, sentences, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", interrupting)
        assert run(encode_command, command(tiny("bert"), text, output)) == 130
    assert len(shards_of(output)) == DONE
    return output


@pytest.fixture
def left(interrupted, tmp_path) -> Path:
    """A copy of the files left behind by the interrupted run."""
    return shutil.copytree(interrupted.parent, tmp_path / "left") / interrupted.name


def test_a_column_of_a_table_is_encoded_as_the_lines_of_a_text_file(encode, texts, tmp_path):
    rows = pd.DataFrame([{"id": i, "text": text, "other": None} for i, text in enumerate(texts[:9])])
    rows.to_csv(tmp_path / "table.csv", index=False)
    rows.to_json(tmp_path / "table.jsonl", orient="records", lines=True)
    rows.to_parquet(tmp_path / "table.parquet")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(text.strip() for text in texts[:9]) + "\n", encoding="utf-8")
    encode(tmp_path / "lines.npy", text=lines)
    for kind in ("csv", "jsonl", "parquet"):
        output = tmp_path / f"{kind}.npy"
        encode(output, "--column", "text", text=tmp_path / f"table.{kind}")
        assert output.read_bytes() == (tmp_path / "lines.npy").read_bytes()
    encode(tmp_path / "csv.npy", text=lines)  # the same texts: nothing is left to encode
    for options, part in (
        ([], "choose its column by --column NAME"),
        (["--column", "txt"], "has no column 'txt'; choose from 'id', 'text'"),
        (["--column", "other"], "line 2, column 'other': is blank; remove the row"),
    ):
        encode(tmp_path / "new.npy", *options, text=tmp_path / "table.csv", parts=(part,))
    assert not [*tmp_path.glob("*new*")]


def test_row_i_of_an_npy_file_is_line_i(encode, texts, expected, encoded, tmp_path):
    output = tmp_path / "new" / "out.npy"
    outcome = encode(output, "--chunk_size", 8)
    found = np.load(output, mmap_mode="r")
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert_allclose(found, expected, atol=1e-6)
    assert encoded == [texts[i : i + 8] for i in range(0, LINES, 8)]
    assert set(files(output.parent)) == {"out.npy", "out.npy.json"}
    assert f"{LINES} x 32 float32" in outcome.said


@pytest.mark.parametrize("with_sentences", [True, False])
def test_an_arrow_file_opens_in_arrow_and_in_datasets(with_sentences, encode, texts, expected, tmp_path):
    output = tmp_path / "out.arrow"
    encode(output, "--normalize", "--dtype", "float16", "--with_sentences", with_sentences)
    table = pa.ipc.open_stream(output.read_bytes()).read_all()
    assert table.column_names == (["sentence", "vector"] if with_sentences else ["vector"])
    assert table.schema.field("vector").type == pa.list_(pa.field("item", pa.float16(), nullable=False), 32)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert_allclose(np.array(table["vector"].to_pylist(), dtype=np.float32), unit, atol=1e-3)
    if with_sentences:
        assert table["sentence"].to_pylist() == texts
        assert Dataset.from_file(str(output))[LINES - 1]["sentence"] == texts[-1]


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_an_interrupted_run_resumes_to_the_same_bytes(options, left, encode, texts, encoded, reference):
    Path(f"{left}.parts/00000003.npz.part").write_bytes(b"half a chunk")
    os.truncate(shards_of(left)[-1], 100)  # after a power failure, a name may be left without its content
    encode(left, *options)
    assert encoded == [texts[i : i + CHUNK] for i in range((DONE - 1) * CHUNK, LINES, CHUNK)]
    assert left.read_bytes() == reference
    assert set(files(left.parent)) == {"out.npy", "out.npy.json"}


PROGRAM = """
import os, sys
from pathlib import Path
from dcpcse.cli.commands.encode import encode_command
from dcpcse.cli.runner import run

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(str(os.getpid()))
    sys.exit(run(encode_command, sys.argv[2:]))
"""


def test_a_killed_run_leaves_no_process_and_resumes_to_the_same_bytes(encode, tiny, text, pairs, tmp_path):
    done = []
    output, whole, pid, program = (tmp_path / name for name in ("out.npy", "whole.npy", "pid", "program.py"))
    program.write_text(PROGRAM, encoding="utf-8")
    argv = command(tiny("bert"), text, output, "--chunk_size", 1, "--num_processes", 2)
    running = threading.Thread(target=lambda: done.append(pairs.alone(program, pid, *argv)))
    running.start()
    wait_for(lambda: len(shards_of(output)) >= DONE or not running.is_alive())
    process = psutil.Process(int(pid.read_text()))
    workers = process.children(recursive=True)
    process.kill()
    running.join()
    assert done[0].returncode == -signal.SIGKILL
    assert DONE <= len(shards_of(output)) < LINES
    assert len(workers) >= 2
    assert not psutil.wait_procs(workers, timeout=30)[1], "workers outlive the run"
    for path in (output, whole):
        encode(path, "--chunk_size", 1)
    assert output.read_bytes() == whole.read_bytes()


def test_a_damaged_shard_is_named(left, encode):
    path = shards_of(left)[1]
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # inside the vectors
    path.write_bytes(content)
    encode(left, parts=("00000001.npz", "is damaged", "remove it"))


KILLED = {  # the moment of the kill → files that a run killed right after joining would have, but this one has not
    "before joining": ["out.npy", "out.npy.json"],
    "before the record": ["out.npy.json"],
    "before removing shards": [],
    "while removing shards": ["out.npy.parts/00000000.npz", "out.npy.parts/00000003.npz"],
}


@pytest.mark.parametrize("moment", KILLED)
def test_a_run_killed_in_its_last_steps_encodes_nothing_again(
    moment, encode, encoded, reference, tmp_path, monkeypatch
):
    output = tmp_path / "out.npy"
    with monkeypatch.context() as patch:
        patch.setattr(shards.Shards, "_remove", lambda self: None)
        encode(output)
    for name in KILLED[moment]:
        (tmp_path / name).unlink()
    encoded.clear()
    encode(output)
    assert encoded == []
    assert output.read_bytes() == reference
    assert set(files(tmp_path)) == {"out.npy", "out.npy.json"}


def test_a_finished_output_is_left_alone_also_with_a_record_of_an_earlier_version(encode, encoded, tmp_path):
    """And its truncated texts are counted once for the whole file, each time."""
    text, output, path = tmp_path / "long.txt", tmp_path / "out.npy", tmp_path / "out.npy.json"
    text.write_text("short\n" + "flute " * 200 + "\nshort\n" + "garden " * 100 + "\n", encoding="utf-8")
    assert "2 texts are longer" in encode(output, "--chunk_size", 1, text=text).said
    content, time, record = output.read_bytes(), output.stat().st_mtime_ns, json.loads(path.read_text())
    for change, part in (
        ({}, None),
        ({"flex_attention": True}, "a different option (flex_attention True, now None)"),  # a removed option
        ({"flex_attention": False}, None),
    ):
        encoded.clear()
        record["made_of"]["options"] |= change
        path.write_text(json.dumps(record), encoding="utf-8")
        ended = encode(output, "--chunk_size", 1, text=text, parts=(part,) if part else ())
        assert part or "2 texts are longer" in ended.said
        assert (encoded, output.stat().st_mtime_ns, output.read_bytes()) == ([], time, content)
    path.write_text(json.dumps({**record, "truncated": None}), encoding="utf-8")
    encode(output, "--chunk_size", 1, text=text, parts=("is not the file that",))
    path.write_text(json.dumps(record), encoding="utf-8")
    output.unlink()
    encode(output, "--chunk_size", 1, text=text)
    assert output.read_bytes() == content


OTHERS = (
    "--pooler avg_top2",
    "--dtype float16",
    "--normalize True",
    "--bf16 True",
    "--chunk_size 5",
    "--packing False",
    "--batch_size 5",
)
"""What differs in the second command; the error names the new value."""


def test_the_shards_of_a_different_command_are_not_used(left, tiny, text, tool, tmp_path):
    relu, other = shutil.copytree(tiny("bert"), tmp_path / "relu"), tmp_path / "other.txt"
    content = json.loads((relu / "config.json").read_text(encoding="utf-8"))
    (relu / "config.json").write_text(json.dumps(content | {"hidden_act": "relu"}), encoding="utf-8")
    other.write_bytes(text.read_bytes().replace(b"flute", b"piano"))
    before, usual = files(left.parent), command(tiny("bert"), text, left)
    calls = [([*usual, *option.split()], f", now {option.split()[1]}") for option in OTHERS]
    calls.append(([tiny("bert", seed=7), *usual[1:]], "a different model (base "))
    calls.append(([str(relu), *usual[1:]], "(configuration.hidden_act default, now relu)"))
    calls.append(([usual[0], str(other), *usual[2:]], "a different text"))
    for argv, message in calls:
        refused(tool, encode_command, argv, message, "--overwrite")
    assert files(left.parent) == before


def test_overwrite_replaces_the_files_of_a_different_command_at_the_end(
    left, tiny, text, tool, encode, encoded, reference, monkeypatch
):
    encode(left, "--dtype", "float16", "--overwrite")
    assert len(encoded) == LINES // CHUNK

    def ctrl_c(self, sentences, *args, **kwargs):
        if sentences:
            raise KeyboardInterrupt
        return ENCODE(self, sentences, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", ctrl_c)
        assert tool(encode_command, command(tiny("bert"), text, left, "--overwrite")).code == 130
    assert np.load(left).dtype == np.float16
    encode(left)
    assert left.read_bytes() == reference


def test_a_record_never_describes_a_different_file(encode, tmp_path, monkeypatch):
    """If the work ends between the new output and its record, the record of the old output is gone."""
    original, output = job_folder.write_json_atomic, tmp_path / "out.npy"
    encode(output)

    def failing(path, content):
        if path.name == "out.npy.json":
            raise OSError(28, "No space left on device")
        original(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(job_folder, "write_json_atomic", failing)
        encode(output, "--normalize", "--overwrite", parts=("No space left on device",))
    encode(output, parts=("normalize True, now False",))
    encode(output, "--normalize")


# The last one is a file in the way of the folder.
UNKNOWN = ("out.npy", "out.npy.parts/joined", "out.npy.json", "out.npy.parts/00000001.npz", "out.npy.parts")


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_file_of_unknown_origin_is_not_overwritten(name, encode, tmp_path):
    path, output = tmp_path / name, tmp_path / "out.npy"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"years of work")
    before = files(tmp_path)
    encode(output, parts=("out.npy",))
    if name not in UNKNOWN[:2]:
        encode(output, "--overwrite", parts=(path.name,))
    assert files(tmp_path) == before
    if name in UNKNOWN[:2]:
        encode(output, "--overwrite")
        assert np.load(output).shape == (LINES, 32)
        assert name == "out.npy" or path.read_bytes() == b"years of work"


def test_links_beside_the_output_are_not_written_through(encode, tmp_path):
    (tmp_path / "mine").write_bytes(b"years of work")
    (tmp_path / "out.npy.parts").mkdir()
    for name in ("out.npy", "out.npy.parts/joined", "out.npy.parts/00000001.npz", "out.npy.parts/.dcpcse.lock"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    for name, part in ((".dcpcse.lock", ".dcpcse.lock is a link"), ("00000001.npz", "00000001.npz")):
        encode(tmp_path / "out.npy", "--overwrite", parts=(part,))
        (tmp_path / "out.npy.parts" / name).unlink()
    encode(tmp_path / "out.npy", "--overwrite")
    assert np.load(tmp_path / "out.npy").shape == (LINES, 32)
    assert (tmp_path / "mine").read_bytes() == b"years of work"
    os.mkfifo(tmp_path / "pipe.npy")
    encode(tmp_path / "pipe.npy", "--overwrite", parts=("is a pipe or a device",))


@pytest.mark.parametrize("write", [DONE, LINES // CHUNK + 1], ids=["shard", "output"])
def test_a_full_disk_ends_with_one_line_and_the_run_resumes(write, encode, reference, tmp_path, monkeypatch):
    output, original, calls = tmp_path / "out.npy", shards.fsync, []

    def full(path):
        calls.append(path)
        if len(calls) == write:
            raise OSError(28, "No space left on device")
        original(path)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "fsync", full)
        encode(output, parts=("No space left on device", "repeat the same command"))
    assert not output.exists()
    encode(output)
    assert output.read_bytes() == reference


def test_a_vector_that_the_dtype_cannot_represent_is_named_by_its_line(encode, tmp_path, monkeypatch):
    def huge(self, sentences, *args, **kwargs):
        vectors = ENCODE(self, sentences, *args, **kwargs)
        vectors[[text.endswith(" 21") for text in sentences]] *= 1e6
        return vectors

    monkeypatch.setattr(SentenceEncoder, "encode", huge)
    parts = ("text.txt, line 22", "not finite in float16", "--dtype float32")
    encode(tmp_path / "out.npy", "--dtype", "float16", parts=parts)
    encode(tmp_path / "out.npy", "--overwrite")


def test_a_file_that_changes_meanwhile_is_noticed(encode, texts, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(texts), encoding="utf-8")

    def slow(self, sentences, *args, **kwargs):
        with text.open("a") as file:
            file.write("one more\n")
        return ENCODE(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", slow)
    encode(tmp_path / "out.npy", text=text, parts=("changed while",))
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


def test_a_prompt_is_chosen_by_its_name_and_recorded_as_text(tiny, encode, text, texts, tmp_path):
    """An index of the file, with the same prompts, uses the vectors."""
    output = tmp_path / "out.npy"
    encode(output, "--prompts", "query=query: ", "passage=passage: ", "--prompt_name", "document")
    model = dcpcse.load(tiny("bert"), pooler="avg", prompts={"query": "query: ", "passage": "passage: "}, device="cpu")
    expected = model.encode([f"passage: {line}" for line in texts])
    assert_allclose(np.load(output), expected, atol=1e-6)
    assert options_of(output)["prompt_text"] == "passage: "
    (hit,) = dcpcse.SentenceIndex.build(model, text, vectors=output).search(texts[3], 1)
    scores = normalize_rows(expected) @ normalize_rows(model.encode([f"query: {texts[3]}"]))[0]
    assert hit.score == pytest.approx(scores.max(), abs=1e-6)


def test_shortened_vectors_are_scaled_and_recorded(encode, expected, tmp_path):
    output, lengths = tmp_path / "out.npy", np.linalg.norm(expected[:, :8], axis=1, keepdims=True)
    encode(output, "--truncate_dim", 8, "--normalize")
    assert_allclose(np.load(output), expected[:, :8] / lengths, atol=1e-6)
    assert options_of(output)["truncate_dim"] == 8
    encode(output, "--normalize", parts=("truncate_dim 8, now None",))


@pytest.mark.parametrize("precision", ["uint8", "binary"])
def test_codes_have_the_ranges_of_the_first_lines_and_are_recorded(precision, encode, expected, tmp_path):
    util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
    codes, output = util.quantize_embeddings(expected, precision), tmp_path / "out.npy"
    encode(output, "--precision", precision)
    vectors = np.load(output)
    assert (vectors.dtype, vectors.shape) == (codes.dtype, codes.shape)
    different = vectors != codes
    assert different.mean() < 0.01
    assert np.abs(vectors.astype(int) - codes)[different].max(initial=0) <= 1
    assert options_of(output)["precision"] == precision
    assert "no line was left" in encode(output, "--precision", precision).said
    if precision == "uint8":
        assert_allclose(options_of(output)["calibration"], [expected.min(0), expected.max(0)], atol=1e-6)
        encode(tmp_path / "out.arrow", "--precision", precision)
        table = pa.ipc.open_stream((tmp_path / "out.arrow").read_bytes()).read_all()
        assert table.schema.field("vector").type.value_type == pa.uint8()
        np.testing.assert_array_equal(np.array(table["vector"].to_pylist()), vectors)
    encode(output, "--precision", precision, "--dtype", "float16", parts=("contradicts", "--precision"))


def test_a_killed_worker_ends_the_run_with_one_line_and_the_work_is_kept(left, encode, reference):
    def kill() -> None:
        wait_for(multiprocessing.active_children)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    (killing := threading.Thread(target=kill)).start()
    parts = ("a worker process ended with exit code -9", "repeat the same command")
    encode(left, "--num_processes", 2, parts=parts)
    killing.join()
    assert not multiprocessing.active_children()
    assert DONE <= len(shards_of(left)) < LINES // CHUNK
    encode(left)
    assert left.read_bytes() == reference


def test_a_worker_that_loads_a_different_model_returns_the_mistake(tiny):
    job = EncodeJob(tiny("bert"), EncoderArguments(pooler_type="avg"), PrecisionOptions(), "float32")
    job, _ = job.identify(job.load("cpu"), "cpu")
    job.identity["trained"] = "0"
    worker = work_units._Worker(job.start, "cpu", 1, False)
    for i, sentence in enumerate(("one", "two")):
        error = pickle.loads(pickle.dumps(worker.run(Chunk(i, [sentence]))))  # as a process returns it
        assert isinstance(error, UserError)
        assert "is a different model on one of the workers (trained differ)" in str(error)
