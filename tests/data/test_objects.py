"""Rows from the objects in which Python users hold data."""

import collections
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dcpcse.data.objects import open_table
from dcpcse.data.tables import Table, is_missing, read_rows
from dcpcse.utils.errors import UserError

PAIRS = [("a", "b"), ("c", "d")]
NAMED = {"anchor": ["a", "c"], "positive": ["b", "d"]}
DATASET = datasets.Dataset.from_dict(NAMED)
STREAM = DATASET.to_iterable_dataset()


def rows(table: Table) -> list[tuple]:
    """The cells of all rows, which are numbered from 1."""
    numbers, cells = zip(*table.rows, strict=True)
    assert numbers == tuple(range(1, len(numbers) + 1))
    return [*map(tuple, cells)]


class MapStyle:
    """A map-style dataset of PyTorch: a length and items, but no iterator."""

    def __len__(self):
        return len(PAIRS)

    def __getitem__(self, index):
        return PAIRS[index]


def test_the_rows_of_every_kind_of_object_are_read_in_order():
    unnamed = (PAIRS, collections.deque(map(list, PAIRS)), np.array(PAIRS), MapStyle(), pd.DataFrame(PAIRS))
    named = (
        [{"anchor": "a", "positive": "b"}, {"positive": "d", "anchor": "c"}],
        NAMED,
        {"anchor": np.array(["a", "c"]), "positive": pd.Series(["b", "d"])},
        pd.DataFrame(NAMED, index=[7, 3]),
        pl.DataFrame(NAMED),
        pa.table(NAMED),
        DATASET,
        DATASET.with_format("numpy"),
        DATASET.select([1, 0]).select([1, 0]),
        STREAM,
        STREAM.with_format("arrow"),
    )
    renamed = DATASET.with_transform(lambda batch: {"text": batch["anchor"], "next": batch["positive"]})
    cases = [*((data, None) for data in unnamed), *((data, tuple(NAMED)) for data in named)]
    for data, columns in (*cases, (renamed, ("text", "next"))):
        for _ in range(2):  # none of these is used up
            table = open_table(data, "train_data")
            assert (table.columns, rows(table), table.taken_once) == (columns, PAIRS, False), data
    texts = (["a", "c"], pd.Series(["a", "c"]), pl.Series(["a", "c"]), np.array(["a", "c"]), pa.array(["a", "c"]))
    anchors = (pd.Series(["a", "c"], name="anchor"), DATASET.with_format("torch", columns=["anchor"]))
    of_texts = [*((data, None) for data in (*texts, DATASET["anchor"])), *((data, ("anchor",)) for data in anchors)]
    for data, columns in of_texts:
        table = open_table(data, "train_data")
        assert (table.columns, rows(table)) == (columns, [("a",), ("c",)]), data


def test_an_iterator_is_taken_once_and_only_its_first_row_before_rows_are_wanted():
    for data in (iter(PAIRS), (pair for pair in PAIRS), pa.table(NAMED).to_reader()):
        table = open_table(data, "train_data")
        assert (rows(table), table.taken_once) == (PAIRS, True)
        with pytest.raises(UserError, match="is empty, or has been read before; give at least one row"):
            open_table(data, "train_data")
    taken = []
    table = open_table((taken.append(i) or str(i) for i in range(1_000)), "train_data")
    assert taken == [0]
    assert (next(table.rows), next(table.rows), len(taken)) == ((1, ["0"]), (2, ["1"]), 2)


REFUSED = [  # object, what the message begins and ends with
    ("a sentence", "expected rows but found the string 'a sentence'; give a list of sentences, pairs or triples, a "),
    (Path("x.csv"), "expected rows but found a PosixPath", "; give a list"),
    (np.float64(2.5), "expected rows but found the number 2.5"),
    (pl.LazyFrame({"a": ["b"]}), "the rows of a LazyFrame are not computed yet", "train_data.collect()"),
    (np.zeros((1, 1, 1)), "expected an array with 1 or 2 dimensions but found 3"),
    ({"a"}, "a set has no order", "sorted(train_data)"),
    (datasets.DatasetDict(test=DATASET, train=DATASET), "expected rows but found a DatasetDict", "data['train']"),
    ([], "the list is empty; give at least one row"),
    ([{}], "row 1: found an object without keys"),
    ({"anchor": ["a"], "positive": ["b", "c"]}, "column 'positive' has 2 rows, column 'anchor' has 1"),
    ({"anchor": "a"}, "expected a list of cells as column 'anchor' but found the string 'a'"),
    (pd.DataFrame({"a": ["x"], 3: ["y"]}), "expected column names that are strings", "train_data.columns = [...]"),
    (pd.DataFrame(NAMED).set_index("anchor"), "the index of the DataFrame contains text", "reset_index(drop=True)"),
    (["a", ("a", "b")], "row 2: expected 1 cell, one for each of ['text'], but found 2"),
    ([{"a": "x"}, {"b": "y"}], "row 2: expected the keys ['a'], as in the first row, but found ['b']"),
    ([{"a": "x"}, "y"], "row 2: expected an object with keys but found the string 'y'"),
]


def test_an_object_without_even_rows_is_refused_in_one_line():
    for data, problem, *others in REFUSED:
        with pytest.raises(UserError) as caught:
            list(read_rows(open_table(data, "train_data"))[1])
        message = str(caught.value)
        assert message.startswith(f"train_data: {problem}") and "\n" not in message, message
        assert all(part in message for part in others), message


def test_a_cell_that_is_not_text_is_refused_with_row_and_column():
    for cell, message in (
        (True, "expected a string but found True; convert it by str()"),
        (np.int64(3), "expected a string but found the number 3; convert it by str()"),
        (b"x", "expected a string but found bytes b'x'; decode it by .decode()"),
        (["x"], "expected a string but found a list; give one string per cell; only positives and hard"),
        ({"x": "y"}, "expected a string but found a dict; give one string per cell; only positives and hard"),
        ("x\0", "found \\u0000, which is not a character; remove it"),
        ("\ud800", "found \\ud800, which is not a character; remove it"),
    ):
        for data, place in (([("a", cell)], "2"), ([{"anchor": "a", "positive": cell}], "'positive'")):
            with pytest.raises(UserError) as caught:
                open_table(data, "train_data").text(5, 1, cell)
            assert str(caught.value).startswith(f"train_data: row 5, column {place}: {message}")
    with pytest.raises(UserError, match=r'leave the column out: train_data\[\["anchor"\]\]$'):
        open_table(pd.DataFrame({"id": [1], "anchor": ["a"]}), "train_data").text(1, 0, 1)


def test_missing_cells_of_every_library_are_empty_strings():
    missing = [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT]
    assert all(map(is_missing, missing)) and not any(map(is_missing, ["", "nan", 0, False, 0.0]))
    table = open_table(["a"], "x")
    assert [table.text(1, 0, cell) for cell in missing] == [""] * 6
