"""What a user gives is what is used, from train.py, `dcpcse.train` and `dcpcse.Trainer`; what is filled in is said."""

import dataclasses
import re

import pytest
import transformers

import dcpcse
from dcpcse.cli.parse import parse_training
from dcpcse.training import resolve_arguments
from dcpcse.training.arguments import UNSUPPORTED
from dcpcse.training.resolve_arguments import NEEDS
from dcpcse.training.run import run_training
from dcpcse.utils.errors import command_line

QUIET = {"use_cpu": True, "report_to": "none", "max_steps": 2, "disable_tqdm": True, "logging_strategy": "no"}
PAIRS = [("Rain fell.", "It rained.", 4.5), ("Rain fell.", "A cat sleeps.", 0.5), ("He sings.", "He hums.", 3.5)]
PLAIN = dataclasses.fields(transformers.TrainingArguments)


def by_command(encoder, data, folder, options):
    words = [f"--model_name_or_path={encoder}", f"--train_file={data}", f"--output_dir={folder}"]
    with command_line():
        return run_training(*parse_training([*words, *(f"--{name}={value}" for name, value in options.items())]))


def by_function(encoder, data, folder, options):
    return dcpcse.train(encoder, data, output_dir=folder, **options).trainer


def by_trainer(encoder, data, folder, options):
    names = {one.name for one in dataclasses.fields(dcpcse.TrainingArguments)}
    args = dcpcse.TrainingArguments(folder, **{name: options[name] for name in options if name in names})
    method = {name: value for name, value in options.items() if name not in names}
    trainer = dcpcse.Trainer(encoder, args=args, train_dataset=data, **method)
    trainer.train()
    return trainer


WAYS = {"train.py": by_command, "dcpcse.train": by_function, "dcpcse.Trainer": by_trainer}


@pytest.fixture(params=WAYS)
def train(request, tiny, train_txt, tmp_path, caplog, monkeypatch):
    """train(options) → the trainer, and the warnings as a text; the device seems to have units for bfloat16."""
    monkeypatch.setattr(resolve_arguments, "has_bfloat16_units", lambda device: True)

    def call(**options):
        caplog.clear()
        trainer = WAYS[request.param](tiny("bert"), train_txt, str(tmp_path / "run"), {**QUIET, **options})
        return trainer, "\n".join(one.message for one in caplog.records if one.levelname == "WARNING")

    return call


# option → a value to give, which is mostly a default of transformers; what is used without it; whether that is said
OPTIONS = {
    "learning_rate": (5e-5, 3e-2, True),
    "per_device_train_batch_size": (8, 64, True),
    "bf16": (False, True, True),
    "dataloader_num_workers": (0, 0, False),
    "optim": ("sgd", "adamw_torch", False),
    "data_seed": (7, 42, False),
    "ddp_find_unused_parameters": (True, False, False),
}
OF_EVALUATION = {  # the same with evaluation data of one's own and load_best_model_at_end
    "eval_strategy": ("steps", "epoch"),
    "eval_steps": (1, None),
    "eval_on_start": (False, True),
    "save_strategy": ("steps", "epoch"),
    "save_total_limit": (3, 2),
    "metric_for_best_model": ("eval_pairs_spearman", "pairs_spearman"),
}


def test_options_that_are_given_are_used_and_others_are_filled_in_and_named(train):
    for is_given in (True, False):
        given = {name: value for name, (value, _, _) in OPTIONS.items() if is_given}
        trainer, said = train(**given, method="dcpcse", save_strategy="no", overwrite_output_dir=True)
        said = "\n".join(line for line in said.splitlines() if "filled in" in line)
        assert bool(said) != is_given
        for name, (value, default, is_said) in OPTIONS.items():
            assert getattr(trainer.args, name) == (value if is_given else default), name
            assert (f"{name} " in said or f"{name}=" in said) == (is_said and not is_given)


@pytest.mark.parametrize("train", ["dcpcse.train"], indirect=True)
def test_the_same_of_options_that_own_evaluation_data_imply(train, tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS), encoding="utf-8")
    base = {"eval_pairs": str(tmp_path / "pairs.tsv"), "load_best_model_at_end": True, "overwrite_output_dir": True}
    for is_given in (True, False):
        given = {"save_steps": 1} | {name: value for name, (value, _) in OF_EVALUATION.items()} if is_given else {}
        trainer, said = train(**base, **given)
        for name, (value, default) in OF_EVALUATION.items():
            assert getattr(trainer.args, name) == (value if is_given else default), name
    assert re.search('metric_for_best_model( |=")pairs_spearman"?: filled in; it selects the best checkpoint', said)
    assert "evaluated before training and after every epoch" in said
    assert "a checkpoint is saved at every evaluation; the best and the last one are kept" in said


def test_a_method_that_an_option_implies_is_named_and_a_given_one_is_used(caplog):
    base = ["--prompt_len=2", "--output_dir=out"]
    (model, _, _), _ = parse_training(base)
    (record,) = caplog.records
    assert (model.method, model.prompt_init, record.levelname) == ("conpvp", "uniform", "WARNING")
    assert "prompt_len is an option of the public conpvp code: method conpvp" in record.message
    caplog.clear()
    with pytest.raises(dcpcse.UserError, match="prompt_len is an option of method conpvp and has no effect on simcse"):
        parse_training([*base, "--method=simcse"])
    assert not caplog.records


# transformers.TrainingArguments: every field.

CHANGED = {"remove_unused_columns": False, "dataloader_pin_memory": False}
"""Fields that a Trainer here sets on a CPU whatever their default, which have no effect on the result."""

OTHER_VALUES = {
    **{"max_steps": 3, "num_train_epochs": 2.0, "learning_rate": 1e-3, "per_device_train_batch_size": 5},
    **{"per_device_eval_batch_size": 3, "gradient_accumulation_steps": 2, "optim": "adamw_torch"},
    **{"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 0.4}, "warmup_steps": 1},
    **{"weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.99, "adam_epsilon": 1e-7, "max_grad_norm": 2.0},
    **{"optim_args": "a=1", "optim_target_modules": "x", "bf16": True, "seed": 7, "data_seed": 8},
    **{"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}},
    **{"logging_strategy": "epoch", "logging_steps": 3, "logging_first_step": True, "log_on_each_node": False},
    **{"logging_nan_inf_filter": False, "log_level": "warning", "log_level_replica": "error", "disable_tqdm": True},
    **{"run_name": "name", "project": "project", "report_to": [], "torch_empty_cache_steps": 1},
    **{"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 1, "eval_on_start": True, "do_eval": True},
    **{"metric_for_best_model": "pairs_spearman", "greater_is_better": True, "load_best_model_at_end": True},
    **{"save_strategy": "steps", "save_steps": 2, "save_total_limit": 3, "save_on_each_node": True},
    **{"save_only_model": True, "enable_jit_checkpoint": False, "restore_callback_states_from_checkpoint": True},
    **{"do_train": True, "full_determinism": False, "dataloader_drop_last": True, "dataloader_num_workers": 1},
    **{"dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3, "dataloader_in_order": False},
    **{"skip_memory_metrics": False, "ignore_data_skip": True, "ddp_find_unused_parameters": True},
    **{"ddp_bucket_cap_mb": 10, "ddp_broadcast_buffers": True, "ddp_timeout": 99},
    **{"ddp_static_graph": True, "dataloader_multiprocessing_context": "fork", "resume_from_checkpoint": "x"},
    **{"hub_private_repo": True, "hub_model_id": "a/b", "hub_revision": "x", "use_cpu": True, "output_dir": "y"},
    **{"accelerator_config": {"even_batches": False}, "debug": "underflow_overflow", "local_rank": -1},
}
NEED_A_GPU = {"fp16", "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode"}
REFUSED = {"push_to_hub", "train_sampling_strategy"}
FOR_SEVERAL_PROCESSES = {"ddp_backend"}
OLD_NAMES = {"gradient_checkpointing", "gradient_checkpointing_kwargs"}


def values_of(args) -> dict:
    return {one.name: getattr(args, one.name) for one in PLAIN}


def test_every_field_of_transformers_is_taken(tiny, sentences, tmp_path):
    named = OTHER_VALUES.keys() | CHANGED | UNSUPPORTED.keys() | NEED_A_GPU | REFUSED | OLD_NAMES
    assert {one.name for one in PLAIN} <= named | FOR_SEVERAL_PROCESSES
    args = transformers.TrainingArguments(**{**OTHER_VALUES, "output_dir": str(tmp_path)})
    usual, before = values_of(transformers.TrainingArguments(str(tmp_path))), values_of(args)
    assert sum(before[name] != usual[name] for name in OTHER_VALUES) > 60
    data = {"train_dataset": sentences, "eval_dataset": PAIRS}
    trainer = dcpcse.Trainer(tiny("bert"), "simcse", args, **data, callbacks=[transformers.TrainerCallback])
    assert values_of(trainer.args) == {**before, **CHANGED}
    assert values_of(args) == before


def test_arguments_of_ours_know_what_was_passed(tmp_path):
    args = dcpcse.TrainingArguments(str(tmp_path), use_cpu=True, max_steps=-1, learning_rate=None)
    assert args.given == {"output_dir", "use_cpu", "max_steps"}
    defaults = {  # as transformers.HfArgumentParser passes them
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        for one in dataclasses.fields(args)
    }
    given = {"output_dir": str(tmp_path), "use_cpu": True, "learning_rate": 5e-5, "eval_strategy": "epoch"}
    parsed = dcpcse.TrainingArguments(**{**defaults, **given})
    changed = dataclasses.replace(args, seed=3)
    assert parsed.given == {"use_cpu", "learning_rate", "eval_strategy"}
    assert (changed.given, changed.learning_rate, changed.bf16) == ({"use_cpu", "seed"}, None, None)
    assert dcpcse.TrainingArguments(**args.to_dict()).to_json_string() == args.to_json_string()


def test_values_that_cannot_have_an_effect_are_named(tiny, sentences, tmp_path, caplog):
    given = {"fp16": True, "remove_unused_columns": True, "dataloader_pin_memory": True}
    for values, count in ((given, 1), (dict.fromkeys(given, False), 0)):
        caplog.clear()
        args = dcpcse.TrainingArguments(str(tmp_path), **values, report_to="none")
        trainer = dcpcse.Trainer(tiny("bert"), "simcse", args, sentences, denoise_in_dev=None)
        assert [getattr(trainer.args, name) for name in given] == [False] * 3
        assert [caplog.text.count(f"{name}=True has no effect") for name in given] == [count] * 3


# The default method is not what the options of another one train.


TENTH = "is under a tenth of 0.03"
ANOTHER = {
    "my-unsup-simcse-bert-base-uncased": ({"learning_rate": 2.9e-3}, "simcse", TENTH),
    "my-sup-SimCSE": ({"learning_rate": 0.03}, "simcse", "names another method than"),
    "my-simcse": ({"learning_rate": 3e-5, "pre_seq_len": 2}, None, TENTH),
    "dcpcse-and-simcse": ({"learning_rate": 3e-3}, None, ""),
    "simcse": ({"method": "simcse", "learning_rate": 3e-4}, None, ""),
    "other": ({"method": "simcse", "learning_rate": 3e-2}, None, "is more than ten times 3e-05"),
}
"""Folder of the output → options, the method that the warning names, and what it says."""


def test_the_command_of_another_code_is_one_warning_that_names_its_method(tiny, train_txt, tmp_path, caplog):
    for folder, (options, method, problem) in ANOTHER.items():
        caplog.clear()
        options = {**QUIET, "save_strategy": "no", "max_steps": 1, **options}
        by_command(tiny("bert"), train_txt, str(tmp_path / folder), options)
        lines = [line for line in caplog.messages if re.search("tenth|ten times|another method|no (--)?method", line)]
        assert len(lines) == bool(method or problem), folder
        assert all(problem in line and (f"add --method {method} if" in line) == bool(method) for line in lines)


# After the training.


def test_a_run_of_a_trainer_can_be_described_and_says_what_to_load(tiny, sentences, tmp_path):
    folder = tmp_path / "p2"
    args = dcpcse.TrainingArguments(str(folder), **QUIET, save_strategy="steps", save_steps=2)
    trainer = dcpcse.Trainer(tiny("bert"), args=args, train_dataset=sentences, pre_seq_len=2)
    trainer.train()
    with pytest.raises(dcpcse.UserError, match=r"p2 contains checkpoints of a training.*p2/checkpoint-2"):
        dcpcse.load(folder)
    dcpcse.load(folder / "checkpoint-2")
    with pytest.raises(dcpcse.UserError, match=r"trainer\.sentence_encoder\.encode\(sentences\)"):
        trainer.model.encode(sentences, batch_size=4)
    trainer.create_model_card(model_name="mine")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# mine" in card and "learning_rate: 0.03" in card
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "checkpoint-2", "metrics.jsonl"]
    trainer.save_model()
    dcpcse.load(folder)


# Options that have no effect without others.

WITHOUT = {
    **{"eval_pairs": "x --eval_strategy no", "eval_delay": "2 --do_eval", "save_steps": "4 --save_strategy epoch"},
    **{"load_best_model_at_end": "True", "denoise_in_dev": "True --method promptbert"},
    **{"adam_bias_correction": "True --optim sgd", "warmup_steps": "10 --lr_scheduler_type constant"},
}
WITH = (
    "--do_eval --eval_strategy steps --eval_steps 4 --eval_delay 2 --eval_tasks STSBenchmark --eval_data_dir x "
    "--eval_pairs x --eval_labels x --eval_retrieval x "
    "--save_steps 4 --save_total_limit 2 --logging_steps 4 --adam_bias_correction False --adam_beta1 0.8 "
    "--warmup_steps 10 --load_best_model_at_end --metric_for_best_model stsb_spearman"
)


def reported(line, caplog, tmp_path):
    caplog.set_level("INFO", "dcpcse")
    usual = f"--model_name_or_path x --train_file x --output_dir {tmp_path} --use_cpu --report_to none"
    (_, data, run), given = parse_training(f"{usual} {line}".split())
    assert run.eval_strategy != "no" or "at every evaluation" not in caplog.text, "it promises evaluations"
    loses = "load_best_model_at_end" in line and run.eval_strategy == "no"
    assert ("no checkpoint is saved, since nothing is evaluated during training" in caplog.text) == loses
    caplog.clear()
    resolve_arguments.resolve_arguments(run, data, given)
    assert not (run.load_best_model_at_end and run.eval_strategy == "no")
    return [message for message in caplog.messages if "has no effect" in message]


@pytest.mark.usefixtures("on_command_line")
def test_an_option_of_a_run_without_effect_is_reported(caplog, tmp_path):
    for name, words in WITHOUT.items():
        assert f"--{name} has no effect without {NEEDS[name]}" in reported(f"--{name} {words}", caplog, tmp_path)
    reported("--load_best_model_at_end --do_eval", caplog, tmp_path)
    assert reported(WITH, caplog, tmp_path) == reported("", caplog, tmp_path) == []
