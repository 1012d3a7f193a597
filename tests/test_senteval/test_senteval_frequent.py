"""Spearman without the most frequent tokens, averaged over the STS tasks, against naive loops."""

import json
from pathlib import Path

import numpy as np
import pytest
import senteval_tiny as small
from scipy.stats import spearmanr
from senteval import STS, STS_TASKS, TASK_SETS, evaluate, load_pairs
from senteval.errors import DataError

COUNTS = (1, 2, 5, 10, 20, 50, 100)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return small.write_tiny_data(tmp_path_factory.mktemp("data"))


def result_of(data, inside):
    settings = small.unofficial()
    return evaluate(small.hashed_encode, ["STS-frequent"], data, settings=settings, inside=inside).results[
        "STS-frequent"
    ]


def naive(data, task, embed):
    cosines, gold = [], []
    for pairs in load_pairs(task, data, "test", official=False):
        for first, second, score in zip(pairs.first, pairs.second, pairs.gold, strict=True):
            cosines.append(small.cosine(embed(first), embed(second)))
            gold.append(score)
    return 100 * spearmanr(cosines, gold).statistic


def test_the_average_is_that_of_the_seven_tasks_for_each_number_of_tokens(data):
    inside = small.FakeInside()
    found = result_of(data, inside).as_dict()
    assert list(found["without"]) == list(STS_TASKS)
    assert list(found["average_without"]) == [str(count) for count in (0, *COUNTS)]
    for count in (0, *COUNTS):
        embed = small.hashed_embedding if count == 0 else lambda text, count=count: inside.vector(text, count)
        expected = [naive(data, task, embed) for task in STS_TASKS]
        assert [found["without"][task][str(count)] for task in STS_TASKS] == pytest.approx(expected)
        assert found["average_without"][str(count)] == pytest.approx(np.mean(expected))
    assert json.loads(json.dumps(found)) == found
    # Every distinct sentence is encoded once per number, and tokens are counted in STS-B.
    every = {text for task in STS for one in load_pairs(task, data, "test", False) for text in one.first + one.second}
    (stsb,) = load_pairs("STSBenchmark", data, "test", official=False)
    assert [count for _, count, _ in inside.asked] == list(COUNTS)
    for sentences, _, counted in inside.asked:
        assert sorted(sentences) == sorted(every)
        assert counted == stsb.first + stsb.second


def test_numbers_with_which_nothing_remains_are_left_out(data):
    found = result_of(data, small.FakeInside(empty_from=10)).as_dict()
    assert list(found["average_without"]) == ["0", "1", "2", "5"]
    assert all(list(scores) == ["0", "1", "2", "5"] for scores in found["without"].values())


def test_the_task_needs_the_encoder_and_the_test_sets(data):
    with pytest.raises(DataError, match="STS-frequent removes tokens"):
        evaluate(small.hashed_encode, ["STS-frequent"], data, settings=small.unofficial())
    assert "has no dev split" in small.refusal_before_encoding(["STS-frequent"], data, "dev")
    assert TASK_SETS["frequent"] == ("STS-frequent",) and "STS-frequent" not in TASK_SETS["all"]
