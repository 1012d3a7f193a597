"""What each column of training data is, by names and cells, in files and in Python objects."""

import json

import datasets
import pandas as pd
import pytest

from dcpcse.data.column_checks import describe_values, header_problem
from dcpcse.data.columns import Columns, header_of, negatives_in
from dcpcse.data.in_memory import load_training_data
from dcpcse.data.labels import describe_labels
from dcpcse.data.training_file import load_training_file
from dcpcse.data.views import sentence_pair_views
from dcpcse.methods import fill_defaults, model_arguments
from dcpcse.utils.errors import UserError

SEVERAL = ("anchor", "positive", "negative_1", "negative_2", "negative_3")


@pytest.fixture
def load(tmp_path):
    """load(name, rows with the header first) → what is read of the file."""

    def load(name, rows):
        path = tmp_path / name
        if name.endswith("jsonl"):
            text = "".join(json.dumps(dict(zip(rows[0], row, strict=True))) + "\n" for row in rows[1:])
        else:
            text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        return load_training_file(path, tmp_path / "cache")

    return load


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["a"], ("anchor",)),
        (["class"], ("anchor",)),
        (["a", "b"], ("anchor", "positive")),
        (["a", "Class"], ("anchor", "class")),
        (["a", "LABEL"], ("anchor", "class")),
        (["a", "b", "c"], ("anchor", "positive", "negative")),
        (["a", "b", "negative_1"], ("anchor", "positive", "negative")),
        (["a", "b", "Label"], ("anchor", "positive", "label")),
        (["a", "b", "score"], ("anchor", "positive", "score")),
        (["a", "b", "negative_1", "negative_2", "negative_3"], SEVERAL),
        (["q", "p", "hard_neg_0", "hard_neg_1", "hard_neg_5"], SEVERAL),
        (["q", "p", "neg", "Neg2", "hard negative 1"], SEVERAL),
        (["a", "positive_1", "b"], ("anchor", "positive", "negative")),
        (["a", "positive_1", "positive_2"], ("anchor", "positive_1", "positive_2")),
        (["a", "positive", "positive_2"], ("anchor", "positive_1", "positive_2")),
        (["a", "pos", "Positive 7", "hard_neg"], ("anchor", "positive_1", "positive_2", "negative")),
        (["q", "POS-0", "pos1", "neg_1", "neg_2"], ("anchor", "positive_1", "positive_2", *SEVERAL[2:4])),
        (["Anchor", "Positive", "Negative"], ("anchor", "positive", "negative")),
        (["positive"], ("anchor",)),
    ],
)
def test_the_role_of_a_column_follows_from_the_names(names, roles):
    assert header_of(names, UserError).roles == roles


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a", "b", "c", "d"], r"found 4 columns \['a', 'b', 'c', 'd'\]; keep 1 .* or more .*negative_1"),
        (["a", "b", "negative_1", "source"], "'source' of .* has neither a name of positives .* nor of hard negat"),
        (["a", "positive_1", "paraphrase", "positive_2"], "'paraphrase' of .* has neither .* rename it .* or remove"),
        (["a", "b", "negative_1", "positive_1"], "'b' of .* has neither a name"),
        (["a", "b", "negative_1", "score"], "'score' of .* cannot be combined with hard negatives; remove it"),
        (["a", "positive_1", "positive_2", "Class"], "'Class' of .* cannot be combined with several positives; remov"),
        (["a", "positive_1", "positive_2", "label"], "'label' of .* cannot be combined with several positives; remov"),
        (["negative_1", "a", "b", "c"], "found 4 columns"),
        (["class", "a"], "'class' of .* is not the second of two; give a sentence and its class in two"),
        (["a", "b", "class"], "'class' of .* is not the second of two"),
        (["label", "a"], "'label' of .* is not the second"),
        (["a", "score"], "'score' of .* is not the third"),
        (["label", "class"], "'label' of .* is not the second"),
        (["a", "class", "negative_1", "negative_2"], "'class' of .* is not the second of two"),
        (["class", "positive_1", "positive_2"], "'class' of .* is not the second of two"),
        (["id", "a", "positive_1", "positive_2"], "'a' of .* has neither a name"),
        (["a", "b", "positive_2"], r"'positive_2' of .* is in the place of the negative, since .* or rename them"),
        (["a", "negative", "positive"], "'negative' of .* is in the place of the positive"),
        (["a", "neg_1"], "'neg_1' of .* is in the place of the positive"),
        (["a", "positive_1", "negative", "positive_2"], "'positive_2' of .* is in the place of the negative"),
        (["a", "negative_1", "positive_1", "positive_2"], "'negative_1' of .* is in the place of the positive"),
        (["positive_1", "positive_2", "positive_3"], "'positive_1' of .* is in the place of the anchor"),
        (["positive_1", "positive_2", "anchor"], "'positive_1' of .* is in the place of the anchor"),
        (["positive", "Anchor"], "'positive' of .* is in the place of the anchor, .* order anchor, positive, negat"),
        (["hard_neg", "class"], "'hard_neg' of .* is in the place of the anchor"),
        (["text", "anchor", "neg_1", "neg_2"], "'anchor' of .* is in the place of the positive"),
        (["id", "anchor", "positive"], "'anchor' of .* is in the place of the positive, .*; remove the column 'id'$"),
        (["id", "anchor", "label"], "'anchor' of .*; remove the column 'id'$"),
        (["id", "url", "anchor", "pos_1", "pos_2"], "'anchor' of .*; remove the columns 'id', 'url'$"),
    ],
)
def test_names_that_leave_a_doubt_are_refused(names, problem):
    with pytest.raises(UserError, match=problem):
        header_of(names, UserError, ["a cell"] * len(names))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_all_columns_of_hard_negatives_are_read(load, name):
    rows = [SEVERAL, ("a", "b", "c", "d", "e"), ("f", "g", "h", "i", ""), ("j", "k", "l", "m", "j")]
    loaded = load(name, rows)
    assert loaded.dataset.to_dict() == dict(
        zip(SEVERAL, (["a", "j"], ["b", "k"], ["c", "l"], ["d", "m"], ["e", "j"]), strict=True)
    )
    assert (loaded.roles, loaded.roles.negatives) == (SEVERAL, SEVERAL[2:])
    assert (loaded.dropped, loaded.repeats.contradictory.count) == (1, 1)
    assert loaded.locate([0])[0]["negative_2"] == "d"


def test_hard_negatives_of_python_objects_are_those_of_files(load, tmp_path):
    rows = [("a", "b", "c", "d"), ("e", "f", "g", "h")]
    names = ["anchor", "positive", "negative_1", "negative_2"]
    of_file = load("a.csv", [names, *rows])
    for data in (pd.DataFrame(rows, columns=names), [dict(zip(names, row, strict=True)) for row in rows]):
        loaded = load_training_data(data, tmp_path / "cache")
        assert loaded.dataset.to_dict() == of_file.dataset.to_dict()
    with pytest.raises(UserError, match=r"found 4 columns; keep 1 \(sentence\)"):
        load_training_data(rows, tmp_path / "cache")
    with pytest.raises(
        UserError, match=r'for instance train_data\[\["anchor", "positive", "negative_1", "negative_2"'
    ):
        load_training_data(pd.DataFrame([("x", *rows[0])], columns=["id", *names]), tmp_path / "cache")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_all_columns_of_positives_are_read_in_files_and_objects(load, name, tmp_path):
    roles = ("anchor", "positive_1", "positive_2", "negative")
    rows = [("a", "b", "c", "d"), ("f", "g", "", "h"), ("j", "k", "l", "m")]
    loaded = load(name, [("Query", "pos1", "pos2", "neg"), *rows])
    assert loaded.dataset.to_dict() == dict(zip(roles, (["a", "j"], ["b", "k"], ["c", "l"], ["d", "m"]), strict=True))
    assert (loaded.roles, loaded.dropped) == (roles, 1)
    assert (loaded.roles.positives, loaded.roles.negatives) == (roles[1:3], roles[3:])
    assert loaded.roles.kinds == {"anchor", "positive", "negative"}
    frame = pd.DataFrame(rows, columns=["anchor", "pos_1", "positive", "negative"])
    assert load_training_data(frame, tmp_path / "cache").dataset.to_dict() == loaded.dataset.to_dict()
    with pytest.raises(UserError, match=r'for instance train_data\[\["anchor", "pos_1", "positive", "negative"'):
        load_training_data(frame.assign(source="wiki"), tmp_path / "cache")
    with pytest.raises(UserError, match=r"train_data: the column 'neg' of .* is in the place of the positive"):
        load_training_data(frame[["anchor", "negative", "pos_1"]].rename(columns={"negative": "neg"}), tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("names", [("positive", "anchor"), ("positive_1", "positive_2", "anchor")])
def test_files_and_objects_refuse_the_same_columns(load, name, names, tmp_path):
    rows = [[f"{column} {i}" for column in names] for i in range(2)]
    problem = f"the column '{names[0]}' of .* is in the place of the anchor"
    with pytest.raises(UserError, match=f"line [12]: {problem}"):
        load(name, [names, *rows])
    with pytest.raises(UserError, match=f"train_data: {problem}"):
        load_training_data(pd.DataFrame(rows, columns=names), tmp_path / "cache")


def test_a_message_says_how_to_pick_the_columns_of_an_object(tmp_path):
    frame = pd.DataFrame([("x", "a", "b")], columns=["id", "anchor", "positive"])
    pick = r"remove the column 'id', for instance train_data\[\[\"anchor\", \"positive\"\]\]$"
    with pytest.raises(UserError, match=pick):
        load_training_data(frame, tmp_path)
    load_training_data(frame[["anchor", "positive"]], tmp_path)


def test_every_hard_negative_is_a_view_of_its_own():
    views = sentence_pair_views(SEVERAL, templates=2)
    assert [(view.name, view.column, view.templates) for view in views] == [
        ("anchor", "anchor", (0,)),
        *((name, name, (1,)) for name in SEVERAL[1:]),
    ]
    assert negatives_in(["negative", "negative_10", "negated", "negative_copy"]) == ("negative", "negative_10")
    assert Columns(SEVERAL).kinds == {"anchor", "positive", "negative"}


def test_a_weight_of_hard_negatives_needs_a_column_of_them():
    args = model_arguments(hard_negative_weight=0.5)
    fill_defaults(args, SEVERAL)
    with pytest.raises(UserError, match="--hard_negative_weight has no effect without hard negatives"):
        fill_defaults(args, SEVERAL[:2])


# Numbers


@pytest.mark.parametrize("name", ["label", "similar", "hard_neg", "positive"])
@pytest.mark.parametrize("kind", ["a.csv", "a.jsonl"])
def test_a_third_column_of_0_and_1_is_one_of_scores(load, kind, name):
    cells = (1, 0, 1) if kind == "a.jsonl" else ("1", "0", "1")
    loaded = load(kind, [("a", "b", name), *((f"x{i}", f"y{i}", cell) for i, cell in enumerate(cells))])
    assert loaded.roles == ("anchor", "positive", "score")
    assert loaded.dataset["score"][:] == [1.0, 0.0, 1.0]
    assert loaded.scores == (0.0, 1.0)


def test_a_column_of_0_and_1_of_an_object_is_one_of_scores(tmp_path):
    for data in (
        pd.DataFrame({"a": ["x", "y"], "b": ["z", "w"], "similar": [0, 1]}),
        datasets.Dataset.from_dict({"a": ["x", "y"], "b": ["z", "w"], "similar": [0, 1]}),
    ):
        assert load_training_data(data, tmp_path).dataset["score"][:] == [0.0, 1.0]


@pytest.mark.parametrize("cell", ["2", "0.5", "neutral", "A sentence."])
def test_another_cell_below_0_or_1_is_refused_with_its_line(load, cell):
    with pytest.raises(UserError, match=f"line 3: the column 'is_same' has 0 or 1 in the first row, .* here '{cell}'"):
        load("a.csv", [("a", "b", "is_same"), ("x", "y", "0"), ("x", "z", cell)])


def test_a_third_column_of_numbers_is_no_column_of_hard_negatives(load, tmp_path):
    rows = [(f"x{i}", f"y{i}", number) for i, number in enumerate(("3.5", "-1", "1e-3"))]
    problem = "every cell of the column 'sim' is a number, which is no hard negative; name it score if"
    with pytest.raises(UserError, match=f"training file .*a.csv: {problem}"):
        load("a.csv", [("a", "b", "sim"), *rows])
    assert not list((tmp_path / "cache").glob("*.arrow"))
    assert load("b.csv", [("a", "b", "sim"), *rows, ("x", "y", "2 men")]).roles[2] == "negative"
    assert load("d.csv", [("a", "pos_1", "pos_2"), *rows]).numeric == ("pos_2",)
    with pytest.raises(
        UserError, match="every cell of the column 'neg' is a number, which is no hard negative; remov"
    ):
        load("e.csv", [("a", "pos_1", "pos_2", "neg"), *((*row[:2], "z", row[2]) for row in rows)])
    with pytest.raises(
        UserError, match="every cell of the column 'neg_2' is a number, which is no hard negative; rem"
    ):
        load("c.csv", [("a", "b", "neg_1", "neg_2"), ("x", "y", "z", "7"), ("x", "y", "z", "8")])


def test_numbers_in_place_of_anchors_are_known(load):
    assert load("a.csv", [("id", "text"), ("1", "a"), ("2", "b")]).numeric == ("id",)
    assert load("b.csv", [("id", "text"), ("1", "a"), ("x2", "b")]).numeric == ()
    assert load("c.csv", [("a", "b", "score"), ("x", "y", "2")]).numeric == ()
    assert load("d.csv", [("year",), ("1984",)]).numeric == ()


def repeated(values, rows, names=("text", "category"), value="kind {}"):
    return [names, *((f"the text {i}", value.format(i % values)) for i in range(rows))]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (repeated(2, 20), 2),
        (repeated(1, 20), 1),
        (repeated(100, 1_000, ("text", "positive")), 100),
        (repeated(2, 20, value="{}"), 2),
        (repeated(1, 19), 0),
        (repeated(101, 1_009), 0),
        (repeated(1_001, 10_010), 0),
        (repeated(2, 40, value="how is {} done"), 0),
        (repeated(2, 40, value="x" * 40 + "{}"), 0),
        (repeated(2, 40, ("text", "class")), 0),
        ([("text", "positive", "negative"), *(("a", "b", "c") for _ in range(40))], 0),
    ],
)
def test_a_second_column_of_few_short_values_may_be_one_of_classes(load, rows, found, tmp_path):
    assert load("a.csv", rows).values == load("a.csv", rows).values == found  # read, and from the cache
    if "class" not in rows[0]:
        assert load_training_data(rows[1:], tmp_path / "cache").values == found


def test_a_column_of_few_values_is_described_with_a_remedy():
    told = "the column 'category' has 2 different values in 1,000 rows; if they are classes, name the column class"
    assert describe_values("category", 2, 1000) == told
    assert "the same value in all 20 rows, which teaches nothing" in describe_values("category", 1, 20)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((80,), "1 class of 80 sentences"),
        ((1, 1, 1), "3 classes of 1 sentence each"),
        ((1_500, 1_500), "2 classes of 1,500 sentences each"),
        ((1, 3), "2 classes of 1 to 3 sentences"),
    ],
)
def test_the_classes_are_told_in_plain_numbers(counts, text):
    assert describe_labels({str(i): count for i, count in enumerate(counts)}, ()) == text


def test_a_header_that_is_a_sentence_is_known():
    assert "('A man walks home')" in header_problem("a.csv", ["A man walks home", "b"])
    assert "('It rains.')" in header_problem("a.TSV", ["a", "It rains."])
    assert header_problem("a.csv", ["first sentence", "second"]) is None
    for said in ("下雨了。", "बारिश हुई।", "هل نزل المطر؟", "Շունը վազում է։", "昨天下雨了吗？", "สุนัขวิ่งบนหญ้าแห้ง"):
        assert f"({said!r})" in header_problem("a.csv", ["a", said])
    for name in ("句子", "ประโยคที่หนึ่ง", "جملة أولى", "वाक्य", "문장", "предложение", "Überschriftentexte", "标签："):
        assert header_problem("a.csv", [name, "b"]) is None
    assert header_problem("a.jsonl", ["the name of a key"]) is None
