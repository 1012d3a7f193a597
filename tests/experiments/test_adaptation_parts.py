"""Which rows are trained on, chosen on and tested on, and what is measured: against naive loops and scikit-learn."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from senteval.embeddings import Embeddings
from senteval_tiny import cosine
from sklearn.metrics import average_precision_score

from dcpcse.evaluation.significance import BY_CLASS
from dcpcse.experiments.adaptation import measures
from dcpcse.experiments.adaptation.measures import correlation, own_class, own_positive, precision, text_key
from dcpcse.experiments.adaptation.parts import MOST_ROWS, TRAIN, divide, groups_of, read_parts
from dcpcse.utils.errors import UserError

WORDS = [
    "flute",
    "garden",
    "dog",
    "grass",
    "committee",
    "spring",
    "rain",
    "train",
    "coast",
    "bridge",
    "storm",
    "village",
]
WORDS += ["key", "onion", "board", "bank"]


def naive_groups(rows):
    """Union-find without ranks or compression: row → the smallest row of its group."""
    parent = list(range(len(rows)))

    def root(row):
        return row if parent[row] == row else root(parent[row])

    for i, first in enumerate(rows):
        for j, second in enumerate(rows[:i]):
            if {text_key(text) for text in first} & {text_key(text) for text in second}:
                low, high = sorted((root(i), root(j)))
                parent[high] = low
    return [root(row) for row in range(len(rows))]


texts = st.sampled_from(["a", "A ", "b", " c  c", "c C", "d", "e", "f", "g", "h", "i", "j", "k", "l"])


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_rows_that_share_a_text_are_in_one_part(rows, room, seed):
    groups, expected = groups_of(rows), naive_groups(rows)
    assert [[a == b for b in groups] for a in groups] == [[a == b for b in expected] for a in expected]
    parts = divide(groups, [""] * len(rows), {"test": room, "dev": room + 1}, seed)
    assert sorted(row for own in parts.values() for row in own) == list(range(len(rows)))
    part_of = {row: name for name, own in parts.items() for row in own}
    assert all(part_of[row] == part_of[first] for row, first in enumerate(expected))
    assert len(parts["test"]) <= room
    assert len(parts["dev"]) <= room + 1
    assert parts == divide(groups, [""] * len(rows), {"test": room, "dev": room + 1}, seed)


def test_every_part_has_the_same_share_of_each_class_and_another_seed_gives_other_rows():
    classes = ["many"] * 60 + ["few"] * 20 + ["some"] * 40
    parts = divide(np.arange(120), classes, {"test": 24, "dev": 24}, seed=1)
    for part, size in {"test": 24, "dev": 24, TRAIN: 72}.items():
        assert Counter(classes[row] for row in parts[part]) == {"many": size // 2, "few": size // 6, "some": size // 3}
    assert parts != divide(np.arange(120), classes, {"test": 24, "dev": 24}, seed=2)
    # The normal form, case and blanks of a text do not count.
    assert list(groups_of([["Élan\u3000vital"], ["E\u0301LAN VITAL "], ["Elan vital"]])) == [0, 0, 1]


# What is measured


def embedded(*texts, seed=0):
    texts = list(dict.fromkeys(texts))
    return Embeddings(texts, np.random.default_rng(seed).normal(size=(len(texts), 8)).astype(np.float32))


def points(measure, embed):
    return measure.score(embed, SimpleNamespace(split="dev")).points / 100


def test_pairs_with_scores_have_the_scores_of_scipy_and_scikit_learn():
    first, second = [f"a {i}" for i in range(20)], [f"b {i}" for i in range(20)]
    embed, gold = embedded(*first, *second), [i * 7 % 20 / 4 for i in range(20)]
    cosines = [*map(cosine, embed(first), embed(second))]
    rows = {"anchor": first, "positive": second, "score": gold}
    assert points(correlation("dev", rows), embed) == pytest.approx(stats.spearmanr(cosines, gold).statistic)
    rows["score"] = [float(score > 3) for score in gold]
    assert points(precision("dev", rows), embed) == pytest.approx(average_precision_score(rows["score"], cosines))


@pytest.mark.parametrize("second", [(), ("p2",), (None,)], ids=["one", "two", "absent"])
def test_the_reciprocal_rank_is_that_of_a_naive_loop_over_all_candidates(second):
    further = {"positive_2": ["p4", *second, "p6", "n3", "p7", "p1"]} if second else {}
    rows = {
        "anchor": ["a1", "a2", "a1", "a3", "P2", "same"],  # an anchor with two positives, and one that is a candidate
        "positive": ["p1", "p2", "p3", "p1", "p5", "Same"],  # a positive of two anchors, and one that is its anchor
        "negative_1": ["n1", "n2", "n3", "n1", "n2", "n1"],
    }
    answers = {"a1": {"p1", "p3"}, "a2": {"p2"}, "a3": {"p1"}, "P2": {"p5"}}
    if further:  # a text of the row is a second positive: the first one, a negative of another row, or new
        rows = {"anchor": rows["anchor"], "positive_1": rows["positive"], **further, "negative": rows["negative_1"]}
        answers = {"a1": {"p1", "p3", "p4", "p6"}, "a2": {"p2"}, "a3": {"p1", "n3"}, "P2": {"p5", "p7"}}
        answers["same"] = {"p1"}
    embed = embedded(*(text for texts in rows.values() for text in texts if text))
    candidates = [*dict.fromkeys(text for name, texts in rows.items() if name != "anchor" for text in texts if text)]
    values = []
    for anchor, own in answers.items():
        others = [text for text in candidates if text not in own and text.lower() != anchor.lower()]
        near = {text: cosine(*embed([anchor, text])) for text in candidates}
        of_own = [1 + sum(near[other] >= near[positive] for other in others) for positive in own]
        values.append(np.mean([1 / rank for rank in of_own]))
    measure = own_positive("dev", rows)
    assert measure.size == len(values)
    np.testing.assert_allclose(measure.outcomes(embed), values)


def test_an_encoder_with_one_vector_for_all_texts_ranks_the_positive_last():
    rows = {"anchor": [f"a{i}" for i in range(5)], "positive": [f"p{i}" for i in range(5)]}
    flat = Embeddings([*rows["anchor"], *rows["positive"]], np.ones((10, 4), np.float32))
    np.testing.assert_allclose(own_positive("dev", rows).outcomes(flat), 1 / 5)
    labelled = {"anchor": rows["anchor"], "class": ["x", "x", "y", "y", "y"]}
    np.testing.assert_allclose(own_class("dev", labelled).outcomes(flat), [1 / 4] * 2 + [(1 / 3 + 2 / 4) / 2] * 3)


def test_the_average_precision_by_class_is_that_of_scikit_learn():
    labels = [i % 4 for i in range(30)] + [9]  # the last text is alone in its class, and no query
    rows = {"anchor": [f"t{i}" for i in range(31)], "class": list(map(str, labels))}
    embed = embedded(*rows["anchor"])
    expected = []
    for i in range(30):
        others = [j for j in range(31) if j != i]
        cosines = [cosine(*embed([f"t{i}", f"t{j}"])) for j in others]
        expected.append(average_precision_score([labels[j] == labels[i] for j in others], cosines))
    measure = own_class("dev", rows)
    assert measure.size == 30
    np.testing.assert_allclose(measure.outcomes(embed), expected)
    assert points(measure, embed) == pytest.approx(np.mean(expected))


# Reading


def pairs(count, start=0):
    return [(f"{WORDS[i % 16]} {i}", f"{WORDS[i * 5 % 16]} at {i}") for i in range(start, start + count)]


@pytest.fixture
def read(tmp_path):
    def call(data, dev=None, test=None, seed=0, **options):
        return read_parts(data, dev, test, seed, str(tmp_path), **options)

    return call


def test_a_fifth_of_the_rows_is_held_out_for_each_part_and_not_trained_on(read):
    found = read(pairs(100))
    assert found.sizes == {"train": 60, "dev": 20, "test": 20}
    assert found.kind is measures.PAIRS
    trained = {text for row in found.train.dataset for text in row.values()}
    measured = [text for measure in (found.dev, found.test) for text in measure.texts]
    assert len(trained) == 120
    assert len(set(measured)) == 80
    assert not trained & set(measured)
    assert read(pairs(3000)).sizes == {"train": 1900, **{part: min(600, most) for part, most in MOST_ROWS.items()}}


def test_given_parts_are_taken_as_they_are_and_half_of_dev_is_the_test_part(read):
    assert read(pairs(40), pairs(30, 100)).sizes == {"train": 40, "dev": 15, "test": 15}
    assert read(pairs(40), pairs(30, 100), pairs(20, 200)).sizes == {"train": 40, "dev": 30, "test": 20}
    assert read(pairs(60), test=pairs(20, 200)).sizes == {"train": 48, "dev": 12, "test": 20}
    sentences = [text for row in pairs(10) for text in row]
    found = read(sentences, pairs(30, 100))
    assert found.sizes == {"train": 20, "dev": 15, "test": 15}
    assert found.kind is measures.SENTENCES


def test_scores_are_trained_on_between_0_and_1_and_measured_as_they_are(read):
    rows = [(*pair, i % 9 - 4) for i, pair in enumerate(pairs(100))]
    found = read(rows)
    assert found.kind is measures.SCORED_PAIRS
    assert (min(found.train.dataset["score"]), max(found.train.dataset["score"])) == (0.0, 1.0)
    assert set(found.test.gold) <= set(range(-4, 5))
    binary = read([(*pair, i % 2) for i, pair in enumerate(pairs(200))])
    assert binary.test.statistic == "average_precision"


def test_every_part_has_texts_of_each_class_and_a_text_of_two_classes_is_in_one_part(read):
    texts = [f"{WORDS[i % 16]} {i}" for i in range(100)]
    rows = {"text": [*texts, texts[7].upper()], "class": [*(f"class {i % 5}" for i in range(100)), "class 4"]}
    found = read(rows)
    assert found.kind is measures.CLASSES
    assert found.sizes["dev"] == found.sizes["test"] == 20
    assert Counter(found.train.dataset["class"]).keys() == {f"class {i}" for i in range(5)}
    parts = {"train": found.train.dataset["anchor"], "dev": found.dev.texts, "test": found.test.texts}
    assert len([part for part, own in parts.items() if {texts[7], texts[7].upper()} & set(own)]) == 1
    assert found.test.size == 20


def test_held_out_classes_are_in_one_part_and_their_interval_covers_classes(read):
    """A text with two classes joins these classes; the rows of large classes are limited in every held-out part."""
    names = [f"class {i % 24}" for i in range(6_000)]
    rows = {"text": [f"{WORDS[i % 16]} {i}" for i in range(6_000)], "class": names}
    rows = {"text": [*rows["text"], rows["text"][0].upper()], "class": [*names, "class 1"]}
    parts = read(rows, hold_out="classes")
    train = set(parts.train.dataset["class"])
    assert parts.sizes["dev"] == 500 and parts.sizes["test"] == 1000 and parts.sizes["train"] > 3_000
    assert not train & {*parts.dev.classes, *parts.test.classes} and not {*parts.dev.classes} & {*parts.test.classes}
    assert len(parts.test.classes) in (6, 7)
    assert sum(bool({"class 0", "class 1"} & {*part}) for part in (train, parts.dev.classes, parts.test.classes)) == 1
    assert (parts.test.statistic, parts.test.resampled) == (BY_CLASS, "classes")
    dev = {"text": [f"dev {i}" for i in range(100)], "class": [f"new {i % 10}" for i in range(100)]}
    half = read(rows, dev, hold_out="classes")
    assert not {*half.dev.classes} & {*half.test.classes} and half.test.statistic == BY_CLASS
    assert read(rows).test.statistic == "mean"
    with pytest.raises(UserError, match="divides sentences by their classes, but data has"):
        read(pairs(100), hold_out="classes")


def test_rows_with_several_positives_and_negatives_are_pairs_and_no_part_has_a_text_of_another(read):
    rows = [(*pair, f"also {i // 2}", f"no {i}", f"not {i}") for i, pair in enumerate(pairs(100))]
    names = ["anchor", "positive_1", "positive_2", "negative_1", "negative_2"]  # two rows share a positive
    found = read({name: list(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)})
    assert found.kind is measures.PAIRS
    assert found.sizes == {"train": 60, "dev": 20, "test": 20}
    assert tuple(found.train.roles) == tuple(names)
    trained = {text for row in found.train.dataset for text in row.values()}
    assert len(found.dev.texts) == 20 + 20 + 10 + 20 + 20  # all hard negatives are candidates
    assert not trained & {*found.dev.texts, *found.test.texts} and not {*found.dev.texts} & {*found.test.texts}


def test_lists_of_different_lengths_stay_lists_of_their_rows(read):
    rows = {
        anchor: {"pos": [positive, *[f"also {i}"] * (i % 2)], "neg": [f"no {i} {k}" for k in range(i % 3)]}
        for i, (anchor, positive) in enumerate(pairs(100))
    }
    found = read([{"query": anchor, **row} for anchor, row in rows.items()])
    assert (found.kind, found.sizes) == (measures.PAIRS, {"train": 60, "dev": 20, "test": 20})
    for row in found.train.dataset:
        anchor = row.pop("anchor")
        assert [text for text in row.values() if text] == [*rows[anchor]["pos"], *rows[anchor]["neg"]]
    assert None not in found.dev.texts and len(found.train.dataset) == 60


def test_a_text_in_two_parts_is_found_with_its_place_in_both(read, tmp_path):
    def file(name, rows):
        (tmp_path / name).write_text("\n".join(map(",".join, [("anchor", "positive"), *rows])) + "\n")
        return tmp_path / name

    data, dev = file("data.csv", pairs(40)), file("dev.csv", [*pairs(20, 100), ("New", "FLUTE  at 16")])
    with pytest.raises(UserError, match=r"data\.csv, line 18: the text 'flute at 16' is also in .*dev\.csv, line 22"):
        read(data, dev)
    test = file("test.csv", [*pairs(20, 200), pairs(20, 100)[3]])
    with pytest.raises(
        UserError, match=r"test\.csv, line 22: .*dev\.csv, line 5, and 1 other text too; .*remove these"
    ):
        read(data, file("dev.csv", pairs(20, 100)), test)


REFUSED = [
    ((pairs(40),), "data has 40 rows, which leaves 8 for the test part, but 10 are needed"),
    (([("a", f"b {i}") for i in range(90)],), "stay together, here up to 90"),
    ((["a", "b"],), "give --dev with pairs"),
    ((["a", "b"], ["c", "d"]), "--dev has sentences without labels, on which nothing"),
    ((pairs(40), [(*pair, 3.5) for pair in pairs(30, 100)]), "--dev has scored pairs, but data has pairs"),
    (([(*pair, "neutral") for pair in pairs(60)],), "relations of pairs"),
    (([(*pair, 1.0) for pair in pairs(60)],), "have the score 1"),
    ((pairs(40), [*pairs(5, 100), *((f"x {i}", f"x {i}") for i in range(25))]), "2 queries, but 10 are needed"),
    (({"text": [f"x {i}" for i in range(90)], "class": ["a"] * 90},), "the dev part of data have the class 'a'"),
    (({"text": [f"x {i}" for i in range(90)], "class": [f"c {i}" for i in range(90)]},), "a text whose class has"),
    ((pairs(60), pairs(60)), "--dev has the same content as DATA; give other rows, or leave"),
    ((None,), "data is None; give a file"),
]


@pytest.mark.usefixtures("on_command_line")
def test_data_on_which_nothing_can_be_said_are_refused(read):
    for parts, message in REFUSED:
        with pytest.raises(UserError, match=re.escape(message)):
            read(*parts)
