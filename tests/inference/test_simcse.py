"""The class of the SimCSE tool, compared with plain float64 computations with transformers alone."""

import inspect
import sys

import numpy as np
import pytest
import torch
from method_models import model_of
from model_folders import refused
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse import SimCSE

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


def test_the_pooler_follows_the_name(tiny, unsup, sentences, tmp_path):
    for folder, pooler in ((tiny("bert", masked_lm=False), "cls"), (unsup, "cls_before_pooler")):
        expected = by_transformers(folder, sentences, pooler)
        np.testing.assert_allclose(SimCSE(folder).encode(sentences), expected, atol=1e-5)
    expected = by_transformers(unsup, sentences, "cls")
    np.testing.assert_allclose(SimCSE(unsup, pooler="cls").encode(sentences), expected, atol=1e-5)
    refused("no pretrained pooler", SimCSE, tiny("bert"))
    model_of("dcpcse, head at inference", tiny).save(tmp_path / "unsup")
    tool = SimCSE(str(tmp_path / "unsup"))  # a model folder keeps its pooler, whatever its name
    expected = dcpcse.load(tmp_path / "unsup").encode(sentences, normalize=True)
    np.testing.assert_allclose(tool.encode(sentences), expected, atol=1e-6)


def test_shapes_and_types_of_vectors_which_are_cut_at_the_limit_of_the_encoder(unsup, sentences):
    tool, long = SimCSE(unsup), " ".join(sentences * 3)
    many, one, kept = tool.encode(sentences), tool.encode(sentences[0]), tool.encode(sentences[0], keepdim=True)
    assert [x.shape for x in (many, one, kept)] == [(12, 32), (32,), (1, 32)]
    torch.testing.assert_close(many.norm(dim=1), torch.ones(12))
    raw = tool.encode(sentences, normalize_to_unit=False, batch_size=5)
    torch.testing.assert_close(raw / raw.norm(dim=1, keepdim=True), many)
    assert not torch.allclose(raw.norm(dim=1), torch.ones(12), atol=0.1)
    # The encoder has 96 positions; the default of the tool, 128, would be an error in transformers.
    for options, length in (({"max_length": 20}, 20), ({}, 96)):
        found = tool.encode([long], return_numpy=True, **options)
        np.testing.assert_allclose(found, by_transformers(unsup, [long], "cls_before_pooler", length), atol=1e-5)


def test_similarities_are_cosines_in_the_shapes_of_the_tool(unsup, sentences):
    tool = SimCSE(unsup)
    own, keys = (by_transformers(unsup, texts, "cls_before_pooler") for texts in (QUERIES, sentences))
    cosines = own @ keys.T
    for queries, other, expected in (
        (QUERIES, sentences, cosines),
        (QUERIES[1], sentences, cosines[1]),
        (QUERIES, keys.astype(np.float32), cosines),
        (QUERIES, sentences[0], cosines[:, :1]),
        (QUERIES[0], sentences[2], cosines[0, 2]),
    ):
        found = tool.similarity(queries, other)
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_allclose(found, expected, atol=1e-5)


WAYS = [{"use_faiss": True}, {"use_faiss": False}, {"faiss_fast": True}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_search_applies_its_limits_to_one_query_and_to_many(way, unsup, sentences, tmp_path):
    tool = SimCSE(unsup, num_cells_in_search=100)
    (tmp_path / "a.txt").write_text("\n".join(sentences[:8]), encoding="utf-8")
    tool.build_index(str(tmp_path / "a.txt"), **way)
    tool.add_to_index(sentences[8:])
    own, keys = (by_transformers(unsup, texts, "cls_before_pooler") for texts in (QUERIES, sentences))
    cosines = own @ keys.T
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
    assert len(tool.search("x", threshold=-1, top_k=50)) == len(sentences) and tool.index.backend == "numpy"
    monkeypatch.setitem(sys.modules, "faiss", None)
    refused(r"\[faiss\]", tool.build_index, sentences, faiss_fast=True)


def test_wrong_input_is_an_error(unsup, sentences):
    tool = SimCSE(unsup)
    for call, argument in ((tool.search, "x"), (tool.add_to_index, sentences)):
        refused("build_index first", call, argument)
    refused("leave one of them out", tool.build_index, sentences, use_faiss=False, faiss_fast=True)
    tool.build_index(sentences)
    refused("top_k", tool.search, "x", top_k=0)
