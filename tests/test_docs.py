"""Python blocks of README and docs run, on tiny stand-ins for what they name; the site builds without a warning."""

import ast
import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import senteval
from public_checkpoints import published
from senteval import engine
from senteval_tiny import unofficial, write_tiny_data, write_tiny_task

import dcpcse
from dcpcse import losses, methods
from dcpcse.cli.parse import parse_training
from dcpcse.encoders.backbones import load_backbone
from dcpcse.evaluation import run
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import encode_file
from dcpcse.methods import build_method

ROOT = Path(__file__).parent.parent
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
NOTEBOOKS = {path.stem for path in (ROOT / "docs/notebooks").glob("*.ipynb")}
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```python\n(?P<code>.*?)^```", re.S | re.MULTILINE)
WITH_BLOCKS = sorted(name for name, page in PAGES.items() if "```python" in page)

NOT_RUN: dict[str, int] = {"adapt": 1, "formats": 1, "pretraining": 1, "serve": 3}
"""Page → how many of its blocks are marked as not run here, as they need the hub or take long."""

WRITTEN: set[str] = {"result/promcse", "result/own-trainer"}
"""Results that blocks make themselves, by the names that they have there: nothing stands in for them."""


@pytest.fixture(scope="session")
def trained(tiny, tmp_path_factory) -> Path:
    """A result with deep prompts, as train.py leaves it."""
    folder = tmp_path_factory.mktemp("docs") / "result"
    (model, _, _), _ = parse_training(["--preset", "dcpcse/unsup-bert-base", "--output_dir", str(folder)])
    build_method(load_backbone(tiny("bert")), model, ["anchor"]).model.save(folder)
    return folder


@pytest.fixture
def desk(trained, tiny, sentences, tmp_path, monkeypatch) -> Path:
    """The folder that a reader works in, with what the pages name: encoders, data, a corpus and its vectors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tiny("bert"))
    write_tiny_data(tmp_path / "SentEval/data")
    write_tiny_task(tmp_path / "SentEval/data", "STSBenchmark", "test", count=20)  # compare needs ten pairs
    (tmp_path / "data").symlink_to(ROOT / "data")
    published("promcse", tiny("bert")).write(tmp_path / "checkpoints/my-unsup-promcse")
    for name in ("corpus.txt", "sentences.txt"):
        (tmp_path / name).write_text("\n".join(sentences) + "\n", encoding="utf-8")
    for name, options in {"corpus.npy": {}, "corpus.arrow": {"with_sentences": True}}.items():
        encode_file(str(trained), "corpus.txt", EncodingArguments(output=name, **options), EncoderArguments())
    return tmp_path


@pytest.fixture
def tiny_data_is_right(monkeypatch):
    """The official sizes are not asked for."""
    evaluate = senteval.evaluate
    small = lambda encode, tasks, data, mode: evaluate(encode, tasks, data, settings=unofficial(mode))  # noqa: E731
    monkeypatch.setattr(senteval, "evaluate", small)
    monkeypatch.setattr(engine, "DEFAULTS", {**engine.DEFAULTS, "official": False})
    small_files = lambda mode, **changes: senteval.settings_of_mode(mode, **{**changes, "official": False})  # noqa: E731
    monkeypatch.setattr(run, "settings_of_mode", small_files)


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_the_python_blocks_of_a_page_run_one_after_another(name, desk, trained, tiny_data_is_right):
    namespace = {"__name__": "__main__"}
    for block in BLOCK.finditer(PAGES[name]):
        code = compile(re.sub(r"max_steps=\d+", "max_steps=3", block["code"]), f"{name}.md", "exec")
        if block["reason"]:
            continue
        for place in set(re.findall(r"[\"'](result/[\w/-]+)[\"']", block["code"])) - WRITTEN:
            (desk / place).parent.mkdir(parents=True, exist_ok=True)
            if not (desk / place).exists():
                (desk / place).symlink_to(trained)
        if own := re.match(r"# (\w+\.py)\n", block["code"]):  # a file of the reader's, which other blocks import
            (desk / own[1]).write_text(block["code"], encoding="utf-8")
            continue
        exec(code, namespace)


def test_every_block_that_is_not_run_is_counted():
    blocks = {name: [*BLOCK.finditer(page)] for name, page in PAGES.items()}
    not_run = {name: sum(bool(block["reason"]) for block in found) for name, found in blocks.items()}
    assert {name: count for name, count in not_run.items() if count} == NOT_RUN
    assert all(len(found) == PAGES[name].count("```python\n") for name, found in blocks.items())


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")  # of what the next Sphinx removes
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch, capfd):
    build = pytest.importorskip("sphinx.cmd.build", reason="needs Sphinx, myst-nb and furo (pip install -e '.[docs]')")
    monkeypatch.chdir(tmp_path)
    code = build.main(["-q", "-W", "--keep-going", "-b", "html", str(ROOT / "docs"), "site"])
    assert code == 0, capfd.readouterr().err
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert (set(PAGES) - {"README"}) | NOTEBOOKS <= set(pages)
    assert all(f"dcpcse.{name}" in pages["api"] for name in ("load", "train", "evaluate", "compare", "Trainer"))
    for name, text in pages.items():
        assert not re.findall(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["'](?:https?:)?//""", text), name


def test_the_page_on_architecture_names_files_that_are_there():
    page = PAGES["architecture"]
    named = set(re.findall(r"`((?:[A-Za-z_]+/)*[a-z_]+\.py|(?:[A-Za-z_]+/)+)`", page))
    named = {name for name in named if not {"NAME", "PACKAGE"} & set(re.findall(r"[A-Z]+", name))}
    places = (ROOT, ROOT / "dcpcse", ROOT / "SentEval/senteval", *(ROOT / "dcpcse").glob("*/"))
    assert len(named) > 70
    assert not {name for name in named if not any((place / name).exists() for place in places)}


def test_the_page_on_prompts_shows_the_stored_scores_and_intervals():
    page = PAGES["when-prompts-help"]
    rows = json.loads((ROOT / "docs" / "when-prompts-help/results.json").read_text(encoding="utf-8"))
    assert len(rows) >= 10
    for row in rows:
        assert np.mean(row["scores"]) == row["score"]
        spread = f" ± {np.std(row['scores'], ddof=1):.2f}" if row["seeds"] > 1 else ""
        shown = f"{row['side']} | {row['score']:.2f}{spread}"
        if "less untouched" in row:
            value, low, high = row["less untouched"]
            assert low <= value <= high
            shown += f"{'' if spread else ' (one seed)'} | {value:+.2f} [{low:+.2f}, {high:+.2f}] |"
        assert shown in page, shown


def test_the_names_of_the_migration_page_exist_and_take_its_arguments():
    page = PAGES["migration"]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))
    parsed = [ast.parse(span, mode="eval").body for span in spans if span.startswith("dcpcse.")]
    for expression in parsed:
        function = expression.func if isinstance(expression, ast.Call) else expression
        exported = getattr(dcpcse, function.attr)
        if isinstance(expression, ast.Call):
            inspect.signature(exported).bind(*expression.args, **{one.arg: one.value for one in expression.keywords})
    commands = [span.split() for span in spans if span.startswith("--") and " " in span and "--prompt " not in span]
    for words in commands:
        parse_training(["--model_name_or_path", "b", "--train_file", "t", "--output_dir", "o", *words])
    paths = ("", ".util", *(f".sentence_transformer.{name}" for name in ("losses", "evaluation", "training_args")))
    modules = [importlib.import_module(f"sentence_transformers{path}") for path in paths]
    cells = [row.split("|")[1] for row in page.split("## SetFit")[0].splitlines() if row.startswith("| `")]
    pattern = r"\b(?:[A-Z]\w+(?:Loss|Evaluator|Transformer\w*|Samplers)|mine_\w+|semantic_search)\b"
    names = {name for cell in cells for name in re.findall(pattern, cell)}
    assert len(parsed) >= 15 and len(commands) > 7 and len(names) > 15
    assert not {name for name in names if not any(hasattr(module, name) for module in modules)}


def test_public_docstrings_list_all_arguments():
    """Of what dcpcse, its losses and its methods export: functions, constructors and methods that list arguments."""
    exported = [getattr(package, name) for package in (dcpcse, losses, methods) for name in package.__all__]
    classes = [one for one in exported if inspect.isclass(one)]
    functions = [one for one in exported if inspect.isfunction(one)]
    functions += [one for one in classes if "__init__" in vars(one) and not dataclasses.is_dataclass(one)]
    methods_of = [one for cls in classes for one in vars(cls).values() if inspect.isfunction(one)]
    functions += [one for one in methods_of if not one.__name__.startswith("_") and "Args:" in (one.__doc__ or "")]
    for function in functions:
        parameters = [value for key, value in inspect.signature(function).parameters.items() if key != "self"]
        optional = {value.name for value in parameters if value.kind in (value.VAR_POSITIONAL, value.VAR_KEYWORD)}
        names = [value.name for value in parameters if value.name not in optional]
        section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", inspect.cleandoc(function.__doc__ or ""), re.MULTILINE)
        listed = re.findall(r"^ {4}\*{0,2}(\w+): \S", section[1], re.MULTILINE) if section else []
        if section or len(names) > 1:
            assert [argument for argument in listed if argument not in optional] == names, function
    assert len(functions) > 40
