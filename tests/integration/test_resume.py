"""Interrupted and resumed training gives the very result of training without interruption, on a CPU."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from model_folders import as_before
from runs import as_interrupted, assert_same_weights, comparable, files, train_loss, weights

from dcpcse.cli.commands.train import train_command
from dcpcse.training.atomic_save import SEAL
from dcpcse.training.run_history import read_run
from dcpcse.training.trainer import Trainer

# 40 sentences in batches of 8 are 5 steps an epoch.
STEPS = {"max_steps": 8, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2}
SEVERAL_BATCHES = {"gradient_accumulation_steps": 2}
SAMPLED = {"batch_sampler": "no_duplicates"}
RECIPES = {
    "prompts": ("bert", "train_txt", {"mlp_only_train": True}),
    "projection": (
        "roberta",
        "train_csv",
        {"pooler_type": "avg", "prefix_projection": True},
    ),
    "vectors": ("bert", "train_txt", {"prompt_form": "vectors", "gradient_checkpointing": True, "weight_decay": 0.01}),
    "Adam of BERT, frozen LM head": ("modernbert", "train_csv", {"adam_bias_correction": False, "do_mlm": True}),
    "trained LM head": ("bert", "train_txt", {"do_mlm": True, "train_lm_head": True, **SEVERAL_BATCHES}),
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
    "sbert, scores": ("bert", "scored_csv", {"method": "sbert", "learning_rate": 1e-3}),
    "cosent, labels": ("bert", "labelled_csv", {"method": "cosent", "learning_rate": 1e-3}),
    "several positives": ("bert", "several_csv", {"do_eh_loss": True, **SAMPLED}),
    "classes": ("bert", "class_csv", {"do_eh_loss": True, "gradient_cache_chunk": 2}),
    "two sets": ("bert", "two_sets", {"do_eh_loss": True, "do_mlm": True, **SEVERAL_BATCHES, "logging_steps": 2}),
    "two weighted sets": ("bert", "two_sets", {"train_weights": [1, 2], "gradient_cache_chunk": 3}),
    "classes without duplicates": ("bert", "class_csv", {**SAMPLED, **SEVERAL_BATCHES}),
}
"""What a resumed run repeats bit for bit; of dcpcse where no method is named."""

GENERATOR = ("d2cse", "diffcse")


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
    (kind, data, options), step = RECIPES[recipe], 4 + list(RECIPES).index(recipe) % 2
    options = {**STEPS, "max_steps": 7, "save_steps": step, **options}
    if options.get("method") in GENERATOR:
        options["generator_name"] = tiny("bert")
    data = request.getfixturevalue(data)
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


@pytest.mark.parametrize("step", [5, 6])
def test_resuming_works_at_and_behind_the_end_of_an_epoch(step, train, tiny, train_txt, tmp_path):
    """5 batches, 2 a step: the third step of an epoch has one batch only; the sixth ends the second epoch."""
    options = {**STEPS, "save_steps": step, **SEVERAL_BATCHES, "do_mlm": True, "train_lm_head": True}
    whole = train(tiny("bert"), train_txt, **options)
    folder = as_interrupted(whole.folder, tmp_path / "out", step)
    train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert_same_weights(whole.folder, folder)


def test_a_run_that_is_interrupted_twice_takes_the_last_checkpoint_and_the_mean_loss_of_all_steps(
    whole, train, tiny, train_txt, capsys, caplog
):
    options = {**STEPS, "logging_steps": 3}
    folder = train.interrupted(3, tiny("bert"), train_txt, **options)
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
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


def test_a_checkpoint_without_the_losses_before_it_is_named(whole, train, tiny, train_txt, caplog, tmp_path):
    folder = as_interrupted(whole.folder, tmp_path / "out", 4)
    for name in ("loss_sum.json", "checkpoint.json"):  # as an earlier version wrote it
        (folder / "checkpoint-4" / name).unlink()
    train(tiny("bert"), train_txt, folder=folder, resume=True, **STEPS)
    assert train_loss(folder) == pytest.approx(sum(whole.logged("loss")[4:]) / 4, rel=1e-6)
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


def test_early_stopping_ends_at_the_same_step_with_and_without_an_interruption(
    train, tiny, train_txt, dev_scores, tmp_path, caplog
):
    """The best of the evaluations becomes the result; the end of the run is its end, also when it is resumed."""
    scored = partial(train, tiny("bert"), train_txt, **dev_scores(DEV.get), eval_steps=1)
    early = {"early_stopping_patience": 2, "early_stopping_threshold": 0.01}
    whole = scored(**early)
    assert whole.state["global_step"] == 4 and whole.state["best_global_step"] == 3
    assert_same_weights(whole.folder, whole.folder / "checkpoint-3")
    assert "finished at step 4 (stopped early)" in caplog.text and read_run(whole.folder).finished
    assert "it is the checkpoint of step 3, which has the best dev score" in caplog.text
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


def test_early_stopping_without_evaluations_is_named_and_does_nothing(train, tiny, train_txt, caplog):
    assert len(train(tiny("bert"), train_txt, early_stopping_patience=1).gradients) == 4
    assert "--early_stopping_patience has no effect without --eval_strategy steps or epoch" in caplog.text


# Broken requests


@pytest.fixture
def refused(train, tiny, train_txt, tool):
    """refused(folder, checkpoint, **options) → the error line."""

    def call(folder: Path, checkpoint: str | Path, encoder: str | None = None, **options) -> str:
        options = {**STEPS, "resume_from_checkpoint": checkpoint, **options}
        outcome = tool(train_command, train.argv(encoder or tiny("bert"), train_txt, folder, **options))
        assert outcome.code == 2
        errors = [line for line in outcome.err.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, outcome.err
        assert "Traceback" not in outcome.err
        return errors[0]

    return call


def test_resuming_from_what_has_no_checkpoint_is_refused(refused, train, tiny, train_txt, tmp_path):
    """From the result of a run, too: it has no optimiser state."""
    out = tmp_path / "out"
    assert str(out) in refused(out, "True")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    run = train(tiny("bert"), train_txt, resume_from_checkpoint="False")
    assert len(run.gradients) == 4
    for path in (tiny("bert"), *(str(tmp_path / name) for name in ("nowhere", "empty", "file")), str(run.folder)):
        line = refused(out, path)
        assert f"--resume_from_checkpoint {path}" in line and "checkpoint" in line.split(path)[1]
    line = refused(run.folder, "True")
    assert "no checkpoint" in line and str(run.folder) in line
    assert not out.exists()


def test_resuming_from_a_damaged_checkpoint_is_refused(refused, whole, tmp_path):
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    checkpoint = tmp_path / "checkpoint-2"
    for change, names in (
        (Path.unlink, ("optimizer.pt", "scheduler.pt", "trainer_state.json", "dcpcse.json")),
        (cut, ("prompts.safetensors", "trainer_state.json", "optimizer.pt")),
    ):
        for name in names:
            shutil.copytree(whole.folder / "checkpoint-2", checkpoint, dirs_exist_ok=True)
            change(checkpoint / name)
            assert "checkpoint-2" in refused(tmp_path / "out", checkpoint), name
    shutil.copytree(whole.folder / "checkpoint-2", checkpoint, dirs_exist_ok=True)
    for content in ("", "- a list", "{not: yaml", "\x00"):
        (checkpoint / "run.yaml").write_text(content)
        assert "run.yaml is damaged" in refused(tmp_path / "out", checkpoint)


def test_resuming_with_other_options_or_another_encoder_is_refused_and_writes_nothing(
    refused, tiny, interrupted, tmp_path
):
    """transformers would go on with the old learning rate and the new temperature."""
    before, checkpoint = files(interrupted), interrupted / "checkpoint-2"
    for options in (
        *({"pre_seq_len": 3}, {"pooler_type": "avg"}, {"prefix_projection": True}, {"prompt_form": "vectors"}),
        *({"do_mlm": True, "train_lm_head": True}, {"learning_rate": 0.5}, {"seed": 7}, {"temp": 0.5}),
        *({"optim": "sgd"}, {"bf16": True}),
    ):
        assert "this run has --" in refused(tmp_path / "out", checkpoint, **options), options
    refused(interrupted, checkpoint, pre_seq_len=3)
    assert "checkpoint-2" in refused(tmp_path / "out", checkpoint, encoder=tiny("bert", seed=11))
    assert files(interrupted) == before
    assert not (tmp_path / "out").exists()


def test_resuming_without_the_trained_objective_of_the_checkpoint_is_refused(
    refused, train, tiny, train_txt, tmp_path
):
    options = {**STEPS, "do_mlm": True, "train_lm_head": True}
    folder = train.interrupted(3, tiny("bert"), train_txt, **options)
    assert "--do_mlm" in refused(tmp_path / "out", folder / "checkpoint-2")
    for name in ("run.yaml", "checkpoint.json"):  # as an earlier version wrote it; its weights are looked at besides
        (folder / "checkpoint-2" / name).unlink()
    assert "contains the loss state" in refused(tmp_path / "out", folder / "checkpoint-2")


def test_a_result_and_another_run_are_not_replaced_unasked(refused, interrupted, whole):
    before = files(whole.folder)
    assert "--overwrite_output_dir" in refused(whole.folder, "False")
    assert "is not empty" in refused(whole.folder, interrupted / "checkpoint-2")
    assert files(whole.folder) == before


def test_a_resumed_run_compares_the_configuration_and_the_tokenizer(refused, tiny, interrupted, tmp_path):
    """Also what no vector depends on, but training does; a checkpoint of an earlier version has only the weights."""
    for changed, file, change, message in (
        ("activation", "config.json", {"hidden_act": "relu"}, "hidden_act is 'relu', and was 'gelu' in training"),
        ("dropout", "config.json", {"hidden_dropout_prob": 0.5}, "another configuration for training"),
        ("tokenizer", "tokenizer_config.json", {"cls_token": "[SEP]"}, "cls_token is [['[SEP]', 3]], and was"),
    ):
        base = Path(shutil.copytree(tiny("bert"), tmp_path / changed))
        content = json.loads((base / file).read_text(encoding="utf-8"))
        (base / file).write_text(json.dumps(content | change), encoding="utf-8")
        assert message in refused(tmp_path / "out", interrupted / "checkpoint-2", encoder=str(base))
    (interrupted / "checkpoint-2/checkpoint.json").unlink()  # the seal, which an earlier version did not write
    as_before(interrupted / "checkpoint-2")
    line = refused(tmp_path / "out", interrupted / "checkpoint-2", encoder=tiny("bert", seed=11))
    assert "is another encoder: the fingerprints of the weights differ" in line


def test_another_generator_under_the_same_weights_is_refused(refused, train, tiny, train_txt, tmp_path):
    generator = Path(shutil.copytree(tiny("bert"), tmp_path / "generator"))
    options = {"method": "diffcse", "generator_name": str(generator)}
    folder = train.interrupted(3, tiny("bert"), train_txt, **STEPS, **options)
    content = json.loads((generator / "config.json").read_text(encoding="utf-8"))
    (generator / "config.json").write_text(json.dumps(content | {"hidden_act": "relu"}), encoding="utf-8")
    line = refused(tmp_path / "out", folder / "checkpoint-2", **options)
    assert "another generator or LM head, with names and configuration" in line


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
    assert said == ([f"--bf16: as in {folder / 'checkpoint-4/run.yaml'}"] if before else [])
    assert len(again.gradients) == 4 and recorded(folder)["bf16"] is before
    assert_same_weights(whole.folder, folder)
    finished = files(folder)
    train(tiny("bert"), train_txt, folder=folder, resume=True, **STEPS)  # which has nothing left to do
    assert files(folder) == finished
