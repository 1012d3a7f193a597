"""`dcpcse.train` is train.py from Python: the same run, mistakes in Python's words, and a process left as it was."""

import itertools
import json
import logging
import os
import random
import re
import signal
import subprocess
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
from tqdm.auto import tqdm
from transformers import AutoModel, TrainerCallback

import dcpcse
from dcpcse.api.train import _temporary
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
    words = []
    for name, value in options.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def contents(folder: Path) -> dict[str, object]:
    """The files of a run without what differs between two calls: times, process and the path of the folder."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name, text = str(path.relative_to(folder)), path.read_bytes() if path.is_file() else b""
        if path.name == "run.yaml":
            found[name] = {k: v for k, v in yaml.safe_load(text).items() if k != "output_dir"}
        elif path.name == "metrics.jsonl":
            found[name] = [_without_times(json.loads(line)) for line in text.splitlines()]
        elif path.name in ("trainer_state.json", "train_results.txt", "eval_results.txt"):
            found[name] = sorted(line for line in text.decode().splitlines() if not _is_of_call(line, folder))
        elif path.name == "checkpoint.json":  # it seals files that hold times and paths
            found[name] = re.sub(r'(?<=trainer_state.json": )"\w+"|(?<=run.yaml": )"\w+"', "", text.decode())
        elif path.name == "environment.json":
            found[name] = "of this call"
        else:
            found[name] = text
    return found


def _without_times(line: dict) -> dict:
    return {name: value for name, value in line.items() if "runtime" not in name and "second" not in name}


def _is_of_call(line: str, folder: Path) -> bool:
    return any(word in line for word in ("runtime", "second", str(folder)))


def test_a_run_from_python_and_from_the_shell_leave_the_same_folder(train, tiny, train_txt, sts_data, tmp_path):
    options = {**QUICK, "pre_seq_len": 3, "mlp_only_train": True, "save_strategy": "steps", "save_steps": 2}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "eval_data_dir": sts_data, "custom_eval_data": True}
    options |= {"load_best_model_at_end": True, "lr_scheduler_kwargs": {}, "eval_tasks": ["STSBenchmark"]}
    python = {**options, "learning_rate": np.float64(0.03), "max_steps": np.int64(4), "eval_data_dir": Path(sts_data)}
    result = train(**python, cache_dir=tmp_path / "other")
    usual = {"model_name_or_path": tiny("bert"), "train_file": train_txt, "output_dir": tmp_path / "shell"}
    shell = {**usual, **options, "lr_scheduler_kwargs": "{}", "cache_dir": tmp_path / "other"}
    train_command(command(shell))
    assert contents(result.folder) == contents(tmp_path / "shell")
    assert result.metrics["best_eval_stsb_spearman"] == max(
        line.get("eval_stsb_spearman", -1) for line in result.history
    )
    assert "best_eval_stsb_spearman=" in repr(result)


def test_data_in_any_form_train_the_same_weights(train, train_txt, train_csv, tmp_path):
    sentences, triples = Path(train_txt).read_text(encoding="utf-8").splitlines(), pandas.read_csv(train_csv)
    forms = {
        "file": [train_txt, Path(train_csv)],
        "list": [sentences, list(triples.itertuples(index=False, name=None))],
        "dict": [{"text": sentences}, triples.to_dict("list")],
        "DataFrame": [pandas.DataFrame({"text": sentences}), triples],
        "Dataset": [datasets.Dataset.from_dict({"text": sentences}), datasets.Dataset.from_pandas(triples)],
        "generator": [(one for one in sentences), (row for row in triples.to_dict("records"))],
    }
    for place in range(2):
        trained = {}
        for form, data in forms.items():
            folder = train(data[place], output_dir=tmp_path / f"{form}{place}").folder
            trained[form] = (folder / "prompts.safetensors").read_bytes()
        shell = tmp_path / f"shell{place}"
        usual = {"model_name_or_path": trained_on(folder), "train_file": forms["file"][place], "output_dir": shell}
        train_command(command({**usual, **QUICK, "cache_dir": tmp_path / "cache"}))
        assert {form for form in forms if trained[form] != (shell / "prompts.safetensors").read_bytes()} == set()


def trained_on(folder: Path) -> str:
    return yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["model_name_or_path"]


def test_a_method_defined_in_a_cell(train):
    def mine(backbone, args, columns):
        return METHODS["dcpcse"].build(backbone, args, columns)

    result = train(["a b", "c d"] * 8, method=mine, pre_seq_len=3, pooler_type="cls", tuning="deep")
    assert result.model.method == "mine" and result.metrics["train_loss"] > 0


def test_a_built_method_of_a_name_that_is_not_registered_is_trained_again(train, tmp_path):
    def mine(backbone, args, columns):
        return METHODS["dcpcse"].build(backbone, args, columns)

    built = train(["a b", "c d"] * 8, method=mine, pre_seq_len=3, pooler_type="cls", tuning="deep").trainer.method
    again = dcpcse.train(None, ["a b", "c d"] * 8, method=built, output_dir=tmp_path / "again", **QUICK)
    assert again.model is built.model and again.model.method == "mine"


def test_a_preset_and_what_it_implies_are_those_of_the_shell(train, tiny, train_txt, tmp_path):
    options = {
        **QUICK,
        "preset": "diffcse/unsup-bert-base",
        "load_best_model_at_end": False,
        "eval_strategy": "no",
        "generator_name": str(tiny("bert")),
        "max_seq_length": 16,
    }
    result = train(**options)
    usual = {"model_name_or_path": tiny("bert"), "train_file": train_txt, "output_dir": tmp_path / "shell"}
    train_command(command({**usual, **options, "cache_dir": tmp_path / "cache"}))
    assert contents(result.folder) == contents(tmp_path / "shell")


def test_the_result_holds_the_model_its_figures_and_its_folder(train, tmp_path, sentences):
    result = train(output_dir=None)
    assert result.folder.name.startswith("training-") and "removed when Python ends" in repr(result)
    assert result.metrics["train_loss"] > 0
    assert [line["step"] for line in result.history] == [2, 4, 4]
    assert not result.model.training
    kept = result.save(tmp_path / "kept")
    (tmp_path / "usual").mkdir()
    assert kept.stat().st_mode == (tmp_path / "usual").stat().st_mode  # a temporary folder is private
    assert result.folder == kept and "removed" not in repr(result)
    loaded = dcpcse.load(str(kept))
    np.testing.assert_array_equal(result.model.encode(sentences), loaded.encode(sentences))
    figure = result.plot()
    assert {panel.get_title() for panel in figure.axes} >= {"loss", "learning rate"}
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook shows it
    assert pyplot.get_fignums() == []  # and not a second time
    with pytest.raises(dcpcse.UserError, match=r'folder=.*kept" is not empty'):
        result.save(kept)


MISTAKES = {
    "an unknown keyword": (
        {"learning_rte": 1},
        "'learning_rte'; did you mean 'learning_rate'?",
    ),
    "a misspelt parameter": ({"callback": []}, "unexpected keyword argument 'callback'; did you mean 'callbacks'?"),
    "an option with another name in Python": (
        {"model_name": "bert"},
        "unexpected keyword argument 'model_name'; did you mean 'model'?",
    ),
    "a name that other libraries use": ({"batch_size": 8}, "did you mean 'per_device_train_batch_size'?"),
    "an empty folder name": ({"output_dir": ""}, 'output_dir="": must be a path'),
    "a run to resume without its folder": ({"output_dir": None, "resume": True}, "resume needs output_dir"),
    "a run to replace without its folder": (
        {"output_dir": None, "overwrite_output_dir": True},
        "overwrite_output_dir needs output_dir",
    ),
    "an option of the shell": ({"train_file": "x"}, "unknown option train_file; give train_data"),
    "a string for a number": ({"learning_rate": "0.1"}, 'learning_rate="0.1": must be a number'),
    "a float for a whole number": ({"pre_seq_len": 2.0}, "pre_seq_len=2.0: must be a whole number"),
    "a truth value for a number": ({"max_steps": True}, "max_steps=True: must be a whole number"),
    "a string for a truth value": ({"do_mlm": "yes"}, 'do_mlm="yes": must be True or False'),
    "not a number": ({"temp": float("nan")}, "temp=nan: must be a number"),
    "an array": ({"temp": np.ones(2)}, "temp=array([1., 1.]): must be a number"),
    "bytes": ({"run_name": b"run"}, "run_name=b'run': must be a string"),
    "an unknown choice": ({"tuning": "depe"}, "tuning=\"depe\": unknown; did you mean 'deep'?"),
    "an object that is no JSON": (
        {"lr_scheduler_kwargs": {"a": object()}},
        "Object of type object is not JSON serializable",
    ),
    "an unsupported option": ({"deepspeed": "x"}, "deepspeed is not supported"),
    "a value out of range": ({"learning_rate": 0.0}, "learning_rate=0.0: must be above 0 and at most 1e+38"),
    "an option without effect": ({"denoise": True}, 'denoise has no effect without pooler_type="mask"'),
    "an unknown method": ({"method": "dcpsce"}, "method=\"dcpsce\": unknown; did you mean 'dcpcse'?"),
    "a method that is a number": ({"method": 3}, "method is the number 3; give a name, or a function"),
    "an unknown preset": ({"preset": "bert"}, 'preset="bert": unknown'),
    "a plugin that is a number": ({"plugin": 3}, "plugin is the number 3; give modules or .py files"),
    "callbacks of another type": (
        {"callbacks": [print]},
        "callbacks: <built-in function print> is not a transformers",
    ),
    "one callback": ({"callbacks": TrainerCallback()}, "callbacks is a TrainerCallback; give a list"),
    "another trainer": ({"trainer_class": transformers.Trainer}, "must be a subclass of dcpcse.Trainer"),
    "no data": ({"data": None}, "train_data is None; give sentences"),
    "no rows": ({"data": []}, "train_data: the list is empty; give at least one row"),
    "rows of two lengths": ({"data": [("a", "b"), ("a",)]}, "train_data: row 2: expected 2 cells, one for each of"),
    "numbers for sentences": ({"data": [1, 2]}, "train_data: row 1, column 1: expected a string but found the number"),
    "bytes for the data": ({"data": b"train.txt"}, "train_data: expected rows but found bytes b'train.txt'"),
    "one row": ({"data": ["a"]}, "train_data (list of 1 row) has 1 training example; give at least 2"),
    "a file that is not there": ({"data": "nowhere.txt"}, "training file nowhere.txt does not exist"),
    "an encoder that is not there": ({"model": "./nowhere"}, 'model="./nowhere" does not exist'),
    "a number for the encoder": ({"model": 7}, "model is the number 7; give the name or the folder of an encoder"),
    "bytes for the encoder": ({"model": b"bert"}, "model is bytes b'bert'; give the name or the folder of an encoder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_in_the_words_of_python(mistake, train, tmp_path, capsys):
    options, message = MISTAKES[mistake]
    with pytest.raises((dcpcse.UserError, TypeError)) as caught:
        train(**options)
    assert message in str(caught.value)
    assert "--" not in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr() == ("", "")


def test_a_preset_is_refused_for_a_built_method(train):
    built = train().trainer.method
    with pytest.raises(dcpcse.UserError, match="preset has no effect on a built method; leave it out"):
        dcpcse.train(None, ["a", "b"], method=built, preset="dcpcse/unsup-bert-base")


def test_an_option_without_effect_is_said_in_the_words_of_python(train, caplog):
    train(load_best_model_at_end=True)
    assert 'load_best_model_at_end=True has no effect without eval_strategy="steps" or do_eval=True' in caplog.messages


def test_a_loaded_encoder_is_refused_with_what_to_give(train, tiny, tmp_path):
    loaded = {
        "BertModel; give the name or the folder that it was loaded from": AutoModel.from_pretrained(tiny("bert")),
        "SentenceEncoder; give the name or the folder of its encoder, and its own folder as init_from": train().model,
    }
    for message, model in loaded.items():
        with pytest.raises(dcpcse.UserError, match=f"model is a {message}"):
            train(model=model)


def test_a_cell_that_is_run_twice(train):
    first, second = train(output_dir=None), train(output_dir=None)
    assert first.folder != second.folder
    assert (first.folder / "prompts.safetensors").read_bytes() == (second.folder / "prompts.safetensors").read_bytes()
    folder = train().folder
    with pytest.raises(
        dcpcse.UserError,
        match=r"is not empty; give another folder, or add overwrite_output_dir=True to replace its run or resume=True",
    ):
        train()
    with pytest.raises(dcpcse.UserError, match=r"was written with temp 0.05, this run has temp 0.1"):
        train(temp=0.1, resume=True)
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


def test_a_training_leaves_the_process_as_it_was_and_prints_nothing(train, capfd):
    before = state_of_process()
    train(log_level="error", logging_dir="x", seed=11)
    with pytest.raises(dcpcse.UserError):
        train(resume_from_checkpoint="nowhere")
    assert state_of_process() == before
    assert capfd.readouterr() == ("", "")


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
    resumed, whole = train(resume=True), train(output_dir=tmp_path / "whole")
    assert (resumed.folder / "prompts.safetensors").read_bytes() == (whole.folder / "prompts.safetensors").read_bytes()


def test_an_interruption_keeps_a_temporary_folder(train):
    with pytest.raises(
        KeyboardInterrupt, match=r"the temporary folder is kept: output_dir='.*' resumes in it"
    ) as caught:
        train(output_dir=None, callbacks=[_InterruptAt(2)])
    folder = str(caught.value).rsplit("'", 2)[1]
    assert train(output_dir=folder, resume=True).metrics["train_loss"] > 0
    assert folder not in map(str, _temporary)


def test_a_training_in_another_thread(train):
    results = []
    thread = threading.Thread(target=lambda: results.append(train()))
    thread.start()
    thread.join()
    assert results[0].metrics["train_loss"] > 0


PROGRAM = """
import sys, dcpcse
model, data, cache = sys.argv[1:]
result = dcpcse.train(model, data, cache_dir=cache, max_steps=2, logging_steps=1, save_strategy="no", use_cpu=True)
print(result.folder)
"""


def test_a_program_shows_a_bar_and_where_the_model_is_until_it_ends(tiny, train_txt, tmp_path):
    call = [sys.executable, "-c", PROGRAM, str(tiny("bert")), train_txt, str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    (folder,) = done.stdout.splitlines()
    assert not Path(folder).exists()
    filled, first, *bar = done.stderr.replace("\r", "\n").splitlines()
    assert filled.startswith("learning_rate 0.03 and per_device_train_batch_size 64: filled in")
    assert (
        first
        == f"the model goes to the temporary folder {folder}, removed when Python ends; give output_dir to keep it"
    )
    assert all("it/s]" in line for line in bar if line.strip())


@pytest.mark.parametrize(("given", "precision"), [(True, "tf32"), (False, "ieee")])
def test_tf32_holds_in_training_and_evaluation_is_recorded_and_ends_with_the_call(
    given, precision, train, sentences, tmp_path, monkeypatch
):
    """The option of transformers; there is no GPU, so the question whether one computes in TF32 is substituted."""
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    before, seen = torch.backends.cuda.matmul.fp32_precision, []

    class Note(TrainerCallback):
        def note(self, *args, **kwargs):
            seen.append(torch.backends.cuda.matmul.fp32_precision)

        on_step_end = on_evaluate = note

    pairs = [(one, other, float(k % 5)) for k, (one, other) in enumerate(itertools.pairwise(sentences))]
    for name in ("first", "second"):  # transformers would set it in the first call only
        folder = tmp_path / name
        train(tf32=given, callbacks=[Note()], output_dir=folder, max_steps=1, eval_pairs=pairs, eval_strategy="steps")
        assert len(seen) >= 2 and set(seen) == {precision}
        assert yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["tf32"] is given
        assert torch.backends.cuda.matmul.fp32_precision == before
        seen.clear()
