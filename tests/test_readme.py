"""The commands of README and docs parse, their links lead somewhere, and their tables name every option."""

import argparse
import re
import shlex
from collections.abc import Callable
from dataclasses import fields
from itertools import takewhile
from pathlib import Path

import pytest
import transformers

from dcpcse.cli.commands.adapt import adapt_parser
from dcpcse.cli.commands.compare import compare_parser
from dcpcse.cli.commands.demo import demo_parser
from dcpcse.cli.commands.doctor import doctor_parser
from dcpcse.cli.commands.encode import encode_parser
from dcpcse.cli.commands.export import export_parser
from dcpcse.cli.commands.hub import card_parser, pull_parser, push_parser
from dcpcse.cli.commands.import_ import import_parser
from dcpcse.cli.commands.info import info_parser
from dcpcse.cli.commands.mine import mine_parser
from dcpcse.cli.commands.plot import PLOTS, plot_parser
from dcpcse.cli.commands.predict import predict_parser
from dcpcse.cli.commands.pretrain import corrupt_parser, pretrain_parser
from dcpcse.cli.commands.quickstart import quickstart_parser
from dcpcse.cli.commands.report import report_parser
from dcpcse.cli.commands.reproduce import reproduce_parser
from dcpcse.cli.commands.runs import runs_parser
from dcpcse.cli.commands.search import search_parser as lookup_parser
from dcpcse.cli.commands.search_hyperparameters import search_hyperparameters_parser as hyperparameter_parser
from dcpcse.cli.commands.search_templates import search_templates_parser
from dcpcse.cli.commands.serve import serve_parser
from dcpcse.cli.commands.similarity import similarity_parser
from dcpcse.cli.commands.verify import verify_parser
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


def test_there_are_commands_to_check():
    assert len(commands("train.py")) >= 4
    assert len(commands("evaluation.py")) >= 4


def test_the_readme_names_the_versions_that_the_doctor_accepts():
    lines = (ROOT / "dcpcse/doctor/supported.txt").read_text(encoding="utf-8").splitlines()
    ranges = dict(line.split(">=") for line in lines)
    assert f"Python {ranges['python']} or newer" in README
    for name in ("torch", "transformers"):
        lowest, above = ranges[name].split(",<")
        major, minor = above.split(".")
        assert f"{name} {lowest} to {major}.{int(minor) - 1}" in README


@pytest.mark.usefixtures("methods_of_this_test")
@pytest.mark.parametrize("argv", commands("train.py"), ids=lambda argv: argv[0])
def test_every_training_command_parses(argv, tmp_path, monkeypatch):
    for name, code in OWN_FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if argv[0].endswith(".yaml"):
        options = tmp_path / "run.yaml"
        options.write_text("model_name_or_path: bert-base-uncased\n", encoding="utf-8")
        argv = [str(options), *argv[1:]]
    (model, _, run), given = parse_training(argv)
    columns = ["anchor"] if model.guide is None else ["anchor", "positive"]  # the guide is for pairs
    assert fill_defaults(model, columns).model_name_or_path
    assert run.output_dir
    assert "output_dir" in given


@pytest.mark.parametrize("argv", commands("evaluation.py"), ids=lambda argv: argv[1])
def test_every_evaluation_command_parses(argv):
    args, _ = parse_evaluation(argv)
    assert args.model_name_or_path


def calls_of(command: str) -> list[list[str]]:
    """The arguments of every call of a command of `dcpcse`, which has one or two words."""
    named = [(" ".join(argv[:2]) if " ".join(argv[:2]) in COMMANDS else argv[0], argv) for argv in commands("dcpcse")]
    return [argv[len(command.split()) :] for name, argv in named if name == command]


def test_pages_name_the_present_commands_only():
    pattern = re.compile(rf"dcpcse ({'|'.join(FORMER)})(?![\w-])")
    pages = {**PAGES, "README": README}
    assert not [(name, match[0]) for name, page in pages.items() for match in pattern.finditer(page)]


SHOWN = {
    "plot predictions": predict_parser,
    "reproduce templates": search_templates_parser,
    "pretrain corrupt": corrupt_parser,
    "encode": encode_parser,
    "reproduce search": hyperparameter_parser,
}
"""Command of `dcpcse` that is shown somewhere → its parser."""


@pytest.mark.parametrize("command", SHOWN)
def test_every_shown_command_parses(command):
    calls = calls_of(command)
    assert calls
    for argv in calls:
        split = argv.index("--") if "--" in argv else len(argv)
        assert SHOWN[command]().parse_args(argv[:split])
        if argv[split + 1 :]:
            parse_training([*argv[split + 1 :], "--output_dir", "out"])


def test_every_command_of_reproduction_parses_and_finds_rows():
    calls = calls_of("reproduce")
    assert len(calls) >= 4
    for argv in calls:
        args = reproduce_parser().parse_args(argv)
        assert args.list or find_rows(args.rows)


def test_the_table_names_every_option_of_reproduction():
    known = [action.option_strings[0] for action in reproduce_parser()._actions if action.option_strings]
    assert not [name for name in known if name != "-h" and f"`{name}" not in PAGES["reproduction"]]


@pytest.mark.parametrize(("command", "parser"), [("plot runs", runs_parser), ("plot report", report_parser)])
def test_every_command_about_runs_parses_and_every_option_is_named(command, parser):
    calls = calls_of(command)
    assert calls
    assert all(parser().parse_args(argv) for argv in calls)
    known = [action.option_strings[0] for action in parser()._actions if action.option_strings]
    assert not [name for name in known if name != "-h" and name not in PAGES["training"]]


DESCRIBED: dict[str, tuple[str, Callable[[], argparse.ArgumentParser]]] = {
    "adapt": ("adapt", adapt_parser),
    "compare": ("compare", compare_parser),
    "serve demo": ("serve", demo_parser),
    "doctor": ("doctor", doctor_parser),
    "export": ("formats", export_parser),
    "import": ("formats", import_parser),
    "info": ("formats", info_parser),
    "mine": ("mine", mine_parser),
    "search similarity": ("search", similarity_parser),
    "search": ("search", lookup_parser),
    "serve": ("serve", serve_parser),
    "hub card": ("formats", card_parser),
    "hub pull": ("formats", pull_parser),
    "hub push": ("formats", push_parser),
    "quickstart": ("quickstart", quickstart_parser),
    "reproduce verify": ("reproduction", verify_parser),
}
"""Command of `dcpcse` → the page of docs/ that describes it, and its parser."""


@pytest.mark.parametrize("command", DESCRIBED)
def test_every_described_command_parses_and_its_page_names_every_option(command):
    page, parser = DESCRIBED[command]
    calls = [[*takewhile("--".__ne__, argv)] for argv in calls_of(command)]
    assert calls
    assert all(parser().parse_args(argv) for argv in calls)
    known = [action.option_strings[0] for action in parser()._actions if action.option_strings]
    assert not [name for name in known if name != "-h" and f"`{name}" not in PAGES[page]]


def test_every_picture_has_a_command_that_parses_and_is_shown():
    calls = calls_of("plot")
    assert {argv[0] for argv in calls} == set(PLOTS)
    for argv in calls:
        args, unknown = plot_parser().parse_known_args(argv)
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


def test_the_pages_name_every_option_of_training():
    documented = set(re.findall(r"`--(\w+)[` ]", PAGES["training"] + PAGES["methods"]))  # those of a method are there
    assert not own_options() - documented


def test_the_tables_name_every_option_of_evaluation():
    documented = set(re.findall(r"`--(\w+)`", PAGES["evaluation"]))
    known = {action.dest for action in evaluation_parser()._actions} - {"help"}
    assert not known - documented


def test_the_tables_name_every_option_of_encoding():
    # transformers' parser adds --no_x to every x that is on.
    known = [names for a in encode_parser()._actions if (names := a.option_strings) and names[0][:5] != "--no_"]
    page = PAGES["encoding"]
    assert not [names for names in known if "--help" not in names and not any(f"`{n}`" in page for n in names)]


def test_no_option_is_named_that_does_not_exist():
    words = [
        f.name for kind in (ModelArguments, *option_parts(), DataArguments, TrainingArguments) for f in fields(kind)
    ]
    parsers = [
        evaluation_parser(),
        reproduce_parser(),
        pretrain_parser(),
        runs_parser(),
        report_parser(),
        *(parser() for parser in SHOWN.values()),
        *(parser() for _, parser in DESCRIBED.values()),
    ]
    words += [name[2:] for parser in parsers for action in parser._actions for name in action.option_strings]
    words += [
        "debug",
        *re.findall(r"^    (\w+): \w+ \| None = option", "\n".join(OWN_FILES.values()), re.MULTILINE),
        *("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"),
        *("no-deps", "dest", "only-binary", "python-version"),  # of pip
        *("head", "port", "address"),  # of `ray start`
        *("requeue", "signal", "wrap", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task"),  # of sbatch
        *("tokenizer", "text", "sides", "hidden", "heads", "times_only"),  # of benchmarks/step_speed.py
        "toy",  # of benchmarks/gpu.py
        *("only", "jobs", "page", "keep_models"),  # of benchmarks/miniature
        "layers",  # of tests/pretended_cuda/steps.py
        *("encoder", "save", "strict"),  # of benchmarks/notebooks.py, and of mypy
        "kind",  # of benchmarks/data_memory.py
        *("adapter", "sentences", "rounds", "processor_time"),  # of benchmarks/adapters.py
        *("rows", "spread", "repeats"),  # of benchmarks/search.py
        *("report", "trec", "exclude"),  # of benchmarks/domains.py, and of tar
        *("list", "runs", "seconds", "findings", "most"),  # of tests/stress
        *("over_training", "projection", "count", "lines", "cell", "study", "task", "split"),  # of dcpcse plot
        *("matrix", "no_bins"),  # of dcpcse plot
        "no",
        *TRAINING_NAMES.renamed,
        *TRAINING_NAMES.meaning,
    ]
    documented = set(re.findall(r"--([a-z][\w-]*)", EVERYTHING))
    unknown = sorted(documented - set(words))
    assert not unknown


def test_the_table_of_poolers_is_complete():
    assert all(f"| `{name}` |" in PAGES["training"] for name in POOLERS)


def anchors(page: str) -> set[str]:
    """The names by which a page's headings are linked to (GitHub's, and myst's)."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", ["README", *PAGES])
def test_every_link_leads_to_a_page_and_a_heading_that_are_there(name):
    page, home = (README, ROOT) if name == "README" else (PAGES[name], ROOT / "docs")
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = home / file if file else home / f"{name}.md"
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found.read_text(encoding="utf-8")), target


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_readme_leads_to_every_page():
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
