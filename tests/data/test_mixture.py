"""Several training sets: which rows are a batch, and which data can be trained on together."""

from collections import Counter
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import BatchSampler

from dcpcse.data.mixture import MixedDataset, TrainingSets, by_name, is_several, make_mixture
from dcpcse.data.sampling import CompactRandomSampler, MixedSampler, NoDuplicatesSampler
from dcpcse.utils.distributed import DistributedBatchSampler, step_sizes
from dcpcse.utils.errors import UserError

PAIRS = [(f"p {i}", f"of p {i}") for i in range(23)]
TRIPLETS = {"a": [f"t {i}" for i in range(10)], "b": [f"of t {i}" for i in range(10)], "c": ["no"] * 10}
SEVERAL = {
    "query": [f"s {i}" for i in range(6)],
    **{f"pos_{k}": [f"of s {i} {k}" for i in range(6)] for k in range(1, 4)},
    **{f"neg_{k}": [f"not s {i} {k}" for i in range(6)] for k in range(1, 3)},
}
ROLES = ("positive", "negative", "negative_1", "negative_2")
SETS = {"pairs": PAIRS, "triplets": TRIPLETS, "several": SEVERAL}


@pytest.fixture
def sets(load) -> TrainingSets:
    return TrainingSets.of({name: load(data) for name, data in SETS.items()})


@pytest.fixture
def mixed(sets) -> MixedDataset:
    return make_mixture(sets, 5)[1]


def batches(dataset, epoch, batch=4, processes=1, *, weights=None, distinct=False, drop_last=False):
    """The batches of an epoch, as examples; of several processes, the shares one after another."""
    sizes = [step_sizes(len(part), batch, processes, drop_last) for part in dataset.parts]
    kinds = [
        NoDuplicatesSampler(p, s, 7) if distinct else CompactRandomSampler(p, data_seed=7)
        for p, s in zip(dataset.parts, sizes, strict=True)
    ]
    sampler = MixedSampler(dataset, kinds, sizes, weights, 7)
    sampler.set_epoch(epoch)
    steps = DistributedBatchSampler(BatchSampler(sampler, batch, drop_last), processes)
    shares = list(steps)
    assert len(steps) == len(shares)
    return [dataset.__getitems__(share) for share in shares]


def name_of(batch) -> str:
    (name,) = {example["anchor"][0] for example in batch}  # all examples are of one set
    return name


def test_every_row_is_in_one_batch_of_its_set_in_every_epoch_and_the_order_is_drawn(mixed):
    orders = []
    for epoch in range(3):
        made = batches(mixed, epoch)
        assert Counter(map(name_of, made)) == {"p": 6, "t": 3, "s": 2}
        assert sorted(map(len, made)) == [2, 2, 3, *[4] * 8]  # 23, 10 and 6 rows in batches of 4
        examples = list(chain(*made))
        assert sorted(example["row"] for example in examples) == list(range(39))
        assert {example["epoch"] for example in examples} == {epoch}
        orders.append([name_of(batch) for batch in made])
    assert len(set(map(tuple, orders))) == 3
    assert len(batches(mixed, 0, drop_last=True)) == 5 + 2 + 1
    theirs = SeedableRandomSampler(range(23), data_seed=7)  # the order within a set is that of a run on it alone
    assert [e["row"] for e in chain(*batches(mixed, 0)) if e["row"] < 23] == list(theirs)


def test_examples_have_the_sentences_of_their_set_with_shared_roles(mixed, sets):
    """The only negative of a set is the first of those of another one; positives are drawn anew in each epoch."""
    drawn = set()
    for epoch in range(3):
        for example in chain(*batches(mixed, epoch)):
            anchor, row = example["anchor"], int(example["anchor"][2:])
            texts = {name: text for name, text in example.items() if name in ROLES}
            if anchor[0] == "p":
                assert texts == {"positive": f"of p {row}"}
            elif anchor[0] == "t":
                assert texts == {"positive": f"of t {row}", "negative_1": "no"}
            else:
                drawn.add(texts.pop("positive"))
                assert texts == {f"negative_{k}": f"not s {row} {k}" for k in (1, 2)}
            name = mixed.name_of(example["row"])
            assert name[0] == anchor[0]
            if epoch == 0:
                (place,) = sets.locate([example["row"]])
                assert (place["set"], place["row"], place["anchor"]) == (name, row, anchor)
    with pytest.raises(IndexError, match="row 1000 is after the last row"):
        sets.locate([1000])
    assert 5 < len(drawn) <= 18 and all(text.startswith("of s ") for text in drawn)


def test_the_batches_of_two_processes_are_those_of_one_with_the_double_batch(mixed):
    for options in ({}, {"weights": [1, 1, 4]}):
        one, two = batches(mixed, 1, 4, **options), batches(mixed, 1, 2, 2, **options)
        joined = [first + second for first, second in zip(two[::2], two[1::2], strict=True)]
        assert [[e["row"] for e in batch] for batch in joined] == [[e["row"] for e in batch] for batch in one]
        for step in zip(two[::2], two[1::2], strict=True):
            assert all(example["counts"] == tuple(map(len, step)) for batch in step for example in batch)


def test_weights_divide_the_batches_and_a_small_set_comes_again_in_another_order_with_other_positives(mixed):
    weights, counts, orders = [2, 0.5, 7.5], Counter(), set()
    for epoch in range(40):
        made = batches(mixed, epoch, weights=weights)
        names = Counter(map(name_of, made))
        assert sum(names.values()) == 11
        for name, weight in zip("pts", weights, strict=True):
            assert abs(names[name] - 1.1 * weight) < 1
        counts.update(names)
        rows = [tuple(example["row"] for example in batch) for batch in made if name_of(batch) == "s"]
        for first, second in zip(rows[::2], rows[1::2], strict=False):  # two batches are the six rows
            assert sorted(first + second) == list(range(33, 39))
            orders.add(first + second)
    assert len(orders) > 100
    for name, weight in zip("pts", weights, strict=True):  # 3 standard deviations of a rounding
        assert abs(counts[name] / 40 - 1.1 * weight) < 3 * 0.5 / 40**0.5
    passes = [{e["row"]: e["positive"] for e in batch} for batch in batches(mixed, 0, weights=[0, 0, 1])]
    assert len({chosen[33] for chosen in passes if 33 in chosen}) > 1


def test_without_duplicates_no_batch_has_a_sentence_twice(load):
    repeated = [(f"a {i % 7}", f"p {i}") for i in range(30)]
    data = TrainingSets.of({"x": load(repeated), "y": load(PAIRS)})
    for weights in (None, [1, 1]):
        for batch in batches(make_mixture(data, 5)[1], 2, weights=weights, distinct=True):
            assert len({example["anchor"] for example in batch}) == len(batch)


def test_classes_and_scores_of_all_sets_are_summed_up(load, caplog):
    one = load({"a": ["u", "v"], "b": ["w", "x"], "score": [0.5, 5.0]})
    other = load({"a": ["y", "z"], "b": ["w", "x"], "score": [-1, 1]})
    columns, _ = make_mixture(TrainingSets.of({"one": one, "other": other}), 5)
    assert (columns, columns.scores) == (("anchor", "positive", "score"), (-1, 5))
    assert "the largest scores of the training sets differ: 5 (one), 1 (other)" in caplog.text
    words = [load({"text": list("uvwx"), "class": [*names]}) for names in ("rrgg", "bbgg")]
    columns, _ = make_mixture(TrainingSets.of(dict(enumerate(words))), 5)
    assert columns.classes == ("b", "g", "r")


def test_other_columns_than_hard_negatives_are_refused(load):
    for others, found in ((["a", "b"], "anchor"), ([("u", "w", 1.0), ("v", "x", 2.0)], "anchor, positive, score")):
        with pytest.raises(
            UserError, match=rf"(has the columns|but another has) {found}.*differ only in the number of h"
        ):
            make_mixture(TrainingSets.of({"pairs": load(PAIRS), "others": load(others)}), 5)


def test_a_dict_is_several_sets_if_none_of_its_values_is_a_column():
    frame = pd.DataFrame(TRIPLETS)
    for data in ({"x": PAIRS, "y": frame}, {"x": "a.csv"}, {"x": SETS}, {"x": iter(PAIRS)}, {"x": np.array(PAIRS)}):
        assert is_several(data)
    for data in (TRIPLETS, PAIRS, frame, frame["a"], {}, {"text": ["a"], "class": [1]}, {"x": frame["a"]}):
        assert not is_several(data)
    assert by_name(["a/b.csv.gz"]) == "a/b.csv.gz"
    assert by_name(["a/b.csv.gz", "c.jsonl"]) == {"b": "a/b.csv.gz", "c": "c.jsonl"}
    assert by_name(["a/b.csv", "c/b.csv"]) == {"a/b.csv": "a/b.csv", "c/b.csv": "c/b.csv"}
