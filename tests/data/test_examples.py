"""Positives that are drawn, from a class or from several columns, the same for a seed, an epoch and a row."""

import json
from collections import Counter
from itertools import combinations

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chisquare

from dcpcse.data.columns import CLASS
from dcpcse.data.examples import EPOCH_KEY, NEGATIVES_KEY, ROW_KEY, ClassPairs, NextLinePairs, make_examples
from dcpcse.data.training_data import load_training_data, load_training_file
from dcpcse.losses.false_negatives import masks
from dcpcse.utils.errors import UserError

CLASSES = ["red", "blue", "red", "green", "blue", "red", "red"]
TEXTS = [f"text {i}" for i in range(len(CLASSES))]
POSITIVES = {f"positive {k}": [f"p{k} of {i}" for i in range(9)] for k in (1, 2, 3)}
SEVERAL = {"query": [f"q {i}" for i in range(9)], **POSITIVES, "neg": [f"n {i}" for i in range(9)]}


@pytest.fixture
def pairs(load) -> ClassPairs:
    return make_examples(load(pd.DataFrame({"text": TEXTS, "label": CLASSES})), 5)[1]


def test_a_positive_is_any_other_sentence_of_the_class(pairs):
    others = {i: [TEXTS[j] for j, one in enumerate(CLASSES) if one == CLASSES[i] and j != i] for i in range(7)}
    seen = {i: Counter() for i in range(7)}
    for epoch in range(400):
        pairs.begin_epoch(epoch)
        for i, example in enumerate(pairs.__getitems__(range(7))):
            assert (example["anchor"], example[ROW_KEY], example[EPOCH_KEY]) == (TEXTS[i], i, epoch)
            seen[i][example["positive"]] += 1
    assert seen.pop(3) == {TEXTS[3]: 400}  # alone in its class
    others.pop(3)
    for i, counts in seen.items():
        assert sorted(counts) == sorted(others[i])
        expected = 400 / len(others[i])
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())
    numbers = [example[CLASS] for example in pairs.__getitems__(range(7))]
    assert [[one == other for other in numbers] for one in numbers] == [
        [one == other for other in CLASSES] for one in CLASSES
    ]


SETS = [["x"], ["x", "y"], ["y"], ["z", "x"], ["w"], ["v", "w", "w"]]


def test_a_positive_of_a_text_with_several_classes_shares_one_of_them_and_such_texts_are_no_negatives(load):
    texts = TEXTS[: len(SETS)]
    data = load({"text": texts, "label": SETS})
    columns, dataset = make_examples(data, 5)
    assert columns.classes == ("v", "w", "x", "y", "z") and data.classes == {"v": 1, "w": 2, "x": 3, "y": 2, "z": 1}
    drawn = [Counter(dataset.partner(row, epoch) for epoch in range(400)) for row in range(len(SETS))]
    assert [sorted(counts) for counts in drawn] == [[1, 3], [0, 2, 3], [1], [0, 1], [5], [4]]
    assert chisquare([drawn[1][2], drawn[1][0] + drawn[1][3]]).pvalue > 1e-4  # a class is drawn first
    classes = torch.tensor(dataset.values(np.arange(len(SETS)))[CLASS])
    shares = [[i != j and bool({*a} & {*b}) for j, b in enumerate(SETS)] for i, a in enumerate(SETS)]
    assert masks({"classes": classes}, ["positive"])[0].tolist() == shares
    keys = dataset.keys(np.arange(len(SETS)), 0)
    assert {keys[1][2], keys[1][3]} == {keys[0][2], keys[2][2]}  # batches without duplicates compare all classes
    plain, listed = (load({"text": TEXTS, "label": labels}) for labels in (CLASSES, [[one] for one in CLASSES]))
    plain, listed, rows = make_examples(plain, 5)[1], make_examples(listed, 5)[1], np.arange(7)
    assert [positives(plain, epoch) for epoch in range(9)] == [positives(listed, epoch) for epoch in range(9)]
    assert plain.values(rows) == listed.values(rows) and np.ndim(plain.values(rows)[CLASS]) == 1


def positives(dataset, epoch, one_by_one=False):
    dataset.begin_epoch(epoch)
    rows = range(len(dataset))
    examples = [dataset[i] for i in reversed(rows)][::-1] if one_by_one else dataset.__getitems__(rows)
    return [example["positive"] for example in examples]


def test_a_draw_depends_on_seed_epoch_and_row_alone(load):
    classes = load(pd.DataFrame({"text": TEXTS, "label": CLASSES}))
    renamed = load(list(zip(TEXTS, [7, 2, 7, 1, 2, 7, 7], strict=True)))
    for first, second in ((classes, renamed), (load(SEVERAL), load(pd.DataFrame(SEVERAL)))):
        one, other = (make_examples(data, 5)[1] for data in (first, second))
        drawn = {epoch: positives(one, epoch) for epoch in (0, 3)}
        assert drawn == {epoch: positives(other, epoch, one_by_one=True) for epoch in (0, 3)}
        assert drawn[0] != drawn[3]
        assert positives(make_examples(first, 6)[1], 0) != drawn[0]


def test_classes_of_all_objects_are_those_of_a_file(load):
    expected = load("a.csv", [("text", "class"), *zip(TEXTS, CLASSES, strict=True)])
    assert expected.classes == {"blue": 2, "green": 1, "red": 4}
    assert make_examples(expected, 1)[0] == ("anchor", "positive", CLASS)
    names = sorted(set(CLASSES))
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    numbers = [names.index(one) for one in CLASSES]
    for data in (
        pd.DataFrame({"text": TEXTS, "class": CLASSES}),
        [{"t": text, "Label": one} for text, one in zip(TEXTS, CLASSES, strict=True)],
        datasets.Dataset.from_dict({"text": TEXTS, "label": numbers}, features=features),
    ):
        found = load(data)
        assert found.dataset.to_dict() == expected.dataset.to_dict()
        assert found.classes == expected.classes
    found = load(pd.DataFrame({"text": TEXTS[:4], "label": [1, None, 2, 1]}))  # floats in pandas
    assert (found.classes, found.dropped, found.dropped_lines) == ({"1": 2, "2": 1}, 1, (2,))
    with pytest.raises(UserError, match=r"row 2: found 2.5 as a class; give every class as"):
        load([("a", 1), ("b", 2.5)])
    repeats = load("a.csv", "text,class\na,x\nb,y\na,y\na,x\n").repeats
    assert (repeats.duplicates.lines, repeats.relabelled.lines, repeats.pairs) == ((5,), (4,), 0)


def test_one_of_the_positives_of_a_row_is_drawn_uniformly_in_each_epoch(load):
    columns, dataset = make_examples(load(SEVERAL), 5)
    assert columns == ("anchor", "positive", "negative")
    epochs = [positives(dataset, epoch) for epoch in range(600)]
    for i, of_row in enumerate(zip(*epochs, strict=True)):
        counts = Counter(of_row)
        assert sorted(counts) == [f"p{k} of {i}" for k in (1, 2, 3)]
        assert chisquare(list(counts.values())).pvalue > 1e-4
    for others in ([row[1] for row in epochs], [epochs[-1][0], *(row[0] for row in epochs[:-1])]):
        both = Counter(zip((row[0] for row in epochs), others, strict=True))  # neither row nor epoch before matter
        assert len(both) == 9 and chisquare(list(both.values())).pvalue > 1e-4
    drawn = {"positive": positives(dataset, 599)[4], "row": 4, "epoch": 599}
    assert dataset[4] == {"anchor": "q 4", "negative": "n 4", **drawn}


# Following lines

LINES = ["", "a", "b", "", " ", "c", "d", "e", "", "f", "\t", "g", "h", ""]
FOLLOWING = [("a", "b"), ("c", "d"), ("d", "e"), ("g", "h")]
NUMBERS = [2, 6, 7, 12]


@pytest.mark.parametrize("kind", ["txt", "csv", "jsonl", "list"])
def test_the_positive_of_a_line_is_the_following_line_of_its_document(kind, write, cache):
    if kind == "list":
        data = load_training_data([line or None for line in LINES], cache)
    else:
        lines = {"csv": ["text", *LINES], "jsonl": [json.dumps({"s": line}) for line in LINES]}.get(kind, LINES)
        file = write(f"lines.{kind}", "\n".join(lines) + "\n")
        data = [load_training_file(file, cache) for _ in range(2)][1]  # from the cache
    columns, pairs = make_examples(data, 1, "next")
    assert columns == ("anchor", "positive")
    assert len(pairs) == len(FOLLOWING)
    examples = pairs.__getitems__([2, 0, 1, 3])
    assert [(one["anchor"], one["positive"]) for one in examples] == [FOLLOWING[i] for i in (2, 0, 1, 3)]
    located = data.locate([example[ROW_KEY] for example in examples])
    unit = "given_row" if kind == "list" else "line"
    assert [one[unit] for one in located] == [NUMBERS[i] + (kind == "csv") for i in (2, 0, 1, 3)]
    same = {one[ROW_KEY]: keys for one, keys in zip(examples, pairs.keys(np.array([2, 0, 1, 3]), 0), strict=True)}
    assert len({key for keys in same.values() for key in keys}) == len({text for pair in FOLLOWING for text in pair})


def test_documents_end_at_the_blank_lines_of_the_file_as_it_was_read(load, write):
    pairs = make_examples(load(["a", "b", "c"]), 1, "next")[1]
    assert [tuple(pairs[i].values())[:2] for i in range(2)] == [("a", "b"), ("b", "c")]
    assert make_examples(load(["a", "", "b", "", "c"]), 1, "next")[1].anchors.tolist() == []
    assert NextLinePairs(load(["a", "b", "c"]).dataset, [1]).digest != pairs.digest
    data = load("lines.txt", "a\nb\n\n\nc\nd\n")
    write("lines.txt", "a\n\nb\nc\nd\n")
    assert data.breaks() == [2]
    assert make_examples(data, 1, "next")[1].anchors.tolist() == [0, 2]


@pytest.mark.usefixtures("on_command_line")
def test_only_single_sentences_get_other_positives(load):
    for positive in ("crop", "next"):
        for rows in ([("a", "b")], [("a", 1), ("b", 1)], {"a": ["x"], "positive_1": ["y"], "positive_2": ["z"]}):
            with pytest.raises(UserError, match=f"--positive {positive} is for data with one column, but tr"):
                make_examples(load(rows), 1, positive)
    with pytest.raises(UserError, match="--positive all is for data with several positives, but tr"):
        make_examples(load([("a", "b")]), 1, "all")


# Different numbers of positives and hard negatives

LISTED = [
    {"q": f"q {i}", "pos": [f"p{k} of {i}" for k in range(1 + i % 3)], "neg": [f"n{k} of {i}" for k in range(i % 4)]}
    for i in range(12)
]


def test_of_several_positives_those_are_drawn_that_a_row_has(load):
    columns, dataset = make_examples(load(LISTED), 5)
    assert columns == ("anchor", "positive", "negative_1", "negative_2", "negative_3")
    for i, of_row in enumerate(zip(*(positives(dataset, epoch) for epoch in range(300)), strict=True)):
        counts = Counter(of_row)
        assert sorted(counts) == LISTED[i]["pos"]
        assert len(counts) == 1 or chisquare(list(counts.values())).pvalue > 1e-4
    expected = {"negative_1": "n0 of 6", "negative_2": "n1 of 6", "negative_3": None, NEGATIVES_KEY: 2}
    assert {name: dataset[6][name] for name in expected} == expected


def test_each_of_several_positives_makes_an_example_that_is_no_negative_of_the_others(load):
    dataset = make_examples(load(LISTED), 5, "all")[1]
    found = [(one["anchor"], one["positive"], one[CLASS], one[ROW_KEY]) for one in dataset.__getitems__(range(24))]
    assert len(dataset) == 24
    assert found == [(row["q"], text, i, i) for i, row in enumerate(LISTED) for text in row["pos"]]


@pytest.mark.parametrize("positive", ["dropout", "all"])
def test_rows_share_the_keys_of_their_sentences_and_none_for_absent_ones(load, positive):
    rows = [*LISTED, {"q": "q", "pos": ["p"], "neg": ["n0 of 2"]}]
    dataset = make_examples(load(rows), 5, positive)[1]
    examples = dataset.__getitems__(range(len(dataset)))
    keys = [{*of_row} for of_row in dataset.keys(np.arange(len(dataset)), 0).tolist()]
    texts = [{row["q"], *row["pos"], *row["neg"]} for row in (rows[example[ROW_KEY]] for example in examples)]
    for i, j in combinations(range(len(keys)), 2):
        assert len(keys[i] & keys[j]) == len(texts[i] & texts[j])
