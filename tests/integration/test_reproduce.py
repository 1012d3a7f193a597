"""`dcpcse reproduce` in whole: real trainings, killed and resumed; test_ray.py has it on a cluster."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from runs import ROOT, refused, wait_for
from senteval_tiny import write_tiny_data

from dcpcse.cli.commands.reproduce import reproduce_command
from dcpcse.experiments.reproduction import run_unit

SCPCSE, DCPCSE = (f"dcpcse/table1/unsupervised/{name}-BERT-base" for name in ("SCPCSE", "DCPCSE"))
UNTRAINED = "promptbert/table5/static-avg"


@pytest.fixture(scope="module")
def options(tiny, train_txt, tmp_path_factory) -> list[str]:
    """What somebody has who reproduces on next to nothing."""
    data = str(write_tiny_data(tmp_path_factory.mktemp("tiny-data")))
    words = ["--base", tiny("bert"), "--data_dir", data, "--custom_data", "--unsup_file", train_txt, "--limit", "2"]
    return [*words, "--set", "per_device_train_batch_size", "4", "--set", "learning_rate", "0.001"]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The processes of units find the packages where this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "SentEval")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def forked(pairs, monkeypatch):
    """Commands of units run in forked processes, since starting Python for each takes seconds."""

    def call(command, stdout, stderr, **_) -> subprocess.CompletedProcess:
        assert command[:4] == [sys.executable, "-m", "dcpcse.cli.child", str(os.getpid())]
        done = pairs.alone("dcpcse/__main__.py", *command[4:])
        stderr.write(done.stderr)
        if stdout is not subprocess.PIPE:
            stdout.write(done.stdout)
        return done

    monkeypatch.setattr(run_unit, "subprocess", SimpleNamespace(PIPE=subprocess.PIPE, run=call))


def trainings_of(program: psutil.Process) -> list[psutil.Process]:
    """The processes in which a reproduction runs the commands of its units."""
    found = []
    for process in program.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "dcpcse.cli.child" in process.cmdline():
                found.append(process)
    return found


def units(output: Path) -> dict[str, float]:
    """Folder of every finished unit, and when its scores were written."""
    found = {}
    for path in output.rglob("scores.json"):
        if json.loads(path.read_text(encoding="utf-8"))["complete"]:
            found[str(path.parent.relative_to(output))] = path.stat().st_mtime
    return found


def test_a_killed_reproduction_leaves_no_training_behind_and_goes_on_with_what_is_left(
    options, forked, tool, tmp_path
):
    output = tmp_path / "out"
    argv = [SCPCSE, DCPCSE, *options, "--output_dir", str(output)]
    assert tool(reproduce_command, [SCPCSE, *argv[2:]]).code == 0
    first = units(output)
    assert set(first) == {f"{SCPCSE}/seed-0"}
    begun = subprocess.Popen([sys.executable, "-m", "dcpcse", "reproduce", *argv], cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_for(lambda: trainings_of(psutil.Process(begun.pid)))
    (training,) = trainings_of(psutil.Process(begun.pid))
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    wait_for(lambda: not training.is_running(), 20)
    assert units(output) == first and not list((output / DCPCSE).rglob("dcpcse.json"))

    outcome = tool(reproduce_command, [*argv, "--baseline", SCPCSE])
    assert outcome.code == 0, outcome.err + (output / DCPCSE / "seed-0/log.txt").read_text()
    assert "2 units (one per row and seed), 1 of them finished" in outcome.said
    assert units(output).items() >= first.items() and len(units(output)) == 2
    answer = json.loads((output / "answer.json").read_text(encoding="utf-8"))
    scores = json.loads((output / DCPCSE / "seed-0/scores.json").read_text(encoding="utf-8"))
    cells = {row["name"]: row["cells"] for row in answer["rows"]}
    assert cells[DCPCSE]["avg"]["values"] == [scores["averages_x100"]["sts"]]
    table = (output / "answer.tex").read_text(encoding="utf-8")
    assert f"DCPCSE-BERT-base & {scores['scores_x100']['STS12']:.2f} & " in table, table
    assert "2 units (one per row and seed), 2 of them finished" in tool(reproduce_command, argv).said
    other = [*argv[: argv.index("--limit")], "--limit", "3", *argv[argv.index("--limit") + 2 :]]
    refused(tool, reproduce_command, other, "(train --max_steps 2 ", "now --max_steps 3 ", "another --output_dir")


def test_a_row_that_fails_lets_the_others_go_on(options, forked, tool, tmp_path):
    wrong = [*options, "--set", "max_seq_length", "5000"]
    argv = [UNTRAINED, DCPCSE, *wrong, "--output_dir", str(tmp_path)]
    outcome = tool(reproduce_command, argv)
    assert outcome.code == 2
    assert "1 of 2 rows failed" in outcome.err and "--max_seq_length 5000" in outcome.err
    assert "static-avg" in outcome.out and set(units(tmp_path)) == {f"{UNTRAINED}/once"}


def test_a_dry_run_counts_steps_and_examples_of_every_row_that_can_be_run_and_writes_nothing(
    tool, train_txt, tmp_path
):
    """Rows that change what their preset sets are planned too; six of them once failed."""
    lines = Path(train_txt).read_text(encoding="utf-8").count("\n")
    words = ["--unsup_file", train_txt, "--dry_run", "--output_dir", str(tmp_path / "out")]
    outcome = tool(reproduce_command, ["promptbert/table8", "conpvp/table4", "dcpcse/table1/unsupervised", *words])
    assert outcome.code == 0, outcome.err
    planned = re.findall(r"^\| (\S+), seed 0 +\| +([\d,]+) \| +([\d,]+) \| to do", outcome.out, flags=re.MULTILINE)
    counts = {name: (int(steps.replace(",", "")), int(examples.replace(",", ""))) for name, steps, examples in planned}
    assert counts[DCPCSE] == (math.ceil(lines / 256), lines)  # one epoch in batches of 256, as published
    assert counts["promptbert/table8/BERT-base/same-template-dropout"][1] == lines
    assert {"conpvp/table4/ConPVP-with-manual", "conpvp/table4/ConPVP-without-c+-c-"} <= set(counts)
    assert not (tmp_path / "out").exists()
