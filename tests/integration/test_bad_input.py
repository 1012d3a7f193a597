"""Mistakes of users end in one line that gives the remedy, with exit code 2 and no files left behind.

docs/doctor.md shows a message of each kind of mistake, and these messages are compared word for word.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import FILES, GROUPS, TRAIN, UNUSED, VALUES, Case, rows_of
from runs import ROOT
from tables import check_rows

from dcpcse.cli.main import COMMANDS, find_command, main
from dcpcse.serving.arguments import KEY_VARIABLE

PAGE = ROOT / "docs/doctor.md"
PROGRESS = re.compile(r"(encode|score|index|mine): +\d+%|Generating \w+ split: ")  # the last one is of datasets


@pytest.fixture(scope="module")
def desk(tmp_path_factory, tiny, train_txt, train_csv, sts_data, sentences) -> Path:
    """A folder with everything that the cases name."""
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
    for name, content in {**FILES, "trained/scores.json": "{}"}.items():
        (desk / name).write_text(content, encoding="utf-8")
    return desk


@pytest.fixture(scope="module")
def examples() -> dict[tuple[str, str], tuple[str, str]]:
    """Kind and name of each mistake that the page shows → its command and its message."""
    lines = PAGE.read_text(encoding="utf-8").split("|---|---|---|---|\n")[1].splitlines()
    rows = [re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines]
    return {(kind, name): (command.strip("`"), message.strip("` ")) for kind, name, command, message in rows}


def state(folder: Path) -> dict[str, object]:
    """Every file and folder with what would change if it were written to."""
    return {
        str(path): (found.st_mtime_ns, found.st_size, found.st_ino) if path.is_file() else "folder"
        for path in folder.rglob("*")
        for found in [path.lstat()]
    }


@contextlib.contextmanager
def laid_out(case: Case, desk: Path) -> Iterator[dict[str, object]]:
    """What is on the desk once a case is laid out; all that the case puts there is removed afterwards."""
    at_first = state(desk)
    if case.prepare:
        case.prepare(desk)
    try:
        yield state(desk)
    finally:
        for path in sorted(set(state(desk)) - set(at_first)):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.unlink(path)
    assert state(desk) == at_first


@pytest.mark.parametrize("group", GROUPS)
def test_mistakes_end_in_one_line_and_change_nothing(group, desk, examples, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)  # with it, `dcpcse serve` may serve other machines

    def check(case: Case) -> None:
        with laid_out(case, desk) as before:
            code, said = in_this_process(case, str(tmp_path), capfd)
            assert code == 2, said
            (message,) = re.findall(r"^error: (.*)$", said, flags=re.MULTILINE)
            lines = [line for line in said.splitlines() if line and not PROGRESS.match(line)]
            assert lines[-1] == f"error: {message}"
            assert len(lines) == 1
            assert "Traceback" not in said
            assert case.named in message
            assert state(desk) == before
        if (group, case.name) in examples:
            assert examples[group, case.name] == (command_of(case), message.replace(f"{desk}/", ""))

    check_rows(GROUPS[group], check)


def test_values_that_cannot_be_and_options_without_effect_are_named(desk, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(desk)
    before = state(desk)

    def check(row: tuple[Case, str]) -> None:
        code, said = in_this_process(row[0], str(tmp_path), capfd)
        assert (code, said.count("\n")) == (2, 1), said
        assert said.startswith(f"error: {row[1]}"), said

    values = [(case, f"{option}: ") for case, option in rows_of(VALUES)]
    unused = [(case, f"{option.split()[0]} has no effect ") for case, option in rows_of(UNUSED)]
    check_rows([*values, *unused], check)
    assert state(desk) == before


def test_the_page_shows_mistakes_of_every_kind(examples):
    assert {group for group, _ in examples} == set(GROUPS)
    assert set(examples) <= {(group, case.name) for group, cases in GROUPS.items() for case in cases}


def command_of(case: Case) -> str:
    """The command of a case as the page shows it."""
    return f"dcpcse {case.command.replace(TRAIN, '...')}"


def in_this_process(case: Case, cache: str, capfd) -> tuple[int, str]:
    capfd.readouterr()
    code = main(case.words(cache))
    return code, capfd.readouterr().err


def test_every_command_names_an_option_that_it_does_not_have_and_has_a_help(tool):
    def check(command: str) -> None:
        outcome = tool(find_command(command), [*(["curves"] if command == "plot" else []), "--outptu_dri"])
        assert outcome.code == 2 and "unknown argument --outptu_dri" in outcome.err, outcome.err
        with pytest.raises(SystemExit) as ended:
            find_command(command)(["--help"])
        assert ended.value.code == 0

    check_rows(COMMANDS, check)
