"""Runs whose views are changed at random: resumed, with workers, in chunks, compiled, and what they refuse."""

import pytest
import torch
from runs import assert_a_compiled_run_trains_the_same, assert_same_weights, refused

from dcpcse.cli.commands.train import train_command
from dcpcse.data.views import Augmentation, ElementDropout, TokenShuffling, View
from dcpcse.methods import building as parts

STEPS = {"max_steps": 8, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 3}


class Shaken(ElementDropout):
    """Another order, and elements lost."""

    edit = TokenShuffling.edit


@pytest.fixture
def shaken(monkeypatch):
    """Every method that tells pairs apart has a positive that is changed."""

    def views(columns, templates=0):
        return (View("anchor", "anchor"), View("positive", "anchor", (), Shaken(0.2)))

    monkeypatch.setattr(parts, "sentence_pair_views", views)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_draws_as_an_uninterrupted_one(workers, shaken, tiny, train, train_txt):
    """40 sentences in batches of 8 are 5 steps an epoch, so the second epoch is reached both ways."""
    whole = train(tiny("bert"), train_txt, **STEPS)
    options = {**STEPS, "dataloader_num_workers": workers}
    folder = train.interrupted(7, tiny("bert"), train_txt, **options)
    again = train(tiny("bert"), train_txt, folder=folder, resume_from_checkpoint="True", **options)
    assert_same_weights(whole.folder, folder)
    for own, expected in zip(again.batches, whole.batches[6:], strict=True):
        assert torch.equal(own["input_ids"], expected["input_ids"])
        assert torch.equal(own["altered_zeroed"], expected["altered_zeroed"])


def test_a_sentence_is_changed_anew_in_each_epoch(shaken, tiny, train, train_txt):
    run = train(tiny("bert"), train_txt, max_steps=3, per_device_train_batch_size=40)
    seen = []
    for batch in run.batches:
        order = sorted(range(40), key=lambda row, batch=batch: batch["input_ids"][row, 0].tolist())
        seen.append((batch["input_ids"][order], batch["altered_zeroed"][order]))
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert torch.equal(seen[one][0][:, 0], seen[other][0][:, 0])
        assert (seen[one][0][:, 1] != seen[other][0][:, 1]).any(1).sum() > 30
        assert (seen[one][1][:, 1] != seen[other][1][:, 1]).flatten(1).any(1).all()


def test_the_loss_sees_what_is_cut_off_in_the_changed_view_alone(shaken, tiny, train, train_txt):
    run = train(tiny("bert"), train_txt, max_steps=1)
    step = run.trainer.step_module.eval()
    batch = {name: value for name, value in run.batches[0].items() if name != "rows"}
    plain = {name: value for name, value in batch.items() if name != "altered_zeroed"}
    with torch.no_grad():
        cut, whole = step.encode(**batch).embeddings, step.encode(**plain).embeddings
    assert torch.equal(cut["anchor"], whole["anchor"])
    assert ((cut["positive"] - whole["positive"]).abs().amax(1) > 1e-3).all()


def test_chunks_of_the_gradient_cache_find_the_same_changes(shaken, tiny, train, train_txt):
    still = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = {"max_steps": 2, "learning_rate": 1e-3, "per_device_train_batch_size": 8}
    whole, chunks = (train(still, train_txt, gradient_cache_chunk=chunk, **options) for chunk in (None, 3))
    assert_same_weights(whole.folder, chunks.folder, atol=1e-5)


def test_a_compiled_step_finds_the_same_changes(shaken, tiny, train, train_txt):
    assert_a_compiled_run_trains_the_same(train, tiny("bert", num_hidden_layers=1), train_txt, max_steps=1)


def test_workers_that_stay_are_refused(shaken, tool, tiny, train, train_txt, tmp_path):
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options)
    refused(tool, train_command, argv, "--dataloader_persistent_workers", "draws new augmentations")


def test_a_corpus_of_sentences_as_they_are_is_refused(shaken, tool, tiny, train, train_txt, tmp_path):
    options = {"method": "d2cse", "corrupted_corpus": tmp_path}
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options)
    refused(tool, train_command, argv, "--corrupted_corpus", "--method d2cse changes them in each epoch")


def test_a_text_that_an_augmentation_may_make_too_long_is_refused(
    monkeypatch, shaken, tool, tiny, train, train_txt, tmp_path
):
    monkeypatch.setattr(Augmentation, "longest", lambda self, tokens: 2 * tokens)
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", max_seq_length=45, pre_seq_len=10)
    refused(tool, train_command, argv, "--max_seq_length 45 and up to 43 tokens", "the encoder has 86 positions")
    train(tiny("bert"), train_txt, max_seq_length=44, pre_seq_len=10, max_steps=1)
