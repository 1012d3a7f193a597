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
    tasks = {"STSBenchmark": {"family": "sts"}, "CR": {"family": "transfer"}}
    tasks |= {"mteb/STS12": {"family": "mteb", "metric": "cosine_spearman"}}
    tasks = {name: {**task, "split": "test"} for name, task in tasks.items()}
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


LOADED_BY = {
    "dcpcse": "PeftModel",
    "dcpcse, head at inference": "cannot load this folder",
    "simcse": "load this folder as it is",
    "conpvp, lora": 'PeftModel.from_pretrained(base, folder, subfolder="adapter")',
}
"""Recipe → what its card says of the libraries that load the folder."""


@pytest.mark.parametrize("recipe", LOADED_BY)
def test_parameters_settings_and_libraries_are_those_of_the_model(recipe, tiny, tmp_path):
    model, words = model_of(recipe, tiny), LOADED_BY[recipe]
    model.save(tmp_path)
    card = write_card(tmp_path)
    found, encoder = rows(card), model.encoder
    assert "" not in found.values(), "the template names an unknown fact"
    parts = [part for part in (encoder.prompt, encoder.shallow, encoder.cls_prompt, model.head) if part is not None]
    parts += [encoder.backbone] if encoder.tuned else []
    counted = {id(p): p.numel() for part in parts for p in part.parameters()}
    counted |= {id(p): p.numel() for name, p in encoder.backbone.named_parameters() if ".lora_" in name}
    assert found["Trained parameters in total"] == f"{sum(counted.values()):,}"
    assert found["Method"] == RECIPES[recipe][1]["method"] and found["Pooling"] == model.pooling
    assert found["Template"] == (str(model.template.template) if model.template else "none")
    assert found["SHA-256 fingerprint of the base weights"] == model.source.fingerprint
    assert words in card and words.startswith("PeftModel") == ("PeftModel" in card)


def test_huggingface_hub_reads_the_metadata(folder):
    data = ModelCard(write_card(folder, "someone/prompts")).data
    assert data.library_name == "dcpcse"
    assert {(result.dataset_name, result.metric_type, result.metric_value) for result in data.eval_results} == {
        ("STSBenchmark", "cosine_spearman", 72.84),
        ("CR", "accuracy", 81.25),
        ("mteb/STS12", "cosine_spearman", 70.0),
    }
    assert data.base_model is None  # the Hub does not know a local folder
    record = json.loads((folder / "dcpcse.json").read_text(encoding="utf-8"))
    record["base"]["name_or_path"] = "google/bert-small"
    (folder / "dcpcse.json").write_text(json.dumps(record), encoding="utf-8")
    card = write_card(folder)
    assert ModelCard(card).data.base_model == "google/bert-small" and "base=" not in card


def test_the_run_is_described_from_its_records(folder):
    run, card = folder / "run.yaml", write_card(folder)
    assert digest_in(card) == trained_digest(folder) and digest_in("# My own card") is None
    found = rows(card)
    assert (found["Seed"], found["Learning rate"], found["Training file"]) == ("7", "0.03", "Not recorded")
    assert found["Optimiser steps"] == "4 of 4"
    assert found["Dev stsb_spearman"] == "0.7000 at the end; best: 0.7500 at step 2"
    assert "torch 2.13.0" in card and "c" * 40 in card
    run.write_text(run.read_text(encoding="utf-8") + 'train_file: "a|b\\n# c"\n', encoding="utf-8")
    assert "| Training file | a\\|b # c |" in write_card(folder)


def test_facts_without_a_record_are_not_recorded(tiny, tmp_path):
    assert all(entry.citation for entry in METHODS.values())
    model_of("simcse", tiny).save(tmp_path)
    card = write_card(tmp_path)
    assert card.count("Not recorded: ") >= 3 and "Not recorded: no score file was given" in card
    assert not [word for word in ("eval_results", "model-index", "license:") if word in card]


def test_scores_of_a_different_model_and_incomplete_ones_are_refused(folder, tiny, tmp_path):
    same, pooled = model_of("dcpcse", tiny), model_of("dcpcse", tiny)
    pooled.pooling = "avg"
    path = tmp_path / "other.json"
    for content, message in (
        (report(model_of("dcpcse", tiny, seed=2)), r"another model.*different: trained"),
        (report(pooled), r"another model.*different: .*pooling"),
        (report(same, complete=False), "interrupted"),
        ({}, "contains no scores"),
    ):
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            write_card(folder, scores=[path])
