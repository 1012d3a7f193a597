"""Chosen columns give the rows of data that have only these columns; a wrong choice is refused with the remedy."""

import pandas as pd
import pytest

from dcpcse.data.column_choice import CHOICES, chosen_columns
from dcpcse.data.readers import open_file
from dcpcse.data.tables import read_rows
from dcpcse.data.training_data import load_training_data
from dcpcse.utils.errors import UserError

HEADER = ["id", "label", "answer", "question", "wrong", "topic"]
ROWS = [[f"{i}", f"{i % 2}", f"the answer {i}", f"a question {i}?", f"no {i} at all", "xy"[i % 2]] for i in range(9)]
ROWS[4][3] = " "  # a row without its anchor is dropped
CHOSEN = {
    "pairs": {"positive": "answer", "anchor": "question"},
    "negatives": {"negative_2": "topic", "negative_1": "wrong", "anchor": "question", "positive": "answer"},
    "scores": {"score": "label", "anchor": "question", "positive": "answer"},
    "classes": {"class": "topic", "anchor": "question"},
}


@pytest.fixture
def chosen(write, cache):
    """chosen(columns, name of a file): the training data in a file or, without a name, in objects with these rows."""

    def load(columns, name=None):
        data = pd.DataFrame(ROWS, columns=HEADER) if name is None else write(name, [HEADER, *ROWS])
        return load_training_data(data, cache, columns=chosen_columns(columns))

    return load


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_columns_are_the_rows_of_a_file_with_only_these_columns(name, chosen, load):
    columns = CHOSEN[name]
    order = sorted(columns, key=lambda role: (CHOICES.index(role.split("_")[0]), role))
    expected = load("alone.csv", [order, *([row[HEADER.index(columns[role])] for role in order] for row in ROWS)])
    for file in (None, "rows.csv", "rows.jsonl", "rows.parquet", "rows.csv"):  # at last from the cache
        data = chosen(columns if file else [f"{role}={column}" for role, column in columns.items()], file)
        assert data.dataset.to_dict() == expected.dataset.to_dict()
        assert (data.columns, data.roles, data.dropped) == (tuple(columns[role] for role in order), tuple(order), 1)
        assert (data.classes, data.scores) == (expected.classes, expected.scores)
        other = chosen({"anchor": "id"}, file)  # the cache keeps the choices apart
        assert other.dataset[0]["anchor"] == "0" and (file is None or other.sha256 == data.sha256)


WRONG = [
    (["anchor=question", "foo=answer"], r"'foo' is not a role; choose from anchor, positive, negative, label, score"),
    (["positive=answer"], "no column is the anchor; add anchor=NAME"),
    (["anchor=question", "anchor=answer"], "with each name once"),
    (["question"], "must be .*NAME=TEXT"),
    (3, "must be a list of strings"),
    ({"anchor": "Question"}, "has no column 'Question'; choose from 'id', 'label', 'answer', 'question'"),
    ({"anchor": "id", "class": "label", "positive": "answer"}, "the column 'class' of .* must be the second of two"),
]


def test_a_wrong_choice_is_refused(chosen, write, cache):
    for columns, message in (*WRONG, (None, r'found 6 columns .* by columns=\["anchor=NAME", "positive=NAME"\]')):
        with pytest.raises(UserError, match=message):
            chosen(columns, "rows.csv")
    with pytest.raises(UserError, match="train_data: columns without names cannot be chosen"):
        load_training_data([("a", "b", "c", "d")], cache, columns={"anchor": "a"})
    with pytest.raises(UserError, match=r"twice\.csv has several columns 'a'"):
        load_training_data(write("twice.csv", "a,a,b\n1,2,3\n"), cache, columns={"anchor": "a"})


def test_a_row_with_too_few_cells_is_refused_even_if_the_chosen_ones_are_there(write):
    refused = []
    path = write("short.csv", "question,answer,id\nq 1,a 1,1\nq 2,a 2\n\nq 3,a 3,3\n")
    table = open_file(path, lambda number, error: refused.append(str(error)), chosen_columns(CHOSEN["pairs"]))
    assert [number for number, _ in read_rows(table)[1]] == [2, 5]
    found = "expected 3 cells, one for each of ['question', 'answer', 'id'], but found 2; give each row as many cells"
    assert refused == [f"{path}, line 3: {found}"]
