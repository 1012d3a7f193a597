"""The commands of README and docs parse, their links lead somewhere, and their tables name every option."""

import argparse
import importlib
import re
import shlex
from dataclasses import fields
from itertools import dropwhile, takewhile
from pathlib import Path

import pytest
import transformers
from tables import check_rows

from dcpcse.cli.commands.plot import PLOTS
from dcpcse.cli.legacy_options import TRAINING_NAMES
from dcpcse.cli.main import COMMANDS, FORMER
from dcpcse.cli.parse import evaluation_parser, parse_evaluation, parse_training
from dcpcse.encoders.pooling import POOLERS
from dcpcse.experiments.reproduction.published_rows import find_rows
from dcpcse.methods import fill_defaults, option_parts
from dcpcse.methods.arguments import ModelArguments
from dcpcse.training.arguments import DataArguments, TrainingArguments

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
EVERYTHING = "\n".join([README, *PAGES.values()]).replace(PAGES["doctor"].split("## Error messages")[1], "")
"""All pages without the examples of mistakes, whose options need not exist."""
BLOCKS = [
    block
    for page in (README, *PAGES.values())
    for block in re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
]

OWN_FILES = {
    found[1]: text for kind, text in BLOCKS if kind == "python" and (found := re.match(r"# (\w+\.py)\n", text))
}
"""Files that a page has its reader write."""


def commands(script: str) -> list[list[str]]:
    """The arguments of every call of a script in the README's shell blocks."""
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index(script) + 1 :] for line in words if script in line]


def test_the_readme_names_the_versions_that_the_doctor_accepts():
    lines = (ROOT / "dcpcse/doctor/supported.txt").read_text(encoding="utf-8").splitlines()
    ranges = dict(line.split(">=") for line in lines)
    assert f"Python {ranges['python']} or newer" in README
    for name in ("torch", "transformers"):
        lowest, above = ranges[name].split(",<")
        major, minor = above.split(".")
        assert f"{name} {lowest} to {major}.{int(minor) - 1}" in README


def unnamed(parser: argparse.ArgumentParser, page: str) -> list[str]:
    """Options that a page does not name; transformers' parser adds --no_x to every x that is on."""
    options = [action.option_strings for action in parser._actions if action.option_strings]
    options = [names for names in options if "--help" not in names and not names[0].startswith("--no_")]
    return [names[0] for names in options if not re.search(rf"[` ]({'|'.join(names)})\b", page)]


@pytest.mark.usefixtures("methods_of_this_test")
def test_every_command_of_training_and_evaluation_parses(tmp_path, monkeypatch):
    for name, code in OWN_FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("model_name_or_path: bert-base-uncased\n", encoding="utf-8")

    def check(argv):
        argv = ["run.yaml", *argv[1:]] if argv[0].endswith(".yaml") else argv
        (model, _, run), given = parse_training(argv)
        columns = ["anchor"] if model.guide is None else ["anchor", "positive"]  # the guide is for pairs
        assert fill_defaults(model, columns).model_name_or_path
        assert run.output_dir and "output_dir" in given

    assert len(commands("train.py")) >= 4
    check_rows(commands("train.py"), check)
    assert len(commands("evaluation.py")) >= 4
    assert all(parse_evaluation(argv)[0].model_name_or_path for argv in commands("evaluation.py"))
    assert not unnamed(evaluation_parser(), PAGES["evaluation"])


def calls_of(command: str) -> list[list[str]]:
    """The arguments of every call of a command of `dcpcse`, which has one or two words."""
    named = [(" ".join(argv[:2]) if " ".join(argv[:2]) in COMMANDS else argv[0], argv) for argv in commands("dcpcse")]
    return [argv[len(command.split()) :] for name, argv in named if name == command]


def test_pages_name_the_present_commands_only():
    pattern = re.compile(rf"dcpcse ({'|'.join(FORMER)})(?![\w-])")
    pages = {**PAGES, "README": README}
    assert not [(name, match[0]) for name, page in pages.items() for match in pattern.finditer(page)]


PAGE_OF: dict[str, str | None] = {
    **{name: name for name in ("adapt", "compare", "doctor", "mine", "quickstart", "search", "serve")},
    **dict.fromkeys(("export", "hub card", "hub pull", "hub push", "import", "info"), "formats"),
    **{"encode": "encoding", "plot report": "training", "plot runs": "training", "reproduce": "reproduction"},
    **{"reproduce verify": "reproduction", "search similarity": "search", "serve demo": "serve"},
    **dict.fromkeys(("plot predictions", "pretrain corrupt", "reproduce search", "reproduce templates")),
}
"""Command of `dcpcse` that is shown somewhere → the page of docs/ that names all its options."""


def parser_of(name: str) -> argparse.ArgumentParser:
    module = importlib.import_module(f"dcpcse.cli.commands.{COMMANDS[name].module}")
    return getattr(module, f"{(COMMANDS[name].former or name).replace('-', '_')}_parser")()


def test_every_shown_command_parses_and_its_page_names_every_option():
    def check(command):
        page, parser, calls = PAGE_OF[command], parser_of(command), calls_of(command)
        assert calls
        for argv in calls:
            own, rest = [*takewhile("--".__ne__, argv)], [*dropwhile("--".__ne__, argv)]
            args = parser.parse_args(own)
            assert command != "reproduce" or args.list or find_rows(args.rows)
            if rest[1:] and command not in ("doctor", "reproduce"):
                parse_training([*rest[1:], "--output_dir", "out"])
        assert not page or not unnamed(parser, PAGES[page])

    check_rows(PAGE_OF, check)


def test_every_picture_has_a_command_that_parses_and_is_shown():
    calls = calls_of("plot")
    assert {argv[0] for argv in calls} == set(PLOTS)
    for argv in calls:
        args, unknown = parser_of("plot").parse_known_args(argv)
        assert args.kind == argv[0] and not unknown
    shown = re.findall(r"\]\(([\w-]+\.png)\)", PAGES["training"])
    assert {Path(path).stem for path in shown} == set(PLOTS)
    assert all((ROOT / "docs" / path).is_file() for path in shown)


def test_every_script_that_the_readme_calls_is_there():
    lines = [line.split() for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    called = {words[1] for words in lines if words[:1] == ["bash"]}
    assert {"run_quickstart.sh", "run_tests.sh"} <= called
    assert all((ROOT / script).is_file() for script in called)


def own_options() -> set[str]:
    inherited = {f.name: f.default for f in fields(transformers.TrainingArguments)}
    run = {f.name for f in fields(TrainingArguments) if f.name not in inherited or f.default != inherited[f.name]}
    own = {f.name for kind in (ModelArguments, *option_parts(), DataArguments) for f in fields(kind)}
    return own | (run - {"include_for_metrics"})


def test_the_pages_name_every_option_of_training_and_every_pooler():
    documented = set(re.findall(r"`--(\w+)[` ]", PAGES["training"] + PAGES["methods"]))  # those of a method are there
    assert not own_options() - documented
    assert all(f"| `{name}` |" in PAGES["training"] for name in POOLERS)


OF_OTHER_PROGRAMS = """
debug no whole nproc_per_node nnodes node_rank master_addr master_port
no-deps dest only-binary python-version head port address
requeue signal wrap nodes ntasks-per-node gpus-per-node cpus-per-task
tokenizer text sides hidden heads times_only toy only jobs page keep_models layers encoder save strict kind
adapter sentences rounds processor_time rows spread repeats report trec exclude list runs seconds findings most
over_training projection count lines cell study task split matrix no_bins precisions
"""
"""Of torchrun, pip, ray and sbatch, of benchmarks and the tests, and of the kinds of plots."""


def test_no_option_is_named_that_does_not_exist():
    kinds = (ModelArguments, *option_parts(), DataArguments, TrainingArguments)
    parsers = [evaluation_parser(), *map(parser_of, ("pretrain", *PAGE_OF))]
    words = {name[2:] for parser in parsers for action in parser._actions for name in action.option_strings}
    words |= {field.name for kind in kinds for field in fields(kind)}
    words |= set(re.findall(r"^    (\w+): \w+ \| None = option", "\n".join(OWN_FILES.values()), re.MULTILINE))
    words |= {*OF_OTHER_PROGRAMS.split(), *TRAINING_NAMES.renamed, *TRAINING_NAMES.meaning}
    assert sorted(set(re.findall(r"--([a-z][\w-]*)", EVERYTHING)) - words) == []


def anchors(page: str) -> set[str]:
    """The names by which a page's headings are linked to (GitHub's, and myst's)."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_to_a_page_and_a_heading_that_are_there():
    faults = []
    for name, page in {"README": README, **PAGES}.items():
        home = ROOT if name == "README" else ROOT / "docs"
        for target in [target for target in re.findall(r"\]\(([^)\s]+)\)", page) if "://" not in target]:
            file, _, anchor = target.partition("#")
            found = home / (file or f"{name}.md")
            if not found.is_file() or (anchor and anchor not in anchors(found.read_text(encoding="utf-8"))):
                faults.append(f"{name}: {target}")
    assert not faults, "\n".join(faults)


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.splitlines()) <= 150
    linked = set(re.findall(r"\]\(docs/([\w-]+)\.md", README))
    assert not set(PAGES) - linked - {"index", "api"}  # the site's own front page and reference


def test_every_promise_of_security_names_a_test_that_there_is():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, flags=re.MULTILINE)}
    assert len(named) >= 30
    assert not named - there
    promises = re.search(r"\| promise \| held by \|\n\|---\|---\|\n((?:\|.*\n)+)", page)[1].splitlines()
    assert all("`test_" in line for line in promises)
