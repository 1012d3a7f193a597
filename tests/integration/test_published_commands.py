"""The command lines of the public repositories, and each old option, on tiny encoders."""

import pytest

from dcpcse.cli.commands.train import evaluate_command, train_command
from dcpcse.encoders.pooling import WITHOUT_TEMPLATE

COMMON = {
    "learning_rate": "3e-2",
    "max_seq_length": 32,
    "evaluation_strategy": "steps",
    "metric_for_best_model": "stsb_spearman",
    "load_best_model_at_end": True,
    "eval_steps": 2,
    "pooler_type": "cls",
    "overwrite_output_dir": True,
    "temp": 0.05,
    "do_train": True,
    "do_eval": True,
    "fp16": True,
}
SCRIPTS = {  # the published options, steps and batches reduced
    "run_unsup_example.sh": ("bert", "train_txt", {"num_train_epochs": 1, "pre_seq_len": 16, "mlp_only_train": True}),
    "run_sup_example.sh": ("roberta", "train_csv", {"num_train_epochs": 1, "pre_seq_len": 10}),
    "run_sup_example.sh of PromCSE": (
        "roberta",
        "train_csv",
        {"max_steps": 4, "pre_seq_len": 10, "do_eh_loss": True, "eh_loss_margin": 0.2, "eh_loss_weight": 10},
    ),
    "SimCSE, unsupervised, RoBERTa": (
        "roberta",
        "train_txt",
        {"max_steps": 4, "mlp_only_train": True, "do_mlm": True},
    ),
}
OLD = {
    "no_cuda": (True, "use_cpu"),
    "warmup_ratio": ("0.5", "warmup_steps"),
    "per_gpu_train_batch_size": ("4", "per_device_train_batch_size"),
    "per_gpu_eval_batch_size": ("16", "per_device_eval_batch_size"),
    "pooler": ("avg", "pooler_type"),
    "preprocessing_num_workers": ("0", "dataloader_num_workers"),
    "local-rank": ("-1", "left out"),
    "local_rank": ("-1", "left out"),
}


@pytest.fixture
def places(train, sts_data, tmp_path):
    """Options that say where things lie; what the published scripts took for granted."""
    return {"eval_data_dir": sts_data, "custom_eval_data": True, "per_device_train_batch_size": 8}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_published_script_trains_and_its_result_is_evaluated(
    script, tiny, train, places, sts_data, request, tool, tmp_path
):
    encoder, data, options = SCRIPTS[script]
    quick = dict.fromkeys(("max_steps", "save_strategy", "use_cpu", "logging_steps"))
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
    assert "------ dev ------" in measured.out
    assert "as trained" in measured.said


@pytest.mark.parametrize("name", OLD)
def test_an_old_option_works_and_says_what_it_is_called_now(name, tiny, train, train_txt, tool, tmp_path):
    value, now = OLD[name]
    quick = dict.fromkeys(("use_cpu", "per_device_train_batch_size"))
    outcome = tool(
        train_command, train.argv(tiny("bert"), train_txt, tmp_path / "out", **quick, max_steps=1, **{name: value})
    )
    assert outcome.code == 0, outcome.err
    said = [line for line in outcome.said.splitlines() if line.startswith(f"--{name.replace('-', '_')} ")]
    assert len(said) == 1
    assert now in said[0]


@pytest.fixture(scope="module")
def result(tiny, train, train_txt) -> str:
    """A result with a projection: it has everything that the published evaluation options speak of."""
    options = {"pre_seq_len": 6, "prefix_projection": True, "prefix_hidden_size": 16, "max_steps": 1}
    return str(train(tiny("bert"), train_txt, **options).folder)


FLAGS = [
    ["--temp", "0.05"],
    ["--hard_negative_weight", "0"],
    ["--do_mlm"],
    ["--mlm_weight", "0.1"],
    ["--mlp_only_train"],
    ["--pre_seq_len", "6"],
    ["--prefix_projection"],
    ["--prefix_hidden_size", "16"],
    ["--model_revision", "main"],
    ["--mode", "fasttest", "--task_set", "na", "--tasks", "STSBenchmark"],
    *(["--pooler_type", pooler] for pooler in WITHOUT_TEMPLATE),
]


@pytest.mark.parametrize("flag", FLAGS, ids=" ".join)
def test_each_option_of_the_published_evaluation_works_on_a_result(flag, result, sts_data, tool):
    words = ["--model_name_or_path", result, "--data_dir", sts_data, "--custom_data"]
    task = [] if "--tasks" in flag else ["--mode", "dev"]
    outcome = tool(evaluate_command, [*words, *task, *flag])
    assert outcome.code == 0, outcome.err
    assert "representation: " in outcome.said
    if flag[0] in ("--temp", "--hard_negative_weight", "--do_mlm", "--mlm_weight"):
        assert f"{flag[0]} is a training option" in outcome.said or flag[1:] == ["0"]


@pytest.mark.parametrize("flag", [["--pre_seq_len", "10"], ["--prefix_hidden_size", "512"]], ids=" ".join)
def test_an_evaluation_option_that_contradicts_the_folder_is_refused(flag, result, sts_data, tool):
    """The public code stops with a size mismatch here, or measures other prompts."""
    words = ["--model_name_or_path", result, "--data_dir", sts_data, "--custom_data", "--mode", "dev"]
    outcome = tool(evaluate_command, [*words, *flag])
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {' '.join(flag)}: the folder has ")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("pooler", WITHOUT_TEMPLATE)
def test_each_pooler_measures_a_plain_encoder(kind, pooler, tiny, sts_data, tool):
    folder = tiny(kind, masked_lm=False)
    words = ["--model_name_or_path", folder, "--pooler", pooler, "--mode", "dev"]
    outcome = tool(evaluate_command, [*words, "--data_dir", sts_data, "--custom_data"])
    assert outcome.code == 0, outcome.err
