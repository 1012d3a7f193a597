"""What each column of training data is, by names and cells, in files and in Python objects; labels and classes."""

import pandas as pd
import pytest
import torch
from method_models import with_encoder

from dcpcse.data import tables, training_data
from dcpcse.data.collator import ViewCollator
from dcpcse.data.columns import CLASSES, LABEL, SCHEMES, Columns, header_of, negatives_in
from dcpcse.data.training_data import load_training_file
from dcpcse.data.views import sentence_pair_views
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import METHODS, fill_defaults, model_arguments
from dcpcse.utils.errors import UserError

SEVERAL = ("anchor", "positive", "negative_1", "negative_2", "negative_3")


def test_the_role_of_a_column_follows_from_the_names():
    for names, *roles in [
        ("class", "anchor"),
        ("a b", "anchor", "positive"),
        ("a Class", "anchor", "class"),
        ("a LABEL", "anchor", "class"),
        ("a b negative_1", "anchor", "positive", "negative"),
        ("a b Label", "anchor", "positive", "label"),
        ("a b score", "anchor", "positive", "score"),
        ("q p hard_neg_0 hard_neg_1 hard_neg_5", *SEVERAL),
        ("q p neg Neg2 hard_negative_1", *SEVERAL),
        ("a positive_1 b", "anchor", "positive", "negative"),
        ("a pos Positive-7 hard_neg", "anchor", "positive_1", "positive_2", "negative"),
        ("q POS-0 pos1 neg_1 neg_2", "anchor", "positive_1", "positive_2", *SEVERAL[2:4]),
    ]:
        assert header_of(names.split(), UserError).roles == tuple(roles), names
    assert header_of(["q", "p", "neg 1", "hard negative 1"], UserError).roles == SEVERAL[:4]


REFUSED = [  # names, problem
    ("a b c d", r"found 4 columns \['a', 'b', 'c', 'd'\]; keep 1 .* or more .*negative_1"),
    ("a b negative_1 source", "'source' of .* has neither a name of positives .* nor of hard negat"),
    ("a positive_1 paraphrase positive_2", "'paraphrase' of .* has neither .* rename it .* or remove"),
    ("a b negative_1 score", "'score' of .* cannot be combined with hard negatives; remove it"),
    ("a positive_1 positive_2 Class", "'Class' of .* cannot be combined with several positives; remov"),
    ("class a", "'class' of .* must be the second of two columns; give a sentence and its class"),
    ("label a", "'label' of .* must be the second; give a sentence and its class in two columns"),
    ("label a b", "'label' of .* must be the third; .* rename"),
    ("a b positive_2", r"'positive_2' of .* is read as the negative, since .* or rename them"),
    ("a positive_1 negative positive_2", "'positive_2' of .* is read as the negative"),
    ("positive Anchor", "'positive' of .* is read as the anchor, .* order anchor, positive, negat"),
    ("id anchor positive", "'anchor' of .* is read as the positive, .*; remove the column 'id'$"),
    ("id url anchor pos_1 pos_2", "'anchor' of .*; remove the columns 'id', 'url'$"),
]


def test_names_that_leave_a_doubt_are_refused(load):
    for names, problem in REFUSED:
        with pytest.raises(UserError, match=problem):
            header_of(names.split(), UserError, ["a cell"] * len(names.split()))
    names, cells, problem = ["positive", "anchor"], [["a", "b"]], "the column 'positive' of .* is read as the anchor"
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(UserError, match=f"line [12]: {problem}"):
            load(name, [names, *cells])
    with pytest.raises(UserError, match=f"train_data: {problem}"):
        load(pd.DataFrame(cells, columns=names))


def columns_of(roles, *rows):
    return dict(zip(roles, map(list, zip(*rows, strict=True)), strict=True))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_all_columns_of_positives_and_hard_negatives_are_read_in_files_and_objects(load, name):
    rows = [("a", "b", "c", "d", "e"), ("f", "g", "h", "i", ""), ("j", "k", "l", "m", "j")]
    loaded = load(name, [SEVERAL, *rows])
    assert loaded.dataset.to_dict() == columns_of(SEVERAL, rows[0], rows[2])
    assert (loaded.roles, loaded.roles.negatives) == (SEVERAL, SEVERAL[2:])
    assert (loaded.dropped, loaded.repeats.contradictory.count) == (1, 1)
    assert loaded.locate([0])[0]["negative_2"] == "d"
    roles = ("anchor", "positive_1", "positive_2", "negative")
    rows = [("a", "b", "c", "d"), ("f", "g", "", "h"), ("j", "k", "l", "m")]
    loaded = load(name, [("Query", "pos1", "pos2", "neg"), *rows])
    assert loaded.dataset.to_dict() == columns_of(roles, rows[0], rows[2])
    assert (loaded.roles, loaded.dropped) == (roles, 1)
    assert (loaded.roles.positives, loaded.roles.negatives) == (roles[1:3], roles[3:])
    assert loaded.roles.kinds == {"anchor", "positive", "negative"}
    frame = pd.DataFrame(rows, columns=["anchor", "pos_1", "positive", "negative"])
    for data in (frame, frame.to_dict("records")):
        assert load(data).dataset.to_dict() == loaded.dataset.to_dict()


def test_columns_are_their_names_and_know_their_labels():
    known = Columns(["anchor", "positive", "label"], ["neutral"])
    assert list(known) == ["anchor", "positive", "label"] and Columns.of(known) is known
    assert (known.label, known.sentences, known.classes) == ("label", ("anchor", "positive"), ("neutral",))
    assert negatives_in(["negative", "negative_10", "negated", "negative_copy"]) == ("negative", "negative_10")


# Labels and scores


PAIRS = [("a man sleeps", "a man rests", "entailment"), ("a dog", "a cat", "contradiction"), ("one", "two", "neutral")]
SCORED = [("a man sleeps", "a man rests", 4.25), ("a dog", "a cat", 1.0), ("one", "two", 0.0)]
FORMATS = ["a.csv", "a.tsv", "a.json", "a.jsonl"]


def third(name, *cells):
    """Rows of pairs with these cells in a third column of this name."""
    return [("a", "b", name), *((f"x{i}", f"y{i}", cell) for i, cell in enumerate(cells))]


@pytest.mark.parametrize("name", FORMATS)
def test_a_third_column_named_label_has_classes_and_one_named_score_has_numbers(load, name):
    loaded = load(name, [("s1", "s2", "label"), *PAIRS])
    assert loaded.dataset.to_dict() == columns_of(("anchor", "positive", "label"), *PAIRS)
    assert loaded.roles == ("anchor", "positive", "label")
    assert loaded.roles.classes == CLASSES
    assert loaded.classes == dict.fromkeys(CLASSES, 1)
    assert loaded.roles.sentences == ("anchor", "positive")
    found = {"row": 1, "item" if name == "a.json" else "line": 3 - (name[2] == "j"), "anchor": "a dog"}
    assert loaded.locate([1]) == [found | {"positive": "a cat", "label": "contradiction"}]
    line = {"a.json": "item 4", "a.jsonl": "line 4"}.get(name, "line 5")
    with pytest.raises(UserError, match=f"{name}, {line}: the label '1' is not one of contradiction, entailment"):
        load(name, [("s1", "s2", "label"), *PAIRS, ("x", "y", "1")])
    loaded = load(name, [("s1", "s2", "score"), *SCORED])
    assert loaded.dataset["score"][:] == [4.25, 1.0, 0.0]
    assert loaded.roles == ("anchor", "positive", "score")
    assert (loaded.roles.scores, loaded.roles.classes) == ((0.0, 4.25), ())


def test_capitals_make_no_difference_and_rows_without_a_label_are_dropped(load):
    loaded = load("a.csv", "A,B,Label\nx,y,ENTAILMENT\nx,z,\nz,w, Neutral \n")
    assert loaded.dataset["label"][:] == ["entailment", "neutral"]
    assert loaded.roles.classes == ("entailment", "neutral")
    assert (loaded.dropped, loaded.dropped_lines) == (1, (3,))
    assert load("b.csv", "A,B,SCORE\nx,y,1e-1\n").dataset["score"][:] == [0.1]
    loaded = load("a.csv", "a,b,hard\nx,y,neutral\n")  # a hard negative, whatever it is
    assert loaded.dataset.to_dict() == {"anchor": ["x"], "positive": ["y"], "negative": ["neutral"]}
    assert (loaded.classes, loaded.scores, loaded.roles.label) == ({}, (), None)


def test_labels_and_scores_that_cannot_be_are_refused(load):
    for score in ("high", "3,5", "nan", "inf", "1_0", "4.2 of 5", "Neutral"):
        with pytest.raises(UserError, match=rf"line 3: the score '{score}' is not a number; "):
            load("a.tsv", third("score", 1, score))
    for label in ("2", "0.5", "related", 2):
        with pytest.raises(UserError, match=f"the label '{label}' is not one of .*numbers.*: to score if it contains"):
            load("a.jsonl", third("label", label))
    with pytest.raises(UserError, match="line 1, column 'score': expected a string"):
        load("a.jsonl", third("score", [1]))


def test_a_second_reading_knows_the_labels(load, cache, tmp_path, monkeypatch):
    first = load("a.csv", third("label", *CLASSES)), load("b.csv", third("score", 1.5, 2))
    monkeypatch.setattr(training_data, "LabelCounter", None)
    monkeypatch.setattr(training_data, "Duplicates", None)
    again = [load_training_file(tmp_path / name, cache) for name in ("a.csv", "b.csv")]
    assert [(one.classes, one.scores) for one in again] == [(one.classes, one.scores) for one in first]
    assert [one.repeats for one in again] == [one.repeats for one in first]


@pytest.mark.parametrize("name", ["similar", "hard_neg"])
def test_a_third_column_of_0_and_1_is_one_of_scores(load, name):
    for kind, cells in (("a.csv", (1, 0, 1)), ("a.jsonl", (1, 0, 1)), ("b.jsonl", ("1", "0", "1"))):
        loaded = load(kind, third(name, *cells))
        assert loaded.roles == ("anchor", "positive", "score")
        assert (loaded.dataset["score"][:], loaded.scores) == ([1.0, 0.0, 1.0], (0.0, 1.0))
    for cell in ("2", "0.5", "A sentence."):
        with pytest.raises(UserError, match=f"line 3: .* 'same' has 0 or 1 in the first row, .* here it has '{cell}'"):
            load("a.csv", third("same", "0", cell))


FURTHER_FORMS = {  # of the words of SCHEMES
    "not_entailment": ("not-entailment", "Non-Entailment"),
    "not_duplicate": ("non-duplicate",),
    "not_similar": ("dissimilar", "not similar"),
    **{"no": ("No",), "0": ("0.0",), "1": ("1.0",)},
}


def test_two_labels_are_scores_whose_direction_is_that_of_the_words(load):
    for similar, other in SCHEMES:
        for one, zero in [(similar, form) for form in (other, *FURTHER_FORMS.get(other, ()))] + [
            (form, other) for form in FURTHER_FORMS.get(similar, ())
        ]:
            assert load("a.csv", third("label", zero, one, one.upper())).dataset["score"][:] == [0.0, 1.0, 1.0]


def test_a_label_is_the_same_as_text_as_a_number_and_as_a_boolean(load):
    for labels in [(True, False), (1, 0), (1.0, 0.0), ("true", False), ("1", 0.0)]:
        for header in ("label", "score"):
            assert load("a.jsonl", third(header, *labels)).dataset["score"][:] == [1.0, 0.0]


def test_entailment_alone_is_a_relation_and_later_rows_decide(load, monkeypatch):
    five = ["entailment"] * 5
    assert load("a.csv", third("label", *five)).classes == {"entailment": 5}
    assert load("b.csv", third("label", *five, "neutral")).classes == {"entailment": 5, "neutral": 1}
    assert load("c.csv", third("label", *five, "not_entailment")).dataset["score"][:] == [1.0] * 5 + [0.0]
    monkeypatch.setattr(tables, "MOST_UNDECIDED", 5)
    with pytest.raises(UserError, match="line 7: the label 'not_entailment' is not one of contradiction"):
        load("d.tsv", third("label", *five, "not_entailment"))


def test_labels_of_two_schemes_are_refused(load):
    with pytest.raises(UserError, match=r"line 3: .*not_duplicate or duplicate in the first row, .* 'no'"):
        load("a.csv", third("label", "duplicate", "no"))


def test_classes_are_one_class_in_each_of_their_forms(load):
    cells = ("1", "1.0", 1, 1.0, "true", "True", "TRUE", True, "2.0.1", "Sport")
    loaded = load("a.jsonl", [("text", "class"), *((f"x{i}", cell) for i, cell in enumerate(cells))])
    assert loaded.classes == {"1": 4, "2.0.1": 1, "Sport": 1, "true": 4}
    for cell in ("0.5", "-1.25"):
        with pytest.raises(UserError, match=r"line 3: found .* as a class; give every class as a word"):
            load("a.csv", [("text", "label"), ("x", "a"), ("y", cell)])


# On the way to a method


def test_the_collator_gives_numbers_of_classes_and_scores(tiny):
    names = ("anchor", "positive", "label")
    collator = ViewCollator(load_backbone(tiny("bert")).tokenizer, sentence_pair_views(names), 32)
    batch = collator([dict(zip(names, row, strict=True)) for row in PAIRS])
    assert batch["labels"].tolist() == [1, 0, 2] and batch["labels"].dtype == torch.long
    assert batch["input_ids"].shape[:2] == (3, 2)
    batch = collator([dict(zip((*names[:2], "score"), row, strict=True)) for row in SCORED])
    assert batch["scores"].tolist() == [4.25, 1.0, 0.0] and batch["scores"].dtype == torch.float32
    assert {"labels", "scores"}.isdisjoint(collator([{"anchor": "a", "positive": "b"}]))


@pytest.mark.usefixtures("on_command_line")
def test_labels_and_scores_reach_the_methods_that_read_them_and_no_others():
    readers = {target: [n for n, entry in METHODS.items() if target in entry.labels] for target in ("label", "score")}
    for target, names in readers.items():
        summary = {"classes": CLASSES} if target == LABEL else {"scores": (0, 1)}
        columns = Columns(["anchor", "positive", target], **summary)
        assert 0 < len(names) < len(METHODS)
        for name in METHODS:
            args = model_arguments(**with_encoder({"method": name}, "x"))
            if name in names:
                fill_defaults(args, columns)
            else:
                with pytest.raises(UserError, match=rf"{name}.* does not use the column {target} .*\(.*{min(names)}"):
                    fill_defaults(args, columns)
    args = model_arguments(hard_negative_weight=0.5)
    fill_defaults(args, SEVERAL)
    with pytest.raises(UserError, match="--hard_negative_weight has no effect without hard negatives"):
        fill_defaults(args, SEVERAL[:2])
