"""What each column of training data is, by names and cells, in files and in Python objects."""

import csv
import datetime
import io
import json
from itertools import cycle, islice
from pathlib import Path

import datasets
import pandas as pd
import pytest

from dcpcse.data.checks import header_problems
from dcpcse.data.columns import Columns, describe_labels, header_of, negatives_in
from dcpcse.data.training_data import load_training_data, load_training_file
from dcpcse.data.views import sentence_pair_views
from dcpcse.doctor.findings import CheckSettings
from dcpcse.doctor.training_file import check as doctor
from dcpcse.methods import fill_defaults, model_arguments
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
SEVERAL = ("anchor", "positive", "negative_1", "negative_2", "negative_3")


@pytest.fixture
def load(tmp_path):
    """load(name, rows with the header first) → what is read of the file."""

    def load(name, rows):
        path = tmp_path / name
        if name.endswith("jsonl"):
            text = "".join(json.dumps(dict(zip(rows[0], row, strict=True))) + "\n" for row in rows[1:])
        else:
            written = io.StringIO()
            csv.writer(written, lineterminator="\n").writerows(rows)
            text = written.getvalue()
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


@pytest.mark.usefixtures("on_command_line")
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
    rows = [(f"x{i}", f"y{i}", number) for i, number in enumerate(("3.5", "-1", "1e-3", "12 %", "$1,000.50"))]
    problem = (
        "the column 'sim' is in the place of sentences but has numbers: '3.5', '-1', '1e-3'; name it label or score"
    )
    with pytest.raises(UserError, match=f"training file .*a.csv: {problem}"):
        load("a.csv", [("a", "b", "sim"), *rows])
    assert not list((tmp_path / "cache").glob("*.arrow"))
    assert load("b.csv", [("a", "b", "sim"), *rows, ("x", "y", "2 men")]).roles[2] == "negative"
    problems = load("d.csv", [("a", "pos_1", "pos_2"), *rows]).problems
    assert any("'pos_2' is in the place of sentences but has numbers" in problem for problem in problems)
    with pytest.raises(
        UserError, match=r"the column 'neg' .* has numbers: .*; leave it out: keep only the columns a, pos_1"
    ):
        load("e.csv", [("a", "pos_1", "pos_2", "neg"), *((*row[:2], "z", row[2]) for row in rows)])
    with pytest.raises(
        UserError, match=r"the column 'neg_2' .* has numbers: '7', '8'; leave it out: keep only the columns"
    ):
        load("c.csv", [("a", "b", "neg_1", "neg_2"), ("x", "y", "z", "7"), ("x", "y", "z", "8")])


def days(form):
    return [datetime.datetime(2021, 1 + i % 12, 1 + i % 28, i % 24, 5).strftime(form) for i in range(30)]


NO_TEXT = {
    "True and False": ["True", "False"],
    "yes and no": ["yes", "no"],
    "letters": ["Y", "N"],
    "splits": ["train", "dev", "test"],
    "relations": ["entailment", "neutral", "contradiction"],
    "topics": ["sports", "politics", "science", "fine arts"],
    "languages": ["en", "de", "zh"],
    "one value": ["the same"],
    "identifiers": [f"doc_{i}" for i in range(30)],
    "hashes": [f"3f2504e0-4f89-11d3-9a0c-0305e82c33{i:02d}" for i in range(30)],
    "ISO dates": days("%Y-%m-%d"),
    "dates with times": days("%Y-%m-%dT%H:%M:%SZ"),
    "American dates": days("%m/%d/%Y"),
    "dates in words": days("%B %d, %Y"),
    "dates with weekdays": days("%a, %d %b %Y"),
    "Chinese dates": days("%Y年%m月%d日"),
    "times": days("%I:%M %p"),
    "prices": [f"USD {i}.50 each" if i == 17 else f"USD {i}.50" for i in range(30)],
    "vectors": [f"[0.{i}, -1.5, {', '.join(['0.25'] * 90)}]" for i in range(30)],
    "coordinates": [f"52.{i}, 13.4" for i in range(30)],
    "stars": ["★★★★★", "★★★★", "★★★", "★★", "★"],
    "one long value": ["This sentence is in every row of the file."],
    "addresses": [f"https://example.org/{letter}" for letter in "abcdefghijklmnopqrstuvwxyzABCD"],
}
TEXTS = [line.strip() for line in (ROOT / "data/sample/sentences.txt").open(encoding="utf-8")][:90]


@pytest.mark.parametrize("kind", NO_TEXT)
def test_a_column_that_is_no_text_is_named_with_three_values_and_the_way_to_leave_it_out(load, tmp_path, kind):
    cells = list(islice(cycle(NO_TEXT[kind]), 30))
    rows = list(zip(TEXTS[:30], TEXTS[30:60], cells, strict=True))
    shown = ", ".join(repr(cell[:40]) for cell in NO_TEXT[kind][:3])
    files = {
        "third.csv": [("one", "two", "extra"), *rows],
        "second.csv": [("one", "extra"), *((row[0], row[2]) for row in rows)],
        "first.csv": [("extra", "one"), *((row[2], row[0]) for row in rows)],
        "several.jsonl": [("one", "two", "extra", "neg_2"), *((*row, f"{row[0]} not") for row in rows)],
    }
    files["several.jsonl"][0] = ("one", "two", "neg_1", "neg_2")
    for name, content in files.items():
        for loaded in (load(name, content), load(name, content)):  # read, and from the cache
            (problem,) = loaded.problems
            assert shown in problem and (name == "several.jsonl" or "; name it " in problem)
            assert "leave it out: keep only the columns one" in problem
        (finding,) = [one for one in doctor(tmp_path / name, CheckSettings()) if one.what == "column"]
        assert (finding.level, finding.text) == ("warning", problem)
    frame = pd.DataFrame(rows, columns=["one", "two", "extra"])
    (problem,) = load_training_data(frame, tmp_path).problems
    assert 'give train_data[["one", "two"]]' in problem and shown in problem


@pytest.mark.parametrize("share", [1, 2, 5])
def test_short_and_repeated_texts_are_no_labels(load, share):
    words = [" ".join(text.split()[:share]) for text in TEXTS]
    for cells in (words[:30], ["How are you today?", "Where do you come from?"] * 15, ["Who?", "Why not?"] * 15):
        rows = list(zip(TEXTS[:30], TEXTS[30:60], cells, strict=True))
        table = [("one", "two", "three"), *rows]
        assert load("a.csv", table).problems == ()
        assert load("b.csv", [row[1:] for row in table]).problems == ()


@pytest.mark.parametrize(
    ("rows", "found"), [([("a", "b", "score"), ("x", "y", "2")], ()), ([("text",), ("a 1",)], ())]
)
def test_scores_are_no_problem_and_sentences_are_none(load, rows, found):
    assert load("a.csv", rows).problems == found


def test_a_name_that_has_many_positives_is_an_anchor(load):
    rows = [(f"name {chr(97 + i // 6)}", f"the text {i}") for i in range(126)]
    assert len({name for name, _ in rows}) == 21
    assert load("a.csv", [("name", "text"), *rows]).problems == ()


def repeated(values, rows, value="kind {}"):
    return [("text", "category"), *((f"the text {i}", value.format(i % values)) for i in range(rows))]


@pytest.mark.parametrize(
    ("rows", "is_found"),
    [
        (repeated(2, 10), True),
        (repeated(200, 1_000), True),
        (repeated(2, 9), False),
        (repeated(201, 1_004), False),
        (repeated(1_001, 10_010), False),
        (repeated(2, 40, "how is {} done"), False),
        (repeated(2, 40, "x" * 40 + " {}"), False),
    ],
)
def test_a_second_column_of_few_short_values_may_be_one_of_classes(load, rows, is_found):
    assert bool(load("a.csv", rows).problems) == is_found


@pytest.mark.parametrize(("cell", "is_said"), [("1", True), ("true", True), ("duplicate", False)])
def test_labels_that_do_not_say_which_pairs_are_similar_are_told(load, tmp_path, cell, is_said):
    other = {"1": "0", "true": "false", "duplicate": "not_duplicate"}[cell]
    loaded = load("a.csv", [("a", "b", "label"), ("x", "y", cell), ("z", "w", other)])
    said = [f"the column 'label' has {other} and {cell}, which are read as scores: {cell} for a similar pair"]
    assert list(loaded.problems) == (said if is_said else [])
    assert [one.text for one in doctor(tmp_path / "a.csv", CheckSettings()) if one.what == "scores"] == said[:is_said]


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
    assert "('A man walks home')" in header_problems(Path("a.csv"), ["A man walks home", "b"])[0].text
    assert "('It rains.')" in header_problems(Path("a.TSV"), ["a", "It rains."])[0].text
    assert header_problems(Path("a.csv"), ["first sentence", "second"]) == []
    for said in ("下雨了。", "बारिश हुई।", "هل نزل المطر؟", "Շունը վազում է։", "昨天下雨了吗？", "สุนัขวิ่งบนหญ้าแห้ง"):
        assert f"({said!r})" in header_problems(Path("a.csv"), ["a", said])[0].text
    for name in ("句子", "ประโยคที่หนึ่ง", "جملة أولى", "वाक्य", "문장", "предложение", "Überschriftentexte", "标签："):
        assert header_problems(Path("a.csv"), [name, "b"]) == []
    assert header_problems(Path("a.jsonl"), ["the name of a key"]) == []
