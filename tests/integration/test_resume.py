"""Interrupted and resumed training gives the very result of training without interruption, on a CPU."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from method_models import with_encoder
from model_folders import as_before
from runs import as_interrupted, assert_same_weights, comparable, files, refused, train_loss, weights

from dcpcse.cli.commands.train import train_command
from dcpcse.training.atomic_save import SEAL
from dcpcse.training.run_history import read_run
from dcpcse.training.trainer import Trainer

# 40 sentences in batches of 8 are 5 steps an epoch.
STEPS = {"max_steps": 8, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2}
SEVERAL_BATCHES = {"gradient_accumulation_steps": 2}
SAMPLED = {"batch_sampler": "no_duplicates"}
RECIPES = {
    "projection": ("roberta", "train_csv", {"pooler_type": "avg", "prefix_projection": True}),
    "vectors": ("bert", "train_txt", {"prompt_form": "vectors", "gradient_checkpointing": True, "weight_decay": 0.01}),
    "Adam of BERT, frozen LM head": ("modernbert", "train_csv", {"adam_bias_correction": False, "do_mlm": True}),
    "trained LM head, at the end of the second epoch": (
        *("bert", "train_txt"),
        {"do_mlm": True, "train_lm_head": True, "save_steps": 6, **SEVERAL_BATCHES},
    ),
    "new LM head in bfloat16": ("electra", "train_csv", {"do_mlm": True, "lm_head": "new", "bf16": True}),
    "chunks": ("bert", "train_txt", {"loss_chunk": 3, "gradient_cache_chunk": 5}),
    "simcse": ("bert", "train_txt", {"method": "simcse", "do_mlm": True, "train_lm_head": True}),
    "scpcse": ("bert", "documents", {"method": "scpcse", "positive": "crop", "gradient_cache_chunk": 2}),
    "promptbert": ("bert", "train_txt", {"method": "promptbert", "org_mlp": True, "denoise_at_inference": True}),
    "promptbert, deep": ("bert", "documents", {"method": "promptbert", "tuning": "deep", "positive": "next"}),
    "conpvp": (
        *("bert", "train_txt"),
        {"method": "conpvp", "denoise_by": "attention", "instance_weight": 0.5, **SEVERAL_BATCHES},
    ),
    "consert with a worker": (
        *("bert", "train_txt"),
        {"method": "consert", "augmentation_1": "token_cutoff", "dataloader_num_workers": 1},
    ),
    "esimcse, deep": ("bert", "train_txt", {"method": "esimcse", "tuning": "deep", "neg_size": 20, **SEVERAL_BATCHES}),
    "esimcse, lora": (
        *("bert", "train_txt"),
        {"method": "esimcse", "tuning": "lora", "lora_dropout": 0.2, "neg_size": 20, "gradient_checkpointing": True},
    ),
    "d2cse": (
        *("bert", "train_txt"),
        {"method": "d2cse", "cls_prompt": True, "crtd_views": "anchor", "lambda_decay_rate": 0.5},
    ),
    "diffcse": (
        *("bert", "train_txt"),
        {"method": "diffcse", "discriminator_learning_rate": 1e-3, "discriminator_warmup_steps": 6},
    ),
    "sbert, labels": ("bert", "labelled_csv", {"method": "sbert", "learning_rate": 1e-3}),
    "cosent, scores": ("bert", "scored_csv", {"method": "cosent", "learning_rate": 1e-3}),
    "several positives": ("bert", "several_csv", {"do_eh_loss": True, **SAMPLED}),
    "classes": ("bert", "class_csv", {"do_eh_loss": True, "gradient_cache_chunk": 2}),
    "two sets": ("bert", "two_sets", {"do_eh_loss": True, "do_mlm": True, **SEVERAL_BATCHES, "logging_steps": 2}),
    "two weighted sets": ("bert", "two_sets", {"train_weights": [1, 2], "gradient_cache_chunk": 3}),
    "classes without duplicates": ("bert", "class_csv", {**SAMPLED, **SEVERAL_BATCHES}),
}
"""What a resumed run repeats bit for bit; of dcpcse where no method is named."""


def log_of(folder: Path, resumed: int) -> list[dict]:
    """The log of a run that is equal with and without an interruption at a step."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return comparable(state["log_history"], [resumed])


def recorded(folder: Path) -> dict:
    return yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(train, tiny, train_txt):
    """A run with checkpoints 2, 4, 6 and 8."""
    return train(tiny("bert"), train_txt, **STEPS)


@pytest.fixture
def interrupted(whole, tmp_path) -> Path:
    """A run that was cut off after its checkpoint-2."""
    return as_interrupted(whole.folder, tmp_path / "interrupted", 2)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(recipe, train, tiny, request, tmp_path):
    """In a copy of its folder, and from the step before the end of the first epoch, or from that end."""
    kind, data, options = RECIPES[recipe]
    options = {**STEPS, "max_steps": 7, "save_steps": 4 + list(RECIPES).index(recipe) % 2, **options}
    options, step, data = with_encoder(options, tiny("bert")), options["save_steps"], request.getfixturevalue(data)
    whole = train(tiny(kind), data, **options)
    folder = as_interrupted(whole.folder, tmp_path / "out", step)
    again = train(tiny(kind), data, folder=folder, resume=True, **options)
    assert len(again.gradients) == 7 - step, "the resumed run must only do what was left"
    assert_same_weights(whole.folder, folder)
    for name, parameter in whole.final.items():
        assert torch.equal(parameter, again.final[name]), name
    assert log_of(whole.folder, step) == log_of(folder, step)
    assert train_loss(folder) == pytest.approx(train_loss(whole.folder), rel=1e-6)
    assert {**recorded(folder), "output_dir": None} == {**recorded(whole.folder), "output_dir": None}


def test_a_run_is_interrupted_twice_and_its_loss_is_the_mean_of_all_steps(whole, train, tiny, train_txt, caplog):
    options = {**STEPS, "logging_steps": 3}
    folder = train.interrupted(3, tiny("bert"), train_txt, **options)
    assert "checkpoint-2 is the last checkpoint; the same command with --resume" in caplog.text
    state = json.loads((folder / "checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    assert set(state["stateful_callbacks"]) == {"TrainerControl"}  # no class of ours, which may be renamed
    train.interrupted(7, tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    again = train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert len(again.gradients) == 2 and len(whole.logged("loss")) == 8
    assert_same_weights(whole.folder, folder)
    assert train_loss(folder) == pytest.approx(sum(whole.logged("loss")) / 8, rel=1e-6)
    assert "train_loss is" not in caplog.text
    older = as_interrupted(whole.folder, train.fresh(), 4)
    for name in ("loss_sum.json", "checkpoint.json"):  # which earlier versions did not write
        (older / "checkpoint-4" / name).unlink()
    train(tiny("bert"), train_txt, folder=older, resume=True, **options)
    assert_same_weights(whole.folder, older)
    assert train_loss(older) == pytest.approx(sum(whole.logged("loss")[4:]) / 4, rel=1e-6)
    assert "train_loss is the mean over the steps after step 4" in caplog.text


def test_a_checkpoint_that_was_moved_resumes_into_another_folder(whole, train, tiny, train_txt, tmp_path):
    moved = shutil.copytree(whole.folder / "checkpoint-4", tmp_path / "elsewhere")
    before = files(moved)
    options = {**STEPS, "weight_decay": 0.0, "lr_scheduler_type": "linear", "max_grad_norm": 1.0}  # the defaults
    other = train(tiny("bert"), train_txt, resume_from_checkpoint=moved, **options)
    assert_same_weights(whole.folder, other.folder)
    assert files(moved) == before


EVALUATED = {"save_strategy": None, "eval_strategy": "steps", "save_total_limit": 9, "custom_eval_data": True}


@pytest.fixture
def dev_scores(monkeypatch, sts_data):
    """dev_scores(function of the step) → options of runs whose dev scores are the values of the function."""

    def script(score) -> dict:
        steps, evaluate = [], Trainer.evaluate

        def evaluate_and_note(self, *args, **kwargs):
            steps.append(self.state.global_step)
            return evaluate(self, *args, **kwargs)

        monkeypatch.setattr(Trainer, "evaluate", evaluate_and_note)
        monkeypatch.setattr("dcpcse.training.eval_datasets.dev_metrics", lambda _: {"stsb_spearman": score(steps[-1])})
        return {**STEPS, "save_steps": None, **EVALUATED, "eval_data_dir": sts_data}

    return script


@pytest.mark.parametrize("best", [1, 4])
def test_the_best_step_survives_an_interruption(best, train, tiny, train_txt, dev_scores, tmp_path):
    """The best of four measurements lies before the interruption or comes after it; the folder has been moved."""
    options = dev_scores(lambda step: 0.9 if step == 2 * best else 0.1 * step)
    options |= {"eval_steps": 2, "metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True}
    whole = train(tiny("bert"), train_txt, **options)
    folder = as_interrupted(whole.folder, tmp_path / "out", 4)
    again = train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    for run in (whole, again):
        assert run.state["best_global_step"] == 2 * best
        assert run.state["best_metric"] == 0.9
        assert_same_weights(run.folder, run.folder / f"checkpoint-{2 * best}")
    assert_same_weights(whole.folder, folder)
    assert log_of(whole.folder, 4) == log_of(folder, 4)
    before, moved = weights(folder), Path(shutil.move(folder, tmp_path / "moved"))
    finished = train(tiny("bert"), train_txt, folder=moved, resume_from_checkpoint="True", **options)
    assert finished.gradients == []
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(moved).items())


DEV = {1: 0.2, 2: 0.5, 3: 0.505, 4: 0.4, 5: 0.9, 6: 0.9, 7: 0.9, 8: 0.95}
"""Step → dev score. With a threshold of 0.01, only steps 2, 5 and 8 are improvements."""


def test_early_stopping_ends_at_the_same_step_after_an_interruption(
    train, tiny, train_txt, dev_scores, tmp_path, caplog
):
    """The best of the evaluations becomes the result; the end of the run is its end, also when it is resumed."""
    scored = partial(train, tiny("bert"), train_txt, **dev_scores(DEV.get), eval_steps=1)
    early = {"early_stopping_patience": 2, "early_stopping_threshold": 0.01}
    whole = scored(**early)
    assert whole.state["global_step"] == 4 and whole.state["best_global_step"] == 3
    assert_same_weights(whole.folder, whole.folder / "checkpoint-3")
    assert "it is the checkpoint of step 3, which has the best dev score" in caplog.text
    assert read_run(whole.folder).finished
    for step in (3, 4):
        folder = as_interrupted(whole.folder, tmp_path / f"killed-{step}", step)
        again = scored(folder=folder, resume=True, **early)
        assert len(again.gradients) == 4 - step and again.state["global_step"] == 4
        assert_same_weights(whole.folder, folder)
        assert log_of(whole.folder, step) == log_of(folder, step)
    before = files(whole.folder)
    assert scored(folder=whole.folder, resume=True, **early).gradients == [] and files(whole.folder) == before
    longer = scored(folder=folder, resume=True, early_stopping_patience=3)  # 3 is better than 2 without a threshold
    assert len(longer.gradients) == 4 and longer.state["global_step"] == 8


# Broken requests


@pytest.fixture
def refuses(train, tiny, train_txt, tool):
    """refuses(folder, checkpoint, *parts, **options) asserts that resuming gives one error line with these parts."""

    def call(folder: Path, checkpoint: str | Path, *parts: str, encoder: str | None = None, **options) -> None:
        options = {**STEPS, "resume_from_checkpoint": checkpoint, **options}
        refused(tool, train_command, train.argv(encoder or tiny("bert"), train_txt, folder, **options), *parts)

    return call


def test_resuming_from_what_has_no_checkpoint_is_refused(refuses, train, tiny, train_txt, tmp_path):
    """From the result of a run, too: it has no optimiser state."""
    out = tmp_path / "out"
    refuses(out, "True", str(out))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    run = train(tiny("bert"), train_txt, resume_from_checkpoint="False")
    for path in (tiny("bert"), *(str(tmp_path / name) for name in ("nowhere", "empty", "file")), str(run.folder)):
        refuses(out, path, f"--resume_from_checkpoint {path}", "checkpoint")
    refuses(run.folder, "True", "no checkpoint", str(run.folder))
    assert not out.exists()


def test_resuming_from_a_damaged_checkpoint_is_refused(refuses, whole, tmp_path):
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    checkpoint = tmp_path / "checkpoint-2"
    changes = [(Path.unlink, name) for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json", "dcpcse.json")]
    changes += [(cut, name) for name in ("prompts.safetensors", "trainer_state.json", "optimizer.pt")]
    for change, name in [*changes, (lambda path: path.write_text("{not: yaml"), "run.yaml")]:
        shutil.copytree(whole.folder / "checkpoint-2", checkpoint, dirs_exist_ok=True)
        change(checkpoint / name)
        refuses(tmp_path / "out", checkpoint, "checkpoint-2")


def test_resuming_with_other_options_or_another_encoder_is_refused(refuses, tiny, interrupted, tmp_path):
    """transformers would go on with the old learning rate and the new temperature."""
    before, checkpoint = files(interrupted), interrupted / "checkpoint-2"
    for options in (
        *({"pre_seq_len": 3}, {"pooler_type": "avg"}, {"prefix_projection": True}, {"prompt_form": "vectors"}),
        *({"do_mlm": True, "train_lm_head": True}, {"learning_rate": 0.5}, {"seed": 7}, {"temp": 0.5}),
        *({"optim": "sgd"}, {"bf16": True}),
    ):
        refuses(tmp_path / "out", checkpoint, "this run has --", **options)
    refuses(interrupted, checkpoint, pre_seq_len=3)
    refuses(tmp_path / "out", checkpoint, "checkpoint-2", encoder=tiny("bert", seed=11))
    assert files(interrupted) == before
    assert not (tmp_path / "out").exists()


def test_resuming_without_the_trained_loss_of_the_checkpoint_is_refused(refuses, train, tiny, train_txt, tmp_path):
    options = {**STEPS, "max_steps": 2, "do_mlm": True, "train_lm_head": True}
    checkpoint = train(tiny("bert"), train_txt, **options).folder / "checkpoint-2"
    refuses(tmp_path / "out", checkpoint, "--do_mlm")
    for name in ("run.yaml", "checkpoint.json"):  # as an earlier version wrote it; its weights are looked at besides
        (checkpoint / name).unlink()
    refuses(tmp_path / "out", checkpoint, "contains the loss state")


def test_a_result_and_another_run_are_not_replaced_unasked(refuses, interrupted, whole):
    before = files(whole.folder)
    refuses(whole.folder, "False", "--overwrite_output_dir")
    refuses(whole.folder, interrupted / "checkpoint-2", "is not empty")
    assert files(whole.folder) == before


def changed_copy(folder: str, to: Path, name: str, **content) -> str:
    """A copy of the folder of an encoder with other values in one of its files."""
    path = Path(shutil.copytree(folder, to, dirs_exist_ok=True)) / name
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | content), encoding="utf-8")
    return str(to)


def test_a_resumed_run_compares_the_configuration_and_the_tokenizer(refuses, tiny, interrupted, tmp_path):
    """Also what no vector depends on, but training does; a checkpoint of an earlier version has only the weights."""
    checkpoint = interrupted / "checkpoint-2"
    for name, change, message in (
        ("config.json", {"hidden_act": "relu"}, "hidden_act is 'relu', and was 'gelu' in training"),
        ("config.json", {"hidden_dropout_prob": 0.5}, "another configuration for training"),
        ("tokenizer_config.json", {"cls_token": "[SEP]"}, "cls_token is [['[SEP]', 3]], and was"),
    ):
        base = changed_copy(tiny("bert"), tmp_path / "base", name, **change)
        refuses(tmp_path / "out", checkpoint, message, encoder=base)
    (checkpoint / "checkpoint.json").unlink()  # the seal, which an earlier version did not write
    as_before(checkpoint)
    message = "is another encoder: the fingerprints of the weights differ"
    refuses(tmp_path / "out", checkpoint, message, encoder=tiny("bert", seed=11))


def test_another_generator_under_the_same_weights_is_refused(refuses, train, tiny, train_txt, tmp_path):
    options = {
        "method": "diffcse",
        "generator_name": changed_copy(tiny("bert"), tmp_path / "generator", "config.json"),
    }
    folder = train(tiny("bert"), train_txt, **{**STEPS, "max_steps": 2}, **options).folder
    changed_copy(tiny("bert"), tmp_path / "generator", "config.json", hidden_act="relu")
    message = "another generator or LM head, with names and configuration"
    refuses(tmp_path / "out", folder / "checkpoint-2", message, **options)


# The precision, which depends on the device. Whether it has units for bfloat16 is substituted.


def as_recorded_before(folder: Path) -> None:
    """As earlier versions recorded a run: without a precision that was not given."""
    for place in (folder, *folder.glob("checkpoint-*")):
        options = recorded(place)
        assert options.pop("bf16") is False
        (place / "run.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
        (place / SEAL).unlink(missing_ok=True)


@pytest.mark.parametrize("before", [True, False], ids=["bfloat16", "float32 of an earlier version"])
def test_a_resumed_run_keeps_the_precision_of_its_record(
    before, train, tiny, train_txt, monkeypatch, caplog, tmp_path
):
    units = "dcpcse.training.resolve_arguments.has_bfloat16_units"
    monkeypatch.setattr(units, lambda device: before)
    whole = train(tiny("bert"), train_txt, **STEPS)
    folder = as_interrupted(whole.folder, tmp_path / "out", 4)
    assert recorded(folder)["bf16"] is recorded(folder / "checkpoint-4")["bf16"] is before
    if not before:
        as_recorded_before(folder)
    monkeypatch.setattr(units, lambda device: not before)
    caplog.clear()
    with caplog.at_level("INFO", logger="dcpcse"):
        again = train(tiny("bert"), train_txt, folder=folder, resume=True, **STEPS)
    said = [line for line in caplog.messages if "--bf16" in line]
    assert said == ([f"--bf16: filled in, as in {folder / 'checkpoint-4/run.yaml'}"] if before else [])
    assert len(again.gradients) == 4 and recorded(folder)["bf16"] is before
    assert_same_weights(whole.folder, folder)
    finished = files(folder)
    train(tiny("bert"), train_txt, folder=folder, resume=True, **STEPS)  # which has nothing left to do
    assert files(folder) == finished
