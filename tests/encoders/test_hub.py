"""Folders on the Hub: loaded by their id, own files only, and every failure is one line."""

import json
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from method_models import model_of
from model_folders import refused
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


def test_only_the_files_of_a_model_are_downloaded(server, saved):
    """Of a trained encoder those of other libraries too."""
    folder, _ = saved("dcpcse")
    foreign = ("optimizer.pt", "training_args.bin", "pytorch_model.bin", "model.safetensors", "config.json", "x.py")
    server.put(ID, folder, **dict.fromkeys(foreign, b"not ours"))
    dcpcse.load(ID, device="cpu")
    expected = {"dcpcse.json", "trained.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert server.downloads() == expected | {"adapter_model.safetensors", "adapter_config.json"}
    server.put("someone/tuned", saved("simcse", 2)[0], **{"pytorch_model.bin": b"not ours"})
    dcpcse.load("someone/tuned", device="cpu")
    assert {"model.safetensors", "config.json", "modules.json", "1_Pooling/config.json"} < server.downloads()
    assert "pytorch_model.bin" not in server.downloads()


def test_the_commit_of_an_encoder_is_recorded_whatever_names_it(server, tiny, monkeypatch, tmp_path):
    commit = server.put(ID, Path(tiny("bert")))
    for options in (LoadOptions(), LoadOptions("main"), LoadOptions(commit), LoadOptions(cache_dir=str(tmp_path))):
        assert load_backbone(ID, options=options).source.revision == commit
    later = server.put(ID, Path(tiny("bert", seed=9)))
    assert load_backbone(ID).source.revision == later != commit


def test_a_revision_is_the_one_of_the_folder_and_a_new_version_is_downloaded(server, saved, sentences):
    (first, one), (second, other) = saved(seed=1), saved(seed=2)
    commit = server.put(ID, first)
    server.put(ID, second, revision="better")
    for revision, model in {None: one, commit: one, "better": other}.items():
        found = dcpcse.load(ID, revision=revision, device="cpu")
        assert np.array_equal(found.encode(sentences), model.encode(sentences))
    refused("no such branch, tag or commit", dcpcse.load, ID, revision="other")
    server.put(ID, second)
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), other.encode(sentences))


def test_a_loaded_folder_is_loaded_again_without_a_network_but_not_a_part_of_it(server, saved, sentences, monkeypatch):
    folder, model = saved()
    server.put(ID, folder)
    dcpcse.load(ID, device="cpu")
    server.failing = True
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), model.encode(sentences))
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        asked = len(server.asked)
        assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), model.encode(sentences))
        assert len(server.asked) == asked
    next(Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("snapshots/*/trained.safetensors")).unlink()
    refused("its cache does not contain", dcpcse.load, ID, device="cpu")


def test_an_unknown_name_is_one_line_at_once_if_the_hub_cannot_be_reached(server):
    """transformers would retry for half a minute."""
    server.failing = True
    for load in (dcpcse.load, lambda name: load_model(name, EncoderArguments(pooler_type="avg"))):
        server.asked.clear()
        with pytest.raises(UserError, match=r"someone/prompts is not a folder, the Hub cannot be reached") as raised:
            load(ID)
        assert len(server.asked) == 1
        assert "\n" not in str(raised.value)
        assert raised.value.__cause__ is None and raised.value.__suppress_context__, "one traceback, not three"


def test_repositories_without_a_model_or_with_files_outside_of_it_are_refused(server, saved):
    server.hold("someone/plain", {"config.json": b"{}"})
    refused(r"someone/plain on the Hub has no dcpcse\.json", SentenceEncoder.load, "someone/plain")
    refused("cannot load the encoder 'someone/plain'", dcpcse.load, "someone/plain")
    refused("the Hub has no such model", dcpcse.load, "someone/nothing")
    folder, _ = saved()
    record = json.loads((folder / "dcpcse.json").read_text())
    for change in ({"prompts_file": "../../secret"}, {"backbone": {"folder": "../..", "fingerprint": "x"}}):
        (folder / "dcpcse.json").write_text(json.dumps(record | change))
        server.put(ID, folder)
        server.asked.clear()
        refused(r"(prompts_file|backbone\.folder) is .*; expected one of", dcpcse.load, ID)
        assert server.downloads() == {"dcpcse.json"}


def test_every_command_takes_an_id_and_reads_it_as_the_folder_or_a_plain_encoder(server, saved, tiny, sentences):
    folder, model = saved("dcpcse")
    server.put(ID, folder)
    found = load_model(ID, EncoderArguments(device="cpu"))
    assert np.array_equal(found.encode(sentences), model.encode(sentences)) and is_trained(ID, EncoderArguments())
    refused(f"{ID} is an output folder", load_model, ID, EncoderArguments(top_k=3))
    args = model_arguments(method="dcpcse", pre_seq_len=3, init_from=ID)
    begun = build_method(load_backbone(tiny("bert")), args, ["anchor"]).model
    assert (begun.encoder.prompt.table.weight == model.encoder.prompt.table.weight).all()
    plain = "someone/plain"
    server.put(plain, Path(tiny("bert")))
    assert load_model(plain, EncoderArguments(pooler_type="avg", device="cpu")).method is None
    assert not is_trained(plain, EncoderArguments())
    AutoConfig.from_pretrained(plain)
    server.failing = True
    assert hub.resolve_model_folder(plain, LoadOptions()) == (plain, LoadOptions())


def test_a_local_path_is_never_looked_up(server, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dcpcse.load(saved()[0].name, device="cpu")
    assert not any(map(hub.is_hub_id, ("/no/such/folder", "./x/y", "a/b/c")))
    assert server.asked == []
