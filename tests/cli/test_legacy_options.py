"""Old options of the papers' scripts are translated; options that would do harm are rejected with the reason."""

from dataclasses import fields

import pytest
from transformers import TrainingArguments

from dcpcse.cli.legacy_options import EVALUATION_NAMES, TRAINING_NAMES, translate
from dcpcse.cli.parse import parse_evaluation, parse_training, training_parser
from dcpcse.training.arguments import UNSUPPORTED
from dcpcse.utils.errors import UserError


def translated(*words: str) -> tuple[list[str], list[str]]:
    """The new command line, and the lines that were reported."""
    said = []
    return translate(words, said.append, TRAINING_NAMES), said


@pytest.fixture(scope="module")
def parser():
    return training_parser()


def test_an_old_name_becomes_the_new_one_with_its_value_and_is_reported_once(parser):
    old = "--no_cuda --warmup_ratio 0.5 --per_gpu_train_batch_size 4 --per_gpu_eval_batch_size 16 --pooler avg "
    old += "--preprocessing_num_workers 2 --evaluation_strategy epoch --local-rank -1 --output_dir out"
    (model, _, run), _ = parse_training(old.split())
    assert (run.use_cpu, run.warmup_steps, run.eval_strategy, model.pooler_type) == (True, 0.5, "epoch", "avg")
    sizes = run.per_device_train_batch_size, run.per_device_eval_batch_size, run.dataloader_num_workers
    assert sizes == (4, 16, 2)
    for old, new in TRAINING_NAMES.renamed.items():
        expected = [f"--{old} is now --{new}"]
        assert translated(f"--{old}", "7", "--seed", "1") == ([f"--{new}", "7", "--seed", "1"], expected)
        assert translated(f"--{old}=a=b", "--seed", "1") == ([f"--{new}=a=b", "--seed", "1"], expected)
        assert translated("--seed", "1", f"--{old.replace('_', '-')}") == (["--seed", "1", f"--{new}"], expected)
        assert f"--{new}" in parser._option_string_actions
        # transformers before 5.20 still has warmup_ratio, with the meaning of the new name.
        assert f"--{old}" not in parser._option_string_actions or old == "warmup_ratio"


def test_an_option_without_any_use_is_left_out_with_its_values_and_its_reason():
    assert "local_rank" in TRAINING_NAMES.gone  # passed by torch.distributed.launch
    for name, reason in TRAINING_NAMES.gone.items():
        for words in ([f"--{name}", "0"], [f"--{name.replace('_', '-')}", "-1"], [f"--{name}=0"], [f"--{name}"]):
            expected = (["--seed", "1", "--fp16"], [f"--{name} is left out: {reason}"])
            assert translated("--seed", "1", *words, "--fp16") == expected


def test_options_of_transformers_that_do_harm_are_rejected_with_the_reason(parser, tmp_path):
    assert {"deepspeed", "fsdp", "hub_token", "label_smoothing_factor", "group_by_length"} <= set(UNSUPPORTED)
    assert set(UNSUPPORTED) <= {field.name for field in fields(TrainingArguments)} | {"group_by_length"}
    shown = parser.format_help()
    for name, reason in UNSUPPORTED.items():
        assert f"--{name} " not in shown
        for option in (f"--{name}", f"--{name.replace('_', '-')}=1"):
            with pytest.raises(UserError) as error:
                parser.parse_known_args(["--seed", "1", option])
            assert str(error.value) == f"--{name} is not supported: {reason}; leave it out"
    (tmp_path / "run.yaml").write_text("deepspeed: ds.json\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"run\.yaml: --deepspeed is not supported"):
        parse_training([str(tmp_path / "run.yaml"), "--output_dir", "out"])


def test_the_first_argument_of_an_evaluation_is_the_encoder_or_a_file_of_options(tmp_path, monkeypatch):
    file = tmp_path / "options.yaml"
    file.write_text("model_name_or_path: x\nmode: dev\nmask_embedding_sentence_org_mlp: true\nembedding_only: true\n")
    assert parse_evaluation(["x"])[0].mode == "test"
    args, _ = parse_evaluation([str(file)])  # with names of the public PromptBERT code
    assert (args.model_name_or_path, args.mode, args.pooler_type) == ("x", "dev", "static")
    with pytest.raises(UserError, match=r"unknown argument --model; did you mean --model_name_or_path\?"):
        parse_evaluation(["--model", "x"])
    for command, usage in (("train.py", "train.py"), ("dcpcse", "dcpcse train"), ("__main__.py", "dcpcse train")):
        monkeypatch.setattr("sys.argv", [f"/bin/{command}"])
        assert training_parser().format_usage().startswith(f"usage: {usage} ")


def test_everything_else_is_kept(parser):
    """Of run_unsup_example.sh of the DCPCSE repository (SPEC 1.10), and values that look like old names."""
    line = (
        "--model_name_or_path bert-base-uncased --train_file local_rank --output_dir pooler --num_train_epochs 1 "
        "--per_device_train_batch_size 256 --learning_rate 3e-2 --max_seq_length 32 --evaluation_strategy steps "
        "--metric_for_best_model stsb_spearman --load_best_model_at_end --eval_steps 125 --pooler_type cls "
        "--mlp_only_train --pre_seq_len 16 --overwrite_output_dir --temp=0.05 --do_train --do_eval --fp16 "
        "--eval_tasks STSBenchmark SICKRelatedness --hard_negative_weight -1"
    )
    words, said = translated(*line.split())
    assert said == ["--evaluation_strategy is now --eval_strategy"]
    assert words == line.replace("--evaluation_strategy", "--eval_strategy").split()
    assert parser.parse_args(words).pre_seq_len == 16


PUBLIC_TEMPLATE = '*cls*_This_sentence_of_"*sent_0*"_means*mask*.*sep+*'


def test_the_public_promptbert_evaluation_measures_the_mask_whatever_pooler_it_names(tmp_path):
    """The evaluation line of run.sh in the public PromptBERT code; its own code ignores the pooler there."""
    switch = ["--mask_embedding_sentence", "--mask_embedding_sentence_template", PUBLIC_TEMPLATE]
    words, file = ["--model_name_or_path", "x", "--mode", "test"], tmp_path / "options.yaml"
    for pooler in (["--pooler", "avg"], ["--pooler=avg"], ["--pooler_type", "avg"]):
        for line in ([*words, *pooler, *switch], [*words, *switch, *pooler]):
            args, said = parse_evaluation(line)[0], []
            assert (args.pooler_type, args.template, args.final_period) == (None, PUBLIC_TEMPLATE, True)
            translate(line, said.append, EVALUATION_NAMES)
            name = pooler[0].split("=")[0]
            assert f"{name} is left out: with --mask_embedding_sentence, [MASK] is the representation" in said
        assert parse_evaluation([*words, *pooler, "--template", PUBLIC_TEMPLATE])[0].pooler_type == "avg"
    file.write_text("model_name_or_path: x\npooler: avg\nmask_embedding_sentence: true\ntemplate: '{sentence} [MASK]'")
    assert parse_evaluation([str(file)])[0].pooler_type is None


def parsed(*words):
    return parse_training([*words, "--output_dir", "out"])[0][0]


def test_an_option_of_a_public_code_does_not_change_a_given_method(tmp_path):
    """The method may be given in a file, in a preset, or next to the option, which may be in a file too."""
    file, best = tmp_path / "run.yaml", tmp_path / "best.yaml"
    for name, option in {"conpvp": ["--prompt_len", "2"], "d2cse": ["--lambda_weight", "0.01"]}.items():
        file.write_text(f"method: {name}\n", encoding="utf-8")
        preset = parsed("--preset", f"{name}/unsup-bert-base", *option)
        assert {args.method for args in (parsed(str(file), *option), preset, parsed("--method", name, *option))} == {
            name
        }
    assert parsed(str(file), *option).generation is None  # what the option of DiffCSE would set
    assert preset.crtd_reduction == "sum"
    best.write_text("lambda_weight: 0.01\n", encoding="utf-8")
    assert parsed(str(best), "--method", "d2cse").generation is None
    public = parsed(str(best))
    assert (public.method, public.generation, public.lambda_weight) == ("diffcse", "argmax", 0.01)


def test_the_public_conpvp_command_line_has_the_full_stop_of_its_code():
    """Its anchor ends in "[MASK] ."; the method's own default is the paper's, without the full stop."""
    assert parsed("--prompt_len", "4", "--pooler_type", "mask").method == "conpvp"
    for words, template in {
        "--prompt_len 2 --pooler_type mask": "{sentence} [PROMPT] [PROMPT] [MASK] .",
        "--prompt_len 1 --template [PROMPT]{sentence}[MASK]": "[PROMPT]{sentence}[MASK]",
        "--prompt_len 4 --method conpvp": None,
        "--preset conpvp/unsup-bert-base --prompt_len 4": None,
    }.items():
        assert parsed(*words.split()).template == template, words
    for length in ("0", "-1"):
        with pytest.raises(UserError, match=f"^prompt_len={length}: must be at least 1"):
            parsed("--prompt_len", length)
