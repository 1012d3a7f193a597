"""The options of encoding: one declaration for all functions and commands; shortened embeddings; nothing silent."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from method_models import model_of
from model_folders import edit_record, refused

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encode_options import CosineOptions, EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder


def test_an_unknown_keyword_is_refused_with_the_nearest_one(model, tmp_path):
    calls = {
        "encode": lambda **options: model.encode(["Rain fell."], **options),
        "similarity": lambda **options: dcpcse.similarity(model, "Rain", "Fog", **options),
        "mine": lambda **options: dcpcse.mine(model, [("a", "b")], output=tmp_path / "o.csv", **options),
    }
    for function, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{function}\(\) got .* 'max_len'; did you mean 'max_length'\?$"):
            call(max_len=8)


def test_the_names_of_sentence_transformers_mean_the_same_as_there(tiny, sentences):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(tiny("bert"), device="cpu")
    ours = plain_encoder(load_backbone(tiny("bert")), "avg")
    for options in ({}, {"normalize_embeddings": True}, {"normalize_embeddings": False, "convert_to_tensor": True}):
        expected, found = (model.encode(sentences, show_progress_bar=False, **options) for model in (theirs, ours))
        assert type(found) is type(expected)
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)
    ours.normalize = True  # a module Normalize of theirs would stay too
    unit = ours.encode(sentences, normalize_embeddings=False)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


def cut(vectors: np.ndarray, size: int) -> np.ndarray:
    """The first values of each vector, scaled to unit length, by a loop over Python floats."""
    rows = []
    for vector in vectors.tolist():
        length = sum(value * value for value in vector[:size]) ** 0.5
        rows.append([value / length for value in vector[:size]])
    return np.array(rows)


@pytest.fixture
def model(tiny) -> SentenceEncoder:
    return plain_encoder(load_backbone(tiny("bert")), "avg")


def test_encode_gives_the_first_values_scaled_afterwards(model, sentences):
    full = model.encode(sentences)
    for size in (1, 8, 32):
        short = model.encode(sentences, truncate_dim=size)
        assert short.dtype == np.float32
        np.testing.assert_array_equal(short, full[:, :size])
        np.testing.assert_allclose(
            model.encode(sentences, batch_size=3, normalize=True, truncate_dim=size), cut(full, size), atol=1e-6
        )
    assert model.encode([], truncate_dim=8).shape == (0, 8)
    model.normalize = True  # as in folders of sentence-transformers with the module Normalize
    np.testing.assert_allclose(model.encode(sentences, truncate_dim=8), cut(full, 8), atol=1e-6)
    np.testing.assert_array_equal(model.encode(sentences, normalize=False, truncate_dim=8), full[:, :8])


def test_vectors_of_zeros_stay_zero():
    vectors = np.array([[0, 0, 3], [3, 4, 12]], dtype=np.float32)
    found = EncodeOptions(truncate_dim=2).finish(vectors, normalize=True)
    np.testing.assert_allclose(found, [[0, 0], [0.6, 0.8]], rtol=1e-6)
    assert EncodeOptions(normalize=True).finish(vectors).dtype == np.float32
    np.testing.assert_array_equal(EncodeOptions(normalize=False).finish(vectors, normalize=True), vectors)


def test_a_size_that_was_not_trained_is_reported_once(model, sentences, caplog):
    for sizes, trained in (((8, 32, 8), None), ((8, 16, 6, 6), [32, 16, 8])):
        model.arguments = {"matryoshka_dims": trained}
        for size in sizes:
            model.encode(sentences[:1], truncate_dim=size)
    untrained = "the model was not trained for shortened embeddings, which may be much worse"
    trained = "the model was trained for embeddings of 32, 16, 8 values; other sizes may be worse"
    assert caplog.messages == [f"truncate_dim 8: {untrained}", f"truncate_dim 6: {trained}"]


def test_a_wrong_size_is_refused(model, sentences):
    for size in (0, 33, 8.0, "8", True):
        refused("^truncate_dim=.*: must be ", model.encode, ["Rain fell."], truncate_dim=size)
    for call in (
        lambda **options: dcpcse.similarity(model, "Rain", "Fog", **options),
        lambda **options: dcpcse.SentenceIndex.build(model, ["Rain", "Fog"], **options),
        lambda **options: dcpcse.SimCSE(model.source.name_or_path, "cpu", pooler="avg", **options),
    ):
        refused("^truncate_dim=33: must be ", call, truncate_dim=33)
    message, vectors = "truncate_dim 16: the given vectors have 8 values", model.encode(sentences, truncate_dim=8)
    refused(message, dcpcse.SentenceIndex.build, model, sentences, vectors=vectors, truncate_dim=16)


def test_similarities_and_indices_take_the_options_whole(model, sentences, tmp_path):
    options = {"max_length": 5, "truncate_dim": 8, "without": [7]}
    short = cut(model.encode(sentences, **{**options, "truncate_dim": None}), 8)
    expected = short @ short[0]
    found = dcpcse.similarity(model, sentences[0], sentences, batch_size=3, **options)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(found - dcpcse.similarity(model, sentences[0], sentences)).max() > 0.01
    for folder in (None, tmp_path / "index"):
        index = dcpcse.SentenceIndex.build(model, sentences[:9], folder, **options)
        index.add(sentences[9:])
        assert (index.dimension, index.options) == (8, CosineOptions(**options))
        hits = index.search(sentences[0], 12)
        assert [hit.row for hit in hits] == np.argsort(-expected, kind="stable").tolist()
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(expected)[::-1], atol=1e-6)
    index.save(tmp_path / "again")
    again = dcpcse.SentenceIndex.load(tmp_path / "again", model)
    assert again.options == CosineOptions(**options)
    np.testing.assert_allclose(again.vectors(range(len(sentences))), short, atol=1e-6)
    assert again.search(sentences[0], 3) == index.search(sentences[0], 3)
    vectors = model.encode(sentences[:1])
    refused("expected vectors of size 8, as in the index, found size 32", again.search_vectors, vectors)
    path = tmp_path / "again/dcpcse_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 16}))
    refused("truncate_dim is 16, but dimension is 8; build it again", dcpcse.SentenceIndex.load, tmp_path / "again")


def test_the_class_of_the_tool_uses_the_size_everywhere(model, sentences):
    tool = dcpcse.SimCSE(model.source.name_or_path, "cpu", pooler="avg", truncate_dim=8)
    short = cut(model.encode(sentences), 8)
    np.testing.assert_allclose(tool.encode(sentences, return_numpy=True), short, atol=1e-6)
    np.testing.assert_allclose(tool.similarity(sentences[0], sentences), short @ short[0], atol=1e-6)
    tool.build_index(sentences)
    assert tool.index.dimension == 8 and tool.search(sentences[3], top_k=1)[0][0] == sentences[3]


def test_an_encoder_of_other_code_must_take_the_size(model, sentences):
    other = SimpleNamespace(encode=lambda texts, batch_size: model.encode(texts))
    with pytest.raises(TypeError, match="unexpected keyword argument 'truncate_dim'"):
        dcpcse.similarity(other, "Rain", "Fog", truncate_dim=8)
    taking = SimpleNamespace(encode=lambda texts, **options: model.encode(texts, **options))
    expected = dcpcse.similarity(model, sentences[0], sentences, truncate_dim=8)
    np.testing.assert_array_equal(dcpcse.similarity(taking, sentences[0], sentences, truncate_dim=8), expected)


def test_a_folder_says_what_it_was_trained_for(tiny, tmp_path):
    model_of("simcse", tiny).save(tmp_path)
    for sizes in ([32, 8], None):
        edit_record(tmp_path, arguments={"matryoshka_dims": sizes})
        assert dcpcse.load(tmp_path, device="cpu").matryoshka_dims == tuple(sizes or ())
    for wrong in ([8, 32], "32", [0]):
        edit_record(tmp_path, arguments={"matryoshka_dims": wrong})
        refused("matryoshka_dims is .*; expected whole numbers, largest first", dcpcse.load, tmp_path, device="cpu")
