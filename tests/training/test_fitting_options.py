"""The learning rate and the batch size of a run whose user gives none, and the options that fit a sentence encoder."""

import pickle
import re
from pathlib import Path

import pytest
import torch
import transformers
from method_models import with_encoder
from sentence_folders import write_sentence_folder

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import METHODS, build_method, fill_defaults, model_arguments, register
from dcpcse.methods.arguments import TUNINGS
from dcpcse.methods.registry import recipe_of
from dcpcse.methods.tunings import RECIPES, Recipe
from dcpcse.training import resolve_arguments
from dcpcse.utils import presets
from dcpcse.utils.devices import has_bfloat16_units

QUIET = {"use_cpu": True, "report_to": "none", "max_steps": 1, "save_strategy": "no"}


def filled(model, sentences, folder: Path, method="dcpcse", given=None, **options) -> tuple[float, int]:
    args = dcpcse.TrainingArguments(str(folder), **QUIET, **(given or {}))
    trainer = dcpcse.Trainer(model, method, args, sentences, **options)
    names = ("learning_rate", "per_device_train_batch_size")
    used = tuple(getattr(trainer.args, name) for name in names)
    assert used == tuple(trainer.run_options[name] for name in names)  # as run.yaml and checkpoints record it
    return used


def test_the_table_of_the_documentation_is_that_of_the_code():
    assert set(RECIPES) == set(TUNINGS)
    text = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    own = {(tuning, name): one for name, entry in METHODS.items() for tuning, one in entry.recipes.items()}
    for tuning in TUNINGS:
        own[tuning, "all other methods" if any(tuning == of for of, _ in own) else "all"] = RECIPES[tuning]
    rows = re.findall(r"^\| `(\w+)` \| `?([\w ]+?)`? \| (\S+) \| (\S+) \| (\d+) \|$", text, re.MULTILINE)
    shown = {(tuning, name): tuple(map(float, rest)) for tuning, name, *rest in rows}
    rates = {place: [one.rate(sentence_encoder=kind) for kind in (False, True)] for place, one in own.items()}
    assert shown == {place: (*rates[place], one.batch_size) for place, one in own.items()}


FOR_LONG_TRAININGS = ("consert/", "promptbert/unsup-optiprompt")
"""Presets whose learning rates, 5e-7 and 3e-5 for input vectors, would change nothing in a short training."""


def test_a_recipe_is_near_the_published_setting():
    """Within a factor of three: the learning rates of the papers differ that much between encoders."""
    for name in [name for name in presets.names() if "/unsup" in name or "/nli" in name]:
        options = presets.load_preset(name).options
        given = with_encoder({"method": options["method"], "tuning": options.get("tuning")}, "other")
        model = fill_defaults(model_arguments(**given), None)
        recipe = recipe_of(METHODS[model.method], model.tuning)
        assert recipe.batch_size <= options["per_device_train_batch_size"], name
        if not name.startswith(FOR_LONG_TRAININGS):
            assert 1 / 3.01 <= recipe.learning_rate / options["learning_rate"] <= 3.01, name


FILLED = (
    ({"method": "simcse"}, (3e-5, 64)),
    ({"method": "simcse", "tuning": "deep"}, (3e-2, 64)),
    ({"method": "promptbert"}, (1e-5, 64)),  # a rate of its own
    ({"method": "promptbert", "tuning": "shallow"}, (1e-3, 64)),
    ({"given": {"per_device_train_batch_size": 4}}, (3e-2, 4)),
    ({"given": {"learning_rate": 5e-5, "per_device_train_batch_size": 8}}, (5e-5, 8)),  # transformers' defaults
)


def test_what_is_not_given_follows_method_and_tuning(tiny, sentences, tmp_path, caplog):
    caplog.set_level("INFO", logger="dcpcse")
    for options, expected in FILLED:
        caplog.clear()
        assert filled(tiny("bert"), sentences, tmp_path, **options) == expected
        lines, given = [line for line in caplog.messages if "filled in" in line], options.get("given", {})
        assert len(lines) == (len(given) < 2) and not any(name in line for line in lines for name in given)
        assert not any("sentence encoder" in line for line in caplog.messages)


def test_a_sentence_encoder_has_a_rate_of_its_own(tiny, sentences, tmp_path, caplog):
    folder = write_sentence_folder(tmp_path / "encoder", tiny("bert"))
    expected = (RECIPES["deep"].on_sentence_encoder, 64)
    caplog.set_level("INFO", logger="dcpcse")
    assert filled(folder, sentences, tmp_path) == expected
    (rates,) = [line for line in caplog.messages if "filled in" in line]
    assert "learning_rate 0.01" in rates and rates.endswith("on an encoder that was trained for sentences")
    (Path(folder) / "modules.json").unlink()
    (Path(folder) / "config_sentence_transformers.json").write_text("{}", encoding="utf-8")
    assert filled(folder, sentences, tmp_path) == expected


def test_arguments_of_two_trainers_are_filled_in_twice(tiny, sentences, tmp_path):
    args = dcpcse.TrainingArguments(str(tmp_path), **QUIET)
    before = {**vars(args), "accelerator_config": str(args.accelerator_config)}
    first = dcpcse.Trainer(tiny("bert"), "dcpcse", args, sentences)
    assert first.args.learning_rate == 3e-2
    for reused in (args, first.args, pickle.loads(pickle.dumps(first.args))):
        assert dcpcse.Trainer(tiny("bert"), "simcse", reused, sentences).args.learning_rate == 3e-5
    assert {**vars(args), "accelerator_config": str(args.accelerator_config)} == before
    first.args.learning_rate = 1e-4  # given later
    used = dcpcse.Trainer(tiny("bert"), "simcse", first.args, sentences).args
    assert (used.learning_rate, used.per_device_train_batch_size) == (1e-4, 64)


def test_other_forms_of_arguments_methods_and_encoders_are_filled_in(tiny, sentences, tmp_path):
    plain = transformers.TrainingArguments(str(tmp_path), **QUIET)
    trainer = dcpcse.Trainer(tiny("bert"), "dcpcse", plain, sentences)
    assert (trainer.args.learning_rate, trainer.args.per_device_train_batch_size) == (5e-5, 8)
    built = build_method(load_backbone(tiny("bert")), model_arguments(pre_seq_len=2), ["anchor"])
    assert filled(None, sentences, tmp_path, built) == (3e-2, 64)

    def mine(backbone, args, columns):
        return METHODS["dcpcse"].build(backbone, args, columns)

    assert filled(tiny("bert"), sentences, tmp_path, mine) == (3e-2, 64)
    assert filled(tiny("bert"), None, tmp_path) == (3e-2, 64)  # a trainer that only evaluates


def test_few_examples_are_no_warning_unless_the_batch_was_asked_for(tiny, sentences, tmp_path, caplog):
    filled(tiny("bert"), sentences, tmp_path)
    assert not any("fewer" in record.message for record in caplog.records if record.levelname == "WARNING")
    filled(tiny("bert"), sentences, tmp_path, given={"per_device_train_batch_size": 64})
    assert "12 examples are fewer than a batch of 64" in caplog.text


def test_a_method_of_ones_own_has_recipes_for_known_tunings_only(methods_of_this_test):
    @register("own", tuning="deep", recipes={"deep": Recipe(0.5, 7)})
    def own(backbone, args, columns): ...

    assert recipe_of(METHODS["own"], "deep") == Recipe(0.5, 7)
    assert recipe_of(METHODS["own"], "full") == RECIPES["full"] == recipe_of(None, None)
    with pytest.raises(ValueError, match=r"register\('other', recipes=...\): unknown tuning 'depe'; use full, deep"):
        register("other", recipes={"depe": Recipe(0.5)})(own)


# The precision. No GPU is used: the question whether the device has units for bfloat16 is substituted.


@pytest.fixture
def units(monkeypatch):
    """units(answer) says whether the device has units for bfloat16."""

    def say(answer: bool) -> None:
        monkeypatch.setattr(resolve_arguments, "has_bfloat16_units", lambda device: answer)

    say(True)
    return say


def trainer_of(encoder, sentences, folder: Path, options=None, **given) -> dcpcse.Trainer:
    args = dcpcse.TrainingArguments(str(folder), **QUIET, learning_rate=1e-3, per_device_train_batch_size=4, **given)
    return dcpcse.Trainer(encoder, "dcpcse", args, sentences, pre_seq_len=2, **(options or {}))


def precision_of(trainer: dcpcse.Trainer) -> tuple[bool, str]:
    """As it is recorded, and as it is computed."""
    assert trainer.run_options["bf16"] is trainer.args.bf16
    return trainer.args.bf16, trainer.accelerator.mixed_precision


def test_a_gpu_with_units_is_asked_for_without_emulation_and_other_devices_are_not_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: asked.append(how) or True)
    assert not has_bfloat16_units(torch.device("cpu")) and not asked
    assert has_bfloat16_units(torch.device("cuda")) and asked == [{"including_emulation": False}]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: how["including_emulation"])
    assert not has_bfloat16_units(torch.device("cuda", 1))


def test_a_device_with_units_trains_in_bfloat16_and_one_line_says_so(units, tiny, sentences, tmp_path, caplog):
    with caplog.at_level("INFO", logger="dcpcse"):
        trainer = trainer_of(tiny("bert"), sentences, tmp_path)
    (line,) = [line for line in caplog.messages if "filled in" in line]
    assert line == "bf16=True: filled in, as the default on this GPU; bf16=False trains in float32"
    assert precision_of(trainer) == (True, "bf16")
    seen, encoder = set(), trainer.sentence_encoder.encoder
    encoder.register_forward_pre_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    trainer.train()
    assert seen == {True}
    of_optimiser = [part for state in trainer.optimizer.state.values() for part in state.values()]
    assert {tensor.dtype for tensor in [*trainer.step_module.parameters(), *of_optimiser]} == {torch.float32}


PRECISIONS = {
    "bf16 off": ({"bf16": False}, {}, True, False),
    "another type of frozen weights": ({}, {"encoder_dtype": "bfloat16"}, True, False),
    "bf16 on": ({"bf16": True}, {}, False, True),
    "accelerate launch": ({}, {}, False, True),
    "another process without units": ({}, {}, True, False),
}


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_precision_that_is_given_or_that_all_devices_have_is_used(
    name, units, tiny, sentences, tmp_path, monkeypatch, caplog
):
    given, options, answer, is_half = PRECISIONS[name]
    units(answer)
    if name == "accelerate launch":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    if name == "another process without units":
        monkeypatch.setattr(resolve_arguments, "all_reduce_max", lambda without: 1)
    with caplog.at_level("INFO", logger="dcpcse"):
        trainer = trainer_of(tiny("bert"), sentences, tmp_path, options, **given)
    assert precision_of(trainer) == ((True, "bf16") if is_half else (False, "no"))
    assert not any("filled in" in line for line in caplog.messages)
    run = dcpcse.TrainingArguments(str(tmp_path), **QUIET, fp16=True)  # as the public scripts
    resolve_arguments.fill_precision(run, model_arguments())
    assert (run.fp16, run.bf16, run.mixed_precision) == (True, False, "fp16")


# Workers. No GPU is used: the device of the arguments is substituted.


def test_other_processes_collate_on_a_gpu_unless_their_number_is_given(tmp_path, monkeypatch, caplog):
    def workers(trains: bool = True, **given) -> tuple[int, list[str]]:
        caplog.clear()
        run = dcpcse.TrainingArguments(str(tmp_path), **QUIET, **given)
        run.trains = trains
        resolve_arguments.fill_workers(run)
        return run.dataloader_num_workers, [text for text in caplog.messages if "filled in" in text]

    caplog.set_level("INFO", logger="dcpcse")
    assert workers() == (0, [])
    monkeypatch.setattr(dcpcse.TrainingArguments, "device", torch.device("cuda"))
    assert workers() == (2, ["dataloader_num_workers=2: filled in, as the default on a GPU"])
    assert workers(dataloader_num_workers=0) == workers(trains=False) == (0, [])
