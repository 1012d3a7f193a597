"""Training on sentences with classes, from train.py on: what is compared, said and resumed."""

import pandas
import pytest
import torch
from method_models import with_encoder
from runs import assert_a_compiled_run_trains_the_same, assert_same_weights, refused

import dcpcse
from dcpcse.cli.commands.train import train_command


@pytest.fixture(scope="session")
def class_csv(tmp_path_factory, sentences) -> str:
    """28 sentences of 7 classes; the eighth class has one sentence."""
    rows = [f'"{sentences[i % 12]} {i}",class {i % 7}' for i in range(28)]
    path = tmp_path_factory.mktemp("classes") / "classes.csv"
    path.write_text("\n".join(["text,label", *rows, '"Rain fell.",alone']) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("options", [{}, {"gradient_cache_chunk": 2}], ids=["at once", "in chunks"])
def test_a_resumed_run_draws_the_same_positives_and_ends_bit_for_bit(options, tiny, train, class_csv):
    options = {"max_steps": 10, "save_strategy": "steps", "save_steps": 9, "do_eh_loss": True, **options}
    whole = train(tiny("bert"), class_csv, **options)
    folder = train.interrupted(9, tiny("bert"), class_csv, **options)
    again = train(tiny("bert"), class_csv, folder=folder, resume=True, **options)
    assert len(again.gradients) == 1
    assert_same_weights(whole.folder, folder)


def test_the_two_sentences_of_a_row_have_one_class(tiny, train, class_csv, sentences):
    run = train(tiny("bert"), class_csv, max_steps=8)
    number_of = {}
    for batch in run.batches:
        for ids, number in zip(batch["input_ids"], batch["classes"].tolist(), strict=True):
            for row in ids:
                text = run.trainer.sentence_encoder.tokenizer.decode(row, skip_special_tokens=True)
                assert number_of.setdefault(text, number) == number
    assert len(set(number_of.values())) == 8
    assert all(metric <= 1 for metric in run.logged("cosine_negative"))


def test_the_classes_of_a_file_are_said(tiny, train, tool, class_csv, tmp_path):
    said = tool(train_command, train.argv(tiny("bert"), class_csv, tmp_path / "out", max_steps=1)).said
    assert "columns text, label (8 classes of 1 to 4 sentences)" in said
    assert f"{class_csv}: 1 of 8 classes have one sentence, which is its own positive" in said
    assert "negatives per anchor: up to 3 (batch 4 over 1 process, rows of the anchor's class left out)" in said


def test_python_objects_with_classes_train_the_weights_of_the_file(tiny, train, class_csv, tmp_path):
    frame = pandas.read_csv(class_csv)
    options = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.03, "save_strategy": "no"}
    quiet = {"use_cpu": True, "disable_tqdm": True, "cache_dir": train.cache_dir}
    trained = dcpcse.train(tiny("bert"), frame, output_dir=tmp_path / "frame", **quiet, **options)
    assert_same_weights(train(tiny("bert"), class_csv, **options).folder, trained.folder)
    names = sorted(set(frame["label"]))
    rows = [(text, names.index(name)) for text, name in zip(frame["text"], frame["label"], strict=True)]
    again = dcpcse.train(tiny("bert"), rows, output_dir=tmp_path / "rows", **quiet, **options)
    assert_same_weights(again.folder, trained.folder)


def test_classes_guide_and_cache_in_a_compiled_step(tiny, train, class_csv):
    options = {"guide": tiny("roberta", num_hidden_layers=1), "do_eh_loss": True, "max_steps": 1}
    assert_a_compiled_run_trains_the_same(train, tiny("bert", num_hidden_layers=1), class_csv, **options)


@pytest.mark.parametrize("method", ["sbert", "consert"])
def test_methods_that_contrast_no_pairs_name_those_that_do(method, tiny, train, tool, class_csv, tmp_path):
    words = train.argv(tiny("bert"), class_csv, tmp_path / "out", method=method)
    users = "conpvp, d2cse, dcpcse, diffcse, esimcse, promptbert, rankcse, scpcse, simcse"
    refused(tool, train_command, words, f"--method {method} does not use the column class", users)


@pytest.mark.parametrize(
    "method", ["simcse", "scpcse", "promptbert", "conpvp", "d2cse", "diffcse", "esimcse", "rankcse"]
)
def test_every_method_that_contrasts_pairs_takes_classes(method, tiny, train, class_csv):
    options = with_encoder({"method": method}, tiny("bert", seed=3))
    options |= {"neg_size": 0} if method == "esimcse" else {}
    run = train(tiny("bert"), class_csv, max_steps=1, learning_rate=1e-3, **options)
    assert torch.isfinite(torch.tensor(run.logged("loss"))).all()
