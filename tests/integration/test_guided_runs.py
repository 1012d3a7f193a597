"""Training with --guide, from train.py on: what is resumed, compared, guarded and saved."""

import re
import shutil

import pytest
import torch
from runs import assert_same_weights, files, refused

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.losses.guide import Guide
from dcpcse.utils.errors import UserError

SAVED = {"max_steps": 8, "save_strategy": "steps", "save_steps": 7, "temp": 0.5}


@pytest.fixture(scope="module")
def guide(tiny, train, train_txt):
    """A trained folder: prompts on RoBERTa."""
    return train(tiny("roberta"), train_txt, max_steps=1, seed=3).folder


@pytest.mark.parametrize("chunk", [None, 2], ids=["at once", "in chunks"])
def test_a_resumed_run_ends_bit_for_bit_wherever_the_guide_has_moved(chunk, guide, tiny, train, train_csv, tmp_path):
    options = {**SAVED, "gradient_cache_chunk": chunk}
    whole = train(tiny("bert"), train_csv, guide=guide, **options)
    assert sum(whole.logged("left_out")) > 0
    folder = train.interrupted(7, tiny("bert"), train_csv, guide=guide, **options)
    moved = shutil.copytree(guide, tmp_path / "moved")
    train(tiny("bert"), train_csv, folder=folder, resume=True, guide=moved, **options)
    assert_same_weights(whole.folder, folder)
    plain = train(tiny("bert"), train_csv, **options)
    with pytest.raises(AssertionError):
        assert_same_weights(whole.folder, plain.folder)
    assert set(files(plain.folder)) == set(files(whole.folder))  # nothing of the guide
    saved = "model.encoder.backbone.embeddings.word_embeddings.weight"
    assert torch.equal(whole.initial[saved], whole.final[saved])


@pytest.mark.parametrize("change", ["another", "none", "new"])
def test_a_run_is_not_resumed_with_another_guide_or_without(change, guide, tiny, train, tool, train_csv, tmp_path):
    first, second = {"another": (guide, tiny("bert")), "none": (guide, None), "new": (None, guide)}[change]
    folder = train.interrupted(7, tiny("bert"), train_csv, guide=first, **SAVED)
    words = train.argv(tiny("bert"), train_csv, folder, resume=True, guide=second, **SAVED)
    expected = "was written with another guide (" if change == "another" else f"this run has --guide {second}"
    refused(tool, train_command, words, expected)


def test_a_guide_that_training_changes_stops_the_run(guide, tiny, train, tool, train_csv, monkeypatch, tmp_path):
    def vectors(self, extras):
        with torch.no_grad():
            next(self.parameters()).add_(1e-3)
        return correct(self, extras)

    correct = Guide.vectors
    monkeypatch.setattr(Guide, "vectors", vectors)
    words = train.argv(tiny("bert"), train_csv, tmp_path / "out", guide=guide, max_steps=1)
    refused(tool, train_command, words, "training has changed the frozen weights", "guide.model")


def test_the_guide_is_said_and_has_the_representation_of_its_folder(guide, tiny, train, tool, train_csv, tmp_path):
    words = train.argv(tiny("bert"), train_csv, tmp_path / "a", guide=guide, max_steps=1)
    said = tool(train_command, words).said
    assert f"guide: {guide}" in said and "representation: cls with its head, as trained" in said
    assert "candidates that the guide finds nearer left out" in said
    alone = tool(train_command, train.argv(tiny("bert"), train_csv, tmp_path / "alone", max_steps=1)).said
    (total,) = re.findall(r"; total ([\d,]+)$", alone, flags=re.MULTILINE)
    assert re.search(rf"; total {total}, and [\d,]+ of the guide$", said, flags=re.MULTILINE)
    run = train(tiny("bert"), train_csv, guide=tiny("roberta"), max_steps=1)
    assert run.trainer.method.guides["guide"].model.pooling == "avg"


def test_python_takes_a_guide_as_the_command_line_does(guide, tiny, train, train_csv, tmp_path):
    options = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.03, "save_strategy": "no"}
    trained = dcpcse.train(
        tiny("bert"),
        train_csv,
        guide=str(guide),
        output_dir=tmp_path / "out",
        use_cpu=True,
        disable_tqdm=True,
        cache_dir=train.cache_dir,
        **options,
    )
    run = train(tiny("bert"), train_csv, guide=guide, **options)
    assert_same_weights(run.folder, trained.folder)
    with pytest.raises(UserError, match=r"guide: .*nowhere"):
        dcpcse.train(tiny("bert"), train_csv, guide="/nowhere", max_steps=1)


@pytest.mark.parametrize("chunk", [None, 2], ids=["at once", "in chunks"])
def test_a_resumed_run_learns_from_teachers_that_have_moved_and_from_no_others(
    chunk, guide, tiny, train, tool, train_txt, tmp_path
):
    options = {**SAVED, "method": "rankcse", "tuning": "deep", "mlp_only_train": True, "gradient_cache_chunk": chunk}
    first, second = guide, tiny("bert", seed=4)
    whole = train(tiny("bert"), train_txt, teacher=[first, second], **options)
    assert min(whole.logged("loss_ranking")) > 0
    folder = train.interrupted(7, tiny("bert"), train_txt, teacher=[first, second], **options)
    words = train.argv(tiny("bert"), train_txt, folder, resume=True, teacher=[second, first], **options)
    refused(tool, train_command, words, "was written with another teacher (")
    moved = shutil.copytree(first, tmp_path / "moved")
    train(tiny("bert"), train_txt, folder=folder, resume=True, teacher=[moved, second], **options)
    assert_same_weights(whole.folder, folder)
