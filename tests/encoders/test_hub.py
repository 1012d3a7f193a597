"""Folders on the hub: loaded by their id, file by file, and every failure in one line."""

import json
import logging
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from method_models import RECIPES, model_of
from transformers import AutoConfig

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import is_trained, load_model
from dcpcse.methods import build_method, model_arguments
from dcpcse.utils.errors import UserError

ID = "someone/prompts"


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(recipe) → the folder of a model, and the model."""

    def get(recipe: str = "dcpcse", seed: int = 1) -> tuple[Path, SentenceEncoder]:
        model = model_of(recipe, tiny, seed)
        folder = tmp_path / f"saved-{seed}"
        model.save(folder)
        return folder, model

    return get


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_id_gives_the_very_same_vectors_as_the_folder(recipe, server, saved, sentences):
    folder, model = saved(recipe)
    server.put(ID, folder)
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), model.encode(sentences))


def test_only_the_files_of_a_model_are_downloaded(server, saved):
    folder, _ = saved("dcpcse")
    foreign = ("optimizer.pt", "training_args.bin", "pytorch_model.bin", "model.safetensors", "config.json", "x.py")
    server.put(ID, folder, **dict.fromkeys(foreign, b"not ours"))
    dcpcse.load(ID, device="cpu")
    expected = {"dcpcse.json", "trained.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert server.downloads() == expected | {"adapter_model.safetensors", "adapter_config.json"}


def test_a_trained_encoder_is_downloaded_with_what_other_libraries_need(server, saved):
    folder, _ = saved("simcse")
    server.put(ID, folder, **{"pytorch_model.bin": b"not ours"})
    dcpcse.load(ID, device="cpu")
    assert {"model.safetensors", "config.json", "modules.json", "1_Pooling/config.json"} < server.downloads()
    assert "pytorch_model.bin" not in server.downloads()


def test_a_revision_is_that_of_the_folder(server, saved, sentences):
    (first, one), (second, other) = saved(seed=1), saved(seed=2)
    commit = server.put(ID, first)
    server.put(ID, second, revision="better")
    assert np.array_equal(dcpcse.load(ID, device="cpu", revision="better").encode(sentences), other.encode(sentences))
    for revision in (None, commit):
        assert np.array_equal(
            dcpcse.load(ID, revision=revision, device="cpu").encode(sentences), one.encode(sentences)
        )
    with pytest.raises(UserError, match=r"no such branch, tag or commit"):
        dcpcse.load(ID, revision="other")


def test_what_was_loaded_once_is_loaded_without_a_network(server, saved, sentences, monkeypatch):
    folder, model = saved()
    server.put(ID, folder)
    dcpcse.load(ID, device="cpu")
    server.failing = True
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), model.encode(sentences))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    asked = len(server.asked)
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), model.encode(sentences))
    assert len(server.asked) == asked


def test_a_new_version_is_taken_when_there_is_one(server, saved, sentences):
    (first, _), (second, other) = saved(seed=1), saved(seed=2)
    server.put(ID, first)
    dcpcse.load(ID, device="cpu")
    server.put(ID, second)
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), other.encode(sentences))


def test_without_a_network_there_is_one_line(server):
    server.failing = True
    with pytest.raises(UserError, match=r"someone/prompts is not a folder, and the hub is out of reach") as raised:
        dcpcse.load(ID)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__, "one traceback, not three"


def test_a_repository_that_is_none_of_ours_or_not_there_is_refused(server, saved):
    server.hold("someone/plain", {"config.json": b"{}"})
    with pytest.raises(UserError, match=r"someone/plain on the hub has no dcpcse\.json"):
        dcpcse.load("someone/plain")
    with pytest.raises(UserError, match=r"the hub has no model of that name"):
        dcpcse.load("someone/nothing")


def test_every_command_takes_an_id_and_reads_it_as_the_folder(server, saved, sentences, caplog):
    folder, model = saved("promptbert, deep")
    server.put(ID, folder)
    with caplog.at_level(logging.INFO, "dcpcse"):
        found = load_model(ID, EncoderArguments(device="cpu"))
    assert np.array_equal(found.encode(sentences), model.encode(sentences))
    assert "as trained" in caplog.text
    assert is_trained(ID, EncoderArguments())
    with pytest.raises(UserError, match=f"{ID} is trained"):
        load_model(ID, EncoderArguments(top_k=3))


def test_a_plain_encoder_is_still_loaded_by_its_id(server, tiny, caplog):
    server.put("someone/plain", Path(tiny("bert")))
    assert load_model("someone/plain", EncoderArguments(pooler_type="avg", device="cpu")).method is None
    assert not is_trained("someone/plain", EncoderArguments())


def test_it_is_said_where_the_hub_cannot_tell_a_plain_encoder_from_a_folder(server, tiny, caplog):
    server.put("someone/plain", Path(tiny("bert")))
    AutoConfig.from_pretrained("someone/plain")
    server.failing = True
    with caplog.at_level(logging.INFO, "dcpcse"):
        assert hub.resolve_model_folder("someone/plain", LoadOptions()) == ("someone/plain", LoadOptions())
    assert "taken for a plain encoder" in caplog.text


def test_a_name_that_neither_the_hub_nor_its_cache_knows_is_refused_at_once(server):
    """transformers would ask again for half a minute."""
    server.failing = True
    with pytest.raises(UserError, match=r"result/nope is not a folder here, and .* give an output folder"):
        load_model("result/nope", EncoderArguments(pooler_type="avg"))
    assert len(server.asked) <= 1


def test_a_place_here_is_never_looked_up(server, saved, tmp_path, monkeypatch):
    folder, _ = saved()
    monkeypatch.chdir(tmp_path)
    dcpcse.load(folder.name, device="cpu")
    assert not hub.is_hub_id("/no/such/folder") and not hub.is_hub_id("./x/y") and not hub.is_hub_id("a/b/c")
    assert server.asked == []


@pytest.mark.parametrize(
    "change", [{"prompts_file": "../../secret"}, {"backbone": {"folder": "../..", "fingerprint": "x"}}]
)
def test_a_record_names_no_file_outside_of_its_folder(change, server, saved):
    folder, _ = saved()
    path = folder / "dcpcse.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    server.put(ID, folder)
    with pytest.raises(UserError, match=r"unknown (prompts file|place of the encoder)"):
        dcpcse.load(ID)
    assert server.downloads() == {"dcpcse.json"}


def test_training_begins_from_a_folder_on_the_hub(server, saved, tiny):
    folder, model = saved("dcpcse")
    server.put(ID, folder)
    args = model_arguments(method="dcpcse", pre_seq_len=3, init_from=ID)
    begun = build_method(load_backbone(tiny("bert")), args, ["anchor"]).model
    assert (begun.encoder.prompt.table.weight == model.encoder.prompt.table.weight).all()
