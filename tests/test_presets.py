"""Every preset parses, agrees with the papers' tables where these are at hand, and trains on a tiny encoder."""

import functools
import itertools
from collections.abc import Iterator
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
    half = {"dcpcse", "simcse", "promptbert", "diffcse", "consert", "rankcse"}  # scripts name the precision
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
    assert caplog.text.count("bf16=True: the preset's fp16=True does not go with it and is left out") == 1
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


SETTINGS = {"unsup": "unsupervised", "sup": "supervised"}
RUN = {"per_device_train_batch_size": "batch_size", "learning_rate": "learning_rate"}
RUN_WITH_STEPS = {**RUN, "num_train_epochs": "epochs", "eval_steps": "valid_steps"}
"""Option → its name in the tables of hyperparameters."""


def published() -> Iterator[tuple[str, dict, dict[str, str], list[dict], str]]:
    """Preset, its hyperparameters, options → their names there; a table of STS scores, and the model in it."""
    names = {**RUN_WITH_STEPS, "pre_seq_len": "prompt_length"}
    unsupervised = table("conpvp", "table3_sts_unsup")
    for (setting, kind), (backbone, name) in itertools.product(SETTINGS.items(), BACKBONES.items()):
        row = table("dcpcse", "table3_hparams_unsup" if setting == "unsup" else "table4_hparams_sup")[name]
        rows = table("dcpcse", "table1_sts")[kind]
        yield f"dcpcse/{setting}-{backbone}", row, {**names, "do_mlm": "multitask_mlm"}, rows, f"DCPCSE-{name}"
        other = (setting, backbone) == ("unsup", "roberta-large")
        simcse = (unsupervised[name], "SimCSE") if other else (rows, f"SimCSE-{name}")
        yield f"simcse/{setting}-{backbone}", {}, {}, *simcse
    for backbone, name in BACKBONES.items():
        yield f"conpvp/unsup-{backbone}", table("conpvp", "table2_hparams")[name], RUN, unsupervised[name], "ConPVP"
    for (setting, kind), short in itertools.product(SETTINGS.items(), ("BERT", "RoBERTa")):
        row, rows = table("promptbert", "table15_hparams")[f"{setting}_{short}"], table("promptbert", TABLE6)[kind]
        yield f"promptbert/{setting}-{short.lower()}-base", row, RUN_WITH_STEPS, rows, f"Prompt{short}-base"
    names = {**RUN, "num_train_epochs": "epochs", "pre_seq_len": "prompt_length", "lambda_weight": "lambda"}
    names |= {"masking_ratio": "masking_ratio", "cls_prompt": "cls_prompt"}
    for setting, backbone in [*itertools.product(SETTINGS, ("bert-base", "roberta-base")), ("unsup", "bert-large")]:
        row = table("d2cse", "table7_hparams")[f"{setting}_{BACKBONES[backbone]}"]
        rows = table("d2cse", "table1_sts_unsup" if setting == "unsup" else "table8_sts_sup")["rows"]
        yield f"d2cse/{setting}-{backbone}", row, names, rows, f"D2CSE-{BACKBONES[backbone]}"
    rows = table("promptbert", "table5_sts_unfinetuned_bert_base_uncased")["rows"]
    model = "Prompt based BERT (manual&OptiPrompt)"
    yield OPTIPROMPT, table("promptbert", "optiprompt_hparams"), RUN_WITH_STEPS, rows, model
    rows = table("dcpcse", "table1_sts")["unsupervised"]
    yield SCPCSE, table("dcpcse", "scpcse"), RUN_WITH_STEPS, rows, "SCPCSE-BERT-base"


TABLE6, OPTIPROMPT, SCPCSE = "table6_sts_finetuned", OTHERS[-1], "scpcse/unsup-bert-base"


def test_presets_have_the_settings_and_scores_of_their_papers():
    for name, row, names, rows, model in published():
        preset = presets.load_preset(name)
        options = {"do_mlm": False, **preset.options}
        assert {option: options[option] for option in names} == {o: float(row[key]) for o, key in names.items()}, name
        assert preset.published == {row["model"]: row["v"][-1] for row in rows}.get(model), name


def test_presets_have_the_templates_of_their_papers():
    general = table("conpvp", "general")
    for backbone in BACKBONES:
        options = presets.load_preset(f"conpvp/unsup-{backbone}").options
        assert options["template"].count("[PROMPT]") == general["prompt_length"]
        assert (options["num_train_epochs"], options["eval_steps"]) == (1, general["valid_steps"])
    for setting, short in itertools.product(SETTINGS, ("BERT", "RoBERTa")):
        options = presets.load_preset(f"promptbert/{setting}-{short.lower()}-base").options
        printed = table("promptbert", "table14_templates")[short][: 2 if setting == "unsup" else 1]
        own = [options[option] for option in ("template", "second_template") if option in options]
        # The print sets its quotes and spaces as it likes.
        squeezed = [str(Template.parse(text)).replace("{sentence}", "[X]").replace(" ", "") for text in own]
        assert squeezed == [text.replace(" ", "") for text in printed]
    template = table("dcpcse", "scpcse")["init_template"].replace("[X]", "{sentence}")
    assert presets.load_preset(SCPCSE).options["template"] == template
    assert {presets.load_preset(name).options["tuning"] for name in (OPTIPROMPT, SCPCSE)} == {"shallow"}


PROMCSE = {"bert-base": (256, 0.01, 12, 82.13), "roberta-base": (512, 0.01, 10, 83.26)}
PROMCSE["roberta-large"] = (512, 0.005, 10, 85.10)
"""PromCSE, Table 6 and the rows with the hinge of Table 1: batch, learning rate, prompt length; STS average."""


def test_promcse_has_the_settings_and_scores_of_its_paper():
    for backbone, expected in PROMCSE.items():
        preset = presets.load_preset(f"dcpcse/sup-eh-{backbone}")
        (model, _, _), _ = parse_training(["--preset", preset.name, "--output_dir", "out"])
        options = fill_defaults(model, ["anchor", "positive"])
        assert (*(preset.options[name] for name in RUN), options.pre_seq_len, preset.published) == expected
        assert (options.do_eh_loss, options.eh_loss_margin, options.eh_loss_weight) == (True, 0.2, 10.0)
        assert (preset.options["num_train_epochs"], options.mlp_only_train) == (10, False)


VARIATIONS = (
    ("conpvp/unsup-roberta-large", ["--prototypes", "none"]),
    ("conpvp/unsup-bert-base", ["--template", 'This sentence of "{sentence}" means [MASK].']),
    ("d2cse/unsup-bert-base", ["--corrupted_corpus", "elsewhere"]),
    ("promptbert/unsup-bert-base", ["--denoise", "False"]),
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
