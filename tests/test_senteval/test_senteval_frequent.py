"""Spearman without the most frequent tokens, averaged over the STS tasks, against naive loops."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from senteval import STS, STS_TASKS, TASK_SETS, evaluate, load_pairs, tasks_of_set
from senteval.errors import DataError
from senteval_tiny import (
    FakeInside,
    hashed_embedding,
    hashed_encode,
    refusal_before_encoding,
    unofficial,
    write_tiny_data,
)

COUNTS = (1, 2, 5, 10, 20, 50, 100)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tiny_data(tmp_path_factory.mktemp("data"))


def result_of(data, inside):
    settings = unofficial()
    return evaluate(hashed_encode, ["STS-frequent"], data, settings=settings, inside=inside).results["STS-frequent"]


def naive(data, task, embed):
    cosines, gold = [], []
    for pairs in load_pairs(task, data, "test", official=False):
        for first, second, score in zip(pairs.first, pairs.second, pairs.gold, strict=True):
            one, other = embed(first), embed(second)
            cosines.append(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
            gold.append(score)
    return 100 * spearmanr(cosines, gold).statistic


def test_the_average_is_that_of_the_seven_tasks_for_each_number_of_tokens(data):
    inside = FakeInside()
    found = result_of(data, inside).as_dict()
    assert list(found["without"]) == list(STS_TASKS)
    assert list(found["average_without"]) == [str(count) for count in (0, *COUNTS)]
    for count in (0, *COUNTS):
        embed = hashed_embedding if count == 0 else lambda text, count=count: inside.vector(text, count)
        expected = [naive(data, task, embed) for task in STS_TASKS]
        assert [found["without"][task][str(count)] for task in STS_TASKS] == pytest.approx(expected)
        assert found["average_without"][str(count)] == pytest.approx(np.mean(expected))
    assert json.loads(json.dumps(found)) == found


def test_every_distinct_sentence_is_encoded_once_per_number_and_tokens_are_counted_in_stsb(data):
    inside = FakeInside()
    result_of(data, inside)
    every = {text for task in STS for one in load_pairs(task, data, "test", False) for text in one.first + one.second}
    (stsb,) = load_pairs("STSBenchmark", data, "test", official=False)
    assert [count for _, count, _ in inside.asked] == list(COUNTS)
    for sentences, _, counted in inside.asked:
        assert sorted(sentences) == sorted(every)
        assert counted == stsb.first + stsb.second


def test_numbers_with_which_nothing_remains_are_left_out(data):
    found = result_of(data, FakeInside(empty_from=10)).as_dict()
    assert list(found["average_without"]) == ["0", "1", "2", "5"]
    assert all(list(scores) == ["0", "1", "2", "5"] for scores in found["without"].values())


def test_the_task_needs_the_encoder_and_the_test_sets(data):
    with pytest.raises(DataError, match="STS-frequent removes tokens"):
        evaluate(hashed_encode, ["STS-frequent"], data, settings=unofficial())
    assert "has no dev split" in refusal_before_encoding(["STS-frequent"], data, "dev")
    with pytest.raises(DataError, match="frequent has a dev split"):
        tasks_of_set("frequent", "dev")
    assert TASK_SETS["frequent"] == ("STS-frequent",) and "STS-frequent" not in TASK_SETS["all"]
