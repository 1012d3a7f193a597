"""Help and wrong options come without what only the work itself needs; nothing here looks at a clock."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OF_SCORES = {"scipy.stats", "sklearn"}
OF_THE_WORK = {*OF_SCORES, "datasets", "pyarrow", "pandas", "transformers.trainer", "optuna"}
OF_TRAINING_ARGUMENTS = {"torch", "transformers.modeling_utils"}
"""What `from transformers import TrainingArguments` takes in any case."""

# Not `-X importtime`: it leaves out what importlib.import_module finds, which transformers does all by.
PROGRAM = """
import runpy, sys
script, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print(*sys.modules, sep="\\n", file=open(MODULES, "w"))
"""


@pytest.fixture
def call(tmp_path) -> Callable[..., tuple[set[str], subprocess.CompletedProcess]]:
    """Run a script in a process of its own: names of all modules that are loaded in the end, and how it ended."""

    def call(*words: str) -> tuple[set[str], subprocess.CompletedProcess]:
        modules = tmp_path / "modules"
        program = PROGRAM.replace("MODULES", repr(str(modules)))
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return set(modules.read_text(encoding="utf-8").split()), done

    return call


def test_the_help_of_train_takes_nothing_but_transformers_training_arguments(call):
    imported, done = call("train.py", "--help")
    assert done.returncode == 0
    assert "--pre_seq_len" in done.stdout
    assert "dcpcse.arguments" in imported
    assert not imported & OF_THE_WORK
    assert not imported & {"dcpcse.training", "dcpcse.methods", "senteval.tasks"}


def test_a_wrong_option_of_train_is_told_before_anything_else_is_imported(call):
    imported, done = call("train.py", "--model_name_or_path", "x", "--temp", "-1")
    assert done.returncode == 2
    assert "error: --temp -1.0: must be a positive number" in done.stderr
    assert not imported & OF_THE_WORK


REFUSED = {
    "unknown": (["--poler", "cls"], "did you mean --pooler?"),
    "value": (["--mode", "exam"], "invalid choice: 'exam'"),
    "unknown task": (["--task_set", "na", "--tasks", "STSB"], "did you mean STSBenchmark?"),
    "option of other tasks": (["--shots", "8"], "--shots only counts with fewshot tasks"),
    "template": (["--template", "no slot"], "has 0 slots"),
}


@pytest.mark.parametrize(("words", "message"), [([], None), *REFUSED.values()], ids=["help", *REFUSED])
def test_evaluation_reads_its_options_without_torch(call, words, message):
    imported, done = call("evaluation.py", *(["--model_name_or_path", "x", *words] if words else ["--help"]))
    if message:
        assert done.returncode == 2
        assert message in done.stderr
    else:
        assert done.returncode == 0
        assert "STSBenchmark-geometry" in done.stdout
    assert "dcpcse.evaluation_arguments" in imported
    assert not imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS)


def test_the_other_commands_import_nothing_of_their_work(call, tmp_path):
    script = tmp_path / "commands.py"
    names = ("predict", "template_search", "corrupt", "hyperparameter_search", "hub_commands", "search", "similarity")
    lines = (
        f"from dcpcse import {', '.join(names)}\nfrom dcpcse.pictures import command\ncommand.plot_parser()\n"
        "from dcpcse.demo.command import demo_parser\ndemo_parser()\n"
        "from dcpcse.exporting.command import export_parser\nexport_parser()"
    )
    script.write_text(lines, encoding="utf-8")
    imported, done = call(str(script))
    assert done.returncode == 0
    assert {*(f"dcpcse.{name}" for name in names), "dcpcse.pictures.cosines", "dcpcse.demo.command"} <= imported
    assert not imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS | {"matplotlib", "gradio"})


def test_runs_are_listed_and_compared_without_torch(call, tmp_path):
    script = tmp_path / "list.py"
    script.write_text('import runpy\nrunpy.run_module("dcpcse.runs", run_name="__main__")', encoding="utf-8")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.yaml").write_text("seed: 1\n", encoding="utf-8")
    for words in ([str(tmp_path)], ["--compare", str(tmp_path / "a"), str(tmp_path / "b")]):
        imported, done = call(str(script), *words)
        assert done.returncode == 0, done.stderr
        assert "dcpcse.history" in imported
        assert not imported & (OF_THE_WORK | OF_TRAINING_ARGUMENTS)


def test_this_test_sees_what_the_work_imports(call, tmp_path):
    script = tmp_path / "work.py"
    script.write_text("import dcpcse.training, optuna", encoding="utf-8")
    imported, _ = call(str(script))
    assert imported >= (OF_THE_WORK - OF_SCORES) | OF_TRAINING_ARGUMENTS
    assert not imported & OF_SCORES, "these are for whoever scores: a training should not wait for them"


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    words = [sys.executable, "-m", "dcpcse", "reproduce", "--list"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        listing.stdout.close()  # at once: a pipe takes a whole listing while nobody reads
        said = listing.stderr.read()
    assert listing.returncode == 141
    assert not said
