"""`dcpcse.train` is train.py from Python: the same run, mistakes in Python's words, and a process left as it was."""

import itertools
import json
import logging
import os
import random
import re
import signal
import sys
import threading
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
import torch
import transformers
import yaml
from matplotlib import pyplot
from model_folders import refused
from tqdm.auto import tqdm
from transformers import TrainerCallback

import dcpcse
from dcpcse.api.train import _remove_temporary_folders, _temporary
from dcpcse.cli.commands.train import train_command
from dcpcse.methods import METHODS
from dcpcse.utils.signals import Interrupted

QUICK = {"max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 0.03, "logging_steps": 2}
QUICK |= {"save_strategy": "no", "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def train(tiny, train_txt, tmp_path):
    """train(data, **options): a short training from Python; its folder is new unless given."""

    def call(data=train_txt, model=None, **options) -> dcpcse.TrainingResult:
        options = {**QUICK, "output_dir": tmp_path / "run", "cache_dir": tmp_path / "cache", **options}
        return dcpcse.train(model or tiny("bert"), data, **options)

    return call


def command(options: dict) -> list[str]:
    lists = {name: value if isinstance(value, list) else [value] for name, value in options.items()}
    return [word for name, values in lists.items() for word in (f"--{name}", *map(str, values))]


def contents(folder: Path) -> dict[str, object]:
    """The files of a run without what differs between two calls: times, process and the path of the folder."""
    found: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "environment.json"):
        name, text = str(path.relative_to(folder)), path.read_bytes()
        if path.name == "run.yaml":
            found[name] = {k: v for k, v in yaml.safe_load(text).items() if k != "output_dir"}
        elif path.name == "metrics.jsonl":
            lines = [json.loads(line).items() for line in text.splitlines()]
            found[name] = [{k: v for k, v in line if "runtime" not in k and "second" not in k} for line in lines]
        elif path.name in ("trainer_state.json", "train_results.txt", "eval_results.txt"):
            of_call, lines = ("runtime", "second", str(folder)), text.decode().splitlines()
            found[name] = sorted(line for line in lines if not any(word in line for word in of_call))
        elif path.name == "checkpoint.json":  # it seals files that hold times and paths
            found[name] = re.sub(r'(?<=trainer_state.json": )"\w+"|(?<=run.yaml": )"\w+"', "", text.decode())
        else:
            found[name] = text
    return found


def test_chosen_columns_train_the_weights_of_a_file_with_only_these_columns(train, sentences, tmp_path):
    rows = {"n": range(12), "answer": sentences[::-1], "question": sentences, "score": [i % 3 for i in range(12)]}
    pandas.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    choice = {"anchor": "question", "positive": "answer"}
    columns = {"columns": choice, "eval_pairs": tmp_path / "rows.csv", "eval_columns": {**choice, "score": "score"}}
    chosen = train(tmp_path / "rows.csv", output_dir=tmp_path / "chosen", **columns)
    alone = train({role: rows[name] for role, name in choice.items()}, output_dir=tmp_path / "alone")
    assert files_equal(chosen.folder, alone.folder)
    recorded = yaml.safe_load((chosen.folder / "run.yaml").read_text())
    assert recorded["columns"] == ["anchor=question", "positive=answer"]
    words = [str(chosen.folder / "run.yaml"), "--output_dir", str(tmp_path / "again")]
    train_command(words)
    assert files_equal(tmp_path / "again", alone.folder)


def files_equal(first: Path, second: Path) -> bool:
    """Whether the prompts of two folders are equal."""
    return (first / "prompts.safetensors").read_bytes() == (second / "prompts.safetensors").read_bytes()


def test_a_run_from_python_and_from_the_shell_leave_the_same_folder(train, tiny, train_txt, sts_data, tmp_path):
    options = {**QUICK, "preset": "diffcse/unsup-bert-base", "generator_name": tiny("bert"), "max_seq_length": 16}
    options |= {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True, "lr_scheduler_kwargs": {}}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "eval_data_dir": sts_data, "custom_eval_data": True}
    options |= {"eval_tasks": ["STSBenchmark"]}
    python = {"learning_rate": np.float64(0.03), "max_steps": np.int64(4), "eval_data_dir": Path(sts_data)}
    result = train(**options | python)
    usual = {"model_name_or_path": tiny("bert"), "train_file": train_txt, "cache_dir": tmp_path / "cache"}
    train_command(command({**usual, **options, "lr_scheduler_kwargs": "{}", "output_dir": tmp_path / "shell"}))
    assert contents(result.folder) == contents(tmp_path / "shell")
    best = max(line.get("eval_stsb_spearman", -1) for line in result.history)
    assert result.metrics["best_eval_stsb_spearman"] == best and "best_eval_stsb_spearman=" in repr(result)


def test_data_in_any_form_train_the_same_weights(train, train_txt, train_csv, tmp_path):
    sentences, triples = Path(train_txt).read_text(encoding="utf-8").splitlines(), pandas.read_csv(train_csv)
    rows = list(triples.itertuples(index=False, name=None))
    for forms in (
        [train_txt, sentences, {"text": sentences}, (one for one in sentences)],
        [Path(train_csv), rows, triples, datasets.Dataset.from_pandas(triples), iter(triples.to_dict("records"))],
    ):
        first, *others = (
            train(data, output_dir=tmp_path / f"{len(forms)}{i}", max_steps=1) for i, data in enumerate(forms)
        )
        assert all(files_equal(first.folder, other.folder) for other in others)


def test_a_method_defined_in_a_cell_is_trained_and_trained_again(train, tmp_path):
    def mine(backbone, args, columns):
        return METHODS["dcpcse"].build(backbone, args, columns)

    rows = ["a b", "c d"] * 8
    result = train(rows, method=mine, pre_seq_len=3, pooler_type="cls", tuning="deep")
    assert result.model.method == "mine" and result.metrics["train_loss"] > 0
    built = result.trainer.method
    again = dcpcse.train(None, rows, method=built, output_dir=tmp_path / "again", **QUICK)
    assert again.model is built.model and again.model.method == "mine"
    message, preset = "preset has no effect on a method that was built", "dcpcse/unsup-bert-base"
    refused(message, dcpcse.train, None, rows, method=built, preset=preset, output_dir=tmp_path / "again", **QUICK)


def test_the_result_holds_the_model_its_figures_and_its_folder(train, tmp_path, sentences, caplog):
    result = train(output_dir=None)
    assert result.folder.name.startswith("training-") and "removed when Python ends" in repr(result)
    assert result.metrics["train_loss"] > 0 and [line["step"] for line in result.history] == [2, 4, 4]
    assert not result.model.training
    kept = result.save(tmp_path / "kept")
    (tmp_path / "usual").mkdir()
    assert kept.stat().st_mode == (tmp_path / "usual").stat().st_mode  # a temporary folder is private
    assert result.folder == kept and "removed" not in repr(result)
    np.testing.assert_array_equal(result.model.encode(sentences), dcpcse.load(str(kept)).encode(sentences))
    assert {panel.get_title() for panel in result.plot().axes} >= {"loss", "learning rate"}
    assert pyplot.get_fignums() == []  # a notebook shows it once
    refused(r'folder=.*kept" is not empty', result.save, kept)
    temporary = train(output_dir=None).folder
    assert f"the temporary folder {temporary}, which is removed when Python ends; give output_dir" in caplog.text
    if not (child := os.fork()):  # a forked process leaves the folders of its parent
        _remove_temporary_folders()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and temporary.is_dir()
    _remove_temporary_folders()  # as at the end of Python
    assert not temporary.exists()


MISTAKES = (
    ({"learning_rte": 1}, "'learning_rte'; did you mean 'learning_rate'?"),
    ({"model_name": "bert"}, "unexpected keyword argument 'model_name'; did you mean 'model'?"),
    ({"output_dir": None, "resume": True}, "resume needs output_dir"),
    ({"train_file": "x"}, "train_file is called train_data in dcpcse.train; give train_data"),
    ({"temp": np.ones(2)}, "temp=array([1., 1.]): must be a number"),
    ({"tuning": "depe"}, "tuning=\"depe\": unknown; did you mean 'deep'?"),
    ({"lr_scheduler_kwargs": {"a": object()}}, "Object of type object is not JSON serializable"),
    ({"method": 3}, "method is the number 3; give a name, or a function"),
    ({"callbacks": [print]}, "callbacks: <built-in function print> is not a transformers"),
    ({"trainer_class": transformers.Trainer}, "must be a subclass of dcpcse.Trainer"),
    ({"data": [("a", "b"), ("c", "d")], "guide": "/nowhere"}, "guide: "),
    ({"data": None}, "train_data is None; give sentences"),
    ({"data": [("a", "b"), ("a",)]}, "train_data: row 2: expected 2 cells, one for each of"),
)


def test_a_mistake_is_one_line_in_the_words_of_python(train, tmp_path, capsys):
    for options, message in MISTAKES:
        with pytest.raises((dcpcse.UserError, TypeError)) as caught:
            train(**options)
        assert message in str(caught.value)
        assert "--" not in str(caught.value) and "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
        assert capsys.readouterr() == ("", "")


def test_a_loaded_encoder_is_refused_with_what_to_give(train, tiny):
    model = dcpcse.load(tiny("bert"), pooler="avg")
    message = "SentenceEncoder; give the name or the folder of its encoder, and its own folder as init_from"
    refused(f"model is a {message}", train, model=model)


def test_a_cell_that_is_run_twice(train):
    first, second = train(output_dir=None).folder, train(output_dir=None).folder
    assert first != second and files_equal(first, second)
    folder = train().folder
    refused(r"is not empty; .* or add overwrite_output_dir=True to replace its run or resume=True", train)
    refused("was written with temp 0.05, but this run has temp 0.1", train, temp=0.1, resume=True)
    again = train(resume=True)
    assert again.folder == folder and again.metrics["train_loss"] > 0
    assert train(overwrite_output_dir=True, method="simcse", learning_rate=1e-4).model.method == "simcse"


def state_of_process() -> dict[str, object]:
    return {
        "environment": dict(os.environ),
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "verbosity": transformers.logging.get_verbosity(),
        "levels": [logging.getLogger(name).level for name in (None, "dcpcse", "transformers")],
        "hook": sys.excepthook,
        "streams": (sys.stdout, sys.stderr),
        "processes": torch.distributed.is_initialized(),
        "folder": os.getcwd(),
    }


def test_a_training_leaves_the_process_as_it_was_and_prints_nothing(train, capfd, caplog):
    before = state_of_process()
    train(log_level="error", logging_dir="x", seed=11, load_best_model_at_end=True)
    with pytest.raises(dcpcse.UserError):
        train(resume_from_checkpoint="nowhere")
    thread = threading.Thread(target=lambda: before.update(result=train(overwrite_output_dir=True)))
    thread.start()
    thread.join()
    assert before.pop("result").metrics["train_loss"] > 0
    assert state_of_process() == before and capfd.readouterr() == ("", "")
    assert 'load_best_model_at_end=True has no effect without eval_strategy="steps" or do_eval=True' in caplog.messages


class _InterruptAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupted_training_leaves_a_usable_result(train, tmp_path, sentences):
    with pytest.raises(Interrupted) as caught:
        train(callbacks=[_InterruptAt(2)], disable_tqdm=False)
    assert list(tqdm._instances) == []  # bars of later calls would be drawn below one that is open
    place = tmp_path / "run/checkpoint-3"
    assert str(caught.value) == (
        f"SIGINT after step 3 of 4: saved to {place}; add resume=True to the same call to continue from there; "
        f"dcpcse.load({str(place)!r}) loads the model so far"
    )
    assert len(dcpcse.load(str(place)).encode(sentences)) == len(sentences)
    kept = r"the temporary folder is kept: output_dir='.*' resumes in it"
    with pytest.raises(KeyboardInterrupt, match=kept) as caught:
        train(output_dir=None, callbacks=[_InterruptAt(2)])
    folder = str(caught.value).rsplit("'", 2)[1]
    assert folder not in map(str, _temporary)
    whole = (train(output_dir=tmp_path / "whole").folder / "prompts.safetensors").read_bytes()
    for resumed in (train(resume=True), train(output_dir=folder, resume=True)):
        assert (resumed.folder / "prompts.safetensors").read_bytes() == whole


def test_tf32_holds_in_training_and_evaluation_is_recorded_and_ends_with_the_call(train, sentences, monkeypatch):
    """The option of transformers; there is no GPU, so the question whether one computes in TF32 is substituted."""
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    matmul, seen = torch.backends.cuda.matmul, []
    before = matmul.fp32_precision

    class Note(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            seen.append(matmul.fp32_precision)

        on_evaluate = on_step_end

    pairs = [(one, other, float(k % 5)) for k, (one, other) in enumerate(itertools.pairwise(sentences))]
    for _ in range(2):  # transformers would set it in the first call only
        options = {"eval_pairs": pairs, "eval_strategy": "steps", "max_steps": 1, "overwrite_output_dir": True}
        folder = train(tf32=True, callbacks=[Note()], **options).folder
        assert len(seen) >= 2 and set(seen) == {"tf32"} and matmul.fp32_precision == before
        assert yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["tf32"] is True
        seen.clear()
