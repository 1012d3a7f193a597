"""The command lines of the public repositories on tiny encoders."""

from runs import refused

from dcpcse.cli.commands.train import evaluate_command, train_command

COMMON = {"learning_rate": "3e-2", "max_seq_length": 32, "evaluation_strategy": "steps", "eval_steps": 2}
COMMON |= {"metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True, "pooler_type": "cls"}
COMMON |= {"overwrite_output_dir": True, "temp": 0.05, "do_train": True, "do_eval": True, "fp16": True}


def test_the_script_of_promcse_trains_and_its_result_is_evaluated(tiny, train, train_csv, sts_data, tool, tmp_path):
    """With the published options but fewer steps and smaller batches; those of DCPCSE are in test_scripts.py."""
    quick = {"save_strategy": None, "max_steps": 2, "eval_data_dir": sts_data, "custom_eval_data": True}
    options = {"pre_seq_len": 10, "do_eh_loss": True, "eh_loss_margin": 0.2, "eh_loss_weight": 10}
    argv = train.argv(tiny("roberta"), train_csv, tmp_path / "out", **COMMON, **options, **quick)
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
