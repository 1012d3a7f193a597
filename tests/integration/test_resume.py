"""Interrupted and resumed training gives the very result of training without interruption, on a CPU."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from model_folders import as_before
from runs import assert_same_weights, comparable, files, train_loss, weights

from dcpcse.cli.commands.train import train_command
from dcpcse.training.atomic_save import SEAL
from dcpcse.training.trainer import Trainer

# 40 sentences in batches of 8 are 5 steps an epoch; checkpoints at 2, 4, 5 or 6 of 8 steps.
STEPS = {"max_steps": 8, "per_device_train_batch_size": 8, "save_strategy": "steps"}
EVALUATING = {"eval_strategy": "steps", "metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True}
RECIPES = {
    "unsupervised": {"mlp_only_train": True},
    "average": {"pooler_type": "avg"},
    "projection": {"prefix_projection": True, "prefix_hidden_size": 16},
    "vectors": {"prompt_form": "vectors", "gradient_checkpointing": True},
    "no bias correction": {"adam_bias_correction": False, "weight_decay": 0.01},
    "mlm": {"do_mlm": True},
    "mlm-trained-head": {"do_mlm": True, "train_lm_head": True},
    "mlm-new-head": {"do_mlm": True, "lm_head": "new"},
    "workers": {"dataloader_num_workers": 1},
    "bf16": {"bf16": True},
    "simcse": {"method": "simcse"},
    "simcse-mlm": {"method": "simcse", "do_mlm": True, "train_lm_head": True},
    "scpcse": {"method": "scpcse"},
    "promptbert": {"method": "promptbert"},
    "promptbert-org-mlp": {"method": "promptbert", "org_mlp": True, "denoise_at_inference": True},
    "promptbert-deep": {"method": "promptbert", "tuning": "deep"},
    "conpvp": {"method": "conpvp", "denoise_by": "attention"},
    "consert": {"method": "consert", "augmentation_1": "token_cutoff", "augmentation_2": "dropout"},
    "esimcse": {"method": "esimcse", "neg_size": 20},
    "esimcse-deep": {"method": "esimcse", "tuning": "deep", "neg_size": 20, "gradient_accumulation_steps": 2},
    "lora": {"tuning": "lora", "lora_dropout": 0.2},
    "esimcse-lora": {"method": "esimcse", "tuning": "lora", "neg_size": 20, "gradient_checkpointing": True},
    "row chunks": {"loss_chunk": 3, "gradient_cache_chunk": 5},
    "conpvp-instance": {"method": "conpvp", "instance_weight": 0.5, "gradient_accumulation_steps": 2},
}
"""What a resumed run repeats bit for bit; of dcpcse where no method is named."""


def log_of(folder: Path, resumed: int) -> list[dict]:
    """The log of a run that is equal with and without an interruption at a step."""
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return comparable(state["log_history"], [resumed])


@pytest.fixture(scope="module")
def resumed(train):
    """resumed(step, encoder, data, **options) → folders of the whole run and of the interrupted and resumed one."""

    def both(step: int, encoder: str, data: str, **options) -> tuple[Path, Path]:
        options = {**STEPS, "save_steps": step, **options}
        whole = train(encoder, data, **options).folder
        # Ctrl-C one step after the checkpoint, so that work is lost and must be done again.
        folder = train.interrupted(step + 1, encoder, data, **options)
        assert (folder / f"checkpoint-{step}").is_dir()
        assert not (folder / "dcpcse.json").exists()
        again = train(encoder, data, folder=folder, resume_from_checkpoint="True", **options)
        assert len(again.gradients) == 8 - step, "the resumed run must only do what was left"
        return whole, folder

    return both


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(recipe, resumed, tiny, train_txt):
    whole, folder = resumed(4, tiny("bert"), train_txt, **RECIPES[recipe])
    assert_same_weights(whole, folder)
    assert log_of(whole, 4) == log_of(folder, 4)
    assert train_loss(folder) == pytest.approx(train_loss(whole), rel=1e-6)


@pytest.mark.parametrize("logging_steps", [1, 3])
def test_train_loss_is_the_mean_over_all_steps_after_two_resumes(logging_steps, train, tiny, train_txt, caplog):
    options = {**STEPS, "save_steps": 2, "logging_steps": logging_steps}
    whole = train(tiny("bert"), train_txt, **{**options, "logging_steps": 1})
    folder = train.interrupted(3, tiny("bert"), train_txt, **options)
    train.interrupted(7, tiny("bert"), train_txt, folder=folder, resume=True, **options)
    train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert len(whole.logged("loss")) == 8
    assert train_loss(folder) == pytest.approx(sum(whole.logged("loss")) / 8, rel=1e-6)
    assert "train_loss is" not in caplog.text


def test_a_checkpoint_without_the_losses_before_it_is_named(train, tiny, train_txt, caplog):
    options = {**STEPS, "save_steps": 4}
    whole = train(tiny("bert"), train_txt, **options)
    folder = train.interrupted(5, tiny("bert"), train_txt, **options)
    for name in ("loss_sum.json", "checkpoint.json"):  # as an earlier version wrote it
        (folder / "checkpoint-4" / name).unlink()
    train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert train_loss(folder) == pytest.approx(sum(whole.logged("loss")[4:]) / 4, rel=1e-6)
    assert "train_loss is the mean over the steps after step 4" in caplog.text


def test_no_class_of_ours_is_named_in_a_checkpoint(train, tiny, train_txt):
    """transformers finds the state of callbacks by their class names: none of ours has any, and may be renamed."""
    folder = train.interrupted(3, tiny("bert"), train_txt, **STEPS, save_steps=2)
    state = json.loads((folder / "checkpoint-2/trainer_state.json").read_text(encoding="utf-8"))
    assert set(state["stateful_callbacks"]) == {"TrainerControl"}


ANCHORS = {"crtd_views": "anchor", "lambda_decay_rate": 0.5, "lambda_decay_steps": 2}
OWN_RATE = {"discriminator_learning_rate": 1e-3, "discriminator_warmup_steps": 6}


@pytest.mark.parametrize(
    "options",
    [{"method": "d2cse", "cls_prompt": True, **ANCHORS}, {"method": "diffcse"}, {"method": "diffcse", **OWN_RATE}],
    ids=str,
)
def test_replaced_token_detection_resumes_bit_for_bit(options, resumed, tiny, train_txt):
    """With the statistics of BatchNorm, the detection head and, in DiffCSE, the discriminator."""
    whole, folder = resumed(4, tiny("bert"), train_txt, generator_name=tiny("bert"), **options)
    assert_same_weights(whole, folder)
    assert any("running_mean" in name for name in weights(folder))
    assert log_of(whole, 4) == log_of(folder, 4)


@pytest.mark.parametrize("kind", ["roberta", "electra", "modernbert"])
def test_other_encoders_resume_bit_for_bit_too(kind, resumed, tiny, train_csv):
    assert_same_weights(*resumed(2, tiny(kind), train_csv, do_mlm=True))


@pytest.mark.parametrize("step", [5, 6])
def test_resuming_works_at_and_behind_the_end_of_an_epoch(step, resumed, tiny, train_txt):
    assert_same_weights(*resumed(step, tiny("bert"), train_txt, do_mlm=True))


@pytest.mark.parametrize("step", [2, 5])
def test_resuming_works_with_gradient_accumulation(step, resumed, tiny, train_txt):
    """5 batches, 2 a step: the third step of an epoch has one batch only; the sixth ends the second epoch."""
    options = {"gradient_accumulation_steps": 2, "do_mlm": True, "train_lm_head": True}
    assert_same_weights(*resumed(step, tiny("bert"), train_txt, **options))


def test_the_trained_lm_head_resumes_bit_for_bit(train, tiny, train_txt):
    options = {**STEPS, "save_steps": 4, "do_mlm": True, "train_lm_head": True}
    whole = train(tiny("bert"), train_txt, **options)
    folder = train.interrupted(6, tiny("bert"), train_txt, **options)
    again = train(tiny("bert"), train_txt, folder=folder, resume_from_checkpoint="True", **options)
    heads = [name for name in whole.final if name.startswith("losses.mlm.")]
    assert any(not torch.equal(whole.final[name], whole.initial[name]) for name in heads)
    for name in heads:
        assert torch.equal(whole.final[name], again.final[name]), name


def test_a_checkpoint_that_was_moved_resumes_into_another_folder(train, tiny, train_txt, tmp_path):
    options = {**STEPS, "save_steps": 4}
    whole = train(tiny("bert"), train_txt, **options)
    moved = shutil.copytree(whole.folder / "checkpoint-4", tmp_path / "elsewhere")
    before = files(moved)
    other = train(tiny("bert"), train_txt, resume_from_checkpoint=moved, **options)
    assert_same_weights(whole.folder, other.folder)
    assert files(moved) == before


def test_the_last_of_several_checkpoints_is_taken(train, tiny, train_txt):
    options = {**STEPS, "save_steps": 2}
    folder = train.interrupted(7, tiny("bert"), train_txt, **options)
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    again = train(tiny("bert"), train_txt, folder=folder, resume_from_checkpoint="True", **options)
    assert len(again.gradients) == 2
    assert_same_weights(train(tiny("bert"), train_txt, **options).folder, folder)


@pytest.mark.parametrize("best", [1, 2, 4])
def test_the_best_step_survives_an_interruption(best, train, tiny, train_txt, sts_data, monkeypatch):
    """The best of four measurements lies before the interruption, is lost with it, or comes after it."""
    options = {**STEPS, **EVALUATING, "eval_steps": 2, "save_strategy": None}
    options |= {"eval_data_dir": sts_data, "custom_eval_data": True}

    steps, evaluate = [], Trainer.evaluate

    def evaluate_and_note(self, *args, **kwargs):
        steps.append(self.state.global_step)
        return evaluate(self, *args, **kwargs)

    def scores(results) -> dict[str, float]:
        return {"stsb_spearman": 0.9 if steps[-1] == 2 * best else 0.1 * steps[-1]}

    monkeypatch.setattr(Trainer, "evaluate", evaluate_and_note)
    monkeypatch.setattr("dcpcse.training.eval_datasets.dev_metrics", scores)
    whole = train(tiny("bert"), train_txt, **options)
    folder = train.interrupted(5, tiny("bert"), train_txt, **options)
    again = train(tiny("bert"), train_txt, folder=folder, resume_from_checkpoint="True", **options)
    for run in (whole, again):
        assert run.state["best_global_step"] == 2 * best
        assert run.state["best_metric"] == 0.9
        assert_same_weights(run.folder, run.folder / f"checkpoint-{2 * best}")
    assert_same_weights(whole.folder, folder)
    assert log_of(whole.folder, 4) == log_of(folder, 4)


def test_resuming_a_finished_run_changes_nothing(train, tiny, train_txt):
    options = {**STEPS, "save_steps": 4}
    run = train(tiny("bert"), train_txt, **options)
    before = weights(run.folder)
    again = train(tiny("bert"), train_txt, folder=run.folder, resume_from_checkpoint="True", **options)
    assert again.gradients == []
    after = weights(run.folder)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_resume_false_starts_anew(train, tiny, train_txt):
    run = train(tiny("bert"), train_txt, resume_from_checkpoint="False")
    assert len(run.gradients) == 4


# Broken requests


@pytest.fixture
def interrupted(train, tiny, train_txt) -> Path:
    """A run that was cut off after its checkpoint-2."""
    return train.interrupted(3, tiny("bert"), train_txt, **STEPS, save_steps=2)


@pytest.fixture
def refused(train, tiny, train_txt, tool):
    """refused(folder, checkpoint, **options) → the error line."""

    def call(folder: Path, checkpoint: str | Path, encoder: str | None = None, **options) -> str:
        options = {**STEPS, "save_steps": 2, "resume_from_checkpoint": checkpoint, **options}
        outcome = tool(train_command, train.argv(encoder or tiny("bert"), train_txt, folder, **options))
        assert outcome.code == 2
        errors = [line for line in outcome.err.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, outcome.err
        assert "Traceback" not in outcome.err
        return errors[0]

    return call


def test_resuming_where_nothing_was_trained_is_refused(refused, tmp_path):
    assert str(tmp_path / "out") in refused(tmp_path / "out", "True")


@pytest.mark.parametrize("options", [{}, {"pre_seq_len": 3}])
def test_a_refused_resumption_writes_nothing(options, refused, interrupted, tmp_path):
    """Neither into a new folder nor over the run.yaml of the run that was to go on."""
    before = files(interrupted)
    checkpoint = interrupted / "checkpoint-2" if options else tmp_path / "nowhere"
    refused(interrupted, checkpoint, **options)
    refused(tmp_path / "out", checkpoint, **options)
    assert files(interrupted) == before
    assert not (tmp_path / "out").exists()


def test_resuming_a_run_without_checkpoints_is_refused(refused, train, tiny, train_txt):
    run = train(tiny("bert"), train_txt)
    line = refused(run.folder, "True")
    assert "no checkpoint" in line
    assert str(run.folder) in line


@pytest.mark.parametrize("place", ["nowhere", "empty", "encoder", "file"])
def test_resuming_from_what_is_no_checkpoint_is_refused(place, refused, tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    path = tiny("bert") if place == "encoder" else str(tmp_path / place)
    line = refused(tmp_path / "out", path)
    assert f"--resume_from_checkpoint {path}" in line
    assert "checkpoint-N" in line


def test_resuming_from_the_result_of_a_run_is_refused(refused, train, tiny, train_txt, tmp_path):
    """It has no optimiser state: going on from it would not be the run going on."""
    run = train(tiny("bert"), train_txt)
    assert str(run.folder) in refused(tmp_path / "out", run.folder)


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "trainer_state.json", "dcpcse.json"])
def test_resuming_from_a_checkpoint_that_lacks_a_file_is_refused(file, refused, interrupted, tmp_path):
    (interrupted / "checkpoint-2" / file).unlink()
    assert "checkpoint-2" in refused(tmp_path / "out", interrupted / "checkpoint-2")


@pytest.mark.parametrize("file", ["prompts.safetensors", "trainer_state.json", "optimizer.pt"])
def test_resuming_from_a_checkpoint_with_a_cut_off_file_is_refused(file, refused, interrupted, tmp_path):
    path = interrupted / "checkpoint-2" / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "checkpoint-2" in refused(tmp_path / "out", interrupted / "checkpoint-2")


@pytest.mark.parametrize(
    "options",
    [
        {"pre_seq_len": 3},
        {"pooler_type": "avg"},
        {"prefix_projection": True},
        {"prompt_form": "vectors"},
        {"do_mlm": True, "train_lm_head": True},
    ],
)
def test_resuming_with_options_of_another_model_is_refused(options, refused, interrupted, tmp_path):
    refused(tmp_path / "out", interrupted / "checkpoint-2", **options)


def test_resuming_without_the_trained_objective_of_the_checkpoint_is_refused(
    refused, train, tiny, train_txt, tmp_path
):
    options = {**STEPS, "save_steps": 2, "do_mlm": True, "train_lm_head": True}
    folder = train.interrupted(3, tiny("bert"), train_txt, **options)
    assert "--do_mlm" in refused(tmp_path / "out", folder / "checkpoint-2")
    for name in ("run.yaml", "checkpoint.json"):  # as an earlier version wrote it; its weights are looked at besides
        (folder / "checkpoint-2" / name).unlink()
    assert "contains the loss state" in refused(tmp_path / "out", folder / "checkpoint-2")


@pytest.mark.parametrize("options", [{"learning_rate": 0.5}, {"seed": 7}, {"temp": 0.5}, {"optim": "sgd"}])
def test_resuming_with_other_options_of_training_is_refused(options, refused, interrupted, tmp_path):
    """transformers would go on with the old learning rate and the new temperature."""
    ((name, value),) = options.items()
    assert f"this run has --{name} {value}" in refused(tmp_path / "out", interrupted / "checkpoint-2", **options)


@pytest.mark.parametrize("options", [{"weight_decay": 0.0}, {"lr_scheduler_type": "linear"}, {"max_grad_norm": 1.0}])
def test_a_default_may_be_spelt_out_on_resuming(options, train, tiny, train_txt, interrupted):
    options = {**STEPS, "save_steps": 2, **options}
    run = train(tiny("bert"), train_txt, folder=interrupted, resume_from_checkpoint="True", **options)
    assert run.state["global_step"] == 8


@pytest.mark.parametrize("content", ["", "- a list", "{not: yaml", "\x00"])
def test_resuming_from_a_checkpoint_with_a_damaged_run_yaml_is_refused(content, refused, interrupted, tmp_path):
    (interrupted / "checkpoint-2/run.yaml").write_text(content)
    assert "run.yaml is damaged" in refused(tmp_path / "out", interrupted / "checkpoint-2")


def test_resume_false_does_not_replace_a_result_unasked(refused, train, tiny, train_txt):
    run = train(tiny("bert"), train_txt, **STEPS, save_steps=4)
    before = files(run.folder)
    assert "--overwrite_output_dir" in refused(run.folder, "False")
    assert files(run.folder) == before


def test_resuming_into_the_folder_of_another_run_is_refused(refused, interrupted, train, tiny, train_txt):
    other = train(tiny("bert"), train_txt).folder
    before = files(other)
    assert "is not empty" in refused(other, interrupted / "checkpoint-2")
    assert files(other) == before


def test_a_moved_folder_resumes_and_knows_its_best_checkpoint(train, tiny, train_txt, sts_data, tmp_path):
    options = {**STEPS, **EVALUATING, "eval_steps": 2, "save_strategy": None}
    options |= {"eval_data_dir": sts_data, "custom_eval_data": True, "save_total_limit": 9}
    run = train(tiny("bert"), train_txt, **options)
    before = weights(run.folder)
    moved = Path(shutil.move(run.folder, tmp_path / "moved"))
    train(tiny("bert"), train_txt, folder=moved, resume_from_checkpoint="True", **options)
    after = weights(moved)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_run_yaml_of_a_resumed_run_starts_a_new_one(train, tiny, train_txt, tool, tmp_path):
    options = {**STEPS, "save_steps": 4}
    folder = train.interrupted(6, tiny("bert"), train_txt, **options)
    train(tiny("bert"), train_txt, folder=folder, resume_from_checkpoint="True", **options)
    outcome = tool(train_command, [str(folder / "run.yaml"), "--output_dir", str(tmp_path / "new")])
    assert outcome.code == 0, outcome.err
    assert_same_weights(folder, tmp_path / "new")


def test_an_interruption_is_one_line_and_says_how_to_go_on(train, tiny, train_txt, capsys, caplog):
    with caplog.at_level("INFO", logger="dcpcse"):
        train.interrupted(3, tiny("bert"), train_txt, **STEPS, save_steps=2)
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert "checkpoint-2 is the last checkpoint; the same command with --resume" in caplog.text


def test_resuming_on_another_encoder_is_refused(refused, tiny, interrupted, tmp_path):
    """The prompts were trained against other weights; a folder is refused there for the same reason."""
    line = refused(tmp_path / "out", interrupted / "checkpoint-2", encoder=tiny("bert", seed=11))
    assert "checkpoint-2" in line


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
    options = {**STEPS, "save_steps": 2, "method": "diffcse"}
    generator = Path(shutil.copytree(tiny("bert"), tmp_path / "generator"))
    folder = train.interrupted(3, tiny("bert"), train_txt, **options, generator_name=str(generator))
    content = json.loads((generator / "config.json").read_text(encoding="utf-8"))
    (generator / "config.json").write_text(json.dumps(content | {"hidden_act": "relu"}), encoding="utf-8")
    line = refused(tmp_path / "out", folder / "checkpoint-2", method="diffcse", generator_name=str(generator))
    assert "another generator or LM head, with names and configuration" in line


# The precision, which depends on the device. Whether it has units for bfloat16 is substituted.


def with_units(monkeypatch, answer: bool) -> None:
    monkeypatch.setattr("dcpcse.training.resolve_arguments.has_bfloat16_units", lambda device: answer)


def recorded(folder: Path) -> dict:
    return yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))


def as_recorded_before(folder: Path) -> None:
    """As earlier versions recorded a run: without a precision that was not given."""
    for place in (folder, *folder.glob("checkpoint-*")):
        options = recorded(place)
        assert options.pop("bf16") is False
        (place / "run.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
        (place / SEAL).unlink(missing_ok=True)


@pytest.mark.parametrize("before", [True, False], ids=["bfloat16", "float32 of an earlier version"])
def test_a_resumed_run_keeps_the_precision_of_its_record(before, train, tiny, train_txt, monkeypatch, caplog):
    options = {**STEPS, "save_steps": 4}
    with_units(monkeypatch, before)
    whole = train(tiny("bert"), train_txt, **options)
    folder = train.interrupted(5, tiny("bert"), train_txt, **options)
    assert recorded(folder)["bf16"] is recorded(folder / "checkpoint-4")["bf16"] is before
    if not before:
        as_recorded_before(folder)
    with_units(monkeypatch, not before)
    caplog.clear()
    with caplog.at_level("INFO", logger="dcpcse"):
        again = train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    said = [line for line in caplog.messages if "--bf16" in line]
    assert said == ([f"--bf16: as in {folder / 'checkpoint-4/run.yaml'}"] if before else [])
    assert len(again.gradients) == 4 and recorded(folder)["bf16"] is before
    assert_same_weights(whole.folder, folder)
    finished = files(folder)
    train(tiny("bert"), train_txt, folder=folder, resume=True, **options)  # which has nothing left to do
    assert files(folder) == finished


def test_another_precision_than_that_of_the_record_is_refused(refused, interrupted):
    line = refused(interrupted, "True", bf16=True)
    assert "was written with --bf16 False, this run has --bf16 True" in line


def test_tf32_may_change_with_the_device_and_is_reported(train, tiny, train_txt, caplog):
    folder = train.interrupted(3, tiny("bert"), train_txt, **STEPS, save_steps=2, tf32="False")
    train(tiny("bert"), train_txt, folder=folder, resume=True, **STEPS, save_steps=2)
    assert "--tf32 was False and is None now: the last digits may differ" in caplog.text
