"""What `legacy_options` promises: every old option is mapped, left out with a line, or refused with its reason."""

import pytest

from dcpcse.cli.legacy_options import GONE, REFUSED, RENAMED, translate
from dcpcse.cli.parse import parse_training, training_parser
from dcpcse.utils.errors import UserError

PAPERS = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "warmup_ratio": "warmup_steps",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "pooler": "pooler_type",
    "preprocessing_num_workers": "dataloader_num_workers",
}
"""Options of the SimCSE, DCPCSE and PromCSE scripts (transformers 4.2) → what they are in transformers 5 and here."""
PAPERS_REFUSED = (
    *("model_type", "dataset_name", "dataset_config_name", "validation_split_percentage"),
    *("group_by_length", "sharded_ddp"),
)


def translated(*words: str) -> tuple[list[str], list[str]]:
    """The new command line, and the lines that were said."""
    said = []
    return translate(words, said.append), said


def known_options() -> set[str]:
    return {name for action in training_parser()._actions for name in action.option_strings}


def test_the_old_names_of_the_papers_are_all_known():
    assert PAPERS.items() <= RENAMED.items()
    assert {"local_rank", "save_safetensors"} <= set(GONE)
    assert set(PAPERS_REFUSED) <= set(REFUSED)
    assert not (set(RENAMED) & set(REFUSED) or set(RENAMED) & set(GONE) or set(GONE) & set(REFUSED))


@pytest.mark.parametrize(("old", "new"), PAPERS.items())
def test_a_renamed_option_keeps_its_value_and_is_said_once(old, new):
    expected = [f"--{old} is now --{new}"]
    assert translated(f"--{old}", "7", "--seed", "1") == ([f"--{new}", "7", "--seed", "1"], expected)
    assert translated(f"--{old}=7", "--seed", "1") == ([f"--{new}=7", "--seed", "1"], expected)
    assert translated("--seed", "1", f"--{old}") == (["--seed", "1", f"--{new}"], expected)


@pytest.mark.parametrize(("old", "new"), PAPERS.items())
def test_a_renamed_option_leads_to_one_that_the_program_has_and_not_to_a_refused_one(old, new):
    assert f"--{new}" in known_options()
    assert translated(f"--{new}", "7") == ([f"--{new}", "7"], [])
    # transformers before 5.20 still has warmup_ratio, and does what the new name does.
    assert f"--{old}" not in known_options() or old == "warmup_ratio"


@pytest.mark.parametrize("name", GONE)
def test_an_option_without_any_use_is_left_out_with_its_values_and_its_reason(name):
    line = [f"--{name} is left out: {GONE[name]}"]
    assert translated("--seed", "1", f"--{name}", "0", "--fp16") == (["--seed", "1", "--fp16"], line)
    assert translated(f"--{name}", "--seed", "1") == (["--seed", "1"], line)
    assert translated(f"--{name}=0", "--seed", "1") == (["--seed", "1"], line)
    assert translated(f"--{name}", "-1", "--seed", "1") == (["--seed", "1"], line)
    assert translated(f"--{name}") == ([], line)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", ["--{}", "--{}=1"])
def test_a_refused_option_is_named_with_the_reason_and_what_to_do(name, form):
    with pytest.raises(UserError) as refusal:
        translated("--seed", "1", form.format(name), "1")
    assert str(refusal.value).startswith(f"--{name}: {REFUSED[name]}")
    assert str(refusal.value).endswith("leave it out")


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_option_is_refused_with_hyphens_too(name):
    with pytest.raises(UserError, match=f"--{name}: "):
        translated(f"--{name.replace('_', '-')}", "1")


def test_hyphens_are_understood_in_renamed_and_left_out_options():
    assert translated("--evaluation-strategy", "steps")[0] == ["--eval_strategy", "steps"]
    assert translated("--local-rank=0")[0] == []


def test_everything_else_stays_as_it_is():
    words = [
        *("options.yaml", "--model_name_or_path", "bert-base-uncased", "--learning_rate", "3e-2", "--fp16"),
        *("--eval_tasks", "STSBenchmark", "SICKRelatedness", "--hard_negative_weight", "-1", "--temp=0.05", "--"),
    ]
    assert translated(*words) == (words, [])


def test_a_value_that_looks_like_an_old_name_is_a_value():
    words = ["--output_dir", "pooler", "--train_file", "group_by_length"]
    assert translated(*words) == (words, [])


def test_only_the_name_before_the_equals_sign_is_translated():
    assert translated("--pooler=a=b") == (["--pooler_type=a=b"], ["--pooler is now --pooler_type"])


def test_the_published_unsupervised_command_line_goes_through():
    """run_unsup_example.sh of the DCPCSE repository (SPEC 1.10); its options are all known afterwards."""
    words, said = translated(
        *("--model_name_or_path", "bert-base-uncased", "--train_file", "data/wiki1m_for_simcse.txt"),
        *("--output_dir", "result/my-unsup-dcpcse-bert-base-uncased", "--num_train_epochs", "1"),
        *("--per_device_train_batch_size", "256", "--learning_rate", "3e-2", "--max_seq_length", "32"),
        *("--evaluation_strategy", "steps", "--metric_for_best_model", "stsb_spearman", "--load_best_model_at_end"),
        *("--eval_steps", "125", "--pooler_type", "cls", "--mlp_only_train", "--pre_seq_len", "16"),
        *("--overwrite_output_dir", "--temp", "0.05", "--do_train", "--do_eval", "--fp16"),
    )
    assert said == ["--evaluation_strategy is now --eval_strategy"]
    assert {word for word in words if word.startswith("--")} <= known_options()


def parsed(*words):
    return parse_training([*words, "--output_dir", "out"])[0][0]


@pytest.mark.parametrize("name", ["d2cse", "conpvp"])
def test_an_option_that_tells_of_a_public_code_changes_no_named_method(name, tmp_path):
    """The method may stand in a file, in a preset, or beside the option."""
    option = {"d2cse": ["--lambda_weight", "0.01"], "conpvp": ["--prompt_len", "2"]}[name]
    file = tmp_path / "run.yaml"
    file.write_text(f"method: {name}\n", encoding="utf-8")
    preset = parsed("--preset", f"{name}/unsup-bert-base", *option)
    for args in (parsed(str(file), *option), preset, parsed("--method", name, *option)):
        assert args.method == name
    assert parsed(str(file), *option).generation is None
    assert preset.crtd_reduction == ("sum" if name == "d2cse" else None)


def test_a_file_with_such_an_option_goes_with_a_method_on_the_command_line(tmp_path):
    file = tmp_path / "best.yaml"
    file.write_text("lambda_weight: 0.01\n", encoding="utf-8")
    assert parsed(str(file), "--method", "d2cse").generation is None
    public = parsed(str(file))
    assert (public.method, public.generation, public.lambda_weight) == ("diffcse", "argmax", 0.01)
