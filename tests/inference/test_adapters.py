"""Adapters that share one encoder: each sentence gets the vector that its adapter's own model gives it alone."""

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import trained_model
from model_folders import edit_record, refused, without_checksums

import dcpcse
from dcpcse.encoders import frozen_layers as prepacking
from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.lora import lora_weights
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.adapters import Adapters
from dcpcse.utils.tensor_files import set_dtype

DEEP, HEAD, LORA = {"method": "dcpcse", "pre_seq_len": 4}, {"mlp_only_train": False}, {"tuning": "lora", "lora_r": 4}
PARTS = {
    "one prompt": {"method": "dcpcse", "pre_seq_len": 1, "pooler_type": "avg"},
    "four, two layers": {**DEEP, "pooler_type": "avg_first_last", "position_offset": 0},
    "sixteen": {**DEEP, "pre_seq_len": 16, "prefix_projection": True, "prefix_hidden_size": 6, **HEAD},
    "vectors": {**DEEP, "prompt_form": "vectors"},
    "D2CSE": {**DEEP, "cls_prompt": True, "batchnorm": True, "mlp_only_train": True},
    "SCPCSE": {"method": "scpcse", "mlp_only_train": True},
    "denoised": {**DEEP, "method": "promptbert", "tuning": "deep", "denoise_at_inference": True, "final_period": True},
    "LoRA": {**LORA, "method": "simcse", "pooler_type": "avg"},
    "LoRA, all layers, head": {**LORA, "method": "simcse", "lora_target_modules": ["all-linear"], **HEAD},
    "LoRA in a template": {**LORA, "method": "conpvp", "denoise_at_inference": True},
}
"""Name → options of train.py."""


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """folders(kind) → folders of adapters on one tiny encoder, by name."""

    @functools.cache
    def get(kind: str) -> dict[str, Path]:
        root = tmp_path_factory.mktemp(f"adapters-{kind}")
        for seed, (name, options) in enumerate(PARTS.items()):
            trained_model(tiny(kind), seed, **options).save(root / name)
        return {name: root / name for name in PARTS}

    return get


@pytest.fixture(scope="module")
def adapters(folders) -> Adapters:
    """All of them on a tiny BERT; no test changes it."""
    return Adapters.load(folders("bert"), device="cpu")


def stream(sentences, names, count=31):
    """Sentences and the names of their adapters, neither sorted nor evenly spread, long and short ones mixed."""
    random = np.random.default_rng(0)
    drawn = random.integers(99, size=count).tolist()
    texts = [f"{sentences[i % len(sentences)]} {sentences[0] * (i % 3 == 2)}" for i in drawn]
    return texts, [list(names)[i] for i in random.integers(len(names), size=count)]


# The same vectors


@pytest.mark.parametrize(("kind", "packed"), [("roberta", False), ("modernbert", True)])
def test_a_mixed_batch_gives_each_sentence_the_vector_of_its_adapter_alone(kind, packed, folders, sentences):
    adapters = Adapters.load(folders(kind), device="cpu")
    for name in adapters.names:
        set_packed(adapters[name], packed)
    texts, names = stream(sentences, adapters.names)
    own = {name: dcpcse.load(folder, device="cpu") for name, folder in folders(kind).items()}

    def alone(**options) -> np.ndarray:
        return np.concatenate([own[name].encode([t], 1, **options) for t, name in zip(texts, names, strict=True)])

    assert set(names) == set(PARTS)
    for options in ({}, {"normalize": True, "max_length": 40, "truncate_dim": 8}):
        np.testing.assert_allclose(adapters.encode(texts, names, 3, **options), alone(**options), atol=1e-5)
    refused("adapter '.*': truncate_dim=33: must be between 1 and 32", adapters.encode, texts, names, truncate_dim=33)


def test_autocast_threads_and_weights_laid_out_for_many_texts_give_the_same_vectors(adapters, sentences, monkeypatch):
    texts, names = stream(sentences, adapters.names)
    exact = adapters.encode(texts, names)
    for module, name in ((models, "WORTH_PREPACKING"), (prepacking, "LEAST_WEIGHTS"), (prepacking, "LEAST_ROWS")):
        monkeypatch.setattr(module, name, 0)
    with torch.profiler.profile() as profile:
        np.testing.assert_allclose(adapters.encode(texts, names), exact, atol=1e-5)
    assert any(event.key == "mkldnn::_linear_pointwise" for event in profile.key_averages())
    monkeypatch.setattr(models, "CPU_TOKENS", 60)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        np.testing.assert_allclose(adapters.encode(texts, names), exact, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            rough = adapters.encode(texts, names)
    finally:
        torch.set_num_threads(threads)
    assert 1e-4 < np.abs(rough - exact).max() < 0.2


# Shared


def test_an_adapter_by_name_is_a_model_on_the_shared_encoder(adapters, folders, sentences):
    """It adds just what inference reads: no head that only training uses, no projection; 3 layers of 32 wide."""
    assert adapters.names == tuple(PARTS)
    shared, counts = {id(p) for p in adapters["one prompt"].encoder.backbone.parameters()}, {}
    for name in PARTS:
        own = dcpcse.load(folders("bert")[name], device="cpu").encode(sentences)
        parts = {id(p) for p in adapters[name].encoder.backbone.parameters()}
        assert shared <= parts and (shared == parts) == (PARTS[name].get("tuning") != "lora")
        np.testing.assert_allclose(adapters[name].encode(sentences), own, atol=1e-6)
        np.testing.assert_array_equal(adapters.encode(sentences, name), adapters[name].encode(sentences))
        counts[name] = sum(p.numel() for p in adapters[name].parameters() if id(p) not in shared)
        assert not any(parameter.requires_grad for parameter in adapters[name].parameters())
    assert counts["D2CSE"] == 4 * 2 * 3 * 32 + 32
    assert counts["sixteen"] == 16 * 2 * 3 * 32 + 32 * 32 + 32
    assert counts["LoRA"] == 3 * 2 * 4 * (32 + 32)  # layers, queries and values, rank, inputs and outputs
    assert adapters.encode([], []).shape == adapters.encode([], "SCPCSE").shape == (0, 32)


def test_mixed_sentences_share_one_pass(folders, sentences):
    """But for template denoising, whose second pass is each adapter's own, and for LoRA, which changes the layers."""
    own = {n: f for n, f in folders("bert").items() if not PARTS[n].get("denoise_at_inference")}
    adapters = Adapters.load(own, device="cpu")
    calls = []
    for name in ("D2CSE", "LoRA", "LoRA, all layers, head"):
        encoder = adapters[name].encoder
        encoder.backbone.register_forward_hook(lambda module, args, output, name=name: calls.append(name))
    adapters.encode(sentences, [adapters.names[i % len(adapters.names)] for i in range(len(sentences))])
    assert sorted(calls) == ["D2CSE", "LoRA", "LoRA, all layers, head"]


def test_adapters_come_and_go(folders, sentences):
    own = folders("bert")
    adapters = Adapters.load({"first": own["one prompt"]}, device="cpu")
    adapters.add("second", own["SCPCSE"])
    texts, names = sentences[:4], ["second", "first", "first", "second"]
    both = adapters.encode(texts, names)
    adapters.remove("first")
    assert adapters.names == ("second",)
    np.testing.assert_allclose(adapters.encode(texts, "second")[[0, 3]], both[[0, 3]], atol=1e-5)
    adapters["second"].train()  # encoding is in eval mode
    np.testing.assert_allclose(adapters.encode(texts, "second")[[0, 3]], both[[0, 3]], atol=1e-5)
    refused(r"no adapter 'first'; loaded: 1 \(second\)", adapters.encode, texts, names)


def test_a_folder_with_another_tokenizer_of_the_same_words_reads_texts_its_own_way(folders, sentences, tmp_path):
    own = folders("bert")["one prompt"]
    other = shutil.copytree(own, tmp_path / "cased")
    settings = json.loads((other / "tokenizer.json").read_text())
    settings["normalizer"]["lowercase"] = False
    (other / "tokenizer.json").write_text(json.dumps(settings))
    without_checksums(Path(other))
    adapters = Adapters.load({"uncased": own, "cased": other}, device="cpu")
    found = adapters.encode([sentences[0]] * 2, ["uncased", "cased"])
    assert np.abs(found[0] - found[1]).max() > 1e-2
    for vector, folder in zip(found, (own, other), strict=True):
        np.testing.assert_allclose(vector, dcpcse.load(folder, device="cpu").encode(sentences[:1])[0], atol=1e-5)


# One clear line each


NO_REQUEST = [
    (["a", "b"], ["SCPCSE"], {}, "2 sentences and 1 adapter names; give one name, or one per sentence"),
    (["a"], "SCPSCE", {}, "no adapter 'SCPSCE'; did you mean 'SCPCSE'?"),
    (["a", "b"], ["SCPCSE", ["D2CSE"]], {}, "name 1 is a list (['D2CSE']); give the name of an adapter"),
    (["a"], None, {}, "a list of names, not a NoneType"),
    ("a", ["SCPCSE"], {}, "got a single string"),
    (["a", 5], ["SCPCSE", "D2CSE"], {}, "sentence 1 is a int"),
    (["a", "b"], ["one prompt", "sixteen"], {"max_length": 90}, "'sixteen': a maximum of 90 tokens"),
]


def test_sentences_and_names_that_do_not_go_together_are_refused(adapters):
    for sentences, names, options, message in NO_REQUEST:
        refused(re.escape(message), adapters.encode, sentences, names, **options)


def in_half(folder, target):
    model = SentenceEncoder.load(folder, device="cpu")
    set_dtype(model.encoder.backbone, torch.bfloat16)
    model.save(target)


def test_a_folder_that_is_not_an_adapter_of_the_base_is_refused_by_name(folders, tiny, tmp_path):
    own = folders("bert")["one prompt"]
    trained_model(tiny("bert", seed=5), **DEEP).save(tmp_path / "base")
    trained_model(tiny("bert"), method="simcse").save(tmp_path / "tuned")
    in_half(own, tmp_path / "half")
    for name in ("words", "shape"):
        shutil.copytree(own, tmp_path / name)
    words = tmp_path / "words/tokenizer.json"
    words.write_text(words.read_text().replace('"##q"', '"##?"'))
    without_checksums(tmp_path / "words")
    prompt = json.loads((tmp_path / "shape/dcpcse.json").read_text())["prompt"]
    edit_record(tmp_path / "shape", prompt=prompt | {"heads": 2, "head_dim": 16})
    adapters = Adapters.load({"first": own}, device="cpu")
    for name, message in {
        "base": "is not the encoder that",
        "tuned": r"its own encoder \(simcse\)",
        "half": "in bfloat16, but the weights of the loaded encoder are in f",
        "words": "differs from the tokenizer in training",
        "shape": "expected prompt.heads 4 for this encoder but found 2",
        "nowhere": "is not a folder",
    }.items():
        refused(f"^adapter 'second': .*{message}", adapters.add, "second", tmp_path / name)
    refused("already an adapter 'first'", adapters.add, "first", own)
    refused("cannot name an adapter", adapters.add, "", own)
    for given in ({}, [own]):
        refused("at least one name with its folder", Adapters.load, given)
    assert adapters.names == ("first",)
    model = dcpcse.load(folders("bert")["LoRA"], device="cpu")
    refused("has a LoRA adapter, so no adapter fits it", Adapters.on_encoder_of, model)


def test_adapters_of_one_reduced_type_share_an_encoder_of_that_type(folders, sentences, tmp_path):
    for i, name in enumerate(("one prompt", "SCPCSE", "LoRA")):
        in_half(folders("bert")[name], tmp_path / str(i))
    adapters = Adapters.load({name: tmp_path / str(i) for i, name in enumerate("abc")}, device="cpu")
    assert adapters["a"].encoder.backbone.dtype == torch.bfloat16
    assert {matrix.dtype for matrix in lora_weights(adapters["c"].encoder.backbone).values()} == {torch.float32}
    alone = [dcpcse.load(tmp_path / str(i), device="cpu").encode(sentences[:1])[0] for i in range(3)]
    assert np.abs(adapters.encode([sentences[0]] * 3, ["a", "b", "c"]) - alone).max() < 0.05


# On the encoder of a loaded model


def test_adapters_are_built_on_the_encoder_of_a_model_which_stays_as_it_was(folders, tiny, sentences):
    model = dcpcse.load(tiny("bert"), pooler="avg", device="cpu")
    before, adapters = model.encode(sentences), Adapters.on_encoder_of(model)
    for name in ("four, two layers", "LoRA, all layers, head"):
        folder = folders("bert")[name]
        built = adapters.build(name, adapters.read(name, folder))
        assert built.encoder.backbone.get_input_embeddings() is model.encoder.backbone.get_input_embeddings()
        expected = dcpcse.load(folder, device="cpu").encode(sentences)
        np.testing.assert_allclose(built.encode(sentences), expected, atol=1e-5)
    assert adapters.names == ()
    np.testing.assert_array_equal(model.encode(sentences), before)
