"""Model cards repeat the records of a folder, and facts without a record are called "Not recorded"."""

import json
import re

import pytest
from huggingface_hub import ModelCard
from method_models import RECIPES, model_of
from past_runs import make_run

from dcpcse.encoders.identity import identity, trained_digest
from dcpcse.methods import METHODS
from dcpcse.training.publish import digest_in, write_card
from dcpcse.utils.errors import UserError


def report(model, **changes):
    """A file of scores as evaluation.py writes it."""
    described = {"method": model.method, "identity": json.loads(json.dumps(identity(model)))}
    tasks = {
        "STSBenchmark": {"family": "sts", "split": "test"},
        "CR": {"family": "transfer", "split": "test"},
        "mteb/STS12": {"family": "mteb", "split": "test", "metric": "cosine_spearman"},
    }
    scores = {"STSBenchmark": 72.8407, "CR": 81.25, "mteb/STS12": 70.0}
    content = {"complete": True, "mode": "test", "model": described, "scores_x100": scores, "tasks": tasks}
    return content | {"averages_x100": {"sts": 72.8407, "transfer": 81.25, "mteb": 70.0}} | changes


def rows(card: str) -> dict[str, str]:
    """First two cells of all rows of all tables."""
    return dict(re.findall(r"^\| ([^|]*) \| ([^|]*) \|", card, flags=re.MULTILINE))


@pytest.fixture
def folder(tiny, tmp_path):
    place = make_run(tmp_path / "run")
    model = model_of("dcpcse", tiny)
    model.save(place)
    (place / "scores.json").write_text(json.dumps(report(model)), encoding="utf-8")
    return place


@pytest.mark.parametrize("recipe", RECIPES)
def test_parameters_and_settings_are_those_of_the_model(recipe, tiny, tmp_path):
    model = model_of(recipe, tiny)
    model.save(tmp_path)
    found = rows(write_card(tmp_path))
    assert "" not in found.values(), "the template names an unknown fact"
    encoder = model.encoder
    parts = [part for part in (encoder.prompt, encoder.shallow, encoder.cls_prompt, model.head) if part is not None]
    parts += [encoder.backbone] if encoder.tuned else []
    counted = {id(p): p.numel() for part in parts for p in part.parameters()}
    counted |= {id(p): p.numel() for name, p in encoder.backbone.named_parameters() if ".lora_" in name}
    assert found["Trained parameters in total"] == f"{sum(counted.values()):,}"
    assert found["Method"] == RECIPES[recipe][1]["method"]
    assert found["Pooling"] == model.pooling
    assert found["Template"] == ("none" if model.template is None else str(model.template.template))
    assert found["SHA-256 fingerprint of the base weights"] == model.source.fingerprint


def test_huggingface_hub_reads_the_metadata(folder):
    data = ModelCard(write_card(folder, "someone/prompts")).data
    assert data.library_name == "dcpcse"
    assert data.tags == ["sentence-embeddings", "dcpcse"]
    assert {(result.dataset_name, result.metric_type, result.metric_value) for result in data.eval_results} == {
        ("STSBenchmark", "cosine_spearman", 72.84),
        ("CR", "accuracy", 81.25),
        ("mteb/STS12", "cosine_spearman", 70.0),
    }
    assert data.base_model is None  # the Hub does not know a local folder


def test_a_base_on_the_hub_is_named_in_the_metadata(folder):
    path = folder / "dcpcse.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["base"]["name_or_path"] = "google/bert-small"
    path.write_text(json.dumps(record), encoding="utf-8")
    card = write_card(folder)
    assert ModelCard(card).data.base_model == "google/bert-small"
    assert "base=" not in card


def test_the_run_is_described_from_its_records(folder):
    card = write_card(folder)
    found = rows(card)
    assert found["Seed"] == "7" and found["Learning rate"] == "0.03" and found["Training file"] == "Not recorded"
    assert found["Optimiser steps"] == "4 of 4"
    assert found["Dev stsb_spearman"] == "0.7000 at the end; best: 0.7500 at step 2"
    assert "training seed: 7" in card
    assert "torch 2.13.0" in card and "c" * 40 in card
    assert "python train.py run.yaml --output_dir" in card


def test_facts_without_a_record_are_not_recorded(tiny, tmp_path):
    model_of("simcse", tiny).save(tmp_path)
    card = write_card(tmp_path)
    assert "Not recorded: the folder has no `run.yaml`" in card
    assert "Not recorded: no score file was given" in card
    assert "Not recorded: versions and hardware" in card
    assert "eval_results" not in card and "model-index" not in card
    assert "license:" not in card


def test_every_method_has_its_paper():
    assert [name for name, entry in METHODS.items() if not entry.citation] == []


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("dcpcse", "PeftModel"),
        ("dcpcse, head at inference", "cannot load this folder"),
        ("simcse", "load this folder as it is"),
        ("promptbert", "cannot load this folder"),
        ("simcse, lora", "together with its base encoder, if PEFT is installed"),
        ("conpvp, lora", 'PeftModel.from_pretrained(base, folder, subfolder="adapter")'),
    ],
)
def test_the_card_names_the_libraries_that_load_the_folder(recipe, words, tiny, tmp_path):
    model_of(recipe, tiny).save(tmp_path)
    card = write_card(tmp_path)
    assert words in card
    assert words.startswith("PeftModel") == ("PeftModel" in card)


def test_scores_of_a_different_model_are_refused(folder, tiny, tmp_path):
    other = model_of("dcpcse", tiny, seed=2)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(report(other)), encoding="utf-8")
    with pytest.raises(UserError, match=r"a different model.*trained differ"):
        write_card(folder, scores=[path])
    same = model_of("dcpcse", tiny)
    same.pooling = "avg"
    path.write_text(json.dumps(report(same)), encoding="utf-8")
    with pytest.raises(UserError, match=r"a different model.*pooling differ"):
        write_card(folder, scores=[path])


def test_files_without_scores_and_incomplete_ones_are_refused(folder, tiny, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(report(model_of("dcpcse", tiny), complete=False)), encoding="utf-8")
    with pytest.raises(UserError, match="interrupted"):
        write_card(folder, scores=[path])
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="contains no scores"):
        write_card(folder, scores=[path])


def test_a_card_contains_the_digest_of_its_weights(folder):
    assert digest_in(write_card(folder)) == trained_digest(folder)
    assert digest_in("# My own card") is None


def test_text_from_files_stays_in_its_cell(folder):
    run = folder / "run.yaml"
    run.write_text(run.read_text(encoding="utf-8") + 'train_file: "a|b\\n# c"\n', encoding="utf-8")
    assert "| Training file | a\\|b # c |" in write_card(folder)
