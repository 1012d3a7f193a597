"""Arguments of the Python interface: what is not meant is refused with one line, and what is meant is taken."""

import itertools
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
from tables import check_rows

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
    **{"complex": np.eye(2, 4) * 1j, "text": np.array([["1"] * 4] * 2), "bytes": np.array([[b"1"] * 4] * 2)},
    **{"objects": np.array([[object()] * 4] * 2), "dates": np.zeros((2, 4), "datetime64[s]"), "ragged": [[1, 2], [3]]},
    **{"one vector": np.ones(4), "no vector": np.float32(1), "zeros": np.zeros((2, 4)), "None": None},
    **{"nan": np.full((2, 4), np.nan), "infinite": np.full((2, 4), np.inf), "other number": np.ones((3, 4))},
    **{"float16 overflow": np.full((2, 4), np.inf, np.float16), "gradient": torch.ones(2, 4, requires_grad=True)},
}


def refused(call, *parts: str) -> None:
    """Require that the call raises UserError, or an error of numpy or torch, with one line that contains the parts."""
    with pytest.raises((ValueError, TypeError, RuntimeError)) as caught, np.errstate(over="ignore"):
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert all(part in str(caught.value) for part in parts), caught.value


def refuses(call, values, *parts: str) -> None:
    """Require that a function refuses every one of the values."""
    check_rows([partial(call, value) for value in values], lambda one: refused(one, *parts))


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


def test_what_is_not_a_list_of_strings_is_refused_everywhere(doors):
    def check(row):
        name, door = row
        part = 'table["column"].tolist()' if isinstance(WRONG_LISTS[name], pd.DataFrame) else ""
        refused(partial(doors[door], WRONG_LISTS[name]), part)

    rows = itertools.product(WRONG_LISTS, doors)
    check_rows(
        [row for row in rows if row[0] != "string" or row[1] in ("encode", "Adapters", "several Adapters")], check
    )


def test_lists_and_columns_of_other_libraries_are_taken_by_place(doors, model):
    expected = doors["encode"]([*TEXTS, " ".join(TEXTS * 40)], max_length=20)

    def check(name):
        given = RIGHT_LISTS[name]
        np.testing.assert_allclose(doors["encode"](given, max_length=20), expected[:2], atol=1e-6)
        np.testing.assert_allclose(doors["several Adapters"](given), expected[:2], atol=1e-6)
        assert [hits[0].sentence for hits in doors["search"](given)] == TEXTS

    check_rows(RIGHT_LISTS, check)
    texts = [f"{text} " * 60 for text in TEXTS]  # long ones of a column with other labels
    found = model.encode(pd.Series(texts, index=[1, 0]), max_length=9)
    np.testing.assert_allclose(found, model.encode(texts, max_length=9), atol=1e-6)


def test_numbers_are_whole_and_within_limits(doors, model):
    index = SentenceIndex.build(model, TEXTS)
    counts = [value for value in WRONG_COUNTS if value is not None]  # None is the encoder's default
    for call in doors.values():
        refuses(lambda value, call=call: call(TEXTS, batch_size=value), counts, "batch_size", "must be")
    refuses(lambda value: EncodeOptions(batch_size=value), counts, "batch_size", "must be")
    refuses(lambda value: EncodingArguments("out.npy", chunk_size=value), WRONG_COUNTS, "chunk_size", "must be")
    refuses(lambda value: index.search("x", top_k=value), WRONG_COUNTS, "top_k")
    refuses(lambda value: SentenceIndex.build(model, TEXTS, num_cells=value), WRONG_COUNTS, "num_cells")
    for name in ("encode", "Adapters", "several Adapters", "SimCSE"):
        lengths = WRONG_LENGTHS if name != "SimCSE" else WRONG_LENGTHS[:-2]
        refuses(lambda value, name=name: doors[name](TEXTS, max_length=value), lengths)
        for value in (np.int64(8), np.uint8(8), torch.tensor(8)):
            assert doors[name](TEXTS, batch_size=value, max_length=value).shape == (2, 32)
    refuses(lambda value: index.search("x", threshold=value), WRONG_COSINES, "threshold", "between -1 and 1")
    assert index.search("x", threshold=np.float32(-1)) and index.search("x", threshold=-1)
    assert type(EncodeOptions(batch_size=np.int64(8)).batch_size) is int
    refuses(lambda value: EncodeOptions(without=value), ((token for token in [5]), {5: "x"}, b"\x05", "5"), "without")


def test_truth_values_are_true_or_false(doors, model, tmp_path):
    values = ["no", 1, [], "False"]
    for call in (doors["encode"], doors["Adapters"], doors["several Adapters"]):
        refuses(lambda value, call=call: call(TEXTS, normalize=value), values, "normalize", "True or False")
        refuses(lambda value, call=call: call(TEXTS, show_progress=value), [*values, None], "show_progress")
    for name in ("return_numpy", "normalize_to_unit", "keepdim"):
        refuses(lambda value, name=name: doors["SimCSE"](TEXTS, **{name: value}), [*values, None], name)
    build = partial(SentenceIndex.build, model, TEXTS, tmp_path / "i")
    refuses(lambda value: build(overwrite=value), [*values, None], "overwrite")
    refuses(lambda value: EncodingArguments("out.npy", normalize=value), values, "normalize")
    assert not list(tmp_path.iterdir())


def test_token_ids_paths_devices_and_models_are_what_they_should_be(model, tmp_path):
    paths = (None, 3, b"folder", "", ["a"])
    refuses(lambda value: model.encode(TEXTS, without=value), ("the", 5, [1.5], ["the"], None), "without")
    refuses(dcpcse.load, paths, "name", "must be a path")
    refuses(lambda value: Adapters.load({"a": value}), paths, "folder", "must be a path")
    refuses(SentenceIndex.load, paths, "folder", "must be a path")
    output = EncodingArguments(tmp_path / "o.npy")
    refuses(lambda value: encode_file("bert", value, output), paths, "must be a path")
    refuses(lambda value: encode_file(value, "text.txt", output), paths, "must be a path")
    refuses(lambda name: dcpcse.load("folder", **{name: 3.5}), ("revision", "cache_dir", "token"))
    refuses(pick_device, ("gpu", "", True, 1.5, "cuda:99", "meta", b"cpu", [0]), "is not available")
    models = ("bert", 5, str, SimpleNamespace(encode=3))
    refuses(lambda value: similarity(value, "a", "b"), (*models, None), "must be an object with encode")
    refuses(lambda value: SentenceIndex.build(value, TEXTS), models, "must be an object with encode")
    refused(lambda: encode_file("bert", "text.txt", {"output": "o.npy"}), "EncodingArguments")
    for given in ({"pooler_type": "mean"}, {"remove": ["cases"]}, {"template": 3}, {"base": b"a"}):
        refused(partial(EncoderArguments, **given), *given)


def test_vectors_are_rows_of_real_numbers():
    index = SentenceIndex.build(None, ["a"], vectors=np.ones((1, 4)))
    refuses(lambda name: index.add_vectors(TEXTS, WRONG_VECTORS[name]), WRONG_VECTORS)
    refuses(lambda name: SentenceIndex.build(None, TEXTS, vectors=WRONG_VECTORS[name]), WRONG_VECTORS)
    names = WRONG_VECTORS.keys() - {"other number"}
    refuses(lambda name: cosine_matrix(WRONG_VECTORS[name], np.ones((2, 4))), names)
    refuses(lambda name: index.search_vectors(WRONG_VECTORS[name]), names)
    assert len(index) == 1


def test_vectors_of_every_size_have_the_cosines_of_their_directions():
    directions = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1], [0, -1, 1]])
    exact = directions @ directions[0] / np.linalg.norm(directions, axis=1) / math.sqrt(2)
    for scale in (1e300, 1.7e308, 1e-300, 5e-324, 1e30, 1.0):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            index = SentenceIndex.build(None, list("abcd"), vectors=directions * np.float64(scale))
            hits = index.search_vectors(directions[:1] * np.float64(scale), 4)[0]
        assert [hit.sentence for hit in hits] == ["a", "c", "b", "d"], scale
        np.testing.assert_allclose([hit.score for hit in hits], exact[[0, 2, 1, 3]], atol=1e-6)


def test_any_layout_and_type_of_real_numbers_is_taken():
    rows = np.array([[3, 4, 0], [0, 5, 12]])
    strided = rows[::-1][::-1], np.repeat(rows, 2, axis=1)[:, ::2]
    for vectors in (np.asfortranarray(rows), rows.tolist(), torch.tensor(rows), *strided, rows.astype(">f4")):
        index = SentenceIndex.build(None, ["a", "b"], vectors=vectors)
        np.testing.assert_array_equal(index.vectors([0, 1]), (rows / [[5], [13]]).astype(np.float32))


def test_nothing_to_add_or_to_search_is_no_mistake(model):
    index = SentenceIndex.build(model, TEXTS)
    for nothing in ([], (), np.array([], dtype=str), pd.Series([], dtype=str)):
        index.add(nothing)
        index.add_vectors(nothing, np.empty((0, 32)))
        index.add_vectors(nothing, [])
        assert index.search(nothing) == [] and index.search_vectors(np.empty((0, 32))) == []
    assert len(index) == 2 and index.search(TEXTS[0], 1)[0].row == 0
    refuses(index.vectors, ([1.7], ["0"], [True], [2], [-1]), "row")


def test_values_that_numpy_would_lose_are_refused():
    masked = np.ma.masked_array(np.ones((2, 2)), mask=[[True, False], [False, False]])
    refused(lambda: arguments.matrix("vectors", masked), "masked values")
    assert np.isinf(arguments.matrix("vectors", np.full((1, 1), np.longdouble("1e4000")))).all()
    refuses(lambda value: arguments.number("threshold", value), (10**400, 10**5000), "threshold")
