"""Python blocks of README and docs run, on tiny stand-ins for what they name; the site builds without a warning."""

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import senteval
import torch
from senteval import engine
from senteval_tiny import unofficial, write_tiny_data, write_tiny_task
from transformers import AutoModel

import dcpcse
from dcpcse import losses, methods
from dcpcse.cli.parse import parse_training
from dcpcse.encoders.backbones import load_backbone
from dcpcse.evaluation import run
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import encode_file
from dcpcse.methods import METHODS, build_method

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
    write_checkpoint(tmp_path / "checkpoints/my-unsup-promcse", tiny("bert"))
    for name in ("corpus.txt", "sentences.txt"):
        (tmp_path / name).write_text("\n".join(sentences) + "\n", encoding="utf-8")
    for name, options in {"corpus.npy": {}, "corpus.arrow": {"with_sentences": True}}.items():
        encode_file(str(trained), "corpus.txt", EncodingArguments(output=name, **options), EncoderArguments())
    return tmp_path


def write_checkpoint(folder: Path, base: str) -> None:
    """A checkpoint as PromCSE's code leaves it."""
    model = AutoModel.from_pretrained(base, add_pooling_layer=False)
    tensors = {f"bert.{name}": tensor for name, tensor in model.state_dict().items()}
    hidden = model.config.hidden_size
    tensors["prefix_encoder.embedding.weight"] = torch.ones(3, 2 * model.config.num_hidden_layers * hidden)
    tensors |= {"mlp.dense.weight": torch.eye(hidden), "mlp.dense.bias": torch.zeros(hidden)}
    folder.mkdir(parents=True)
    torch.save(tensors, folder / "pytorch_model.bin")


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
        code = compile(block["code"], f"{name}.md", "exec")
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
    assert {name: len(found) for name, found in blocks.items()} == {
        k: v.count("```python\n") for k, v in PAGES.items()
    }


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


def spans(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))


def test_the_names_of_the_migration_page_exist_and_take_its_arguments():
    parsed = [ast.parse(span, mode="eval").body for span in spans(PAGES["migration"]) if span.startswith("dcpcse.")]
    for expression in parsed:
        function = expression.func if isinstance(expression, ast.Call) else expression
        exported = getattr(dcpcse, function.attr)
        if isinstance(expression, ast.Call):
            inspect.signature(exported).bind(*expression.args, **{one.arg: one.value for one in expression.keywords})
    commands = [span.split() for span in spans(PAGES["migration"]) if span.startswith("--") and " " in span]
    for words in (words for words in commands if words[0] != "--prompt"):
        parse_training(["--model_name_or_path", "b", "--train_file", "t", "--output_dir", "o", *words])
    paths = ("", ".sentence_transformer.losses", ".sentence_transformer.evaluation", ".util")
    paths += (".sentence_transformer.training_args",)
    modules = [importlib.import_module(f"sentence_transformers{path}") for path in paths]
    rows = PAGES["migration"].split("## SetFit")[0].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    pattern = r"\b(?:[A-Z]\w+(?:Loss|Evaluator|Transformer\w*|Samplers)|mine_\w+|semantic_search)\b"
    names = {name for cell in cells for name in re.findall(pattern, cell)}
    assert (len(parsed) >= 15, len(commands) > 8, len(names) > 15) == (True, True, True)
    assert not {name for name in names if not any(hasattr(module, name) for module in modules)}


def with_methods(name: str, exported: type | Callable) -> Iterator[tuple[str, type | Callable]]:
    """A function; or a class that has a constructor, with its methods that no base class in dcpcse documents."""
    if not inspect.isclass(exported):
        yield name, exported
        return
    declares_options = dataclasses.is_dataclass(exported) and any(
        "help" in field.metadata for field in dataclasses.fields(exported)
    )
    if "__init__" in vars(exported) and not declares_options:
        yield name, exported
    bases = [base for base in exported.__mro__[1:] if base.__module__.startswith("dcpcse")]
    for method in vars(exported):
        function = getattr(exported, method)
        if not method.startswith("_") and (inspect.isfunction(function) or inspect.ismethod(function)):
            is_override = any(method in vars(base) for base in bases)
            if not is_override or "Args:" in (function.__doc__ or ""):
                yield f"{name}.{method}", function


def public_interface() -> Iterator[tuple[str, type | Callable]]:
    """What dcpcse exports, and the public functions and classes of losses and methods, by name."""
    for name in set(dcpcse.__all__) - {"__version__"}:
        yield from with_methods(name, getattr(dcpcse, name))
    builders = {entry.build for entry in METHODS.values()}  # all have the arguments that `register` describes
    for package in (losses, methods):
        for module_info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(module_info.name)
            for name, value in vars(module).items():
                is_defined_here = callable(value) and getattr(value, "__module__", "") == module.__name__
                if is_defined_here and not name.startswith("_") and value not in builders:
                    yield from with_methods(f"{module.__name__}.{name}", value)


def test_public_docstrings_list_all_arguments():
    faults, checked = [], 0
    for name, function in public_interface():
        parameters = [value for key, value in inspect.signature(function).parameters.items() if key != "self"]
        optional = {value.name for value in parameters if value.kind in (value.VAR_POSITIONAL, value.VAR_KEYWORD)}
        names = [value.name for value in parameters if value.name not in optional]
        section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", inspect.cleandoc(function.__doc__ or ""), re.MULTILINE)
        listed = re.findall(r"^ {4}\*{0,2}(\w+): \S", section[1], re.MULTILINE) if section else []
        if (section or len(names) > 1) and [argument for argument in listed if argument not in optional] != names:
            faults.append(f"{name}({', '.join(names)}) lists {', '.join(listed) or 'no arguments'}")
        checked += len(names) > 1
    assert not faults, "\n".join(sorted(faults))
    assert checked > 130
