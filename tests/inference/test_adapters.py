"""Adapters that share one encoder: each sentence gets the vector that its adapter's own model gives it alone."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import stir_adapter
from model_folders import edit_record, without_checksums

import dcpcse
from dcpcse.encoders import backbones, identity
from dcpcse.encoders import frozen_layers as prepacking
from dcpcse.encoders import prompt_support as promptable
from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.heads import BatchNormMLP, TanhMLP
from dcpcse.encoders.lora import Lora, find_targets, lora_weights
from dcpcse.encoders.prompts import PROMPT_FORMS, PromptShape, ShallowPrompt
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.template_denoising import Denoising
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.inference.adapters import Adapters
from dcpcse.utils.errors import UserError
from dcpcse.utils.tensor_files import set_dtype

TEMPLATE = Template.parse('This sentence : "{sentence}" means [MASK] .')
OF_WORDS = Template.parse('The sentence "{sentence}" in a word : [MASK]', continuous=True)


def saved(folder: Path, backbone: backbones.Backbone, seed: int, **parts) -> Path:
    """A folder as training leaves one. length, projection, form: of deep prompts; cls: a [CLS] prompt."""
    torch.manual_seed(seed)
    size, length = backbone.source.hidden_size, parts.get("length")
    prompt = shallow = None
    if length:
        shape = PromptShape.fit(backbone.model.config, length)
        prompt = PROMPT_FORMS[parts.get("form", "keys_values")](
            shape, std=1.0, projection=parts.get("projection"), dropout=0.1
        )
    if "shallow" in parts:
        shallow = ShallowPrompt(torch.randn(parts["shallow"], backbone.model.get_input_embeddings().embedding_dim))
    cls_prompt = ShallowPrompt(torch.randn(1, size)) if parts.get("cls") else None
    lora = Lora(4, 8, 0.1, find_targets(backbone.model, parts["lora"])) if "lora" in parts else None
    added = {"shallow": shallow, "cls_prompt": cls_prompt, "lora": lora}
    encoder = Encoder(backbone.model, prompt, parts.get("offset", length or 0), **added)
    head = parts.get("head")
    model = SentenceEncoder(
        *(encoder, backbone.tokenizer, backbone.source),
        pooling=parts.get("pooling", "cls"),
        head=None if head is None else head(size, std=0.3),
        head_at_inference=parts.get("at_inference", False),
        templates=[parts["template"]] if "template" in parts else [],
        denoising=Denoising(inference=parts.get("denoise", False)),
        final_period=parts.get("final_period", False),
        method="dcpcse",
    )
    stir_adapter(model)
    model.save(folder)
    return folder


PARTS = {
    "one prompt": {"length": 1, "pooling": "avg"},
    "four, two layers": {"length": 4, "pooling": "avg_first_last", "offset": 0},
    "sixteen, projected, head": {"length": 16, "projection": 6, "head": TanhMLP, "at_inference": True},
    "sixteen again": {"length": 16},
    "five vectors": {"length": 5, "form": "vectors"},
    "D2CSE": {"length": 4, "cls": True, "head": BatchNormMLP},
    "SCPCSE": {"shallow": 8, "template": OF_WORDS, "pooling": "mask"},
    "denoised": {"length": 4, "template": TEMPLATE, "pooling": "mask", "denoise": True, "final_period": True},
    "LoRA": {"lora": None, "pooling": "avg"},
    "LoRA, all layers, head": {"lora": ["all-linear"], "head": TanhMLP, "at_inference": True},
    "LoRA in a template": {"lora": None, "shallow": 8, "template": OF_WORDS, "pooling": "mask", "denoise": True},
    "[CLS] alone": {"shallow": 8, "template": OF_WORDS, "pooling": "mask", "cls": True, "denoise": True},
}


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """folders(kind) → folders of adapters on one tiny encoder, by name."""
    made = {}

    def get(kind: str) -> dict[str, Path]:
        if kind not in made:
            root, backbone = tmp_path_factory.mktemp(f"adapters-{kind}"), load_backbone(tiny(kind))
            words = len(TokenTemplate(OF_WORDS, backbone.tokenizer).prompt_ids)
            parts = {name: own | ({"shallow": words} if "shallow" in own else {}) for name, own in PARTS.items()}
            made[kind] = {
                name: saved(root / str(i), backbone, i, **own) for i, (name, own) in enumerate(parts.items())
            }
        return made[kind]

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


@pytest.mark.parametrize(("kind", "packed"), [("bert", True), ("roberta", False), ("modernbert", True)])
def test_a_mixed_batch_gives_each_sentence_the_vector_of_its_adapter_alone(kind, packed, folders, sentences):
    adapters = Adapters.load(folders(kind), device="cpu")
    for name in adapters.names:
        set_packed(adapters[name], packed)
    texts, names = stream(sentences, adapters.names)
    own = {name: dcpcse.load(folder, device="cpu") for name, folder in folders(kind).items()}
    alone = np.concatenate([own[name].encode([text]) for text, name in zip(texts, names, strict=True)])
    assert set(names) == set(PARTS)
    np.testing.assert_allclose(adapters.encode(texts, names), alone, atol=1e-5)
    np.testing.assert_allclose(adapters.encode(texts, names, 3), alone, atol=1e-5)
    unit = adapters.encode(texts, names, normalize=True, max_length=40)
    short = np.concatenate(
        [own[name].encode([t], 1, True, max_length=40) for t, name in zip(texts, names, strict=True)]
    )
    np.testing.assert_allclose(unit, short, atol=1e-5)
    np.testing.assert_allclose(adapters.encode(texts, names, truncate_dim=8), alone[:, :8], atol=1e-5)
    first = own[names[0]].encode(texts)[:, :8]
    np.testing.assert_allclose(adapters.encode(texts, names[0], truncate_dim=8), first, atol=1e-5)
    unit = adapters.encode(texts, names, None, True, truncate_dim=8)
    np.testing.assert_allclose(unit, alone[:, :8] / np.linalg.norm(alone[:, :8], axis=1, keepdims=True), atol=1e-5)
    with pytest.raises(UserError, match=r"adapter '.*': truncate_dim=33: must be between 1 and 32"):
        adapters.encode(texts, names, truncate_dim=33)


def test_autocast_and_threads_give_the_same_vectors(adapters, sentences, monkeypatch):
    texts, names = stream(sentences, adapters.names)
    exact = adapters.encode(texts, names)
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


def test_weights_laid_out_for_many_texts_give_the_same_vectors(adapters, sentences, monkeypatch):
    texts, names = stream(sentences, adapters.names)
    plain = adapters.encode(texts, names)
    for module, name in ((models, "WORTH_PREPACKING"), (prepacking, "LEAST_WEIGHTS"), (prepacking, "LEAST_ROWS")):
        monkeypatch.setattr(module, name, 0)
    with torch.profiler.profile() as profile:
        vectors = adapters.encode(texts, names)
    assert any(event.key == "mkldnn::_linear_pointwise" for event in profile.key_averages())
    np.testing.assert_allclose(vectors, plain, atol=1e-5)


# Shared


def test_an_adapter_by_name_is_a_model_on_the_shared_encoder(adapters, folders, sentences):
    """It adds just what inference reads: no head that only training uses, no projection; 3 layers of 32 wide."""
    assert adapters.names == tuple(PARTS)
    shared, counts = {id(p) for p in adapters["one prompt"].encoder.backbone.parameters()}, {}
    for name in PARTS:
        own = dcpcse.load(folders("bert")[name], device="cpu").encode(sentences)
        parts = {id(p) for p in adapters[name].encoder.backbone.parameters()}
        assert shared <= parts and (shared == parts) == ("lora" not in PARTS[name])
        np.testing.assert_allclose(adapters[name].encode(sentences), own, atol=1e-6)
        np.testing.assert_array_equal(adapters.encode(sentences, name), adapters[name].encode(sentences))
        counts[name] = sum(p.numel() for p in adapters[name].parameters() if id(p) not in shared)
        assert not any(parameter.requires_grad for parameter in adapters[name].parameters())
    assert counts["D2CSE"] == 4 * 2 * 3 * 32 + 32
    assert counts["sixteen, projected, head"] == 16 * 2 * 3 * 32 + 32 * 32 + 32
    assert counts["LoRA"] == 3 * 2 * 4 * (32 + 32)  # layers, queries and values, rank, inputs and outputs
    assert adapters.encode([], []).shape == adapters.encode([], "SCPCSE").shape == (0, 32)


def test_encoder_and_tokenizer_are_loaded_and_known_once(folders, monkeypatch, tmp_path):
    """Folders differ in the truncation that was asked for last before they were saved, which is nobody's."""
    own = folders("bert") | {"after a cut": shutil.copytree(folders("bert")["SCPCSE"], tmp_path / "cut")}
    path = tmp_path / "cut/tokenizer.json"
    cut = {"truncation": {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}}
    cut["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    cut["padding"] |= {"pad_type_id": 0, "pad_token": "[PAD]"}
    path.write_text(json.dumps(json.loads(path.read_text()) | cut))
    calls = []
    for module, name in (
        (identity, "fingerprints"),
        (backbones, "load_tokenizer"),
        (identity, "vocabulary_fingerprint"),
        (promptable, "_one_change_per_row"),  # of the check that prompts reach the output
    ):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, plain=plain, name=name: calls.append(name) or plain(*a))
    adapters = Adapters.load(own, device="cpu")
    assert sorted(calls) == ["_one_change_per_row", "fingerprints", "load_tokenizer", "vocabulary_fingerprint"]
    assert len({id(adapters[name].tokenizer) for name in adapters.names}) == 1


def test_mixed_sentences_share_one_pass(folders, sentences):
    """But for template denoising, whose second pass is each adapter's own, and for LoRA, which changes the layers."""
    adapters = Adapters.load({n: f for n, f in folders("bert").items() if not PARTS[n].get("denoise")}, device="cpu")
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
    with pytest.raises(UserError, match=r"no adapter 'first'; loaded: 1 \(second\)"):
        adapters.encode(texts, names)


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
    ([], ["SCPCSE"], {}, "0 sentences and 1 adapter names"),
    (["a"], "SCPSCE", {}, "no adapter 'SCPSCE'; did you mean 'SCPCSE'?"),
    (["a", "b"], ["SCPCSE", "D3CSE"], {}, "did you mean 'D2CSE'? loaded: 12 (one prompt, four"),
    (["a", "b"], ["SCPCSE", ["D2CSE"]], {}, "name 1 is a list (['D2CSE']); give the name of an adapter"),
    (["a"], None, {}, "a list of names, not a NoneType"),
    ("a", ["SCPCSE"], {}, "got a single string"),
    (["a", 5], ["SCPCSE", "D2CSE"], {}, "sentence 1 is a int"),
    (["a", "b"], ["one prompt", "sixteen again"], {"max_length": 90}, "'sixteen again': a maximum of 90 tokens"),
    (["a", "b"], ["one prompt", "sixteen again"], {"batch_size": 0}, "batch_size=0"),
]


def test_sentences_and_names_that_do_not_go_together_are_refused(adapters):
    for sentences, names, options, message in NO_REQUEST:
        with pytest.raises(UserError) as refused:
            adapters.encode(sentences, names, **options)
        assert message in str(refused.value) and "\n" not in str(refused.value)


def in_half(folder, target):
    model = SentenceEncoder.load(folder, device="cpu")
    set_dtype(model.encoder.backbone, torch.bfloat16)
    model.save(target)


def test_a_folder_that_is_not_an_adapter_of_the_base_is_refused_by_name(folders, tiny, tmp_path):
    own = folders("bert")["one prompt"]
    saved(tmp_path / "base", load_backbone(tiny("bert", seed=5)), 0, length=4)
    backbone = load_backbone(tiny("bert"))
    encoder = Encoder(backbone.model, tuned=True)
    tuned = SentenceEncoder(encoder, backbone.tokenizer, backbone.source, pooling="cls", method="simcse")
    tuned.save(tmp_path / "tuned")
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
        "tuned": "its own encoder (simcse)",
        "half": "in bfloat16, but the weights of the loaded encoder are in f",
        "words": "differs from that of the training",
        "shape": "prompt.heads is 2, but the encoder takes 4",
        "nowhere": "is not a folder",
    }.items():
        with pytest.raises(UserError) as refused:
            adapters.add("second", tmp_path / name)
        said = str(refused.value)
        assert said.startswith("adapter 'second': ") and message in said and "\n" not in said
    with pytest.raises(UserError, match="adapter 'second': "):
        Adapters.load({"first": own, "second": tmp_path / "half"}, device="cpu")
    with pytest.raises(UserError, match="already an adapter 'first'"):
        adapters.add("first", own)
    for name in ("", 3):
        with pytest.raises(UserError, match="cannot name an adapter"):
            adapters.add(name, own)
    for given in ({}, [own], str(own)):
        with pytest.raises(UserError, match="at least one name with its folder"):
            Adapters.load(given)
    assert adapters.names == ("first",)
    with pytest.raises(UserError, match="has a LoRA adapter, so no adapter fits it"):
        Adapters.on_encoder_of(dcpcse.load(folders("bert")["LoRA"], device="cpu"))


def test_adapters_of_one_reduced_type_share_an_encoder_of_that_type(folders, sentences, tmp_path):
    for i, name in enumerate(("one prompt", "SCPCSE", "LoRA")):
        in_half(folders("bert")[name], tmp_path / str(i))
    adapters = Adapters.load({name: tmp_path / str(i) for i, name in enumerate("abc")}, device="cpu")
    assert adapters["a"].encoder.backbone.dtype == torch.bfloat16
    assert {matrix.dtype for matrix in lora_weights(adapters["c"].encoder.backbone).values()} == {torch.float32}
    alone = [dcpcse.load(tmp_path / str(i), device="cpu").encode(sentences[:1])[0] for i in range(3)]
    assert np.abs(adapters.encode([sentences[0]] * 3, ["a", "b", "c"]) - alone).max() < 0.05


def test_a_base_that_has_moved_is_found_where_it_is_now(folders, tiny, sentences, tmp_path):
    own = shutil.copytree(folders("bert")["one prompt"], tmp_path / "own")
    record = json.loads((own / "dcpcse.json").read_text())
    record["base"]["name_or_path"] = str(tmp_path / "gone")
    (own / "dcpcse.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="give its location now with base"):
        Adapters.load({"a": own}, device="cpu")
    adapters = Adapters.load({"a": own, "b": folders("bert")["SCPCSE"]}, tiny("bert"), device="cpu")
    assert adapters.encode(sentences[:2], ["b", "a"]).shape == (2, 32)


# On the encoder of a loaded model


def test_adapters_are_built_on_the_encoder_of_a_model_which_stays_as_it_was(folders, tiny, sentences):
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import load_model

    model = load_model(tiny("bert"), EncoderArguments(pooler_type="avg", device="cpu"))
    before, adapters = model.encode(sentences), Adapters.on_encoder_of(model)
    for name, folder in folders("bert").items():
        built = adapters.build(name, adapters.read(name, folder))
        assert built.encoder.backbone.get_input_embeddings() is model.encoder.backbone.get_input_embeddings()
        expected = dcpcse.load(folder, device="cpu").encode(sentences)
        np.testing.assert_allclose(built.encode(sentences), expected, atol=1e-5)
    assert adapters.names == ()
    np.testing.assert_array_equal(model.encode(sentences), before)
