"""Commands to which the system refuses something: one line, exit code 2, and nothing is left behind."""

import os
import resource
import shutil
from pathlib import Path

import pytest
from method_models import model_of
from runs import files, refused

from dcpcse.cli.main import main
from dcpcse.utils import text_lines

INFERENCE = ("--device", "cpu")
CLOSED = {
    "encoder": ("encoder", lambda d: ["similarity", d / "encoder", "--pooler", "avg", "A", "B", *INFERENCE]),
    "model": ("model", lambda d: ["similarity", d / "model", "A", "B", *INFERENCE]),
    "model below": ("x", lambda d: ["similarity", d / "x/model", "A", "B", *INFERENCE]),
    "info": ("x", lambda d: ["info", d / "x/model"]),
    "card": ("x", lambda d: ["card", d / "x/model", "--output", d / "c.md"]),
    "export": ("x", lambda d: ["export", d / "x/model", "--to", "peft", "--output", d / "e"]),
    "import": ("x", lambda d: ["import", d / "x/model", "--output", d / "e"]),
    "compare": ("x", lambda d: ["runs", "--compare", d / "x/model", d / "x/other"]),
    "report": ("x", lambda d: ["report", d / "x/model", "--output", d / "r.html"]),
    "index": (
        "x",
        lambda d: ["search", d / "encoder", "A", "--pooler", "avg", "--index", d / "x/index", *INFERENCE],
    ),
    "evaluation data": (
        "data/downstream/STS",
        lambda d: (
            [
                "evaluate",
                "--model_name_or_path",
                d / "encoder",
                "--pooler",
                "avg",
                "--data_dir",
                d / "data",
                "--custom_data",
                "--mode",
                "dev",
                *INFERENCE,
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_folder_is_one_line(name, tiny, sts_data, tool, tmp_path, without_rights):
    closed, argv = CLOSED[name]
    shutil.copytree(tiny("bert"), tmp_path / "encoder")
    model_of("dcpcse", tiny).save(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "x/model")
    shutil.copytree(sts_data, tmp_path / "data")
    before = files(tmp_path)
    (tmp_path / closed).chmod(0)
    try:
        refused(tool, main, [str(word) for word in argv(tmp_path)])
    finally:
        (tmp_path / closed).chmod(0o755)
    assert files(tmp_path) == before


def test_the_doctor_reports_a_closed_folder(tiny, tool, tmp_path, without_rights):
    model_of("dcpcse", tiny).save(tmp_path / "model")
    (tmp_path / "model").chmod(0)
    try:
        outcome = tool(main, ["doctor", str(tmp_path)])
    finally:
        (tmp_path / "model").chmod(0o755)
    assert outcome.code in (2, 3) and "Traceback" not in outcome.out + outcome.err


@pytest.mark.parametrize("to", ["onnx", "huggingface", "sentence-transformers"])
def test_an_export_beyond_the_largest_file_is_one_line(to, tiny, tool, tmp_path):
    """Libraries in Rust and C++ write these files, and report the limit in their own ways."""
    model_of("simcse", tiny).save(tmp_path / "model")
    before, limits = files(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        outcome = tool(main, ["export", str(tmp_path / "model"), "--to", to, "--output", str(tmp_path / "new")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert outcome.code == 2 and outcome.err.count("error: ") == 1 and "Traceback" not in outcome.err
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["s.txt", "s.csv", "s.jsonl"])
def test_a_line_without_end_is_one_line(name, train, tiny, tool, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MOST_LINE_BYTES", 1000)
    (tmp_path / name).write_text("a" * 5000, encoding="utf-8")
    argv = train.argv(tiny("bert"), str(tmp_path / name), tmp_path / "out")
    refused(tool, main, ["train", *argv], f"{name}, line 1", "1,000 bytes")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_record_of_20_gb_is_one_line(tiny, tool, tmp_path):
    model_of("dcpcse", tiny).save(tmp_path)
    os.truncate(tmp_path / "dcpcse.json", 20 * 2**30)
    refused(tool, main, ["info", str(tmp_path)], "dcpcse.json")


def test_names_in_other_encodings_are_one_line(train, tiny, train_txt, tool, tmp_path):
    name = str(tmp_path / os.fsdecode(b"aus-gr\xf6sse"))
    refused(tool, main, ["train", *train.argv(tiny("bert"), train_txt, Path(name))], "surrogates not allowed")
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_file_cannot_command_the_terminal(tiny, tool, tmp_path):
    pairs = tmp_path / "\x1b[31mx.tsv"
    pairs.write_text("one\ttwo\t1\nthree\tfour\t2\nfive\tsix\t0\n", encoding="utf-8")
    argv = ["evaluate", "--model_name_or_path", tiny("bert"), "--pooler", "avg", "--pairs", str(pairs), *INFERENCE]
    outcome = tool(main, argv)
    assert outcome.code == 0, outcome.err
    assert "\x1b[31m" not in outcome.out + outcome.err
    assert r"\u001b[31mx" in outcome.out
