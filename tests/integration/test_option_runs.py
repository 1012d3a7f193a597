"""Runs of train.py with data and options of other kinds: drawn positives, labels, classes, guides, changed views.

That each of them resumes bit for bit is in test_resume.py.
"""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from method_models import COLUMNS, with_encoder
from runs import (
    NO_DROPOUT,
    as_interrupted,
    assert_same_weights,
    files,
    refused,
    weights,
)

from dcpcse.cli.commands.train import train_command
from dcpcse.losses.guide import Guide
from dcpcse.methods import METHODS

PYTHON = {"per_device_train_batch_size": 4, "learning_rate": 0.03, "save_strategy": "no"}
PYTHON |= {"use_cpu": True, "disable_tqdm": True}
"""What `train` gives by default, for `dcpcse.train`."""

CONTRASTING = [name for name in METHODS if name not in (*COLUMNS, "consert")]
"""Methods that contrast pairs."""


@pytest.mark.grid
@pytest.mark.parametrize("method", CONTRASTING)
@pytest.mark.parametrize("data", ["several_csv", "class_csv", "crop", "next"])
def test_methods_that_contrast_pairs_take_classes_and_drawn_positives(method, data, tiny, train, request):
    options = with_encoder({"method": method, "max_steps": 1, "learning_rate": 1e-3}, tiny("bert", seed=3))
    if data in ("crop", "next"):
        data, options = "documents", {**options, "positive": data}
    if method == "esimcse":
        options |= {"class_csv": {"neg_size": 0}}.get(data, {}) | ({"dup_rate": 0.0} if "positive" in options else {})
    if (method, options.get("positive")) == ("conpvp", "crop"):
        options["prototypes"] = "none"
    run = train(tiny("bert"), request.getfixturevalue(data), **options)
    assert torch.isfinite(torch.tensor(run.logged("loss"))).all()


# Drawn positives


def texts_of(run) -> list[list[tuple[str, ...]]]:
    """The texts of the views of every row of every batch."""
    decode = run.trainer.sentence_encoder.tokenizer.decode
    return [
        [tuple(decode(ids, skip_special_tokens=True) for ids in row) for row in batch["input_ids"]]
        for batch in run.batches
    ]


def test_one_of_several_positives_is_drawn_anew_in_each_epoch(tiny, train, several_csv):
    run = train(tiny("bert"), several_csv, max_steps=None, num_train_epochs=3)
    ends = [[text.split()[-2:] for text in row] for batch in texts_of(run) for row in batch]
    drawn = []  # of each epoch: row → column of its positive
    for rows in (ends[start : start + 24] for start in (0, 24, 48)):
        for anchor, positive, negative in rows:
            assert anchor[0] == positive[0] == negative[0]
            assert (anchor[1], negative[1]) == ("0", "4")
        drawn.append({letter: place for _, (letter, place), _ in rows})
    assert all(len(epoch) == 24 and set(epoch.values()) == {"1", "2", "3"} for epoch in drawn)
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_the_following_line_is_the_positive_and_no_batch_need_have_it_as_a_negative(tiny, train, documents):
    options = {"positive": "next", "batch_sampler": "no_duplicates", "max_steps": None, "num_train_epochs": 2}
    run = train(tiny("bert"), documents, **options)
    lines = [line.lower() for line in Path(documents).read_text(encoding="utf-8").split("\n")]
    wanted = {pair for pair in pairwise(lines) if all(pair)}
    pairs = [tuple(text.replace(" .", ".").replace(" ,", ",") for text in pair) for b in texts_of(run) for pair in b]
    assert set(pairs) == wanted and len(pairs) == 2 * len(wanted) == 50
    for batch in texts_of(run):
        assert len({text for pair in batch for text in pair}) == 2 * len(batch)


def test_crops_are_spans_of_the_line(tiny, train, documents):
    plain, run = (train(tiny("bert"), documents, positive=value, max_steps=2) for value in (None, "crop"))
    for cropped, whole in zip(run.batches, plain.batches, strict=True):
        for spans, text in zip(cropped["input_ids"], whole["input_ids"][:, 0], strict=True):
            text = text[text > 0][1:-1].tolist()
            for span in (row[row > 0][1:-1].tolist() for row in spans):
                assert len(span) == -(-len(text) // 2)  # half of the tokens by default
                assert any(text[i : i + len(span)] == span for i in range(len(text)))
    assert any(not torch.equal(row[0], row[1]) for batch in run.batches for row in batch["input_ids"])


# Guides and teachers

GUIDED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 3, "temp": 0.5}


@pytest.fixture(scope="module")
def guide(tiny, train, train_txt):
    """A trained folder: prompts on RoBERTa."""
    return train(tiny("roberta"), train_txt, max_steps=1, seed=3).folder


@pytest.fixture(scope="module")
def guided(guide, tiny, train, train_csv):
    """A run with this guide."""
    return train(tiny("bert"), train_csv, guide=guide, **GUIDED)


def test_a_guide_may_move_and_neither_change_nor_come_nor_go(guide, guided, tiny, train, tool, train_csv, tmp_path):
    plain = train(tiny("bert"), train_csv, **GUIDED)
    with pytest.raises(AssertionError):
        assert_same_weights(guided.folder, plain.folder)
    assert set(files(plain.folder)) == set(files(guided.folder))  # nothing of the guide
    assert sum(guided.logged("left_out")) > 0
    assert guided.trainer.method.guides["guide"].model.pooling == "cls"  # as trained
    with_guide, without = (as_interrupted(run.folder, tmp_path / run.folder.name, 3) for run in (guided, plain))
    for folder, other, message in (
        (with_guide, tiny("bert"), "was written with another guide ("),
        (with_guide, None, "this run has --guide None"),
        (without, guide, f"this run has --guide {guide}"),
    ):
        words = train.argv(tiny("bert"), train_csv, folder, resume=True, guide=other, **GUIDED)
        refused(tool, train_command, words, message)
    moved = shutil.copytree(guide, tmp_path / "moved")
    train(tiny("bert"), train_csv, folder=with_guide, resume=True, guide=moved, **GUIDED)
    assert_same_weights(guided.folder, with_guide)


def test_a_guide_that_training_changes_stops_the_run(guide, tiny, train, tool, train_csv, monkeypatch, tmp_path):
    def vectors(self, extras):
        with torch.no_grad():
            next(self.parameters()).add_(1e-3)
        return correct(self, extras)

    correct = Guide.vectors
    monkeypatch.setattr(Guide, "vectors", vectors)
    words = train.argv(tiny("bert"), train_csv, tmp_path / "out", guide=guide, max_steps=1)
    refused(tool, train_command, words, "training has changed the frozen weights", "guide.model")


def test_an_encoder_without_a_representation_of_its_own_guides_by_means(tiny, train, train_csv):
    run = train(tiny("bert"), train_csv, guide=tiny("roberta"), max_steps=1)
    assert run.trainer.method.guides["guide"].model.pooling == "avg"


def test_a_resumed_run_learns_from_teachers_that_have_moved_and_from_no_others(
    guide, tiny, train, tool, train_txt, tmp_path
):
    options = {**GUIDED, "method": "rankcse", "tuning": "deep", "mlp_only_train": True, "gradient_cache_chunk": 2}
    first, second = guide, tiny("bert", seed=4)
    whole = train(tiny("bert"), train_txt, teacher=[first, second], **options)
    assert min(whole.logged("loss_ranking")) > 0
    folder = as_interrupted(whole.folder, tmp_path / "out", 3)
    words = train.argv(tiny("bert"), train_txt, folder, resume=True, teacher=[second, first], **options)
    refused(tool, train_command, words, "was written with another teacher (")
    moved = shutil.copytree(first, tmp_path / "moved")
    train(tiny("bert"), train_txt, folder=folder, resume=True, teacher=[moved, second], **options)
    assert_same_weights(whole.folder, folder)


# Labels and classes


def test_labels_are_learned(tiny, train, labelled_csv):
    options = {"method": "sbert", "tuning": "deep", "pre_seq_len": 8, "learning_rate": 0.05}
    run = train(tiny("bert"), labelled_csv, max_steps=30, **{**options, "per_device_train_batch_size": 12})
    losses, accuracies = run.logged("loss"), run.logged("accuracy")
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert sum(accuracies[-5:]) > sum(accuracies[:5]) and all(0 <= accuracy <= 1 for accuracy in accuracies)
    assert run.final["losses.classification.head.weight"].shape[0] == 3


def test_the_two_sentences_of_a_row_have_one_class(tiny, train, class_csv, caplog):
    run = train(tiny("bert"), class_csv, max_steps=9)
    number_of = {}
    for batch, rows in zip(run.batches, texts_of(run), strict=True):
        for texts, number in zip(rows, batch["classes"].tolist(), strict=True):
            for text in texts:
                assert number_of.setdefault(text, number) == number
    assert len(set(number_of.values())) == 8
    assert all(metric <= 1 for metric in run.logged("cosine_negative"))
    for part in ("8 classes of 1 to ", "2 of 8 classes have one sentence, which is its own positive"):
        assert part in caplog.text
    assert "up to 3 (batch 4 over 1 process, rows of the anchor's class left out)" in caplog.text


def test_two_processes_train_on_the_batches_of_one_without_duplicates(class_csv, tiny, train, tmp_path, pairs):
    encoder = tiny("bert", **NO_DROPOUT)
    options = {"batch_sampler": "no_duplicates", "max_steps": 7, "optim": "sgd", "temp": 0.5, "max_grad_norm": 0}
    single = train(encoder, class_csv, **options, per_device_train_batch_size=6)
    options["per_device_train_batch_size"] = 3
    for batch, rows in zip(single.batches, texts_of(single), strict=True):
        assert len(set(batch["classes"].tolist())) == len(rows)
        assert len(set().union(*map(set, rows))) == sum(len(set(row)) for row in rows)
    done = pairs("train.py", *train.argv(encoder, class_csv, tmp_path / "out", **options))
    assert done.codes == [0, 0], done.stderr
    start = single.initial["model.encoder.prompt.table.weight"]
    way, other_way = (weights(folder)["prompt_embeddings"] - start for folder in (single.folder, tmp_path / "out"))
    assert way.abs().max() > 0
    torch.testing.assert_close(other_way, way, rtol=0, atol=0.02 * way.abs().max().item())


# Views that are changed at random


def test_a_sentence_is_changed_anew_in_each_epoch_and_in_the_changed_view_alone(tiny, train, train_txt):
    options = {"method": "consert", "augmentation_1": "none", "augmentation_2": "token_cutoff"}
    run = train(tiny("bert"), train_txt, max_steps=3, per_device_train_batch_size=40, learning_rate=1e-3, **options)
    seen = []
    for batch in run.batches:
        order = sorted(range(40), key=lambda row, batch=batch: batch["input_ids"][row, 0].tolist())
        assert not batch["altered_zeroed"][:, 0].any()
        seen.append(batch["altered_zeroed"][order, 1])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (seen[one] != seen[other]).flatten(1).any(1).sum() > 30
    step = run.trainer.step_module.eval()
    batch = {name: value for name, value in run.batches[0].items() if name != "rows"}
    plain = {name: value for name, value in batch.items() if name != "altered_zeroed"}
    with torch.no_grad():
        cut, whole = (list(step.encode(**given).embeddings.values()) for given in (batch, plain))
    assert torch.equal(cut[0], whole[0])
    assert ((cut[1] - whole[1]).abs().amax(1) > 1e-3).sum() > 30


def test_a_corrupted_corpus_of_sentences_that_change_is_refused(tool, tiny, train, train_txt, tmp_path):
    options = {"method": "d2cse", "positive": "crop", "corrupted_corpus": tmp_path}
    words = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options)
    refused(tool, train_command, words, "--corrupted_corpus", "--method d2cse changes sentences in each epoch")
