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
    "negatives in their order": {
        "negative_2": "topic",
        "negative_1": "wrong",
        "anchor": "question",
        "positive": "answer",
    },
    "scores": {"score": "label", "anchor": "question", "positive": "answer"},
    "classes": {"class": "topic", "anchor": "question"},
}
ORDER = {
    name: sorted(columns, key=lambda role: (CHOICES.index(role.split("_")[0]), role))
    for name, columns in CHOSEN.items()
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
    columns, order = CHOSEN[name], ORDER[name]
    alone = [[row[HEADER.index(columns[role])] for role in order] for row in ROWS]
    expected = load("alone.csv", [order, *alone])
    for file in (None, "rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet"):
        data = chosen(columns if file else [f"{role}={column}" for role, column in columns.items()], file)
        assert data.dataset.to_dict() == expected.dataset.to_dict()
        assert (data.columns, data.roles, data.dropped) == (tuple(columns[role] for role in order), tuple(order), 1)
        assert (data.classes, data.scores) == (expected.classes, expected.scores)
    assert chosen(columns, "rows.csv").dataset.to_dict() == expected.dataset.to_dict()  # from the cache


def test_the_cache_keeps_the_choices_of_one_file_apart(chosen):
    first, second = (chosen({"anchor": column}, "rows.csv") for column in ("question", "answer"))
    assert first.dataset[0]["anchor"] == "a question 0?" and second.dataset[0]["anchor"] == "the answer 0"
    assert first.sha256 == second.sha256


WRONG = [
    (["anchor=question", "foo=answer"], r"'foo' is not a role; choose from anchor, positive, negative, label, score"),
    (["positive=answer"], "no column is the anchor; add anchor=NAME"),
    (["anchor=question", "anchor=answer"], "with each name once"),
    (["question"], "must be .*NAME=TEXT"),
    (3, "must be a list of strings"),
    ({"anchor": "Question"}, "has no column 'Question'; choose from 'id', 'label', 'answer', 'question'"),
    (
        {"anchor": "question", "class": "label", "positive": "answer"},
        "the column 'class' of .* is not the second of two",
    ),
]


@pytest.mark.parametrize(("columns", "message"), WRONG)
def test_a_wrong_choice_is_refused(columns, message, chosen):
    with pytest.raises(UserError, match=message):
        chosen(columns, "rows.csv")


def test_data_with_other_columns_are_refused_with_the_choice_as_remedy(chosen, write, cache):
    with pytest.raises(UserError, match=r'found 6 columns .* by columns=\["anchor=NAME", "positive=NAME"\]'):
        chosen(None, "rows.csv")
    with pytest.raises(UserError, match="train_data: the columns have no names"):
        load_training_data([("a", "b", "c", "d")], cache, columns={"anchor": "a"})
    with pytest.raises(UserError, match=r"twice\.csv has several columns 'a'"):
        load_training_data(write("twice.csv", "a,a,b\n1,2,3\n"), cache, columns={"anchor": "a"})


def test_a_row_with_too_few_cells_is_refused_even_if_the_chosen_ones_are_there(write):
    refused = []
    path = write("short.csv", "question,answer,id\nq 1,a 1,1\nq 2,a 2\n\nq 3,a 3,3\n")
    table = open_file(path, lambda number, error: refused.append(str(error)), chosen_columns(CHOSEN["pairs"]))
    assert [number for number, _ in read_rows(table)[1]] == [2, 5]
    found = "expected 3 cells, one for each of ['question', 'answer', 'id'], but found 2; give each row as many"
    assert refused == [f"{path}, line 3: {found}"]
