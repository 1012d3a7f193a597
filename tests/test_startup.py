"""Help and wrong options come without what only the work itself needs; nothing here looks at a clock."""

import json
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
OF_THE_WORK = {"scipy.stats", "sklearn", "datasets", "pyarrow", "pandas", "transformers.trainer"}
OF_TRAINING_ARGUMENTS = {"torch", "transformers.modeling_utils"}
"""What `from transformers import TrainingArguments` takes in any case."""

# Not `-X importtime`: it leaves out what importlib.import_module finds, which transformers does all by.
PROGRAM = """
import contextlib, io, json, runpy, sys
said = []
for words in json.loads(sys.argv[1]):
    sys.argv, out, err, code = words, io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
    said.append((code, out.getvalue(), err.getvalue(), list(sys.modules)))
print(json.dumps(said))
"""


class Said(NamedTuple):
    """How a call of a script ended, its output, and the names of all modules that it and those before it imported."""

    code: int | None
    out: str
    err: str
    imported: set[str]


COMMANDS = """
import sys
from dcpcse.cli.main import main
if sys.argv[1:]:
    sys.exit(main(sys.argv[1:]))
from dcpcse.cli.commands import hub, plot, predict, search, search_hyperparameters, search_templates, similarity
from dcpcse.cli.commands import adapt, demo, export, pretrain, serve
for parser in (plot.plot_parser, pretrain.pretrain_parser, adapt.adapt_parser, serve.serve_parser, demo.demo_parser):
    parser()
export.export_parser()
"""


@pytest.fixture(scope="module")
def calls(tiny, tmp_path_factory) -> dict[str, list[Said]]:
    """What is said by scripts that run one after another in one fresh process, those with fewer imports first."""
    folder = tmp_path_factory.mktemp("startup")
    script = folder / "commands.py"
    script.write_text(COMMANDS, encoding="utf-8")
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "run.yaml").write_text("seed: 1\n", encoding="utf-8")
    runs = ([str(folder)], ["--compare", str(folder / "a"), str(folder / "b")])
    lines = [["--help"], *(["plot", "runs", *words] for words in runs), ["info", tiny("bert")], ["import", "x"], []]
    model = ["evaluation.py", "--model_name_or_path", "x"]
    scripts = {
        "commands": [[str(script), *words] for words in lines],
        "evaluation": [["evaluation.py", "--help"], [*model, "--poler", "cls"], [*model, "--template", "no slot"]],
        "train": [["train.py", "--help"], ["train.py", *model[1:], "--temp", "-1"]],
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps([*chain(*scripts.values())])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said = iter([Said(*said, set(modules)) for *said, modules in json.loads(done.stdout)])
    return {name: [*islice(said, len(words))] for name, words in scripts.items()}


def test_commands_import_nothing_of_their_work_and_few_words_not_even_torch(calls):
    """The list of commands, the list and the comparison of runs, a description of a folder, and a wrong import."""
    shown, *done, last = calls["commands"]
    assert shown.code == 0 and "quickstart" in shown.out and "dcpcse.cli.main" in shown.imported
    light = {"torch", "numpy", "transformers", "huggingface_hub", "dcpcse.utils.command_parser"}
    assert not shown.imported & light
    assert [one.code for one in done] == [0, 0, 0, 2], done
    assert "dcpcse.training.run_history" in done[-1].imported
    assert not done[-1].imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS)
    assert last.code == 0 and {"dcpcse.cli.commands.adapt", "dcpcse.analysis.plots.cosines"} <= last.imported
    heavy = {"matplotlib", "gradio", "starlette", "uvicorn"}
    assert not last.imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS | heavy)


def test_evaluation_reads_its_options_without_torch(calls):
    shown, *refused = calls["evaluation"]
    assert shown.code == 0 and "STSBenchmark-geometry" in shown.out
    assert [wrong.code for wrong in refused] == [2, 2] and "did you mean --pooler?" in refused[0].err
    assert "dcpcse.evaluation.arguments" in refused[-1].imported
    assert not refused[-1].imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS)


def test_the_help_and_the_mistakes_of_train_take_nothing_but_transformers_training_arguments(calls):
    shown, wrong = calls["train"]
    assert shown.code == 0 and "--pre_seq_len" in shown.out
    assert wrong.code == 2 and "error: --temp -1: must be above 0" in wrong.err
    assert wrong.imported >= {"dcpcse.training.arguments", *OF_TRAINING_ARGUMENTS}
    assert not wrong.imported & {*OF_THE_WORK, "dcpcse.training.run", "dcpcse.training.trainer", "senteval.tasks"}


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    words = [sys.executable, "-m", "dcpcse", "--help"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        program.stdout.close()  # before the program writes to the pipe
        said = program.stderr.read()
    assert program.returncode == 141
    assert not said
