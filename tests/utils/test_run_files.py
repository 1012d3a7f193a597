"""metrics.jsonl and environment.json: what a run leaves besides its model."""

import inspect
import json
from unittest.mock import Mock

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from dcpcse.training.callbacks import MetricsFile, write_environment
from dcpcse.utils import environment as module
from dcpcse.utils.environment import system_info
from dcpcse.utils.run_files import METRICS, read_environment, read_metrics


@pytest.fixture
def told(tmp_path):
    """Tells a callback of training what happens, as the Trainer does."""
    callback, control, args = MetricsFile(tmp_path), TrainerControl(), TrainingArguments(str(tmp_path), report_to=[])

    def begin(step=0, first=True, history=()):
        state = TrainerState(global_step=step, is_world_process_zero=first, log_history=list(history))
        callback.on_train_begin(args, state, control)

    def log(step, first=True, **numbers):
        state = TrainerState(global_step=step, is_world_process_zero=first)
        callback.on_log(args, state, control, logs=numbers)

    return begin, log


def test_everything_that_is_logged_is_kept_in_order_and_readable_as_json(told, tmp_path):
    assert read_metrics(tmp_path) == [] == read_environment(tmp_path)
    begin, log = told
    begin()
    log(1, loss=2.5, epoch=0.5)
    log(2, eval_stsb_spearman=0.75, grad_norm=float("nan"))
    lines = [{"step": 1, "loss": 2.5, "epoch": 0.5}, {"step": 2, "eval_stsb_spearman": 0.75, "grad_norm": None}]
    assert read_metrics(tmp_path) == lines
    written = (tmp_path / METRICS).read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in written] == lines
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 3, "lo')  # cut off
    assert read_metrics(tmp_path) == lines


def test_a_resumed_run_repeats_no_line_and_a_new_one_keeps_none(told, tmp_path):
    begin, log = told
    begin()
    for step in (1, 2, 3):
        log(step, loss=float(step))
    begin(step=2, history=[{"loss": float(step), "step": step} for step in (1, 2)])
    log(3, loss=30.0)
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 2.0, 30.0]
    begin()
    assert read_metrics(tmp_path) == []


def test_only_the_first_process_writes(told, tmp_path):
    begin, log = told
    begin(first=False)
    log(1, first=False, loss=1.0)
    assert not list(tmp_path.iterdir())


def test_the_environment_names_versions_hardware_and_commit(monkeypatch):
    facts = system_info()
    assert {"python", "torch", "transformers", "numpy"} <= set(facts["versions"])
    assert facts["hardware"]["processor"] and facts["hardware"]["threads"] >= 1
    monkeypatch.setattr(module.subprocess, "run", Mock(side_effect=FileNotFoundError("git")))
    monkeypatch.setattr(module, "git_commit", inspect.unwrap(module.git_commit))  # the tests ask git only once
    assert system_info()["commit"] is None


def test_a_call_that_resumes_adds_itself_and_a_new_run_has_its_call_alone(tmp_path):
    steps = []
    for step in (0, 20, 40, 20, 0):
        write_environment(tmp_path, step)
        steps.append([call["from_step"] for call in read_environment(tmp_path)])
    assert steps == [[0], [0, 20], [0, 20, 40], [0, 20], [0]]
