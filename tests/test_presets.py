"""Every preset parses, agrees with the papers' tables where these are at hand, and trains on a tiny encoder."""

import functools
import itertools
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
BACKBONES = {"bert-base": "BERT-base", "bert-large": "BERT-large"}
BACKBONES |= {"roberta-base": "RoBERTa-base", "roberta-large": "RoBERTa-large"}
KINDS = {"xlm-r": "xlm-roberta", "roberta": "roberta"}
"""Part of a preset's name → the kind of its encoder; others have BERT."""


@functools.cache
def tables() -> dict:
    return yaml.safe_load(FIGURES.read_text(encoding="utf-8"))


def table(method: str, name: str):
    if not FIGURES.is_file():
        pytest.skip("needs the tables of the papers next to the repository")
    return tables()[method][name]


FIRST = {name.split("/")[0]: name for name in reversed(presets.names()) if "large" not in name}
"""Method → one of its presets; the others differ in numbers."""
OTHERS = ("dcpcse/unsup-roberta-base", "dcpcse/sup-xlm-r-base", "promptbert/unsup-optiprompt-bert-base")


@pytest.mark.parametrize("name", [*FIRST.values(), *OTHERS])
def test_a_preset_parses_builds_and_trains_a_step(name, tiny, train_txt, train_csv, tmp_path):
    kind = next((kind for mark, kind in KINDS.items() if mark in name), "bert")
    options = presets.load_preset(name).options
    argv = ["--preset", name, "--model_name_or_path", tiny(kind), "--use_cpu", "--max_steps", "1"]
    argv += ["--train_file", train_txt if "unsup" in name else train_csv, "--per_device_train_batch_size", "4"]
    argv += ["--output_dir", str(tmp_path / "out"), "--cache_dir", str(tmp_path / "cache")]
    argv += ["--eval_strategy", "no", "--load_best_model_at_end", "False"]
    argv += ["--generator_name", tiny(kind)] if "generator_name" in options else []
    argv += ["--teacher", tiny(kind), tiny("bert")] if "teacher" in options else []
    argv += ["--max_seq_length", "64"] if options["max_seq_length"] > 64 else []
    assert run(train_command, argv) == 0
    written = yaml.safe_load((tmp_path / "out/run.yaml").read_text(encoding="utf-8"))
    names = set(options) - {word[2:] for word in argv} - {"fp16"}  # which has no effect on a CPU
    assert {option: written[option] for option in names} == {option: options[option] for option in names}
    assert (written["fp16"], written["bf16"], written["preset"]) == (False, False, name)


def test_the_published_options_reach_the_arguments(tmp_path):
    half = {
        "dcpcse",
        "simcse",
        "promptbert",
        "diffcse",
        "consert",
        "rankcse",
    }  # whose public scripts name the precision
    for name in presets.names():
        (model, data, arguments), given = parse_training(["--preset", name, "--output_dir", str(tmp_path)])
        options, method = presets.load_preset(name).options, name.split("/")[0]
        assert set(options) <= given and options["method"] == method
        assert arguments.learning_rate and arguments.per_device_train_batch_size  # no default of a method is filled in
        assert all(isinstance(note, str) for note in presets.load_preset(name).notes)  # a colon makes a mapping
        for holder in (model, data, arguments):
            for option in set(options) & set(vars(holder)):
                value = getattr(holder, option)
                assert getattr(value, "value", value) == options[option], (name, option)
        precision = {option: options[option] for option in ("fp16", "bf16") if option in options}
        assert precision == ({"fp16": True} if method in half else {"bf16": False}), name
    assert {name.split("/")[0] for name in presets.names()} == set(METHODS)


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
    """A file may hold a list of one, as run.yaml does."""
    file = tmp_path / "options.yaml"
    lines = ("preset: dcpcse/unsup-bert-base", "pre_seq_len: [7]", "temp: 0.1", "report_to: [none]")
    file.write_text("\n".join(lines), encoding="utf-8")
    (model, _, arguments), _ = parse_training([str(file), "--temp", "0.2", "--output_dir", "out"])
    assert (model.pre_seq_len, model.temp, arguments.learning_rate, arguments.report_to) == (7, 0.2, 0.03, [])
    with pytest.raises(UserError, match="did you mean 'dcpcse/unsup-bert-base'"):
        parse_training(["--preset", "dcpcse/unsup-bert-bas", "--output_dir", str(tmp_path)])


def test_a_preset_says_where_it_comes_from(caplog):
    with caplog.at_level("INFO", logger="dcpcse"):
        parse_training(["--preset", "dcpcse/sup-bert-large", "--output_dir", "out"])
    assert "Table 4" in caplog.text
    assert "82.89" in caplog.text
    assert "the public README has 5" in caplog.text


def test_published_settings_build_the_published_number_of_prompts(tiny):
    """Length and MLP of the preset, on a tiny encoder: 2 · layers · hidden numbers a prompt."""
    (model, _, _), _ = parse_training(["--preset", "dcpcse/unsup-bert-base", "--output_dir", "out"])
    method = build_method(load_backbone(tiny("bert")), model, ["anchor"])
    assert method.model.encoder.prompt.table.weight.shape == (16, 2 * 3 * 32)
    assert not method.model.head_at_inference


SETTINGS = {"unsup": "unsupervised", "sup": "supervised"}
RUN = {"per_device_train_batch_size": "batch_size", "learning_rate": "learning_rate"}
RUN_WITH_STEPS = {**RUN, "num_train_epochs": "epochs", "eval_steps": "valid_steps"}
"""Option → its name in the tables of hyperparameters."""


def options_of(preset: str, row: dict, names: dict[str, str]) -> dict:
    """The options of a preset, after a comparison with a row of a paper's table."""
    options = presets.load_preset(preset).options
    assert {name: options[name] for name in names} == {name: float(row[key]) for name, key in names.items()}, preset
    return options


def require_published(preset: str, rows: list[dict], model: str) -> None:
    """The preset has the average over STS that the row of the model ends in, or none if there is no such row."""
    assert presets.load_preset(preset).published == {row["model"]: row["v"][-1] for row in rows}.get(model), preset


def test_dcpcse_and_simcse_have_the_settings_and_scores_of_the_papers():
    for (setting, kind), (backbone, name) in itertools.product(SETTINGS.items(), BACKBONES.items()):
        row = table("dcpcse", "table3_hparams_unsup" if setting == "unsup" else "table4_hparams_sup")[name]
        options = options_of(f"dcpcse/{setting}-{backbone}", row, {**RUN_WITH_STEPS, "pre_seq_len": "prompt_length"})
        assert options.get("do_mlm", False) == row["multitask_mlm"]
        rows = table("dcpcse", "table1_sts")[kind]
        require_published(f"dcpcse/{setting}-{backbone}", rows, f"DCPCSE-{name}")
        if (setting, backbone) == ("unsup", "roberta-large"):
            require_published(f"simcse/{setting}-{backbone}", table("conpvp", "table3_sts_unsup")[name], "SimCSE")
        else:
            require_published(f"simcse/{setting}-{backbone}", rows, f"SimCSE-{name}")


def test_conpvp_has_the_settings_and_scores_of_its_paper():
    general = table("conpvp", "general")
    for backbone, name in BACKBONES.items():
        options = options_of(f"conpvp/unsup-{backbone}", table("conpvp", "table2_hparams")[name], RUN)
        assert options["template"].count("[PROMPT]") == general["prompt_length"]
        assert (options["num_train_epochs"], options["eval_steps"]) == (1, general["valid_steps"])
        require_published(f"conpvp/unsup-{backbone}", table("conpvp", "table3_sts_unsup")[name], "ConPVP")


def test_promptbert_has_the_settings_templates_and_scores_of_its_paper():
    backbones = {"bert-base": "BERT", "roberta-base": "RoBERTa"}
    for (setting, kind), (backbone, short) in itertools.product(SETTINGS.items(), backbones.items()):
        row, name = table("promptbert", "table15_hparams")[f"{setting}_{short}"], f"promptbert/{setting}-{backbone}"
        options = options_of(name, row, RUN_WITH_STEPS)
        printed = table("promptbert", "table14_templates")[short][: 2 if setting == "unsup" else 1]
        own = [options[option] for option in ("template", "second_template") if option in options]
        # The print sets its quotes and spaces as it likes.
        squeezed = [str(Template.parse(text)).replace("{sentence}", "[X]").replace(" ", "") for text in own]
        assert squeezed == [text.replace(" ", "") for text in printed]
        require_published(name, table("promptbert", "table6_sts_finetuned")[kind], f"Prompt{short}-base")


def test_d2cse_has_the_settings_and_scores_of_its_paper():
    names = {**RUN, "num_train_epochs": "epochs", "pre_seq_len": "prompt_length", "lambda_weight": "lambda"}
    names |= {"masking_ratio": "masking_ratio", "cls_prompt": "cls_prompt"}
    tables = {"unsup": "table1_sts_unsup", "sup": "table8_sts_sup"}
    for setting, backbones in {"unsup": list(BACKBONES)[:3], "sup": ["bert-base", "roberta-base"]}.items():
        for backbone in backbones:
            row = table("d2cse", "table7_hparams")[f"{setting}_{BACKBONES[backbone]}"]
            options_of(f"d2cse/{setting}-{backbone}", row, names)
            rows = table("d2cse", tables[setting])["rows"]
            require_published(f"d2cse/{setting}-{backbone}", rows, f"D2CSE-{BACKBONES[backbone]}")


PROMCSE = {
    "bert-base": (256, 0.01, 12, 82.13),
    "roberta-base": (512, 0.01, 10, 83.26),
    "roberta-large": (512, 0.005, 10, 85.10),
}
"""PromCSE, Table 6 and the rows with the hinge of Table 1: batch, learning rate, prompt length; STS average."""


def test_promcse_has_the_settings_and_scores_of_its_paper():
    for backbone, expected in PROMCSE.items():
        preset = presets.load_preset(f"dcpcse/sup-eh-{backbone}")
        (model, _, _), _ = parse_training(["--preset", preset.name, "--output_dir", "out"])
        options = fill_defaults(model, ["anchor", "positive"])
        assert (*(preset.options[name] for name in RUN), options.pre_seq_len, preset.published) == expected
        assert (options.do_eh_loss, options.eh_loss_margin, options.eh_loss_weight) == (True, 0.2, 10.0)
        assert (preset.options["num_train_epochs"], options.mlp_only_train) == (10, False)


def test_optiprompt_and_scpcse_have_the_settings_and_scores_of_their_papers():
    optiprompt = "promptbert/unsup-optiprompt-bert-base"
    scpcse = "scpcse/unsup-bert-base"
    own = table("dcpcse", "scpcse")
    rows = table("promptbert", "table5_sts_unfinetuned_bert_base_uncased")["rows"]
    require_published(optiprompt, rows, "Prompt based BERT (manual&OptiPrompt)")
    require_published(scpcse, table("dcpcse", "table1_sts")["unsupervised"], "SCPCSE-BERT-base")
    assert presets.load_preset(scpcse).options["template"] == own["init_template"].replace("[X]", "{sentence}")
    for name, row in ((optiprompt, table("promptbert", "optiprompt_hparams")), (scpcse, own)):
        assert options_of(name, row, RUN_WITH_STEPS)["tuning"] == "shallow"


VARIATIONS = (
    ("conpvp/unsup-roberta-large", ["--prototypes", "none"]),
    ("conpvp/unsup-bert-base", ["--template", 'This sentence of "{sentence}" means [MASK].']),
    ("d2cse/unsup-bert-base", ["--corrupted_corpus", "elsewhere"]),
    ("promptbert/unsup-bert-base", ["--denoise", "False"]),
    ("dcpcse/unsup-bert-base", ["--tuning", "full"]),
    ("conpvp/unsup-bert-base", ["--prompt_len", "6"]),
)


def test_an_option_of_a_preset_is_left_out_if_a_given_one_leaves_it_no_effect(caplog, tiny):
    caplog.set_level("INFO", logger="dcpcse")
    for preset, words in VARIATIONS:
        caplog.clear()
        (model, _, _), _ = parse_training(["--preset", preset, *words, "--output_dir", "out"])
        assert "is left out" in caplog.text
        kind = "roberta" if "roberta" in preset else "bert"
        built = build_method(load_backbone(tiny(kind)), model, ["anchor"]).model
    assert len(built.encoder.shallow.weight) == 6
