"""Arguments of the Python interface: what is not meant is refused with one line, and what is meant is taken."""

import math
from decimal import Decimal
from functools import partial
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.inference import simcse
from dcpcse.inference.adapters import Adapters
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import encode_file
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.simcse import SimCSE
from dcpcse.inference.similarity import cosine_matrix, similarity
from dcpcse.utils import arguments
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError

TEXTS = ["A dog runs.", "Rain fell."]
FRAME = pd.DataFrame({"text": TEXTS, "b": TEXTS})
WRONG_LISTS = {
    **{"a table": FRAME, "polars": pl.DataFrame({"text": TEXTS}), "datasets": datasets.Dataset.from_pandas(FRAME)},
    **{"string": TEXTS[0], "bytes": b"A dog", "set": {*TEXTS}, "mapping": {"a": "b"}, "None": None, "number": 7},
    **{"generator": (text for text in TEXTS), "nested": [TEXTS], "of bytes": [b"a"], "a hole": ["a", None]},
    **{"a table of strings": np.array([TEXTS]), "no dimension": np.array("a"), "nan": pd.Series(["a", math.nan])},
    "surrogate": ["a\ud800"],
}
RIGHT_LISTS = {
    **{"tuple": tuple(TEXTS), "numpy": np.array(TEXTS), "objects": np.array(TEXTS, dtype=object)},
    **{"column": FRAME["text"], "other labels": pd.Series(TEXTS, index=[1, 0]), "index": pd.Index(TEXTS)},
    **{"polars": pl.Series(TEXTS), "datasets": datasets.Dataset.from_pandas(FRAME)["text"]},
    "strings of numpy": [np.str_(text) for text in TEXTS],
}
WRONG_COUNTS = [1.5, 8.0, math.nan, "8", True, np.True_, 0, -1, None, [8], np.array([8, 9]), Decimal(8), 1 + 0j]
WRONG_LENGTHS = ["8", 8.0, math.nan, True, b"8", 2, 10**30, -5]
WRONG_COSINES = ["0.5", math.nan, math.inf, -1.5, True, [0.5], 1j, Decimal("0.5"), np.array([0.5])]
WRONG_VECTORS = {
    **{
        "complex": np.eye(2, 4) * 1j,
        "text": np.array([["1", "2", "3", "4"]] * 2),
        "bytes": np.array([[b"1"] * 4] * 2),
    },
    **{"objects": np.array([[object()] * 4] * 2), "dates": np.zeros((2, 4), "datetime64[s]"), "ragged": [[1, 2], [3]]},
    **{
        "one vector": np.ones(4),
        "no vector": np.float32(1),
        "zeros": np.zeros((2, 4)),
        "nan": np.full((2, 4), np.nan),
    },
    **{"infinite": np.full((2, 4), np.inf), "float16 overflow": np.full((2, 4), np.inf, np.float16)},
    **{"other number": np.ones((3, 4)), "None": None, "gradient": torch.ones(2, 4, requires_grad=True)},
}


def refused(call, *parts: str) -> None:
    """Require that the call raises UserError, or an error of numpy or torch, with one line that contains the parts."""
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught, np.errstate(over="ignore"):
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.fixture(scope="module")
def model(tiny):
    return plain_encoder(load_backbone(tiny("bert")), "avg")


@pytest.fixture(scope="module")
def doors(model, tiny):
    """Every function that takes sentences, as a call of them and further arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simcse, "load_model", lambda *args: model)
        tool = SimCSE("tiny")
    tool.build_index(TEXTS)
    adapters = Adapters(load_backbone(tiny("bert")), "float32", tiny("bert"))
    adapters._models["a"] = model
    index = SentenceIndex.build(model, TEXTS)
    return {
        "encode": model.encode,
        "Adapters": partial(adapters.encode, adapter="a"),
        "several Adapters": lambda texts, **how: adapters.encode(texts, ["a"] * 2, **how),
        "SimCSE": tool.encode,
        "build": partial(SentenceIndex.build, model),
        "add": index.add,
        "search": index.search,
        "similarity": partial(similarity, model, TEXTS),
    }


@pytest.mark.parametrize("name", WRONG_LISTS)
def test_what_is_no_list_of_strings_is_refused_everywhere(name, doors):
    for door, call in doors.items():
        takes_one = isinstance(WRONG_LISTS[name], str) and door not in ("encode", "Adapters", "several Adapters")
        if not takes_one:
            part = 'table["column"].tolist()' if isinstance(WRONG_LISTS[name], pd.DataFrame) else ""
            refused(partial(call, WRONG_LISTS[name]), part)


@pytest.mark.parametrize("name", RIGHT_LISTS)
def test_lists_and_columns_of_other_libraries_are_taken_by_place(name, doors):
    expected = doors["encode"]([*TEXTS, " ".join(TEXTS * 40)], max_length=20)
    given = RIGHT_LISTS[name]
    np.testing.assert_allclose(doors["encode"](given, max_length=20), expected[:2], atol=1e-6)
    np.testing.assert_allclose(doors["several Adapters"](given), expected[:2], atol=1e-6)
    assert [hits[0].sentence for hits in doors["search"](given)] == TEXTS


def test_long_texts_of_a_column_with_other_labels_keep_their_places(model):
    texts = [f"{text} " * 60 for text in TEXTS]
    found = model.encode(pd.Series(texts, index=[1, 0]), max_length=9)
    np.testing.assert_allclose(found, model.encode(texts, max_length=9), atol=1e-6)


def test_numbers_are_whole_and_within_limits(doors, model):
    index = SentenceIndex.build(model, TEXTS)
    for value in WRONG_COUNTS:
        for call in doors.values() if value is not None else ():  # None is the encoder's default
            refused(lambda call=call, value=value: call(TEXTS, batch_size=value), "batch_size", "must be")
        refused(lambda value=value: index.search("x", top_k=value), "top_k")
        refused(lambda value=value: SentenceIndex.build(model, TEXTS, num_cells=value), "num_cells")
        for make in (EncodeOptions, partial(EncodingArguments, "out.npy")):
            name = "batch_size" if make is EncodeOptions else "chunk_size"
            if value is None and name == "batch_size":
                continue
            refused(lambda make=make, name=name, value=value: make(**{name: value}), name, "must be")
    for name in ("encode", "Adapters", "several Adapters", "SimCSE"):
        for value in WRONG_LENGTHS if name != "SimCSE" else WRONG_LENGTHS[:-2]:
            refused(lambda name=name, value=value: doors[name](TEXTS, max_length=value))
        for value in (np.int64(8), np.uint8(8), torch.tensor(8)):
            assert doors[name](TEXTS, batch_size=value, max_length=value).shape == (2, 32)
    for value in WRONG_COSINES:
        refused(lambda value=value: index.search("x", threshold=value), "threshold", "between -1 and 1")
    assert index.search("x", threshold=np.float32(-1)) and index.search("x", threshold=-1)


@pytest.mark.parametrize("value", ["no", 1, None, [], "False"])
def test_truth_values_are_true_or_false(value, doors, model, tmp_path):
    for call in (doors["encode"], doors["Adapters"], doors["several Adapters"]):
        if value is not None:  # None is the model's own setting
            refused(lambda call=call: call(TEXTS, normalize=value), "normalize", "True or False")
        refused(lambda call=call: call(TEXTS, show_progress=value), "show_progress", "True or False")
    for name in ("return_numpy", "normalize_to_unit", "keepdim"):
        refused(lambda name=name: doors["SimCSE"](TEXTS, **{name: value}), name, "True or False")
    refused(lambda: SentenceIndex.build(model, TEXTS, tmp_path / "i", overwrite=value), "overwrite")
    if value is not None:
        refused(lambda: EncodingArguments("out.npy", normalize=value), "normalize")
    assert not list(tmp_path.iterdir())


def test_token_ids_paths_devices_and_models_are_what_they_should_be(doors, model, tmp_path):
    for value in ("the", 5, [1.5], ["the"], None):
        refused(lambda value=value: model.encode(TEXTS, without=value), "without")
    for value in (None, 3, b"folder", "", ["a"]):
        refused(lambda value=value: dcpcse.load(value), "name", "must be a path")
        refused(lambda value=value: Adapters.load({"a": value}), "folder", "must be a path")
        refused(lambda value=value: SentenceIndex.load(value), "folder", "must be a path")
        refused(
            lambda value=value: encode_file("bert", value, EncodingArguments(tmp_path / "o.npy")), "must be a path"
        )
        refused(lambda value=value: encode_file(value, "text.txt", EncodingArguments("o.npy")), "must be a path")
    for name in ("revision", "cache_dir", "token"):
        refused(lambda name=name: dcpcse.load("folder", **{name: 3.5}), name)
    for value in ("gpu", "", True, 1.5, "cuda:99", "meta", b"cpu", [0]):
        refused(lambda value=value: pick_device(value), "is not available")
    for value in ("bert", None, 5, str, SimpleNamespace(encode=3)):
        refused(lambda value=value: similarity(value, "a", "b"), "must be an object with encode")
        if value is not None:
            refused(lambda value=value: SentenceIndex.build(value, TEXTS), "must be an object with encode")
    refused(lambda: encode_file("bert", "text.txt", {"output": "o.npy"}), "EncodingArguments")
    for given in ({"pooler_type": "mean"}, {"remove": ["cases"]}, {"template": 3}, {"base": b"a"}):
        refused(lambda given=given: EncoderArguments(**given), next(iter(given)))
    assert type(EncodeOptions(batch_size=np.int64(8)).batch_size) is int


@pytest.mark.parametrize("name", WRONG_VECTORS)
def test_vectors_are_rows_of_real_numbers(name):
    given, index = WRONG_VECTORS[name], SentenceIndex.build(None, ["a"], vectors=np.ones((1, 4)))
    calls = [lambda: index.add_vectors(TEXTS, given)]
    calls += [lambda: SentenceIndex.build(None, TEXTS, vectors=given), lambda: cosine_matrix(given, np.ones((2, 4)))]
    calls += [lambda: index.search_vectors(given)]
    for call in calls[:2] if name == "other number" else calls:
        refused(call)
    assert len(index) == 1


@pytest.mark.parametrize("scale", [1e300, 1.7e308, 1e-300, 5e-324, 1e30, 1.0])
def test_vectors_of_every_size_have_the_cosines_of_their_directions(scale):
    directions = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1], [0, -1, 1]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        index = SentenceIndex.build(None, list("abcd"), vectors=directions * np.float64(scale))
        found = index.search_vectors(directions[:1] * np.float64(scale), 4)[0]
    exact = directions @ directions[0] / np.linalg.norm(directions, axis=1) / math.sqrt(2)
    assert [hit.sentence for hit in found] == ["a", "c", "b", "d"]
    np.testing.assert_allclose([hit.score for hit in found], exact[[0, 2, 1, 3]], atol=1e-6)


LAYOUTS = [
    *(np.asfortranarray, np.ndarray.tolist, list, torch.tensor),
    *(lambda rows: rows[::-1][::-1], lambda rows: np.repeat(rows, 2, axis=1)[:, ::2]),
    *(lambda rows: rows.astype(np.int8), lambda rows: rows.astype(">f4")),
]


@pytest.mark.parametrize("given", LAYOUTS)
def test_any_layout_and_type_of_real_numbers_is_taken(given):
    rows = np.array([[3, 4, 0], [0, 5, 12]])
    index = SentenceIndex.build(None, ["a", "b"], vectors=given(rows))
    np.testing.assert_array_equal(index.vectors([0, 1]), (rows / [[5], [13]]).astype(np.float32))


def test_nothing_to_add_or_to_search_is_no_mistake(model):
    index = SentenceIndex.build(model, TEXTS)
    for nothing in ([], (), np.array([], dtype=str), pd.Series([], dtype=str)):
        index.add(nothing)
        index.add_vectors(nothing, np.empty((0, 32)))
        index.add_vectors(nothing, [])
        assert index.search(nothing) == [] and index.search_vectors(np.empty((0, 32))) == []
    assert len(index) == 2 and index.search(TEXTS[0], 1)[0].row == 0
    for rows in ([1.7], ["0"], [True], [2], [-1]):
        refused(lambda rows=rows: index.vectors(rows), "row")


def test_values_that_numpy_would_lose_are_refused():
    with pytest.raises(UserError, match="masked values"):
        arguments.matrix("vectors", np.ma.masked_array(np.ones((2, 2)), mask=[[True, False], [False, False]]))
    assert np.isinf(arguments.matrix("vectors", np.full((1, 1), np.longdouble("1e4000")))).all()
    for value in (10**400, 10**5000):
        with pytest.raises(UserError, match="threshold"):
            arguments.number("threshold", value)


def test_removed_tokens_are_a_list_that_can_be_read_twice():
    for without in ((token for token in [5]), {5: "x"}, b"\x05", "5"):
        with pytest.raises(UserError, match="without"):
            EncodeOptions(without=without)
