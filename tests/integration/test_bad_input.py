"""Mistakes of users end in one line that gives the remedy, with exit code 2 and no files left behind.

docs/doctor.md shows a message of each kind of mistake, and these messages are compared word for word.
"""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import GROUPS, STSB, TRAIN, Case
from runs import ROOT, Pairs
from tables import check_rows

from dcpcse.cli.main import COMMANDS, find_command, main
from dcpcse.serving.arguments import KEY_VARIABLE

PAGE = ROOT / "docs/doctor.md"
PROGRESS = re.compile(r"(encode|score|index|mine): +\d+%|Generating \w+ split: ")  # the last one is of datasets


@pytest.fixture(scope="module")
def desk(tmp_path_factory, tiny, train_txt, train_csv, sts_data, sentences) -> Path:
    """A folder with everything that the cases name."""
    desk = tmp_path_factory.mktemp("desk")
    for kind in ("bert", "roberta", "distilbert", "albert", "deberta"):
        shutil.copytree(tiny(kind), desk / kind)
    shutil.copytree(sts_data, desk / "sts")
    shutil.copyfile(train_txt, desk / "train.txt")
    shutil.copyfile(train_csv, desk / "pairs.csv")
    (desk / "corpus.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    before = os.getcwd()
    os.chdir(desk)
    try:
        results = {"trained": "", "other": "--seed 3", "tuned": "--method simcse", "adapted": "--tuning lora"}
        for name, options in results.items():
            usual = TRAIN.replace("--output_dir out", f"--output_dir {name}").split()
            assert main(["train", *usual, "--cache_dir", str(desk.parent), *options.split()]) == 0
        measured = f"--model_name_or_path trained --data_dir sts --custom_data --mode dev {STSB}".split()
        assert main(["evaluate", *measured, "--output_file", "trained/scores.json"]) == 0
    finally:
        os.chdir(before)
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
    case.lay_out(desk)
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
def test_mistakes_end_in_one_line_and_change_nothing(group, desk, examples, tmp_path, capfd, monkeypatch, request):
    monkeypatch.chdir(desk)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)  # with it, `dcpcse serve` may serve other machines

    def check(case: Case) -> None:
        cache = str(tmp_path / str(GROUPS[group].index(case)))
        os.mkdir(cache)
        with laid_out(case, desk) as before, monkeypatch.context() as patch, contextlib.ExitStack() as stack:
            if case.missing:
                patch.setitem(sys.modules, case.missing, None)
            if case.offline:
                from hub_server import serving  # it needs huggingface_hub 2, which the other tests do not

                stack.enter_context(serving(patch, Path(cache) / "hub")).unreachable = True
            if case.program:
                code, said = in_own_process(case, desk, cache, request.getfixturevalue("pairs"))
            else:
                code, said = in_this_process(case, cache, capfd)
            assert code == 2, said
            (message,) = re.findall(r"^error: (.*)$", said, flags=re.MULTILINE)
            lines = [line for line in said.splitlines() if line and not PROGRESS.match(line)]
            assert lines[-1] == f"error: {message}"
            assert case.program or len(lines) == 1
            assert "Traceback" not in said
            assert case.given in message
            assert state(desk) == before
        if (group, case.name) in examples:
            assert examples[group, case.name] == (command_of(case), message.replace(f"{desk}/", ""))

    check_rows(GROUPS[group], check)


def test_the_page_shows_mistakes_of_every_kind(examples):
    assert {group for group, _ in examples} == set(GROUPS)
    assert set(examples) <= {(group, case.name) for group, cases in GROUPS.items() for case in cases}


def command_of(case: Case) -> str:
    """The command of a case as the page shows it."""
    command = case.command.replace(TRAIN, "...")
    if not case.program:
        return f"dcpcse {command}"
    name, rest = command.split(" ", 1)
    return f"{case.program} {rest if case.program.endswith('.py') else f'{name} {rest}'}"


def in_this_process(case: Case, cache: str, capfd) -> tuple[int, str]:
    capfd.readouterr()
    code = main(case.words(cache))
    return code, capfd.readouterr().err


def in_own_process(case: Case, desk: Path, cache: str, pairs: Pairs) -> tuple[int, str]:
    words = case.words(cache)
    script = [case.program, *words[1:]] if case.program.endswith(".py") else ["dcpcse/__main__.py", *words]
    script[0] = ROOT / script[0]
    done = pairs.alone(*script, cwd=desk)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_nearest_option_and_tells_of_debug(command, tool):
    outcome = tool(find_command(command), [*(["curves"] if command == "plot" else []), "--outptu_dri"])
    assert outcome.code == 2 and "unknown argument --outptu_dri" in outcome.err, outcome.err
    with pytest.raises(SystemExit) as ended:
        find_command(command)(["--help"])
    assert ended.value.code == 0
