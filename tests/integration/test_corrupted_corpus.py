"""Corruption ahead of training: the file, training from it, and what is refused."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from runs import assert_same_weights, files, refused

from dcpcse.cli.commands.pretrain import corrupt_command
from dcpcse.cli.commands.train import train_command
from dcpcse.data.corrupted_corpus import CORRUPTED, Corpus, CorruptedDataset
from dcpcse.data.training_data import load_training_file
from dcpcse.losses.generator import Corruption


def command(encoder, data, folder, **options):
    words = ["--model_name_or_path", encoder, "--generator_name", encoder, "--train_file", data]
    words += ["--output_dir", str(folder), "--device", "cpu"]
    return [*words, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


@pytest.fixture(scope="module", params=["train_txt", "train_csv"])
def corpus(request, tiny, tmp_path_factory):
    """Encoder, data and the corpus made of them."""
    encoder, data = tiny("bert"), request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("corpus") / "made"
    corrupt_command(command(encoder, data, folder, batch_size=7))
    return encoder, data, folder


def test_a_corpus_holds_a_copy_of_its_own_for_every_view(corpus, tmp_path):
    encoder, data, folder = corpus
    made = Corpus.read(folder)
    rows = load_training_file(data, None).dataset
    views = 3 if data.endswith("csv") else 2
    assert made.ids.shape == (len(rows), views, 32)
    assert made.record["views"] == ["anchor", "positive", "negative"][:views]
    assert (made.ids[:, 0] != made.ids[:, 1]).any()
    assert made.ids.dtype == np.uint16
    first = CorruptedDataset(rows, made)[3]
    assert first["anchor"] == rows[3]["anchor"]
    assert (first[CORRUPTED] == made.ids[3]).all()
    for name, seed in {"same": 42, "other": 2}.items():
        corrupt_command(command(encoder, data, tmp_path / name, batch_size=7, seed=seed))
    assert files(tmp_path / "same") == files(folder)
    assert files(tmp_path / "other")["corrupted.npy"] != files(folder)["corrupted.npy"]


@pytest.mark.parametrize("corpus", ["train_txt", "train_csv", "labelled_csv"], indirect=True)
def test_training_from_it_is_training_with_the_generator_under_the_same_corruption(corpus, train, monkeypatch):
    encoder, data, folder = corpus
    common = {"method": "d2cse", "prompt_dropout": 0.0, "max_steps": 2}
    ahead = train(encoder, data, corrupted_corpus=folder, **common)
    assert not any("generator" in name for name in ahead.final)
    batches = iter(ahead.batches)

    def same(self, ids, mask, packing, on_host):
        batch = next(batches)
        assert torch.equal(batch["input_ids"].flatten(0, 1), ids)
        return batch[CORRUPTED].flatten(0, 1)  # without a draw, which would move the random numbers of the run

    monkeypatch.setattr(Corruption, "forward", same)
    beside = train(encoder, data, generator_name=encoder, **common)
    assert_same_weights(ahead.folder, beside.folder)
    for key in ("loss", "loss_crtd", "rtd_accuracy_kept", "replaced_share"):
        assert ahead.logged(key) == beside.logged(key)


@pytest.mark.parametrize("corpus", ["train_txt"], indirect=True)
def test_a_run_resumes_from_a_corpus(corpus, train):
    encoder, data, folder = corpus
    options = {"method": "d2cse", "corrupted_corpus": folder, "save_strategy": "steps", "save_steps": 2}
    whole = train(encoder, data, **options).folder
    again = train.interrupted(3, encoder, data, **options)
    train(encoder, data, folder=again, resume_from_checkpoint="True", **options)
    assert_same_weights(whole, again)


def test_the_fingerprint_of_a_corpus_is_of_the_files_that_were_read(corpus, tmp_path):
    folder = shutil.copytree(corpus[2], tmp_path / "corpus")
    digests = "".join(files(folder)[name] for name in ("corpus.json", "corrupted.npy"))
    read = Corpus.read(folder)
    (folder / "corrupted.npy").unlink()
    assert read.fingerprint == hashlib.sha256(digests.encode()).hexdigest()


@pytest.mark.parametrize("corpus", ["train_txt"], indirect=True)
def test_a_corpus_of_another_run_is_refused(corpus, tiny, train, tool, tmp_path):
    encoder, data, folder = corpus
    other = shutil.copy(data, tmp_path)
    with open(other, "a", encoding="utf-8") as file:
        file.write("a further sentence\n")
    rows = [
        (encoder, data, {"max_seq_length": 16}, "created with max_seq_length 32, but this run has 16"),
        (encoder, other, {}, "created with data"),
        (tiny("roberta"), data, {}, "created with vocabulary"),
        (encoder, data, {"generator_name": "bert"}, "--generator_name has no effect with --corrupted_corpus"),
        (encoder, data, {"positive": "next"}, "leave out --positive next"),
    ]
    for model, text, change, reason in rows:
        options = {"method": "d2cse", "corrupted_corpus": folder, **change}
        refused(tool, train_command, train.argv(model, text, tmp_path / "out", **options), reason)


@pytest.mark.parametrize("corpus", ["train_txt"], indirect=True)
def test_a_damaged_corpus_is_one_line(corpus, train, tool, tmp_path):
    encoder, data, folder = corpus
    folder = shutil.copytree(folder, tmp_path / "copy")
    record, array = (folder / "corpus.json").read_bytes(), (folder / "corrupted.npy").read_bytes()
    shape = json.dumps({**json.loads(record), "shape": [1, 2, 3]}).encode()
    argv = train.argv(encoder, data, tmp_path / "out", method="d2cse", corrupted_corpus=folder)
    for path, content in (("corrupted.npy", array[:200]), ("corpus.json", shape)):
        (folder / "corrupted.npy").write_bytes(array)
        (folder / path).write_bytes(content)
        refused(tool, train_command, argv, "--corrupted_corpus")


def test_a_failure_leaves_no_half_a_corpus(tiny, train_txt, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Corpus, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        corrupt_command(command(tiny("bert"), train_txt, tmp_path / "new/out"))
    assert [*tmp_path.iterdir()] == []
