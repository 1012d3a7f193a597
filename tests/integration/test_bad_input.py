"""Mistakes of users end in one line that gives the remedy, with exit code 2 and no files left behind.

docs/doctor.md shows a message of each kind of mistake, and these messages are compared word for word.
"""

import contextlib
import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import FILES, GROUPS, TRAIN, UNUSED, VALUES, rows_of, words_of
from runs import ROOT
from tables import check_rows

from dcpcse.cli.main import COMMANDS, find_command, main
from dcpcse.serving.arguments import KEY_VARIABLE

PAGE = ROOT / "docs/doctor.md"
PROGRESS = re.compile(r"(encode|score|index|mine): +\d+%|Generating \w+ split: ")  # the last one is of datasets


@pytest.fixture(scope="module")
def desk(tmp_path_factory, tiny, train_txt, train_csv, sts_data, sentences) -> Iterator[Path]:
    """A folder with everything that the cases name; another process, by its lock, writes into the folder held."""
    desk = tmp_path_factory.mktemp("desk")
    for kind in ("bert", "roberta", "distilbert", "albert"):
        shutil.copytree(tiny(kind), desk / kind)
    shutil.copytree(sts_data, desk / "sts")
    shutil.copyfile(train_txt, desk / "train.txt")
    shutil.copyfile(train_csv, desk / "pairs.csv")
    (desk / "corpus.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    with contextlib.chdir(desk):
        for name, options in {"trained": [], "tuned": ["--method", "simcse"]}.items():
            usual = TRAIN.replace("--output_dir out", f"--output_dir {name}").split()
            assert main(["train", *usual, "--cache_dir", str(desk.parent), *options]) == 0
    for name in ("held", "damaged", "labels"):
        (desk / name).mkdir()
    for name, content in FILES.items():
        (desk / name).write_text(content, encoding="utf-8")
    weights = shutil.copytree(desk / "bert", desk / "cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    (shutil.copytree(desk / "trained", desk / "copy") / "tokenizer.json").unlink()
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (shutil.copytree(desk / "bert", desk / "maskless") / "tokenizer_config.json").write_text(json.dumps(tokens))
    dev = shutil.copytree(desk / "sts", desk / "data") / "downstream/STS/STSBenchmark/sts-dev.csv"
    first, second, *rest = dev.read_text(encoding="utf-8").splitlines()
    dev.write_text("\n".join([first, second.replace(second.split("\t")[4], "", 1), *rest]) + "\n", encoding="utf-8")
    with open(desk / "held/.dcpcse.lock", "w") as lock:
        json.dump({"process": 4711, "host": "node7", "since": "2026-11-20T08:00:00+00:00"}, lock)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield desk


@pytest.fixture
def examples() -> dict[tuple[str, str], str]:
    """Kind and command of each mistake that the page shows → its message."""
    lines = PAGE.read_text(encoding="utf-8").split("|---|---|---|---|\n")[1].splitlines()
    rows = [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines]
    return {(kind, command.strip("`")): message.strip("` ") for kind, _, command, message in rows}


@pytest.fixture
def said(desk, tmp_path, capfd, monkeypatch):
    """said(command) → the lines on stderr of a command that is refused; in the end nothing on the desk has changed."""
    monkeypatch.chdir(desk)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)  # with it, `dcpcse serve` may serve other machines

    before = state(desk)

    def call(command: str) -> list[str]:
        capfd.readouterr()
        code = main(words_of(command, str(tmp_path)))
        lines = capfd.readouterr().err.splitlines()
        assert code == 2, lines
        return [line for line in lines if line and not PROGRESS.match(line)]

    yield call
    assert state(desk) == before


def state(folder: Path) -> dict[str, object]:
    """Every file and folder with what would change if it were written to."""
    return {
        str(path): (found.st_mtime_ns, found.st_size, found.st_ino) if path.is_file() else "folder"
        for path in folder.rglob("*")
        for found in [path.lstat()]
    }


@pytest.mark.parametrize("group", GROUPS)
def test_mistakes_end_in_one_line_and_change_nothing(group, desk, said, examples):
    before = state(desk)

    def check(case: tuple[str, str]) -> None:
        command, part = case
        (line,) = said(command)
        assert state(desk) == before
        assert line.startswith("error: ")
        assert (part or "--" + command.rpartition("--")[2].split()[0]) in line
        shown = examples.pop((group, f"dcpcse {command.replace(TRAIN, '...')}"), line)
        assert shown in (line, line.removeprefix("error: ").replace(f"{desk}/", ""))

    check_rows(GROUPS[group].items(), check)
    assert group not in {kind for kind, _ in examples}  # what is left is no case


def test_the_page_shows_mistakes_of_every_kind(examples):
    assert {group for group, _ in examples} == set(GROUPS)


def test_values_that_cannot_be_and_options_without_effect_are_named(said):
    def check(row: tuple[str, str]) -> None:
        (line,) = said(row[0])
        assert line.startswith(f"error: {row[1]}")

    values = [(command, f"{option}: ") for command, option in rows_of(VALUES)]
    unused = [(command, f"{option.split()[0]} has no effect ") for command, option in rows_of(UNUSED)]
    check_rows([*values, *unused], check)


def test_every_command_names_an_option_that_it_does_not_have_and_has_a_help(tool):
    def check(command: str) -> None:
        outcome = tool(find_command(command), [*(["curves"] if command == "plot" else []), "--outptu_dri"])
        assert outcome.code == 2 and "unknown argument --outptu_dri" in outcome.err, outcome.err
        with pytest.raises(SystemExit) as ended:
            find_command(command)(["--help"])
        assert ended.value.code == 0

    check_rows(COMMANDS, check)
