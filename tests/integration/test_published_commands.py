"""The command lines of the public repositories, and each old option, on tiny encoders."""

import pytest
from runs import refused

from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.encoders.pooling import WITHOUT_TEMPLATE

SCRIPTS = {  # the published options, steps and batches reduced
    "run_unsup_example.sh": ("bert", "train_txt", {"num_train_epochs": 1, "pre_seq_len": 16, "mlp_only_train": True}),
    "run_sup_example.sh of PromCSE": (
        "roberta",
        "train_csv",
        {"max_steps": 4, "pre_seq_len": 10, "do_eh_loss": True, "eh_loss_margin": 0.2, "eh_loss_weight": 10},
    ),
    "SimCSE, unsupervised": ("roberta", "train_txt", {"max_steps": 4, "mlp_only_train": True, "do_mlm": True}),
}
COMMON = {"learning_rate": "3e-2", "max_seq_length": 32, "evaluation_strategy": "steps", "eval_steps": 2}
COMMON |= {"metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True, "pooler_type": "cls"}
COMMON |= {"overwrite_output_dir": True, "temp": 0.05, "do_train": True, "do_eval": True, "fp16": True}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_published_script_trains_and_its_result_is_evaluated(script, tiny, train, sts_data, request, tool, tmp_path):
    encoder, data, options = SCRIPTS[script]
    quick = dict.fromkeys(("max_steps", "save_strategy", "use_cpu", "logging_steps"))
    places = {"eval_data_dir": sts_data, "custom_eval_data": True, "per_device_train_batch_size": 8}
    options = {**quick, **places, **COMMON, **options}
    outcome = tool(
        train_command, train.argv(tiny(encoder), request.getfixturevalue(data), tmp_path / "out", **options)
    )
    assert outcome.code == 0, outcome.err
    assert "--evaluation_strategy is now --eval_strategy" in outcome.said
    assert "--fp16 has no effect without a GPU" in outcome.said
    # The evaluation command of the public README.
    words = ["--model_name_or_path", str(tmp_path / "out"), "--pooler", "cls", "--task_set", "sts", "--mode", "dev"]
    measured = tool(evaluate_command, [*words, "--data_dir", sts_data, "--custom_data"])
    assert measured.code == 0, measured.err
    assert set(measured.table) == {"STSBenchmark", "SICKRelatedness"}
    assert "------ dev ------" in measured.out and "as trained" in measured.said


OLD = {
    "no_cuda": (True, "use_cpu"),
    "warmup_ratio": ("0.5", "warmup_steps"),
    "per_gpu_train_batch_size": ("4", "per_device_train_batch_size"),
    "per_gpu_eval_batch_size": ("16", "per_device_eval_batch_size"),
    "pooler": ("avg", "pooler_type"),
    "preprocessing_num_workers": ("0", "dataloader_num_workers"),
    "local-rank": ("-1", "left out"),
}


def test_old_options_work_and_say_what_they_are_called_now(tiny, train, train_txt, tool, tmp_path):
    old = {name: value for name, (value, _) in OLD.items()} | dict.fromkeys(("use_cpu", "per_device_train_batch_size"))
    outcome = tool(train_command, train.argv(tiny("bert"), train_txt, tmp_path / "out", max_steps=1, **old))
    assert outcome.code == 0, outcome.err
    for name, (_, now) in OLD.items():
        (said,) = [line for line in outcome.said.splitlines() if line.startswith(f"--{name.replace('-', '_')} ")]
        assert now in said


def test_the_options_of_the_published_evaluation_work_on_a_result_unless_they_contradict_it(
    tiny, train, train_txt, sts_data, tool
):
    """The public code stops with a size mismatch at a contradiction, or measures other prompts."""
    options = {"pre_seq_len": 6, "prefix_projection": True, "prefix_hidden_size": 16, "max_steps": 1}
    result = str(train(tiny("bert"), train_txt, **options).folder)
    words = ["--model_name_or_path", result, "--data_dir", sts_data, "--custom_data", "--task_set", "na"]
    words += ["--tasks", "STSBenchmark", "--mode"]
    fitting = ["--temp", "0.05", "--hard_negative_weight", "0", "--do_mlm", "--mlm_weight", "0.1", "--mlp_only_train"]
    fitting += ["--pre_seq_len", "6", "--prefix_projection", "--prefix_hidden_size", "16", "--model_revision", "main"]
    for mode, given in (("fasttest", fitting), *(("dev", ["--pooler_type", pooler]) for pooler in WITHOUT_TEMPLATE)):
        outcome = tool(evaluate_command, [*words, mode, *given])
        assert outcome.code == 0, outcome.err
        assert "representation: " in outcome.said
        for flag in {"--temp", "--do_mlm", "--mlm_weight"}.intersection(given):
            assert f"{flag} is a training option" in outcome.said
    for flag in (["--pre_seq_len", "10"], ["--prefix_hidden_size", "512"]):
        refused(tool, evaluate_command, [*words, "dev", *flag], f"{' '.join(flag)}: the folder has ")
