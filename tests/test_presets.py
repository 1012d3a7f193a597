"""Every preset parses, agrees with the papers' tables where these are at hand, and trains on a tiny encoder."""

import functools
from pathlib import Path

import pytest
import yaml

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.parse import parse_training
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.templates import Template
from dcpcse.methods import METHODS, build_method, fill_defaults
from dcpcse.utils import presets
from dcpcse.utils.errors import UserError

FIGURES = Path(__file__).parents[2] / "shared/figures.yaml"
BACKBONES = {
    "bert-base": "BERT-base",
    "bert-large": "BERT-large",
    "roberta-base": "RoBERTa-base",
    "roberta-large": "RoBERTa-large",
}
KINDS = {"xlm-r": "xlm-roberta", "roberta": "roberta"}
"""Part of a preset's name → the kind of its encoder; others have BERT."""


@functools.cache
def tables() -> dict:
    return yaml.safe_load(FIGURES.read_text(encoding="utf-8"))


def table(method: str, name: str):
    if not FIGURES.is_file():
        pytest.skip("needs the tables of the papers next to the repository")
    return tables()[method][name]


def test_each_column_of_the_two_tables_has_a_preset():
    wanted = {f"dcpcse/{setting}-{backbone}" for setting in ("unsup", "sup") for backbone in BACKBONES}
    assert wanted <= set(presets.names())


@pytest.mark.parametrize("name", [name for name in presets.names() if "large" not in name])  # they differ in numbers
def test_a_preset_parses_builds_and_trains_a_step(name, tiny, train_txt, train_csv, tmp_path):
    kind = next((kind for mark, kind in KINDS.items() if mark in name), "bert")
    data = train_txt if "unsup" in name else train_csv
    argv = ["--preset", name, "--model_name_or_path", tiny(kind), "--train_file", data, "--use_cpu"]
    argv += ["--output_dir", str(tmp_path / "out"), "--cache_dir", str(tmp_path / "cache"), "--max_steps", "1"]
    argv += ["--eval_strategy", "no", "--load_best_model_at_end", "False", "--per_device_train_batch_size", "4"]
    argv += ["--generator_name", tiny(kind)] if "generator_name" in presets.load_preset(name).options else []
    argv += ["--teacher", tiny(kind), tiny("bert")] if "teacher" in presets.load_preset(name).options else []
    argv += ["--max_seq_length", "64"] if presets.load_preset(name).options["max_seq_length"] > 64 else []
    assert run(train_command, argv) == 0
    written = yaml.safe_load((tmp_path / "out/run.yaml").read_text(encoding="utf-8"))
    options = presets.load_preset(name).options
    overridden = {word[2:] for word in argv if word.startswith("--")}
    for option in set(options) - overridden - {"fp16"}:  # which has no effect on a CPU
        assert written[option] == options[option], option
    assert (written["fp16"], written["bf16"]) == (False, False)
    assert written["preset"] == name


@pytest.mark.parametrize("name", presets.names())
def test_the_published_options_reach_the_arguments(name, tmp_path):
    (model, data, arguments), given = parse_training(["--preset", name, "--output_dir", str(tmp_path)])
    options = presets.load_preset(name).options
    assert set(options) <= given
    assert arguments.learning_rate and arguments.per_device_train_batch_size  # no default of a method is filled in
    assert all(isinstance(note, str) for note in presets.load_preset(name).notes)  # a colon makes a mapping
    for holder in (model, data, arguments):
        for option in set(options) & set(vars(holder)):
            value = getattr(holder, option)
            assert getattr(value, "value", value) == options[option], option


def test_every_preset_names_the_precision_of_its_source():
    """Those of the methods whose public scripts say that they train in half precision; the others are in float32."""
    half = {"dcpcse", "simcse", "promptbert", "diffcse", "consert", "rankcse"}
    for name in presets.names():
        options = presets.load_preset(name).options
        named = {option: options[option] for option in ("fp16", "bf16") if option in options}
        assert named == ({"fp16": True} if name.split("/")[0] in half else {"bf16": False}), name


def test_bf16_replaces_the_precision_of_a_preset(caplog):
    for name in ("dcpcse/unsup-bert-base", "sbert/nli-bert-base"):
        with caplog.at_level("INFO", logger="dcpcse"):
            (_, _, run), _ = parse_training(["--preset", name, "--bf16", "--use_cpu", "--output_dir", "out"])
        assert (run.fp16, run.bf16) == (False, True)
    assert caplog.text.count("bf16=True: the preset's fp16=True is left out") == 1
    (_, _, run), _ = parse_training(["--preset", "sbert/nli-bert-base", "--fp16", "--output_dir", "out"])
    assert (run.fp16, run.bf16) == (True, False)
    (_, _, run), _ = parse_training(["--preset", "dcpcse/unsup-bert-base", "--fp16", "False", "--output_dir", "out"])
    assert (run.fp16, run.bf16) == (False, None)


def test_the_command_line_overrides_an_options_file_and_that_the_preset(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("preset: dcpcse/unsup-bert-base\npre_seq_len: 7\ntemp: 0.1\n", encoding="utf-8")
    (model, _, arguments), _ = parse_training([str(file), "--temp", "0.2", "--output_dir", "out"])
    assert (model.pre_seq_len, model.temp, arguments.learning_rate) == (7, 0.2, 0.03)


def test_an_options_file_may_hold_a_list_of_one_as_run_yaml_does(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("report_to: [none]\ntemp: [0.1]\n", encoding="utf-8")
    (model, _, arguments), _ = parse_training([str(file), "--output_dir", "out"])
    assert (model.temp, arguments.report_to) == (0.1, [])


def test_a_misspelt_preset_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="did you mean 'dcpcse/unsup-bert-base'"):
        parse_training(["--preset", "dcpcse/unsup-bert-bas", "--output_dir", str(tmp_path)])


def test_a_preset_says_where_it_comes_from(caplog):
    with caplog.at_level("INFO", logger="dcpcse"):
        parse_training(["--preset", "dcpcse/sup-bert-large", "--output_dir", "out"])
    assert "Table 4" in caplog.text
    assert "82.89" in caplog.text
    assert "the public README has 5" in caplog.text


@pytest.mark.parametrize("setting", ["unsup", "sup"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_options_are_those_of_the_paper(setting, backbone):
    row = table("dcpcse", "table3_hparams_unsup" if setting == "unsup" else "table4_hparams_sup")[BACKBONES[backbone]]
    preset = presets.load_preset(f"dcpcse/{setting}-{backbone}")
    options = preset.options
    assert options["per_device_train_batch_size"] == row["batch_size"]
    assert options["learning_rate"] == float(row["learning_rate"])
    assert options["pre_seq_len"] == row["prompt_length"]
    assert options.get("do_mlm", False) == row["multitask_mlm"]
    assert options["num_train_epochs"] == row["epochs"]
    assert options["eval_steps"] == row["valid_steps"]
    kind = {"unsup": "unsupervised", "sup": "supervised"}[setting]
    scores = {r["model"]: r["v"][-1] for r in table("dcpcse", "table1_sts")[kind]}
    assert preset.published == scores.get(f"DCPCSE-{BACKBONES[backbone]}")


def test_published_settings_build_the_published_number_of_prompts(tiny):
    """Length and MLP of the preset, on a tiny encoder: 2 · layers · hidden numbers a prompt."""
    (model, _, _), _ = parse_training(["--preset", "dcpcse/unsup-bert-base", "--output_dir", "out"])
    method = build_method(load_backbone(tiny("bert")), model, ["anchor"])
    assert method.model.encoder.prompt.table.weight.shape == (16, 2 * 3 * 32)
    assert not method.model.head_at_inference


def average(rows, model: str) -> float:
    return next(row["v"][-1] for row in rows if row["model"] == model)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_conpvp_has_the_settings_and_scores_of_its_paper(backbone):
    preset, row = (
        presets.load_preset(f"conpvp/unsup-{backbone}"),
        table("conpvp", "table2_hparams")[BACKBONES[backbone]],
    )
    assert preset.options["per_device_train_batch_size"] == row["batch_size"]
    assert preset.options["learning_rate"] == row["learning_rate"]
    general = table("conpvp", "general")
    assert preset.options["template"].count("[PROMPT]") == general["prompt_length"]
    assert (preset.options["num_train_epochs"], preset.options["eval_steps"]) == (1, general["valid_steps"])
    assert preset.published == average(table("conpvp", "table3_sts_unsup")[BACKBONES[backbone]], "ConPVP")


@pytest.mark.parametrize("setting", ["unsup", "sup"])
@pytest.mark.parametrize(("backbone", "short"), [("bert-base", "BERT"), ("roberta-base", "RoBERTa")])
def test_promptbert_has_the_settings_templates_and_scores_of_its_paper(setting, backbone, short):
    preset, row = presets.load_preset(f"promptbert/{setting}-{backbone}"), table("promptbert", "table15_hparams")
    row = row[f"{setting}_{short}"]
    assert preset.options["per_device_train_batch_size"] == row["batch_size"]
    assert preset.options["learning_rate"] == row["learning_rate"]
    assert (preset.options["num_train_epochs"], preset.options["eval_steps"]) == (row["epochs"], row["valid_steps"])
    printed = table("promptbert", "table14_templates")[short][: 2 if setting == "unsup" else 1]
    own = [preset.options[name] for name in ("template", "second_template") if name in preset.options]
    # The print sets its quotes and blanks as it likes.
    squeezed = [str(Template.parse(text)).replace("{sentence}", "[X]").replace(" ", "") for text in own]
    assert squeezed == [text.replace(" ", "") for text in printed]
    kind = {"unsup": "unsupervised", "sup": "supervised"}[setting]
    assert preset.published == average(table("promptbert", "table6_sts_finetuned")[kind], f"Prompt{short}-base")


@pytest.mark.parametrize(
    ("setting", "backbone"),
    [*(("unsup", name) for name in list(BACKBONES)[:3]), ("sup", "bert-base"), ("sup", "roberta-base")],
)
def test_d2cse_has_the_settings_and_scores_of_its_paper(setting, backbone):
    preset = presets.load_preset(f"d2cse/{setting}-{backbone}")
    row, options = table("d2cse", "table7_hparams")[f"{setting}_{BACKBONES[backbone]}"], preset.options
    names = {"per_device_train_batch_size": "batch_size", "num_train_epochs": "epochs", "pre_seq_len": "prompt_length"}
    names |= {name: name for name in ("learning_rate", "masking_ratio", "cls_prompt")} | {"lambda_weight": "lambda"}
    for ours, theirs in names.items():
        assert options[ours] == row[theirs], ours
    scores = table("d2cse", "table1_sts_unsup" if setting == "unsup" else "table8_sts_sup")["rows"]
    assert preset.published == average(scores, f"D2CSE-{BACKBONES[backbone]}")


PROMCSE = {
    "bert-base": (256, 0.01, 12, 82.13),
    "roberta-base": (512, 0.01, 10, 83.26),
    "roberta-large": (512, 0.005, 10, 85.10),
}
"""PromCSE, Table 6 and the rows with the hinge of Table 1: batch, learning rate, prompt length; STS average."""


@pytest.mark.parametrize("backbone", PROMCSE)
def test_promcse_has_the_settings_and_scores_of_its_paper(backbone):
    preset = presets.load_preset(f"dcpcse/sup-eh-{backbone}")
    options = fill_defaults(
        parse_training(["--preset", preset.name, "--output_dir", "out"])[0][0], ["anchor", "positive"]
    )
    names = ("per_device_train_batch_size", "learning_rate")
    assert (*(preset.options[name] for name in names), options.pre_seq_len, preset.published) == PROMCSE[backbone]
    assert (options.do_eh_loss, options.eh_loss_margin, options.eh_loss_weight) == (True, 0.2, 10.0)
    assert (preset.options["num_train_epochs"], options.mlp_only_train) == (10, False)


def test_optiprompt_and_scpcse_have_the_settings_and_scores_of_their_papers():
    preset, row = (
        presets.load_preset("promptbert/unsup-optiprompt-bert-base"),
        table("promptbert", "optiprompt_hparams"),
    )
    rows = table("promptbert", "table5_sts_unfinetuned_bert_base_uncased")["rows"]
    assert preset.published == average(rows, "Prompt based BERT (manual&OptiPrompt)")
    scpcse, own = presets.load_preset("scpcse/unsup-bert-base"), table("dcpcse", "scpcse")
    assert scpcse.published == average(table("dcpcse", "table1_sts")["unsupervised"], "SCPCSE-BERT-base")
    assert scpcse.options["template"] == own["init_template"].replace("[X]", "{sentence}")
    for found, wanted in ((preset, row), (scpcse, own)):
        assert found.options["tuning"] == "shallow"
        assert found.options["per_device_train_batch_size"] == wanted["batch_size"]
        assert found.options["learning_rate"] == wanted["learning_rate"]
        assert found.options["num_train_epochs"] == wanted["epochs"]
        assert found.options["eval_steps"] == wanted["valid_steps"]


@pytest.mark.parametrize("setting", ["unsup", "sup"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_simcse_has_the_scores_that_the_papers_quote(setting, backbone):
    kind = {"unsup": "unsupervised", "sup": "supervised"}[setting]
    quoted = {row["model"]: row["v"][-1] for row in table("dcpcse", "table1_sts")[kind]}
    if (setting, backbone) == ("unsup", "roberta-large"):
        quoted = {
            f"SimCSE-{BACKBONES[backbone]}": average(table("conpvp", "table3_sts_unsup")["RoBERTa-large"], "SimCSE")
        }
    assert presets.load_preset(f"simcse/{setting}-{backbone}").published == quoted[f"SimCSE-{BACKBONES[backbone]}"]


def test_every_method_has_a_preset_and_every_preset_a_method():
    assert {name.split("/")[0] for name in presets.names()} == set(METHODS)
    assert all(presets.load_preset(name).options["method"] == name.split("/")[0] for name in presets.names())


VARIATIONS = {
    "w/o c+ & c-": ("conpvp/unsup-roberta-large", ["--prototypes", "none"]),
    "w/ manual": ("conpvp/unsup-bert-base", ["--template", 'This sentence of "{sentence}" means [MASK].']),
    "longer prompt": ("conpvp/unsup-bert-base", ["--prompt_len", "6"]),
    "ahead of training": ("d2cse/unsup-bert-base", ["--corrupted_corpus", "elsewhere"]),
    "without denoising": ("promptbert/unsup-bert-base", ["--denoise", "False"]),
    "another tuning": ("dcpcse/unsup-bert-base", ["--tuning", "full"]),
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_preset_gives_way_to_options_that_leave_its_own_nothing_to_speak_of(name, caplog, tiny):
    preset, words = VARIATIONS[name]
    with caplog.at_level("INFO", logger="dcpcse"):
        (model, _, _), _ = parse_training(["--preset", preset, *words, "--output_dir", "out"])
    assert "is left out" in caplog.text
    kind = "roberta" if "roberta" in preset else "bert"
    built = build_method(load_backbone(tiny(kind)), model, ["anchor"]).model
    if name == "longer prompt":
        assert len(built.encoder.shallow.weight) == 6
