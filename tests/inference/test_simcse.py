"""The class of the SimCSE tool, compared with plain float64 computations with transformers alone."""

import inspect

import numpy as np
import pytest
import torch
from method_models import model_of
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse import SimCSE, UserError

QUERIES = ["A man plays the flute.", "The train was late."]


def by_transformers(folder: str, texts: list[str], pooler: str, max_length: int = 128) -> np.ndarray:
    """Return unit vectors (N, H) in float64, computed sentence by sentence."""
    model, tokenizer = AutoModel.from_pretrained(folder).double().eval(), AutoTokenizer.from_pretrained(folder)
    vectors = []
    for text in texts:
        with torch.no_grad():
            output = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=max_length))
        vector = output.pooler_output[0] if pooler == "cls" else output.last_hidden_state[0, 0]
        vectors.append((vector / vector.norm()).numpy())
    return np.stack(vectors)


@pytest.fixture
def unsup(tiny, tmp_path) -> str:
    """An encoder in a folder with "unsup" in its name."""
    folder = tmp_path / "unsup-simcse"
    folder.symlink_to(tiny("roberta", masked_lm=False))
    return str(folder)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory) -> str:
    """A model folder with prompts and a head that is used at inference."""
    folder = tmp_path_factory.mktemp("trained") / "unsup"
    model_of("dcpcse, head at inference", tiny).save(folder)
    return str(folder)


SIGNATURES = {
    "__init__": "model_name_or_path device=None num_cells=100 num_cells_in_search=10 pooler=None options",
    "encode": "sentence device=None return_numpy=False normalize_to_unit=True keepdim=False batch_size=64 "
    "max_length=128",
    "similarity": "queries keys device=None",
    "build_index": "sentences_or_file_path use_faiss=None faiss_fast=False device=None batch_size=64",
    "add_to_index": "sentences_or_file_path device=None batch_size=64",
    "search": "queries device=None threshold=0.6 top_k=5",
}


def test_names_and_defaults_are_those_of_the_tool():
    for name, signature in SIGNATURES.items():
        parameters = list(inspect.signature(getattr(SimCSE, name)).parameters.values())[1:]
        texts = [p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default}" for p in parameters]
        assert " ".join(texts) == signature
    assert dcpcse.SimCSE is SimCSE and "SimCSE" in dcpcse.__all__


def test_the_pooler_follows_the_name(tiny, unsup, trained, sentences):
    plain = [(tiny(kind, masked_lm=False), "cls") for kind in ("bert", "roberta")]
    for folder, pooler in (*plain, (unsup, "cls_before_pooler")):
        expected = by_transformers(folder, sentences, pooler)
        np.testing.assert_allclose(SimCSE(folder).encode(sentences), expected, atol=1e-5)
    expected = by_transformers(unsup, sentences, "cls")
    np.testing.assert_allclose(SimCSE(unsup, pooler="cls").encode(sentences), expected, atol=1e-5)
    with pytest.raises(UserError, match="no pretrained pooler"):
        SimCSE(tiny("bert"))
    tool = SimCSE(trained)  # a model folder keeps its pooler, whatever its name
    expected = dcpcse.load(trained).encode(sentences, normalize=True)
    np.testing.assert_allclose(tool.encode(sentences), expected, atol=1e-6)
    assert tool.model.head_at_inference


def test_shapes_and_types_of_vectors(unsup, sentences):
    tool = SimCSE(unsup)
    many, one, kept = tool.encode(sentences), tool.encode(sentences[0]), tool.encode(sentences[0], keepdim=True)
    assert [x.shape for x in (many, one, kept)] == [(12, 32), (32,), (1, 32)]
    assert many.dtype == torch.float32 and many.device.type == "cpu"
    assert isinstance(tool.encode(sentences, return_numpy=True), np.ndarray)
    torch.testing.assert_close(many.norm(dim=1), torch.ones(12))
    raw = tool.encode(sentences, normalize_to_unit=False)
    torch.testing.assert_close(raw / raw.norm(dim=1, keepdim=True), many)
    assert not torch.allclose(raw.norm(dim=1), torch.ones(12), atol=0.1)
    torch.testing.assert_close(tool.encode(sentences, batch_size=5), many)


def test_sentences_are_truncated_at_max_length_and_at_the_limit_of_the_encoder(unsup, sentences):
    tool, long = SimCSE(unsup), " ".join(sentences * 3)
    np.testing.assert_allclose(
        tool.encode([long], max_length=20), by_transformers(unsup, [long], "cls_before_pooler", 20), atol=1e-5
    )
    # The encoder has 96 positions; the default of the tool, 128, would be an error in transformers.
    np.testing.assert_allclose(tool.encode([long]), by_transformers(unsup, [long], "cls_before_pooler", 96), atol=1e-5)


def test_similarities_are_cosines_in_the_shapes_of_the_tool(unsup, sentences):
    tool = SimCSE(unsup)
    own, keys = (by_transformers(unsup, texts, "cls_before_pooler") for texts in (QUERIES, sentences))
    expected = own @ keys.T
    np.testing.assert_allclose(tool.similarity(QUERIES, sentences), expected, atol=1e-5)
    np.testing.assert_allclose(tool.similarity(QUERIES[1], sentences), expected[1], atol=1e-5)
    np.testing.assert_allclose(tool.similarity(QUERIES, keys.astype(np.float32)), expected, atol=1e-5)
    assert tool.similarity(QUERIES, sentences[0]).shape == (2, 1)
    one = tool.similarity(QUERIES[0], sentences[2])
    assert type(one) is float and one == pytest.approx(expected[0, 2], abs=1e-5)


WAYS = [{}, {"use_faiss": True}, {"use_faiss": False}, {"faiss_fast": True}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_search_applies_its_limits_to_one_query_and_to_many(way, unsup, sentences, tmp_path):
    tool = SimCSE(unsup, num_cells_in_search=100)
    (tmp_path / "a.txt").write_text("\n".join(sentences[:8]), encoding="utf-8")
    tool.build_index(str(tmp_path / "a.txt"), **way)
    tool.add_to_index(sentences[8:])
    cosines = (
        by_transformers(unsup, QUERIES, "cls_before_pooler") @ by_transformers(unsup, sentences, "cls_before_pooler").T
    )
    middle = float(np.median(cosines))
    for limits in ({}, {"top_k": 3}, {"threshold": middle, "top_k": 12}, {"threshold": -1.0, "top_k": 2}):
        threshold, top_k = limits.get("threshold", 0.6), limits.get("top_k", 5)
        found = tool.search(QUERIES, **limits)
        for query, own, hits in zip(QUERIES, cosines, found, strict=True):
            expected = [row for row in np.argsort(-own) if own[row] >= threshold][:top_k]
            assert [sentence for sentence, _ in hits] == [sentences[row] for row in expected]
            np.testing.assert_allclose([score for _, score in hits], own[expected], atol=1e-5)
            assert all(type(score) is float for _, score in hits)
            assert [hit[0] for hit in tool.search(query, **limits)] == [hit[0] for hit in hits]


def test_an_index_keeps_its_backend_between_building_and_adding(unsup, sentences, monkeypatch):
    """The tool chooses again, and mixes two kinds of index, if faiss can no longer be imported."""
    tool = SimCSE(unsup)
    tool.build_index(sentences[:6], use_faiss=False)
    tool.add_to_index(sentences[6:])
    assert len(tool.search("x", threshold=-1, top_k=50)) == len(sentences)
    assert tool.index.backend == "numpy"
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    for options in ({"use_faiss": True}, {"faiss_fast": True}):
        with pytest.raises(UserError, match=r"\[faiss\]"):
            tool.build_index(sentences, **options)


def test_wrong_input_is_an_error(unsup, sentences):
    tool = SimCSE(unsup)
    for call in (lambda: tool.search("x"), lambda: tool.add_to_index(sentences)):
        with pytest.raises(UserError, match="build_index first"):
            call()
    with pytest.raises(UserError, match="leave one of them out"):
        tool.build_index(sentences, use_faiss=False, faiss_fast=True)
    tool.build_index(sentences)
    with pytest.raises(UserError, match="top_k"):
        tool.search("x", top_k=0)
    with pytest.raises(UserError, match="threshold"):
        tool.search(QUERIES, threshold=1.5)
