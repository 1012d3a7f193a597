"""Python objects as training data: the rules, the cache and the contents are those of files."""

import csv
import logging
import tempfile
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import pairwise, permutations
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpcse.data import training_data
from dcpcse.data.training_data import load_training_data
from dcpcse.utils.errors import UserError

MESSAGE_OF_COLUMNS = (
    "keep 1 (sentence), 2 (anchor, positive; or a sentence and a column named class), 3 (anchor, positive, negative; "
    "or two sentences and a column named label or score) or more (anchor, positive_1, positive_2, ..., "
    "negative_1, negative_2, ...; a single positive may have any name), for instance "
)

ORDER = (
    "give the columns in the order anchor, positive, negative (several: anchor, positive_1, positive_2, ..., "
    "negative_1, negative_2, ...), or rename them"
)


@pytest.fixture
def load(tmp_path):
    return lambda data, **settings: load_training_data(data, tmp_path / "cache", **settings)


def rows(loaded):
    return [tuple(row.values()) for row in loaded.dataset.to_list()]


# Letters, quotes and delimiters, all kinds of white space, and line ends; no NUL and no surrogates
CELLS = st.text(st.sampled_from("ab\"',;\t \r\n\x1f\x85\u2028é🐕"), max_size=5) | st.just("nan")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), min_size=1, max_size=6)))
def test_the_same_rows_are_the_same_data_whatever_holds_them(given_rows):
    names = ["one", "two", "three"][: len(given_rows[0])]
    columns = dict(zip(names, map(list, zip(*given_rows, strict=True)), strict=True))
    # The oracle: of the characters above, \r\n, \r and \n end lines, and all but letters and marks are white space.
    cleaned = [
        tuple(cell.replace("\r\n", " ").replace("\r", " ").replace("\n", " ").strip() for cell in row)
        for row in given_rows
    ]
    expected = [row for row in cleaned if all(row)]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.csv"
        with file.open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened, quoting=csv.QUOTE_ALL).writerows([names, *given_rows])
        objects = {
            "list": given_rows,
            "list of dicts": [dict(zip(names, row, strict=True)) for row in given_rows],
            "dict of columns": columns,
            "DataFrame": pd.DataFrame(columns),
            "polars": pl.DataFrame(columns),
            "Dataset": datasets.Dataset.from_dict(columns),
            "generator": (row for row in given_rows),
            "file": str(file),
        }
        digests = set()
        for kind, data in objects.items():
            if not expected:
                with pytest.raises(UserError, match=r"contains no sentences: all of its .* rows have blank cells"):
                    load_training_data(data, place)
                continue
            loaded = load_training_data(data, place)
            assert rows(loaded) == expected, kind
            assert loaded.dropped == len(given_rows) - len(expected)
            (cached,) = loaded.dataset.cache_files
            digests.add((kind == "file", loaded.sha256, cached["filename"]))
        assert len(digests) in (0, 2)  # the file has its own; all objects have the same, in one cached file


def arrow_bytes(loaded):
    """Return the buffers of the table, without the summary at the end of the cached file."""
    return [
        buffer and buffer.to_pybytes()
        for column in loaded.dataset.data.table.combine_chunks().columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
    ]


SCORED = [("a", "b", 3.5), ("c", "d", 0), ("e", "f", 1e-7)]


@pytest.mark.parametrize(
    ("given_rows", "content"),
    [
        (SCORED, "x,y,score\na,b,3.5\nc,d,0\ne,f,0.0000001\n"),
        ([("a", "b", "Entailment"), ("c", "d", " neutral")], "x,y,label\na,b,entailment\nc,d,neutral\n"),
        ([("a", "b", None), ("a", "b", "neutral")], "x,y,label\na,b,\na,b,neutral\n"),
        ([("a", "b", "c"), ("d", "e", "f")], "x,y,z\na,b,c\nd,e,f\n"),
    ],
)
def test_a_third_column_without_name_is_what_its_first_cell_is(load, tmp_path, given_rows, content):
    (tmp_path / "rows.csv").write_text(content, encoding="utf-8")
    file, found = load(tmp_path / "rows.csv"), load(given_rows)
    assert arrow_bytes(found) == arrow_bytes(file)
    assert (found.roles, found.classes, found.scores) == (file.roles, file.classes, file.scores)
    assert (found.repeats.rows, found.dropped) == (file.repeats.rows, file.dropped)


@pytest.mark.parametrize(
    "data", [pd.DataFrame({"Anchor": ["a"], "POSITIVE": ["b"]}), pd.Series(["a"], name="positive")]
)
def test_names_of_roles_in_their_places_are_read(load, data):
    assert rows(load(data)) == [("a", "b")[: data.ndim]]


class Relation(Enum):
    entailment = 0
    not_entailment = 1
    neutral = 2


Numbered = IntEnum("Numbered", [(one.name, one.value) for one in Relation])
Named = StrEnum("Named", [(f"word_{one.value}", one.name) for one in Relation])
TEXT = datasets.Value("string")


def as_class_label(names, words, column="label"):
    features = datasets.Features({"s": TEXT, "t": TEXT, column: datasets.ClassLabel(names=names)})
    numbers = [-1 if word is None else names.index(word) for word in words]
    rows = {"s": [f"a {i}" for i in range(len(words))], "t": [f"b {i}" for i in range(len(words))], column: numbers}
    return datasets.Dataset.from_dict(rows, features=features)


def in_containers(data, words):
    """The rows of a Dataset, whose class labels are these words, in every container that knows the words."""
    columns = {"s": data["s"][:], "t": data["t"][:]}
    yield data
    yield data.to_iterable_dataset()
    yield data.with_format("numpy")
    yield data.with_transform(lambda batch: batch)
    yield data.with_format("arrow")[:]
    yield {**columns, "label": data["label"]}
    yield pd.DataFrame({**columns, "label": pd.Categorical(words)})
    yield {**columns, "label": pd.Categorical(words)}
    yield pl.DataFrame({**columns, "label": words}, schema_overrides={"label": pl.Categorical})
    yield pa.table({**columns, "label": pa.array(words).dictionary_encode()})
    for members in (Relation, Numbered, Named):
        by_word = {getattr(one, "value" if members is Named else "name"): one for one in members}
        yield [(s, t, by_word.get(word)) for s, t, word in zip(*columns.values(), words, strict=True)]
        yield [{"s": s, "t": t, "label": by_word.get(w)} for s, t, w in zip(*columns.values(), words, strict=True)]


ORDERS = list(permutations(["entailment", "not_entailment"]))


@pytest.mark.parametrize("names", ORDERS, ids=str)
@pytest.mark.parametrize("first", ORDERS[0])
def test_two_class_labels_are_scores_by_their_words_whatever_their_numbers(load, names, first):
    words = [first, *ORDERS[0], None]
    for data in in_containers(as_class_label(list(names), words), words):
        loaded = load(data)
        assert loaded.dataset["score"][:] == [float(word == "entailment") for word in words[:-1]], data
        assert (loaded.dropped, loaded.dropped_lines) == (1, (4,))


@pytest.mark.parametrize("first", ["entailment", "neutral"])
def test_class_labels_of_relations_are_their_words_whatever_the_first_number_is(load, first):
    words = [first, "entailment", "neutral", "neutral"]
    for data in in_containers(as_class_label(["entailment", "neutral", "contradiction"], words), words):
        assert load(data).dataset["label"][:] == words, data


@pytest.mark.parametrize(
    ("names", "column", "message"),
    [
        (
            ["good", "bad"],
            "label",
            "row 1: the label 'good' is not one of contradiction, entailment, neutral, or one of 1/0",
        ),
        (
            ["entailment", "neutral"],
            "gold_label",
            "the column 'gold_label' has class labels ('entailment', 'neutral'), but",
        ),
        (
            ["1", "0"],
            "same",
            "the column 'same' has class labels ('1', '0'), but its place is that of sentences; name it",
        ),
    ],
)
def test_class_labels_that_are_not_known_are_refused(load, names, column, message):
    if column == "same":
        assert load(as_class_label(names, names, column)).dataset["score"][:] == [1.0, 0.0]
        return
    with pytest.raises(UserError) as caught:
        load(as_class_label(names, names, column))
    assert f"train_data: {message}" in str(caught.value)


def test_booleans_are_labels_and_no_sentences(load):
    for name in ("label", "score"):
        frame = pd.DataFrame({"s": ["a", "b"], "t": ["c", "d"], name: [True, False]})
        for data in (frame, [*frame.itertuples(index=False, name=None)], datasets.Dataset.from_pandas(frame)):
            assert load(data).dataset["score"][:] == [1.0, 0.0]
    with pytest.raises(UserError, match=r"row 1, column 'other': expected a string but found True; .*leave"):
        load(frame.rename(columns={"score": "other"}))


CELLS_OF_NO_TEXT = {
    "list": ["a", "b"],
    "empty list": [],
    "dict": {"text": "a"},
    "array": np.array(["a", "b"]),
    "tensor": torch.ones(2),
    "scalar tensor": torch.tensor(1),
    "set": {"a"},
    "Series": pd.Series(["a"]),
    "polars Series": pl.Series(["a"]),
    "object": object(),
}


@pytest.mark.parametrize("kind", CELLS_OF_NO_TEXT)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("names", [("one", "two", "three"), ("one", "two", "label"), ("one", "two", "score")], ids=str)
def test_a_cell_that_is_a_container_is_refused_with_row_and_column(load, kind, place, names):
    cell = CELLS_OF_NO_TEXT[kind]
    good = ("a", "b", {"label": "neutral", "score": 1.0}.get(names[2], "c"))
    row = tuple(cell if i == place else value for i, value in enumerate(good))
    for number, table in ((1, [row, good]), (2, [good, row])):
        for data in (
            table,
            (one for one in table),
            [dict(zip(names, one, strict=True)) for one in table],
            dict(zip(names, map(list, zip(*table, strict=True)), strict=True)),
            pd.DataFrame(table, columns=list(names)),
        ):
            with pytest.raises(
                UserError, match=f"^train_data: row {number}, column .*: expected a string .*found"
            ) as caught:
                load(data)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("cell", [["a", "b"], {"text": "a"}, [["a"]]], ids=str)
def test_a_column_of_lists_is_refused_in_every_table(load, place, cell):
    columns = {name: [cell] * 2 if i == place else ["x", "y"] for i, name in enumerate(("one", "two", "three"))}
    data = datasets.Dataset.from_dict(columns)
    for table in (
        data,
        data.to_iterable_dataset(),
        data.with_format("torch"),
        data.with_format("arrow")[:],
        pl.DataFrame(columns),
    ):
        with pytest.raises(UserError, match=rf"row 1, column '{[*columns][place]}': expected a string but found a "):
            load(table)


def test_decimal_numbers_are_scores(load):
    given_rows = [("a", "b", Decimal("0.5")), ("c", "d", Decimal(2))]
    scored = load([("a", "b", 0.5), ("c", "d", 2.0)])
    assert load(given_rows).sha256 == load(pl.DataFrame(given_rows, ["x", "y", "score"], orient="row")).sha256
    assert load(given_rows).sha256 == scored.sha256


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            pd.DataFrame([["a"] * 4], columns=list("wxyz")),
            f"found 4 columns ['w', 'x', 'y', 'z']; {MESSAGE_OF_COLUMNS}train_data[[\"w\", \"x\"]]",
        ),
        (
            pd.DataFrame([[7, 5, "a", "b"]], columns=["id", "stars", "review", "summary"]),
            f"found 4 columns ['id', 'stars', 'review', 'summary']; {MESSAGE_OF_COLUMNS}"
            'train_data[["review", "summary"]]',
        ),
        ([("a",) * 4], f"found 4 columns; {MESSAGE_OF_COLUMNS}".removesuffix(", for instance ")),
        (
            pd.DataFrame([["c", "a", "b"]], columns=["negative", "anchor", "positive"]),
            "the column 'negative' of ['negative', 'anchor', 'positive'] is in the place of the anchor, since the "
            f"position of a column decides its role; {ORDER}",
        ),
        (
            [{"anchor": "a", "negative": "b"}],
            "the column 'negative' of ['anchor', 'negative'] is in the place of the positive, since the position "
            f"of a column decides its role; {ORDER}",
        ),
        (
            {"id": ["1"], "anchor": ["a"], "positive": ["b"], "source": ["wiki"]},
            "the column 'anchor' of ['id', 'anchor', 'positive', 'source'] is in the place of the positive, since the "
            "position of a column decides its role; remove the columns 'id', 'source'",
        ),
        (
            pd.DataFrame({"id": [7], "stars": [5], "text": ["a"]}),
            "row 1, column 'id': expected a string but found the number 7; convert it by str(), or leave the column "
            'out: train_data[["text"]]',
        ),
        (
            pd.DataFrame([["a", "b"]], columns=["x", "x"]),
            "the columns ['x', 'x'] have the name 'x' twice; give every column a name of its own (in a "
            "file, the first row must be a header)",
        ),
        (
            [{"label": "neutral", "x": "a", "y": "b"}],
            "the column 'label' of ['label', 'x', 'y'] is not the third; put labels or scores into the third column, "
            "after two columns of sentences, or rename a column of sentences",
        ),
        (
            [("a", "b", 1.0), ("a", "b", float("inf"))],
            "row 2: the score 'inf' is not a number; write a number such as 3.5 (1 and 0 for "
            "true and false), or remove the row, or rename a column of hard negatives",
        ),
        (
            [("a", "b", 1.0), ("a", "b", True)],
            "row 2: the score 'true' is not a number; write a number such as 3.5 (1 and 0 for "
            "true and false), or remove the row, or rename a column of hard negatives",
        ),
        (
            [("a", "b", "c"), ("a", "b", 3)],
            "row 2, column 3: expected a string but found the number 3; convert it by str()",
        ),
        ([("a", "b"), ("a", "\ud800")], "row 2, column 2: found \\ud800, which is not a character; remove it"),
        (["a", b"b"], "row 2, column 1: expected a string but found bytes b'b'; decode it by .decode()"),
        (["a", ["b", "c"]], "row 2: expected 1 cell, one for each of ['text'], but found 2; give each row as many"),
    ],
)
def test_invalid_rows_are_refused_in_one_line_and_leave_nothing(load, tmp_path, data, message):
    with pytest.raises(UserError) as caught:
        load(data)
    assert str(caught.value) == f"train_data: {message}"
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize("data", [[None, "a", "", float("nan"), "b"], pd.Series([pd.NA, "a", " ", np.nan, "b"])])
def test_missing_and_blank_cells_are_dropped_and_said_once(load, caplog, data):
    with caplog.at_level(logging.WARNING):
        loaded = load(data)
    (record,) = caplog.records
    assert record.getMessage().endswith("of 5 rows): dropped 3 rows with blank cells (row 1, 3, 4)")
    assert loaded.locate([1, 0]) == [
        {"row": 1, "given_row": 5, "anchor": "b"},
        {"row": 0, "given_row": 2, "anchor": "a"},
    ]


def test_a_generator_is_taken_once_and_this_is_said(load, caplog):
    data = (text for text in ["a", "b"])
    with caplog.at_level(logging.INFO):
        loaded = load(data)
    assert (rows(loaded), loaded.name) == ([("a",), ("b",)], "train_data (generator)")
    assert "train_data: the generator is taken once" in caplog.text
    with pytest.raises(UserError, match="the generator is empty, or has been read before"):
        load(data)


def test_rows_are_written_while_they_are_read(load, tmp_path, monkeypatch):
    monkeypatch.setattr("dcpcse.data.training_data.BATCH_ROWS", 100)
    sizes = []

    def sentences():
        for i in range(1_000):
            if i % 100 == 0:
                sizes.append(sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.arrow")))
            yield f"sentence {i} " + "x" * 1_000  # more than the buffers of files hold

    loaded = load(sentences())
    assert len(loaded.dataset) == 1_000 and len(sizes) == 10
    assert all(later > earlier for earlier, later in pairwise(sizes))


def test_a_large_file_is_named_in_the_log(load, caplog, monkeypatch):
    monkeypatch.setattr(training_data, "LARGE_BYTES", 100)
    with caplog.at_level(logging.INFO):
        (cached,) = load(["a", "b"]).dataset.cache_files
    assert cached["filename"] in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_interrupted_reading_passes_the_error_on_and_leaves_nothing(load, tmp_path, error):
    def rows():
        yield "a"
        raise error

    with pytest.raises(type(error)):
        load(rows())
    assert not list((tmp_path / "cache").glob("*"))


def test_a_system_error_of_an_iterator_is_not_blamed_on_the_cache(load):
    def rows():
        yield "a"
        raise PermissionError(13, "Permission denied")

    with pytest.raises(UserError, match=r"train_data: its rows cannot be read: .*Permission denied"):
        load(rows())


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write to the cache folder .*; choose another folder"):
        load_training_data(["a"], tmp_path / "cache")


def test_a_path_that_does_not_exist_gives_the_error_of_files(load):
    with pytest.raises(UserError, match=r"training file no such\.csv does not exist; check the path"):
        load("no such.csv")


def test_the_digest_tells_roles_and_cells_apart(load):
    data = [["ab", "c"], [("ab", "c")], [("a", "bc")], ["ab c"], [("a", "b", "neutral ")], [("a", "b", "neutral?")]]
    assert len({load(rows).sha256 for rows in data}) == len(data)
