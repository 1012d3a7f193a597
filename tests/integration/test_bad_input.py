"""Mistakes that users make: one line that says what was given and what to do, exit code 2, nothing left behind."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import files, refused
from safetensors.torch import load_file, save_file

from dcpcse.evaluating import evaluation
from dcpcse.training import train as train_main

OPTIONS = {  # what is given → what the error names
    "pre_seq_len zero": ({"pre_seq_len": 0}, "--pre_seq_len 0"),
    "pre_seq_len beyond the positions": ({"pre_seq_len": 95}, "--pre_seq_len"),
    "text that does not fit": ({"pre_seq_len": 70}, "--max_seq_length 32"),
    "offset beyond the positions": ({"position_offset": 95}, "--position_offset"),
    "negative offset": ({"position_offset": -1}, "--position_offset -1"),
    "temperature zero": ({"temp": 0}, "--temp 0"),
    "temperature NaN": ({"temp": "nan"}, "--temp nan"),
    "dropout of one": ({"prompt_dropout": 1}, "--prompt_dropout 1"),
    "pooler": ({"pooler_type": "max"}, "pooler_type"),
    "method": ({"method": "dcpsce"}, "dcpcse"),
    "batch of zero": ({"per_device_train_batch_size": 0}, "--per_device_train_batch_size 0"),
    "learning rate": ({"learning_rate": 0}, "--learning_rate 0"),
    "a word for a number": ({"learning_rate": "fast"}, "learning_rate"),
    "misspelt option": ({"pre_seq_length": 10}, "--pre_seq_len"),
    "length two": ({"max_seq_length": 2}, "--max_seq_length 2"),
    "mlm probability": ({"do_mlm": True, "mlm_probability": 1.5}, "--mlm_probability 1.5"),
    "lm head of another size": ({"do_mlm": True, "lm_head": "nowhere"}, "nowhere"),
    "metric": ({"metric_for_best_model": "sts", "eval_strategy": "steps", "eval_steps": 2}, "stsb_spearman"),
    "dev task": ({"eval_tasks": ["STS12"], "do_eval": True}, "STSBenchmark"),
    "no evaluation data": ({"do_eval": True, "eval_data_dir": "nowhere"}, "nowhere"),
    "slow tokenizer": ({"use_fast_tokenizer": "False"}, "--use_fast_tokenizer"),
    "deepspeed": ({"deepspeed": "ds.json"}, "--deepspeed"),
    "fsdp": ({"fsdp": True}, "--shard_encoder"),
    "shards of one process": ({"shard_encoder": True}, "--shard_encoder: there is one process"),
    "accumulation of zero": ({"gradient_accumulation_steps": 0}, "--gradient_accumulation_steps 0"),
    "workers": ({"dataloader_num_workers": -1}, "--dataloader_num_workers -1"),
    "flex attention without a GPU": ({"flex_attention": True}, "--flex_attention is compiled for GPUs"),
    "flex attention of padded batches": ({"flex_attention": True, "packing": "False"}, "--packing False"),
    "seed": ({"seed": -1}, "--seed -1"),
    "no epochs": ({"max_steps": None, "num_train_epochs": 0}, "--num_train_epochs 0"),
    "save steps": ({"save_steps": 0}, "--save_steps"),
    "a reporter that is not installed": ({"report_to": "clearml"}, "--report_to clearml"),
    "an optimiser that is not installed": ({"optim": "adamw_bnb_8bit"}, "--optim"),
    "batch normalisation in chunks": (
        {"batchnorm": True, "gradient_cache_chunk": 2},
        "--gradient_cache_chunk: batch normalisation",
    ),
    "chunks of a compiled step": (
        {"gradient_cache_chunk": 2, "torch_compile": True},
        "--gradient_cache_chunk: compiled",
    ),
    "chunks with another optimiser": (
        {"gradient_cache_chunk": 2, "torch_empty_cache_steps": 3},
        "--torch_empty_cache",
    ),
    "batches dealt out": ({"accelerator_config": '{"split_batches": true}'}, "--accelerator_config: split_batches"),
    "a chunk of one": ({"gradient_cache_chunk": 1}, "--gradient_cache_chunk 1"),
    "push_to_hub": ({"push_to_hub": True}, "--push_to_hub"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_wrong_training_option(case, tiny, train, train_txt, tool, tmp_path):
    options, named = OPTIONS[case]
    refused(tool, train_main, train.argv(tiny("bert"), train_txt, tmp_path / "out", **options), named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model_name_or_path", "train_file", "output_dir"])
def test_a_missing_place(name, tiny, train, train_txt, tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **{name: None})
    refused(tool, train_main, argv, f"--{name} is missing")
    assert not (tmp_path / "out").exists()


ENCODERS = {
    "no folder": lambda tiny, tmp: tmp / "nowhere",
    "an empty folder": lambda tiny, tmp: tmp,
    "a decoder's relative": lambda tiny, tmp: tiny("deberta-v2"),
    "distilbert": lambda tiny, tmp: tiny("distilbert"),
    "mpnet": lambda tiny, tmp: tiny("mpnet"),
    "no vocabulary": lambda tiny, tmp: without_vocabulary(tiny("bert"), tmp),
    "a file": lambda tiny, tmp: Path(tiny("bert")) / "config.json",
    "cut weights": lambda tiny, tmp: cut_weights(tiny("bert"), tmp),
    "other weights": lambda tiny, tmp: without_a_layer(tiny("bert"), tmp),
}


def cut_weights(encoder: str, folder: Path) -> Path:
    copy = Path(shutil.copytree(encoder, folder / "cut"))
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return copy


def without_vocabulary(encoder: str, folder: Path) -> Path:
    copy = Path(shutil.copytree(encoder, folder / "wordless"))
    (copy / "tokenizer.json").unlink()
    return copy


def without_a_layer(encoder: str, folder: Path) -> Path:
    copy = Path(shutil.copytree(encoder, folder / "less"))
    kept = {n: t for n, t in load_file(copy / "model.safetensors").items() if ".layer.1." not in n}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


@pytest.mark.parametrize("case", ENCODERS)
def test_an_encoder_that_cannot_be_trained_on(case, tiny, train, train_txt, tool, tmp_path):
    encoder = ENCODERS[case](tiny, tmp_path)
    argv = train.argv(str(encoder), train_txt, tmp_path / "out", model_revision=None)
    tells = "encoders cannot take" if Path(encoder).name.startswith("tiny") else Path(encoder).name
    refused(tool, train_main, argv, tells)
    assert not (tmp_path / "out").exists()


DATA = {  # name, content → what the error names
    "empty": ("a.txt", b"", "a.txt"),
    "blank lines only": ("a.txt", b"\n \n\n", "a.txt"),
    "one sentence": ("a.txt", b"A dog.\n", "at least 2"),
    "four columns": ("a.csv", b"a,b,c,d\n1,2,3,4\n5,6,7,8\n", "4"),
    "semicolons": ("a.csv", b"sent0;sent1\na;b\nc;d\n", "semicolon"),
    "a ragged row": ("a.csv", b"sent0,sent1\na,b\nc\n", "a.csv"),
    "latin-1": ("a.txt", "Ein Käse.\nNoch einer.\n".encode("latin-1"), "a.txt"),
    "broken json": ("a.jsonl", b'{"a": "b"}\n{"a": \n', "a.jsonl"),
    "a number in json": ("a.jsonl", b'{"a": "b"}\n{"a": 3}\n', "a.jsonl"),
    "another format": ("a.parquet", b"PAR1", "parquet"),
}


@pytest.mark.parametrize("case", DATA)
def test_a_training_file_that_cannot_be_read(case, tiny, train, tool, tmp_path):
    name, content, named = DATA[case]
    (tmp_path / name).write_bytes(content)
    argv = train.argv(tiny("bert"), str(tmp_path / name), tmp_path / "out")
    refused(tool, train_main, argv, named)
    assert not (tmp_path / "out").exists()


def test_a_missing_training_file_and_a_folder_for_one(tiny, train, tool, tmp_path):
    for place in (tmp_path / "nowhere.txt", tmp_path):
        refused(tool, train_main, train.argv(tiny("bert"), str(place), tmp_path / "out"), str(place))
        assert not (tmp_path / "out").exists()


def test_a_full_output_folder_is_left_as_it_is(tiny, train, train_txt, tool, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    before = files(tmp_path)
    refused(tool, train_main, train.argv(tiny("bert"), train_txt, tmp_path), "--overwrite_output_dir")
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "thesis.tex")
    refused(tool, train_main, argv, "is a file")
    assert files(tmp_path) == before


def test_an_output_folder_that_cannot_be_written(tiny, train, train_txt, tool, tmp_path):
    (tmp_path / "file").write_text("x")
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "file/out")
    refused(tool, train_main, argv, "cannot write into", str(tmp_path / "file/out"))


def test_the_folder_of_the_encoder_is_no_place_for_the_result(tiny, train, train_txt, tool, tmp_path):
    encoder = Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))
    before = files(encoder)
    argv = train.argv(str(encoder), train_txt, encoder, overwrite_output_dir=True)
    refused(tool, train_main, argv, "the folder of the encoder")
    assert files(encoder) == before


def test_an_options_file_behind_the_options_and_one_with_a_wrong_value(tiny, train, train_txt, tool, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("learning_rate: [1, 2]\n")
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out")
    refused(tool, train_main, ["--seed=1", str(file), *argv], "must stand first")
    refused(tool, train_main, [str(file), *argv], str(file))


def test_a_loss_that_is_no_number_stops_the_run(tiny, train, train_txt, tool, tmp_path):
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", learning_rate=1e25, max_steps=4)
    refused(tool, train_main, argv, "--learning_rate")
    assert not (tmp_path / "out/dcpcse.json").exists()


@pytest.fixture(scope="module")
def result(tiny, train, train_txt) -> Path:
    return train(tiny("bert"), train_txt, max_steps=1).folder


def spoil(folder: Path, change: str) -> None:
    record = json.loads((folder / "dcpcse.json").read_text())
    if change == "moved base":
        record["base"]["name_or_path"] = str(folder / "nowhere")
    elif change == "later format":
        record["format"] = 99
    elif change == "cut record":
        return (folder / "dcpcse.json").write_text(json.dumps(record)[:-20]) and None
    elif change == "cut prompts":
        path = folder / "prompts.safetensors"
        return path.write_bytes(path.read_bytes()[:-50]) and None
    elif change == "no head":
        return (folder / "trained.safetensors").unlink()
    elif change == "no tokenizer":
        return (folder / "tokenizer.json").unlink()
    elif change == "a word for a number":
        record["prompt"]["length"] = "ten"
    elif change == "NaN prompts":
        tensors = load_file(folder / "prompts.safetensors")
        tensors["prompt_embeddings"][0, 0] = torch.nan
        return save_file(tensors, folder / "prompts.safetensors")
    (folder / "dcpcse.json").write_text(json.dumps(record))
    return None


SPOILT = ["moved base", "later format", "cut record", "cut prompts", "no head", "NaN prompts"]
SPOILT += ["no tokenizer", "a word for a number"]


@pytest.mark.parametrize("change", SPOILT)
def test_a_damaged_result_is_not_measured(change, result, sts_data, tool, tmp_path):
    folder = Path(shutil.copytree(result, tmp_path / "damaged"))
    spoil(folder, change)
    words = ["--model_name_or_path", str(folder), "--data_dir", sts_data, "--custom_data", "--mode", "dev"]
    refused(tool, evaluation, [*words, "--output_file", str(tmp_path / "scores.json")], "damaged")
    assert not (tmp_path / "scores.json").exists()


EVALUATION = {
    "no model": (["--model_name_or_path", None], "--model_name_or_path"),
    "no such model": (["--model_name_or_path", "nowhere/at-all"], "nowhere/at-all"),
    "no such data": (["--data_dir", "nowhere"], "nowhere"),
    "task": (["--mode", "test", "--task_set", "na", "--tasks", "STS99"], "STS99"),
    "tasks without na": (["--tasks", "STS12"], "--task_set na"),
    "na without tasks": (["--task_set", "na"], "--tasks"),
    "no dev set": (["--task_set", "na", "--tasks", "STS12"], "STS12"),
    "pooler": (["--pooler", "mean"], "mean"),
    "mode": (["--mode", "train"], "train"),
    "device": (["--device", "tpu9"], "tpu9"),
    "flex attention without a GPU": (["--device", "cpu", "--flex_attention"], "--flex_attention is compiled for GPUs"),
    "batch": (["--batch_size", "0"], "--batch_size"),
    "output below a file": (["--output_file", "setup.py/scores.json"], "cannot write into"),
    "output is a folder": (["--output_file", "."], "--output_file"),
    "base of a plain encoder": (["--base", "elsewhere"], "--base"),
    "prompts of a plain encoder": (["--pre_seq_len", "10"], "--pre_seq_len"),
    "misspelt option": (["--task", "STS12"], "--task"),
    "no pooler in the checkpoint": (["--pooler", "cls"], "no pretrained pooler"),
}


@pytest.mark.parametrize("case", EVALUATION)
def test_a_wrong_evaluation_option(case, tiny, sts_data, tool):
    given, named = EVALUATION[case]
    options = {"--model_name_or_path": tiny("bert"), "--data_dir": sts_data, "--mode": "dev", "--pooler": "avg"}
    extra = []
    for i, word in enumerate(given):
        if word in options:
            options[word] = given[i + 1]
        elif given[i - 1] not in options or i == 0:
            extra.append(word)
    words = [part for pair in options.items() if pair[1] is not None for part in pair]
    refused(tool, evaluation, ["--custom_data", *words, *extra], named)


def test_scores_that_cannot_be_computed_are_an_error_and_not_zero(tiny, sts_data, tool, tmp_path):
    """An encoder whose embeddings are all the same has no correlation with anything."""
    constant = Path(shutil.copytree(tiny("bert"), tmp_path / "constant"))
    tensors = load_file(constant / "model.safetensors")
    for tensor in tensors.values():
        tensor.zero_()
    save_file(tensors, constant / "model.safetensors", metadata={"format": "pt"})
    words = ["--model_name_or_path", str(constant), "--pooler", "avg", "--mode", "dev"]
    argv = [*words, "--data_dir", sts_data, "--custom_data", "--output_file", str(tmp_path / "s.json")]
    refused(tool, evaluation, argv, "the same embedding")
    assert not (tmp_path / "s.json").exists()
