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


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (PAIRS, None),
        (tuple(map(list, PAIRS)), None),
        (collections.deque(PAIRS), None),
        (np.array(PAIRS), None),
        (MapStyle(), None),
        (pd.DataFrame(PAIRS), None),
        ([{"anchor": "a", "positive": "b"}, {"positive": "d", "anchor": "c"}], ("anchor", "positive")),
        (NAMED, ("anchor", "positive")),
        ({"anchor": np.array(["a", "c"]), "positive": pd.Series(["b", "d"])}, ("anchor", "positive")),
        (pd.DataFrame(NAMED), ("anchor", "positive")),
        (pd.DataFrame(NAMED, index=[7, 3]), ("anchor", "positive")),
        (pl.DataFrame(NAMED), ("anchor", "positive")),
        (pa.table(NAMED), ("anchor", "positive")),
        (DATASET, ("anchor", "positive")),
        (DATASET.with_format("numpy"), ("anchor", "positive")),
        (DATASET.with_transform(lambda batch: {"text": batch["anchor"], "next": batch["positive"]}), ("text", "next")),
        (DATASET.select([1, 0]).select([1, 0]), ("anchor", "positive")),
        (DATASET.to_iterable_dataset(), ("anchor", "positive")),
        (DATASET.to_iterable_dataset().with_format("arrow"), ("anchor", "positive")),
    ],
)
def test_the_rows_of_every_kind_of_object_are_read_in_order(data, columns):
    for _ in range(2):  # none of these is used up
        table = open_table(data, "train_data")
        assert (table.columns, rows(table), table.taken_once) == (columns, PAIRS, False)


@pytest.mark.parametrize(
    ("data", "column"),
    [
        (["a", "c"], None),
        (pd.Series(["a", "c"]), None),
        (pd.Series(["a", "c"], name="anchor"), "anchor"),
        (pl.Series(["a", "c"]), None),
        (np.array(["a", "c"]), None),
        (pa.array(["a", "c"]), None),
        (DATASET["anchor"], None),
        (DATASET.with_format("torch", columns=["anchor"]), "anchor"),
    ],
)
def test_a_column_of_strings_gives_rows_of_one_cell(data, column):
    table = open_table(data, "train_data")
    assert (table.columns, rows(table)) == (column and (column,), [("a",), ("c",)])


@pytest.mark.parametrize("data", [iter(PAIRS), (pair for pair in PAIRS), pa.table(NAMED).to_reader()])
def test_an_iterator_is_taken_once(data):
    table = open_table(data, "train_data")
    assert (rows(table), table.taken_once) == (PAIRS, True)
    with pytest.raises(UserError, match="is empty, or has been read before; give at least one row"):
        open_table(data, "train_data")


def test_only_the_first_row_is_read_before_rows_are_asked_for():
    taken = []
    table = open_table((taken.append(i) or str(i) for i in range(1_000)), "train_data")
    assert taken == [0]
    assert (next(table.rows), next(table.rows), len(taken)) == ((1, ["0"]), (2, ["1"]), 2)


def test_the_kind_says_type_and_number_of_rows():
    kinds = [open_table(data, "x").kind for data in (["a"] * 1_000, pd.DataFrame(NAMED), NAMED, iter("a"))]
    assert kinds == ["list of 1,000 rows", "DataFrame of 2 rows", "dict of 2 rows", "str_ascii_iterator"]


ALLOWED = (
    "; give a list of sentences, pairs or triples, a dict of columns, a DataFrame, a datasets.Dataset or a generator "
    "of rows"
)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a sentence", "expected rows but found the string 'a sentence'" + ALLOWED),
        (Path("x.csv"), "expected rows but found a PosixPath" + ALLOWED),
        (b"abc", "expected rows but found bytes b'abc'" + ALLOWED),
        (3, "expected rows but found the number 3" + ALLOWED),
        (True, "expected rows but found True" + ALLOWED),
        (None, "expected rows but found None" + ALLOWED),
        (np.float64(2.5), "expected rows but found the number 2.5" + ALLOWED),
        (object(), "expected rows but found an object" + ALLOWED),
        (pl.LazyFrame({"a": ["b"]}), "the rows of a LazyFrame are not computed yet; give train_data.collect()"),
        (np.zeros((1, 1, 1)), "expected 1 or 2 dimensions but found an array of 3" + ALLOWED),
        ({"a"}, "a set has no order; give a list, for instance sorted(train_data)"),
        (lambda: iter("ab"), "expected rows but found a function; if it makes rows, call it: train_data()"),
        (MapStyle, "expected rows but found the class MapStyle; if it makes rows, call it: train_data()"),
        (
            datasets.DatasetDict(test=DATASET, train=DATASET),
            "expected rows but found a DatasetDict with the splits 'test', 'train'; give one split: data['train']",
        ),
        ([], "the list is empty; give at least one row"),
        (iter([]), "the list_iterator is empty, or has been read before; give at least one row"),
        (pd.DataFrame(), "the DataFrame is empty; give at least one row"),
        (DATASET.select([]), "the Dataset is empty; give at least one row"),
        ({}, "the dict is empty; give at least one column"),
        ([()], "row 1 has no columns; give at least a column of sentences"),
        ([{}], 'row 1: found an object without keys; give an object such as {"anchor": "...", "positive": "..."}'),
        (
            {"anchor": ["a"], "positive": ["b", "c"]},
            "column 'positive' has 2 rows, column 'anchor' has 1; give columns of equal length",
        ),
        (
            {"anchor": "a"},
            "expected a list of cells as column 'anchor' but found the string 'a'; give a dict of lists of equal "
            "length",
        ),
        ({3: ["a"]}, "expected column names that are strings but found the number 3; rename it"),
        (
            pd.DataFrame({"a": ["x"], 3: ["y"]}),
            "expected column names that are strings but found the number 3 in ['a', 3]; rename the columns: "
            "train_data.columns = [...]",
        ),
        (
            pd.DataFrame(NAMED).set_index("anchor"),
            "the index of the DataFrame contains text, which is not read; make it a column with "
            "train_data.reset_index(), or remove it with train_data.reset_index(drop=True)",
        ),
        (
            [("a", "b", "c"), ("a", "b", "c"), ("a", "b")],
            "row 3: expected 3 cells, one for each of ['anchor', 'positive', 'negative'], but found 2; give each row "
            "as many",
        ),
        (["a", ("a", "b")], "row 2: expected 1 cell, one for each of ['text'], but found 2; give each row as many"),
        (
            [{"a": "x"}, {"b": "y"}],
            "row 2: expected the keys ['a'], as in the first row, but found ['b']; give every row the same keys",
        ),
        (
            [{"a": "x"}, "y"],
            "row 2: expected an object with keys but found the string 'y'; give an object such as "
            '{"anchor": "...", "positive": "..."}',
        ),
    ],
)
def test_an_object_without_even_rows_is_refused_in_one_line(data, message):
    with pytest.raises(UserError) as caught:
        list(read_rows(open_table(data, "train_data"))[1])
    assert str(caught.value) == f"train_data: {message}"


SEVERAL = "; several negatives are columns negative_1, negative_2, ..."


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (3, "expected a string but found the number 3; convert it by str()"),
        (True, "expected a string but found True; convert it by str()"),
        (b"x", "expected a string but found bytes b'x'; decode it by .decode()"),
        (["x"], "expected a string but found a list; give one string per cell" + SEVERAL),
        ({"x": "y"}, "expected a string but found a dict; give one string per cell" + SEVERAL),
        (np.int64(3), "expected a string but found the number 3; convert it by str()"),
        ("x\0", "found \\u0000, which is not a character; remove it"),
        ("\ud800", "found \\ud800, which is not a character; remove it"),
    ],
)
def test_a_cell_that_is_no_text_is_refused_with_row_and_column(cell, message):
    bare, named = (
        open_table([("a", cell)], "train_data"),
        open_table([{"anchor": "a", "positive": cell}], "train_data"),
    )
    with pytest.raises(UserError) as caught:
        bare.text(5, 1, cell)
    assert str(caught.value) == f"train_data: row 5, column 2: {message}"
    with pytest.raises(UserError) as caught:
        named.text(5, 1, cell)
    more = ', or leave the column out: only "anchor"' if message.endswith("str()") else ""
    assert str(caught.value) == f"train_data: row 5, column 'positive': {message}{more}"


def test_the_message_says_how_to_pick_columns_of_each_library():
    rows = {"id": [1], "anchor": ["a"]}
    expected = {
        'train_data[["anchor"]]': pd.DataFrame(rows),
        'train_data.select(["anchor"])': pl.DataFrame(rows),
        'train_data.select_columns(["anchor"])': datasets.Dataset.from_dict(rows),
    }
    for picked, data in expected.items():
        with pytest.raises(UserError) as caught:
            open_table(data, "train_data").text(1, 0, 1)
        assert str(caught.value).endswith(f"leave the column out: {picked}")


def test_missing_cells_of_every_library_are_empty_strings():
    missing = [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT]
    assert all(map(is_missing, missing)) and not any(map(is_missing, ["", "nan", 0, False, 0.0]))
    table = open_table(["a"], "x")
    assert [table.text(1, 0, cell) for cell in missing] == [""] * 6
