"""Options of a run that have no effect in combination with others are reported."""

import pytest

from dcpcse.cli.parse import parse_training
from dcpcse.training.resolve_arguments import NEEDS, resolve_arguments

WITHOUT = {
    "eval_data_dir": "x",
    "custom_eval_data": "True",
    "eval_tasks": "STSBenchmark",
    "eval_pairs": "x --eval_strategy no",
    "eval_labels": "x --eval_strategy no",
    "eval_retrieval": "x --eval_strategy no",
    "per_device_eval_batch_size": "4",
    "metric_for_best_model": "stsb_spearman",
    "load_best_model_at_end": "True --save_strategy no",
    "greater_is_better": "True",
    "denoise_in_dev": "True --method promptbert",
    "eval_steps": "4 --do_eval",
    "eval_delay": "2 --do_eval",
    "save_steps": "4 --save_strategy epoch",
    "save_total_limit": "2 --save_strategy no",
    "logging_steps": "4 --logging_strategy epoch",
    "logging_dir": "x",
    "adam_bias_correction": "True --optim sgd",
    "adam_beta1": "0.8 --optim sgd",
    "adam_beta2": "0.8 --optim sgd",
    "adam_epsilon": "1e-6 --optim adafactor",
    "warmup_steps": "10 --lr_scheduler_type constant",
    "gradient_checkpointing_kwargs": "{}",
}
WITH = (
    "--do_eval --eval_strategy steps --eval_steps 4 --eval_delay 2 --eval_tasks STSBenchmark --eval_data_dir x "
    "--eval_pairs x --eval_labels x --eval_retrieval x "
    "--save_steps 4 --save_total_limit 2 --logging_steps 4 --adam_bias_correction False --adam_beta1 0.8 "
    "--warmup_steps 10 --load_best_model_at_end --metric_for_best_model stsb_spearman"
)


def said(line, caplog, tmp_path):
    caplog.set_level("INFO", "dcpcse")
    usual = f"--model_name_or_path x --train_file x --output_dir {tmp_path} --use_cpu --report_to none"
    (_, data, run), given = parse_training(f"{usual} {line}".split())
    caplog.clear()
    resolve_arguments(run, data, given)
    return [message for message in caplog.messages if "has no effect" in message]


def test_every_option_that_needs_another_is_tried():
    assert set(WITHOUT) == set(NEEDS)


@pytest.mark.usefixtures("on_command_line")
@pytest.mark.parametrize("name", NEEDS)
def test_an_option_of_a_run_without_effect_is_reported(name, caplog, tmp_path):
    assert f"--{name} has no effect without {NEEDS[name]}" in said(f"--{name} {WITHOUT[name]}", caplog, tmp_path)


def test_an_option_of_a_run_with_an_effect_is_not_reported(caplog, tmp_path):
    assert said(WITH, caplog, tmp_path) == []
    assert said("", caplog, tmp_path) == []
