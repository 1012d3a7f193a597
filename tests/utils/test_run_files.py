"""metrics.jsonl and environment.json: what a run leaves besides its model."""

import inspect
import json

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


def test_everything_that_is_logged_is_kept_in_order(told, tmp_path):
    begin, log = told
    begin()
    log(1, loss=2.5, epoch=0.5)
    log(2, eval_stsb_spearman=0.75)
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 2.5, "epoch": 0.5},
        {"step": 2, "eval_stsb_spearman": 0.75},
    ]


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


def test_a_line_that_was_cut_off_is_left_out(told, tmp_path):
    begin, log = told
    begin()
    log(1, loss=1.0)
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1.0}]


def test_numbers_that_are_not_finite_stay_readable_as_json(told, tmp_path):
    begin, log = told
    begin()
    log(1, grad_norm=float("nan"), loss=1.0)
    (line,) = (tmp_path / METRICS).read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "grad_norm": None, "loss": 1.0}


def test_a_folder_without_records_has_none(tmp_path):
    assert read_metrics(tmp_path) == [] == read_environment(tmp_path)


def test_the_environment_names_versions_hardware_and_commit(monkeypatch):
    found = system_info()
    assert {"python", "torch", "transformers", "numpy"} <= set(found["versions"])
    assert found["hardware"]["processor"] and found["hardware"]["threads"] >= 1
    monkeypatch.setattr(module.subprocess, "run", _no_git)
    monkeypatch.setattr(module, "git_commit", inspect.unwrap(module.git_commit))  # the tests ask git only once
    assert system_info()["commit"] is None


def _no_git(*args, **kwargs):
    raise FileNotFoundError("git")


def test_a_call_that_goes_on_adds_itself_and_a_new_run_begins_anew(tmp_path):
    for step in (0, 20, 40):
        write_environment(tmp_path, step)
    assert [call["from_step"] for call in read_environment(tmp_path)] == [0, 20, 40]
    write_environment(tmp_path, 20)
    assert [call["from_step"] for call in read_environment(tmp_path)] == [0, 20]
    write_environment(tmp_path, 0)
    assert [call["from_step"] for call in read_environment(tmp_path)] == [0]
