"""What a third column named `label` or `score` is: read, checked, counted, and told to methods that read it."""

import json
import random

import pytest
import torch

from dcpcse.data import tables, training_data
from dcpcse.data.collator import ViewCollator
from dcpcse.data.columns import CLASSES, Columns
from dcpcse.data.duplicates import Duplicates
from dcpcse.data.training_data import distinct_sentences, load_training_file
from dcpcse.data.views import sentence_pair_views
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import METHODS, fill_defaults, model_arguments, register
from dcpcse.utils.errors import UserError

PAIRS = [("a man sleeps", "a man rests", "entailment"), ("a dog", "a cat", "contradiction"), ("one", "two", "neutral")]
SCORED = [("a man sleeps", "a man rests", 4.25), ("a dog", "a cat", 1.0), ("one", "two", 0.0)]


@pytest.fixture
def load(tmp_path):
    """load(name, content) → what is made of the file; of rows, in the format that the name says."""

    def load(name, content, header=("s1", "s2", "label")):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else written(name, content, header), encoding="utf-8")
        return load_training_file(path, tmp_path / "cache")

    return load


def written(name, rows, header):
    if name.endswith("json"):
        return json.dumps([dict(zip(header, row, strict=True)) for row in rows])
    if name.endswith("jsonl"):
        return "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
    between = "\t" if name.endswith("tsv") else ","
    return "".join(between.join(map(str, row)) + "\n" for row in [header, *rows])


FORMATS = ["a.csv", "a.tsv", "a.json", "a.jsonl"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_third_column_named_label_holds_classes(load, name):
    loaded = load(name, PAIRS)
    assert loaded.dataset.to_dict() == {
        "anchor": ["a man sleeps", "a dog", "one"],
        "positive": ["a man rests", "a cat", "two"],
        "label": ["entailment", "contradiction", "neutral"],
    }
    assert loaded.roles == ("anchor", "positive", "label")
    assert loaded.roles.classes == CLASSES
    assert loaded.classes == dict.fromkeys(CLASSES, 1)
    assert loaded.roles.sentences == ("anchor", "positive")


@pytest.mark.parametrize("name", FORMATS)
def test_a_third_column_named_score_holds_numbers(load, name):
    loaded = load(name, SCORED, ("s1", "s2", "score"))
    assert loaded.dataset["score"][:] == [4.25, 1.0, 0.0]
    assert loaded.roles == ("anchor", "positive", "score")
    assert loaded.roles.scores == (0.0, 4.25)
    assert loaded.roles.classes == ()


def test_capitals_make_no_difference(load):
    loaded = load("a.csv", "A,B,Label\nx,y,ENTAILMENT\nz,w, Neutral \n")
    assert loaded.dataset["label"][:] == ["entailment", "neutral"]
    assert loaded.roles.classes == ("entailment", "neutral")
    assert load("b.csv", "A,B,SCORE\nx,y,1e-1\n").dataset["score"][:] == [0.1]


def test_another_name_is_a_hard_negative_whatever_it_holds(load):
    loaded = load("a.csv", "a,b,hard\nx,y,neutral\n")
    assert loaded.dataset.to_dict() == {"anchor": ["x"], "positive": ["y"], "negative": ["neutral"]}
    assert (loaded.classes, loaded.scores, loaded.roles.label) == ({}, (), None)


def test_a_row_without_a_label_is_left_out_and_counted(load):
    loaded = load("a.csv", "a,b,label\nx,y,neutral\nx,z,\nq,r,entailment\n")
    assert (len(loaded.dataset), loaded.dropped, loaded.dropped_lines) == (2, 1, (3,))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("label", ["-", "1", "entails"])
def test_a_label_that_is_no_class_is_refused_with_its_place(load, name, label):
    with pytest.raises(UserError) as refusal:
        load(name, [*PAIRS, ("x", "y", label)])
    line = {"a.json": "item 4", "a.jsonl": "line 4"}.get(name, "line 5")
    assert f"{name}, {line}: the label '{label}' is not one of contradiction, entailment" in str(refusal.value)


@pytest.mark.parametrize("score", ["high", "3,5", "nan", "inf", "1_0", "4.2 of 5"])
def test_a_score_that_is_no_number_is_refused_with_its_place(load, score):
    with pytest.raises(UserError, match=r"line 3: the score '.*' is not a number"):
        load("a.tsv", [("x", "y", 1), ("p", "q", score)], ("a", "b", "score"))


@pytest.mark.parametrize("label", [2, 0.5])
def test_a_number_in_json_is_refused_as_a_label_and_not_for_being_unquoted(load, label):
    with pytest.raises(UserError, match=f"line 1: the label '{label}' is not one of .*numbers have different"):
        load("a.jsonl", [("x", "y", label)])


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_what_is_neither_number_nor_text_is_no_score(load, value):
    with pytest.raises(UserError, match="line 1, column 'score': expected a string"):
        load("a.jsonl", [("x", "y", value)], ("a", "b", "score"))


@pytest.mark.parametrize("header", [("label", "a", "b"), ("a", "Score", "b"), ("a", "score"), ("score", "a", "label")])
def test_a_label_that_does_not_stand_third_is_refused(load, header):
    with pytest.raises(UserError, match=r"line 1: the column '\w+' of .* is not the third; .* rename"):
        load("a.csv", [["x"] * len(header)], header)


@pytest.mark.parametrize(("cell", "is_refused"), [("0.5", True), ("-1.25", True), ("2", False), ("3.11.1", False)])
def test_a_class_is_a_word_or_a_whole_number(load, cell, is_refused):
    rows = [("x", "a"), ("y", cell)]
    if is_refused:
        with pytest.raises(
            UserError, match=r"line 3: found .* as a class; give every class as a word or a whole number"
        ):
            load("a.csv", rows, ("text", "label"))
    else:
        assert load("a.csv", rows, ("text", "label")).dataset["class"][1] == cell


def test_a_class_before_its_sentence_is_refused_with_the_order(load):
    with pytest.raises(
        UserError, match=r"'label' of .* is not the second; give a sentence and its class in two columns"
    ):
        load("a.csv", [("x", "a")], ("label", "text"))


def test_a_file_of_one_column_may_have_any_name(load):
    assert load("a.csv", "label\nsome text\n").dataset.to_dict() == {"anchor": ["some text"]}


def test_labels_are_no_sentences(load, tmp_path):
    load("a.csv", PAIRS)
    assert distinct_sentences(tmp_path / "a.csv") == ("a man sleeps", "a dog", "one", "a man rests", "a cat", "two")


def test_a_row_is_found_again_with_its_label(load, tmp_path):
    loaded = load("a.csv", PAIRS)
    found = {"row": 1, "line": 3, "anchor": "a dog", "positive": "a cat", "label": "contradiction"}
    assert loaded.locate([1]) == [found]


def test_a_second_reading_knows_the_labels(load, tmp_path, monkeypatch):
    first = load("a.csv", PAIRS), load("b.csv", SCORED, ("a", "b", "score"))
    monkeypatch.setattr(training_data, "LabelCounter", None)
    again = [load_training_file(tmp_path / name, tmp_path / "cache") for name in ("a.csv", "b.csv")]
    assert [(one.classes, one.scores) for one in again] == [(one.classes, one.scores) for one in first]


# Repeats


def test_repeats_of_labelled_rows_are_those_that_loops_find():
    random.seed(4)
    rows = [[random.choice("abc"), random.choice("abc"), random.choice(CLASSES)] for _ in range(40)]
    repeats = Duplicates(("anchor", "positive", "label"))
    repeats.add(list(enumerate(rows[:25], start=1)))
    repeats.add(list(enumerate(rows[25:], start=26)))
    found = repeats.found()
    again = [i for i, row in enumerate(rows, start=1) if row in rows[: i - 1]]
    assert (found.duplicates.count, list(found.duplicates.lines)) == (len(again), again[:5])
    labels: dict[tuple[str, str], str] = {}
    other = [i for i, (a, b, label) in enumerate(rows, start=1) if labels.setdefault((a, b), label) != label]
    assert (found.relabelled.count, list(found.relabelled.lines)) == (len(other), other[:5])
    assert found.identical.count == found.contradictory.count == found.pairs == 0


def test_an_unlabelled_file_has_no_pair_of_another_label():
    repeats = Duplicates(("anchor", "positive", "negative"))
    repeats.add([(1, ["a", "b", "c"]), (2, ["a", "b", "d"])])
    assert repeats.found().relabelled.count == 0


# On the way to a method


def test_the_collator_gives_numbers_of_classes_and_scores(tiny):
    tokenizer = load_backbone(tiny("bert")).tokenizer
    collator = ViewCollator(tokenizer, sentence_pair_views(["anchor", "positive", "label"]), 32)
    names = ("anchor", "positive", "label")
    batch = collator([dict(zip(names, row, strict=True)) for row in PAIRS])
    assert batch["labels"].tolist() == [1, 0, 2]
    assert batch["labels"].dtype == torch.long
    assert batch["input_ids"].shape[:2] == (3, 2)
    batch = collator([dict(zip((*names[:2], "score"), row, strict=True)) for row in SCORED])
    assert batch["scores"].tolist() == [4.25, 1.0, 0.0]
    assert batch["scores"].dtype == torch.float32
    assert {"labels", "scores"}.isdisjoint(collator([{"anchor": "a", "positive": "b"}]))


def test_columns_are_their_names_and_know_their_labels():
    columns = Columns.of(["anchor", "positive", "label"])
    assert list(columns) == ["anchor", "positive", "label"]
    assert (columns.label, columns.sentences, columns.classes) == ("label", ("anchor", "positive"), ())
    known = Columns(columns, ["neutral"])
    assert Columns.of(known) is known
    assert (known.classes, known.scores) == (("neutral",), ())
    assert Columns(["anchor"]).label is None


@pytest.fixture
def reader(monkeypatch):
    """A method that reads `label`, beside those that there are."""
    monkeypatch.setitem(METHODS, "reader", None)
    monkeypatch.delitem(METHODS, "reader")
    built = []
    register("reader", labels=["label"], tuning="full")(lambda backbone, args, columns: built.append(columns))
    return built


def test_labels_reach_a_method_that_reads_them_and_no_other(reader):
    labelled = Columns(["anchor", "positive", "label"], ["neutral", "entailment"])
    args = model_arguments(method="reader")
    fill_defaults(args, labelled)
    with pytest.raises(UserError, match=r"simcse.* does not use the column label .* that uses it \(.*reader"):
        fill_defaults(model_arguments(method="simcse"), labelled)
    with pytest.raises(UserError, match=r"reader.* does not use the column score of"):
        fill_defaults(args, ["anchor", "positive", "score"])
    fill_defaults(args, ["anchor", "positive", "negative"])


@pytest.mark.parametrize("label", ["2", "0.5", "good", "related", "-1"])
def test_an_unknown_label_suggests_the_column_of_scores(load, label):
    with pytest.raises(UserError, match=r"rename the column: to score if it contains numbers, such as 1 and 0"):
        load("a.csv", [("x", "y", label)])


@pytest.mark.parametrize(
    ("score", "remedy"),
    [("Neutral", "rename the column to label"), ("good", "1 and 0 for true and false"), ("3_5", "3.5")],
)
def test_a_score_that_is_a_word_suggests_what_to_write(load, score, remedy):
    with pytest.raises(UserError, match=f"the score '{score}' is not a number; .*{remedy}"):
        load("a.csv", [("x", "y", score)], ("a", "b", "score"))


LABELS = {
    "entailment": ("not_entailment", "not-entailment", "Non-Entailment"),
    "duplicate": ("not_duplicate", "non-duplicate", "NOT DUPLICATE"),
    "paraphrase": ("not_paraphrase",),
    "equivalent": ("not_equivalent",),
    "similar": ("dissimilar", "not similar"),
    "same": ("different",),
    "true": ("false", "FALSE"),
    "yes": ("no", "No"),
    "1": ("0", "0.0"),
    "1.0": ("0", "0.0"),
}
PAIRS_OF_LABELS = [(similar, other) for similar, others in LABELS.items() for other in others]


@pytest.mark.parametrize("first_is_similar", [True, False])
@pytest.mark.parametrize(("similar", "other"), PAIRS_OF_LABELS)
def test_two_labels_are_scores_whose_direction_is_that_of_the_words(load, similar, other, first_is_similar):
    labels = [similar, similar.upper(), other] if first_is_similar else [other, similar, similar]
    loaded = load("a.csv", [(f"x{i}", f"y{i}", label) for i, label in enumerate(labels)])
    assert loaded.dataset["score"][:] == ([1.0, 1.0, 0.0] if first_is_similar else [0.0, 1.0, 1.0])


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("labels", [(True, False), (1, 0), (1.0, 0.0), ("true", False), ("1", 0.0)])
@pytest.mark.parametrize("header", ["label", "score"])
def test_a_label_is_the_same_as_text_as_a_number_and_as_a_boolean(load, name, labels, header):
    loaded = load(name, [("x", "y", labels[0]), ("z", "w", labels[1])], ("a", "b", header))
    assert loaded.dataset["score"][:] == [1.0, 0.0]


def test_entailment_alone_is_a_relation_and_later_rows_decide(load, monkeypatch):
    rows = [(f"x{i}", f"y{i}", "entailment") for i in range(5)]
    assert load("a.csv", rows).classes == {"entailment": 5}
    assert load("b.csv", [*rows, ("x", "y", "neutral")]).classes == {"entailment": 5, "neutral": 1}
    assert load("c.csv", [*rows, ("x", "y", "not_entailment")]).dataset["score"][:] == [1.0] * 5 + [0.0]
    monkeypatch.setattr(tables, "MOST_UNDECIDED", 5)
    with pytest.raises(UserError, match="line 7: the label 'not_entailment' is not one of contradiction"):
        load("d.csv", [*rows, ("x", "z", "not_entailment")])


@pytest.mark.parametrize("other", ["neutral", "no", "0", "maybe"])
def test_labels_of_two_schemes_are_refused(load, other):
    with pytest.raises(UserError, match=f"line 3: .*not_duplicate or duplicate in the first row, .* here '{other}'"):
        load("a.csv", [("x", "y", "duplicate"), ("z", "w", other)])


def test_classes_are_one_class_in_each_of_their_forms(load):
    rows = [
        (f"x{i}", cell) for i, cell in enumerate(("1", "1.0", 1, 1.0, "true", "True", "TRUE", True, "2.0.1", "Sport"))
    ]
    assert load("a.csv", rows, ("text", "class")).classes == {"1": 4, "2.0.1": 1, "Sport": 1, "true": 4}
    assert load("a.jsonl", rows, ("text", "class")).classes == {"1": 4, "2.0.1": 1, "Sport": 1, "true": 4}
