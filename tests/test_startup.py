"""Help and wrong options come without what only the work itself needs; nothing here looks at a clock."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
OF_SCORES = {"scipy.stats", "sklearn"}
OF_THE_WORK = {*OF_SCORES, "datasets", "pyarrow", "pandas", "transformers.trainer"}
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


def call(*calls: Sequence[str]) -> list[Said]:
    """Run scripts one after another in one fresh process."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [Said(*said, set(modules)) for *said, modules in json.loads(done.stdout)]


def test_the_help_and_the_mistakes_of_train_take_nothing_but_transformers_training_arguments(tmp_path):
    words = ["train.py", "--model_name_or_path", "x", "--temp", "-1"]
    script = tmp_path / "work.py"
    script.write_text("import dcpcse.training.run", encoding="utf-8")
    shown, wrong, worked = call(["train.py", "--help"], words, [str(script)])
    assert shown.code == 0
    assert "--pre_seq_len" in shown.out
    assert wrong.code == 2
    assert "error: --temp -1: must be above 0" in wrong.err
    assert "dcpcse.training.arguments" in wrong.imported
    assert not wrong.imported & OF_THE_WORK
    assert not wrong.imported & {"dcpcse.training.run", "dcpcse.training.trainer", "senteval.tasks"}
    # This test sees what the work imports.
    assert worked.imported >= (OF_THE_WORK - OF_SCORES) | OF_TRAINING_ARGUMENTS
    assert not worked.imported & OF_SCORES, "these are for whoever scores: a training should not wait for them"


REFUSED = {
    "did you mean --pooler?": ["--poler", "cls"],
    "--mode exam: unknown; choose from: test": ["--mode", "exam"],
    "did you mean STSBenchmark?": ["--task_set", "na", "--tasks", "STSB"],
    "--shots has no effect without a fewshot task": ["--shots", "8"],
    "has 0 slots": ["--template", "no slot"],
}


def test_evaluation_reads_its_options_without_torch():
    calls = [["evaluation.py", "--model_name_or_path", "x", *words] for words in REFUSED.values()]
    shown, *refused = call(["evaluation.py", "--help"], *calls)
    assert shown.code == 0
    assert "STSBenchmark-geometry" in shown.out
    for message, wrong in zip(REFUSED, refused, strict=True):
        assert wrong.code == 2
        assert message in wrong.err
    assert "dcpcse.evaluation.arguments" in refused[-1].imported
    assert not refused[-1].imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS)


def test_the_list_of_commands_imports_none_of_them():
    (shown,) = call(["dcpcse/__main__.py", "--help"])
    assert shown.code == 0 and "quickstart" in shown.out
    assert "dcpcse.cli.main" in shown.imported
    assert not shown.imported & {"torch", "numpy", "transformers", "huggingface_hub", "dcpcse.utils.command_parser"}


def test_the_other_commands_import_nothing_of_their_work(tmp_path):
    script = tmp_path / "commands.py"
    names = ("predict", "search_templates", "search_hyperparameters", "hub", "search", "similarity", "plot")
    names += ("pretrain", "adapt", "serve")
    lines = (
        f"from dcpcse.cli.commands import {', '.join(names)}\nplot.plot_parser()\npretrain.pretrain_parser()\n"
        "adapt.adapt_parser()\nserve.serve_parser()\n"
        "from dcpcse.cli.commands.demo import demo_parser\ndemo_parser()\n"
        "from dcpcse.cli.commands.export import export_parser\nexport_parser()"
    )
    script.write_text(lines, encoding="utf-8")
    (done,) = call([str(script)])
    assert done.code == 0
    modules = {*(f"dcpcse.cli.commands.{name}" for name in names), "dcpcse.analysis.plots.cosines"}
    assert modules <= done.imported
    assert not done.imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS | {"matplotlib", "gradio", "starlette", "uvicorn"})


def test_runs_are_listed_and_compared_without_torch(tmp_path):
    script = tmp_path / "list.py"
    script.write_text(
        'import sys\nfrom dcpcse.cli.main import main\nsys.exit(main(["plot", "runs", *sys.argv[1:]]))',
        encoding="utf-8",
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.yaml").write_text("seed: 1\n", encoding="utf-8")
    words = ([str(tmp_path)], ["--compare", str(tmp_path / "a"), str(tmp_path / "b")])
    done = call(*([str(script), *one] for one in words))
    assert not [one for one in done if one.code], done
    assert "dcpcse.training.run_history" in done[-1].imported
    assert not done[-1].imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS)


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    words = [sys.executable, "-m", "dcpcse", "--help"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        program.stdout.close()  # before the program writes to the pipe
        said = program.stderr.read()
    assert program.returncode == 141
    assert not said
