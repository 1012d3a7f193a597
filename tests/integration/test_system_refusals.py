"""Commands to which the system refuses something: one line, exit code 2, and nothing is left behind."""

import os
import shutil
from pathlib import Path

import pytest
from method_models import model_of
from runs import files, refused
from tables import check_rows

from dcpcse.cli.main import main

CLOSED = (
    ("encoder", "similarity encoder --pooler avg A B --device cpu"),
    ("model", "similarity model A B --device cpu"),
    ("x", "export x/model --to peft --output e"),
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
def test_an_export_beyond_the_largest_file_is_one_line(to, tiny, tool, largest_file, tmp_path):
    """Libraries in Rust and C++ write these files, and report the limit in their own ways."""
    model_of("simcse", tiny).save(tmp_path / "model")
    before = files(tmp_path)
    with largest_file(4096):
        outcome = tool(main, ["export", str(tmp_path / "model"), "--to", to, "--output", str(tmp_path / "new")])
    assert outcome.code == 2 and outcome.err.count("error: ") == 1 and "Traceback" not in outcome.err
    assert files(tmp_path) == before


def test_names_and_records_beyond_all_limits_are_one_line(train, tiny, train_txt, tool, tmp_path):
    name = str(tmp_path / os.fsdecode(b"aus-gr\xf6sse"))
    refused(tool, main, ["train", *train.argv(tiny("bert"), train_txt, Path(name))], "surrogates not allowed")
    assert not list(tmp_path.iterdir())
    model_of("dcpcse", tiny).save(tmp_path / "model")
    os.truncate(tmp_path / "model/dcpcse.json", 20 * 2**30)
    refused(tool, main, ["info", str(tmp_path / "model")], "dcpcse.json")
