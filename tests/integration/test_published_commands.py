"""The command lines of the public repositories, and each old option, on tiny encoders."""

import pytest
from runs import refused

from dcpcse.cli.commands.train import evaluate_command, train_command

SCRIPTS = {  # the published options, steps and batches reduced
    "run_unsup_example.sh": ("bert", "train_txt", {"num_train_epochs": 1, "pre_seq_len": 16, "mlp_only_train": True}),
    "run_sup_example.sh of PromCSE": (
        *("roberta", "train_csv"),
        {"max_steps": 2, "pre_seq_len": 10, "do_eh_loss": True, "eh_loss_margin": 0.2, "eh_loss_weight": 10},
    ),
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
    argv = train.argv(tiny(encoder), request.getfixturevalue(data), tmp_path / "out", **options)
    outcome = tool(train_command, argv)
    assert outcome.code == 0, outcome.err
    assert "--evaluation_strategy is now --eval_strategy" in outcome.said
    assert "--fp16 has no effect without a GPU" in outcome.said
    # The evaluation command of the public README.
    words = ["--model_name_or_path", str(tmp_path / "out"), "--pooler", "cls", "--task_set", "sts", "--mode", "dev"]
    measured = tool(evaluate_command, [*words, "--data_dir", sts_data, "--custom_data"])
    assert measured.code == 0, measured.err
    assert set(measured.table) == {"STSBenchmark", "SICKRelatedness"}
    assert "------ dev ------" in measured.out and "as trained" in measured.said


def test_old_options_work(tiny, train, train_txt, tool, tmp_path):
    old = {"no_cuda": True, "warmup_ratio": "0.5", "per_gpu_train_batch_size": 4, "per_gpu_eval_batch_size": 16}
    old |= {"pooler": "avg", "preprocessing_num_workers": 0, "local-rank": -1}
    options = {**old, **dict.fromkeys(("use_cpu", "per_device_train_batch_size")), "max_steps": 1}
    outcome = tool(train_command, train.argv(tiny("bert"), train_txt, tmp_path / "out", **options))
    assert outcome.code == 0, outcome.err
    for name in old:
        assert f"--{name.replace('-', '_')} is " in outcome.said


def test_options_of_an_evaluation_may_repeat_those_of_the_folder_and_do_not_contradict_them(
    tiny, train, train_txt, sts_data, tool
):
    """The public code stops with a size mismatch at a contradiction, or measures other prompts."""
    options = {"pre_seq_len": 6, "prefix_projection": True, "prefix_hidden_size": 16, "max_steps": 1}
    deep = train(tiny("bert"), train_txt, **options).folder
    shallow = train(tiny("bert"), train_txt, method="scpcse", max_steps=1).folder
    training = ["--temp", "0.05", "--do_mlm", "--mlm_weight", "0.1"]
    same = ["--pre_seq_len", "6", "--prefix_projection", "--prefix_hidden_size", "16", "--model_revision", "main"]
    for code, folder, *words in (
        (0, deep, *training, *same, "--mlp_only_train", "--hard_negative_weight", "0"),
        *((0, deep, "--pooler_type", pooler) for pooler in ("avg", "avg_first_last")),
        (2, deep, "--pre_seq_len", "10"),
        (2, deep, "--prefix_hidden_size", "512"),
        (0, shallow, "--pooler", "mask", "--template", 'This sentence : "{sentence}" means [MASK]'),
        (2, shallow, "--template", "{sentence} [MASK]"),
        (2, shallow, "--final_period"),
        (2, shallow, "--pre_seq_len", "4"),
    ):
        argv = ["--model_name_or_path", str(folder), "--data_dir", sts_data, "--custom_data", "--mode", "dev", *words]
        if code:
            refused(tool, evaluate_command, argv, words[0])
            continue
        outcome = tool(evaluate_command, argv)
        assert outcome.code == 0, outcome.err
        assert "representation: " in outcome.said
        for flag in {"--temp", "--do_mlm", "--mlm_weight"}.intersection(words):
            assert f"{flag} is a training option" in outcome.said
