"""Mistakes of users end in one line that gives the remedy, with exit code 2 and no files left behind.

docs/bad-input.md is the table of all mistakes; this file writes it if DCPCSE_WRITE_TABLE=1 is set in the environment.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import GROUPS, STSB, TRAIN, Case
from runs import ROOT, Pairs

from dcpcse.cli.main import COMMANDS, find_command, main
from dcpcse.inference.arguments import KEY_VARIABLE

PAGE = ROOT / "docs/bad-input.md"
OF_THIS_MACHINE = r"(?<=is )[0-9a-f]{12}(?=…)|(?<=not )[0-9a-f]{12}(?=…)| \(char \d+\)"
"""Digests of trained numbers, and places in files that hold paths."""
OF_THIS_PROCESS = r"(?<=gives only )\d+(?= tokens)|(?<=to at most )\d+(?=, or give more text)"
"""Sizes of vocabularies: the library tokenizers breaks ties differently in every process."""
PROGRESS = re.compile(r"(encode|score|index|mine): +\d+%|Generating \w+ split: ")  # the last one is of datasets
WRITES = bool(os.environ.get("DCPCSE_WRITE_TABLE"))
CASES = {f"{group}: {case.name}": (group, case) for group, cases in GROUPS.items() for case in cases}

HEAD = """# Error messages

The messages for {count} mistakes. `tests/integration/test_bad_input.py` tries each mistake, writes this page, and
fails if the page is out of date. Every mistake ends with exit code 2 and a single line on stderr, which starts with
`error: ` (left out here) and can follow lines of progress. Files and folders remain unchanged. `--debug` shows the
traceback. In the commands, `...` stands for other, correct options; bert, roberta, distilbert, albert and deberta
are encoders; trained, tuned, adapted and other are results of train.py.
"""


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
def messages() -> dict[str, str]:
    """Case → its message: what the page says, or, where it is written anew, what the tests before have heard."""
    return {} if WRITES else read_page()


def state(folder: Path) -> dict[str, object]:
    """Every file and folder with what would change if it were written to."""
    return {
        str(path): (found.st_mtime_ns, found.st_size, found.st_ino) if path.is_file() else "folder"
        for path in folder.rglob("*")
        for found in [path.lstat()]
    }


@pytest.fixture
def laid_out(desk, monkeypatch) -> Iterator:
    """laid_out(case) → what is on the desk then; all that a case puts there is gone afterwards."""
    at_first = state(desk)
    monkeypatch.chdir(desk)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)  # with it, `dcpcse serve` may serve other machines

    def lay_out(case: Case) -> dict[str, object]:
        case.lay_out(desk)
        return state(desk)

    yield lay_out
    for path in sorted(set(state(desk)) - set(at_first)):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    assert state(desk) == at_first


@pytest.mark.parametrize("key", CASES)
def test_a_mistake_ends_in_one_line_and_changes_nothing(
    key, desk, laid_out, messages, tmp_path, capfd, monkeypatch, request
):
    _, case = CASES[key]
    before = laid_out(case)
    if case.missing:
        monkeypatch.setitem(sys.modules, case.missing, None)
    if case.offline:
        request.getfixturevalue("server").unreachable = True
    if case.program:
        code, said = in_own_process(case, desk, str(tmp_path), request.getfixturevalue("pairs"))
    else:
        code, said = in_this_process(case, str(tmp_path), capfd)
    assert code == 2, said
    (message,) = re.findall(r"^error: (.*)$", said, flags=re.MULTILINE)
    lines = [line for line in said.splitlines() if line and not PROGRESS.match(line)]
    assert lines[-1] == f"error: {message}"
    assert case.program or len(lines) == 1
    assert "Traceback" not in said
    assert case.given in message
    assert state(desk) == before
    neutral = message.replace(f"{desk}/", "").replace(str(desk), ".").replace(str(tmp_path), "CACHE")
    neutral = re.sub(OF_THIS_PROCESS, "90", re.sub(OF_THIS_MACHINE, "", neutral))
    if WRITES:
        messages[key] = neutral
    assert messages[key] == neutral


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


def test_the_page_holds_every_case_in_order_and_nothing_else(messages):
    if WRITES:
        PAGE.write_text(page(messages), encoding="utf-8")
    assert list(messages) == list(CASES)
    assert len(CASES) >= 100
    assert PAGE.read_text(encoding="utf-8") == page(messages)


def page(messages: dict[str, str]) -> str:
    parts = [HEAD.format(count=len(messages))]
    for group, cases in GROUPS.items():
        rows = [f"| {case.name} | {code(shown(case))} | {code(messages[f'{group}: {case.name}'])} |" for case in cases]
        parts.append("\n".join([f"## {group}\n", "| mistake | command | message |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def shown(case: Case) -> str:
    command = case.command.replace(TRAIN, "...")
    if not case.program:
        return command
    name, rest = command.split(" ", 1)
    return f"{case.program} {rest if case.program.endswith('.py') else f'{name} {rest}'}"


def code(text: str) -> str:
    mark = "``" if "`" in text else "`"
    gap = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{mark}{gap}{text}{gap}{mark}".replace("|", "\\|")


def read_page() -> dict[str, str]:
    """Case → message, of the page as it is."""
    found, group = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            group = line[3:]
        elif group and line.startswith("| ") and not line.startswith("| mistake"):
            name, _, message = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"), maxsplit=2)
            mark = "``" if message.startswith("``") else "`"
            plain = message.removeprefix(mark).removesuffix(mark).replace("\\|", "|")
            found[f"{group}: {name}"] = plain.strip() if mark == "``" else plain
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_nearest_option_and_tells_of_debug(command, tool):
    outcome = tool(find_command(command), [*(["curves"] if command == "plot" else []), "--outptu_dri"])
    assert outcome.code == 2 and "unknown argument --outptu_dri" in outcome.err, outcome.err
    with pytest.raises(SystemExit) as ended:
        find_command(command)(["--help"])
    assert ended.value.code == 0
