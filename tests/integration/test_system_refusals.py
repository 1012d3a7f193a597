"""Commands to which the system refuses something: one line, exit code 2, and nothing is left behind."""

import os
import resource
import shutil
from pathlib import Path

import pytest
from method_models import model_of
from runs import files, refused
from tables import check_rows

from dcpcse.cli.main import main
from dcpcse.utils import text_lines

CLOSED = (
    ("encoder", "similarity encoder --pooler avg A B --device cpu"),
    ("model", "similarity model A B --device cpu"),
    ("x", "info x/model"),
    ("x", "export x/model --to peft --output e"),
    ("x", "runs --compare x/model x/other"),
    ("x", "search encoder A --pooler avg --index x/index --device cpu"),
    ("data/downstream/STS", "evaluate encoder --pooler avg --data_dir data --custom_data --mode dev"),
)
"""A folder that the user may not read, and a command that needs it."""


def test_a_closed_folder_is_one_line(tiny, sts_data, tool, tmp_path, without_rights, monkeypatch):
    shutil.copytree(tiny("bert"), tmp_path / "encoder")
    model_of("dcpcse", tiny).save(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "x/model")
    shutil.copytree(sts_data, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)

    def check(row: tuple[str, str]) -> None:
        Path(row[0]).chmod(0)
        try:
            refused(tool, main, row[1].split())
            outcome = tool(main, ["doctor", row[0]])
        finally:
            Path(row[0]).chmod(0o755)
        assert outcome.code in (2, 3) and "Traceback" not in outcome.out + outcome.err
        assert files(tmp_path) == before

    check_rows(CLOSED, check)


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


def test_lines_records_and_names_beyond_all_limits_are_one_line(train, tiny, train_txt, tool, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MOST_LINE_BYTES", 1000)
    for name in ("s.txt", "s.csv", "s.jsonl"):
        (tmp_path / name).write_text("a" * 5000, encoding="utf-8")
        argv = train.argv(tiny("bert"), str(tmp_path / name), tmp_path / "out")
        refused(tool, main, ["train", *argv], f"{name}, line 1", "1,000 bytes")
    name = str(tmp_path / os.fsdecode(b"aus-gr\xf6sse"))
    refused(tool, main, ["train", *train.argv(tiny("bert"), train_txt, Path(name))], "surrogates not allowed")
    assert len(list(tmp_path.iterdir())) == 3
    model_of("dcpcse", tiny).save(tmp_path / "model")
    os.truncate(tmp_path / "model/dcpcse.json", 20 * 2**30)
    refused(tool, main, ["info", str(tmp_path / "model")], "dcpcse.json")


def test_the_name_of_a_file_cannot_command_the_terminal(tiny, tool, tmp_path):
    pairs = tmp_path / "\x1b[31mx.tsv"
    pairs.write_text("one\ttwo\t1\nthree\tfour\t2\nfive\tsix\t0\n", encoding="utf-8")
    argv = ["evaluate", "--model_name_or_path", tiny("bert"), "--pooler", "avg", "--pairs", str(pairs)]
    outcome = tool(main, [*argv, "--device", "cpu"])
    assert outcome.code == 0, outcome.err
    assert "\x1b[31m" not in outcome.out + outcome.err
    assert r"\u001b[31mx" in outcome.out
