"""What holds for the scores of any numbers, by examples that hypothesis draws (tests/profiles.py)."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import profiles  # noqa: F401 - sets how many examples are drawn
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from senteval.clustering import matched_accuracy
from senteval.data import ScoredPairs
from senteval.errors import DataError
from senteval.lines import read_lines, single_blanks
from senteval.retrieval import answer_ranks
from senteval.scores import Correlation, correlate, cosine, score_task, similarities, unit_rows

GRADES = st.integers(-3, 3).map(float)
"""Few values, so that many tie."""

NUMBERS = st.floats(-9, 9, allow_subnormal=False, width=32)


def columns(count: int, least: int, elements: st.SearchStrategy = GRADES | NUMBERS) -> st.SearchStrategy:
    """So many arrays of one length."""
    lengths = st.integers(least, 12)
    return lengths.flatmap(lambda size: st.tuples(*[arrays(np.float64, size, elements=elements)] * count))


def mean_ranks(values: np.ndarray) -> list[float]:
    """Ranks by counting: those below, and the middle of those that tie."""
    return [sum(other < one for other in values) + (sum(other == one for other in values) + 1) / 2 for one in values]


def pearson(a, b) -> float:
    a, b = ([x - math.fsum(side) / len(side) for x in side] for side in (a, b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@given(both=columns(2, 2))
def test_correlations_are_those_of_values_and_of_mean_ranks(both):
    similarity, gold = both
    assume(np.ptp(similarity) > 1e-3 and np.ptp(gold) > 1e-3)
    found = correlate("any", similarity, gold)
    assert found.pearson == pytest.approx(pearson(similarity, gold), abs=1e-9)
    assert found.spearman == pytest.approx(pearson(mean_ranks(similarity), mean_ranks(gold)), abs=1e-9)
    assert found.spearman == pytest.approx(stats.spearmanr(similarity, gold).statistic, abs=1e-12)
    assert found.nsamples == len(gold)


@given(value=NUMBERS, size=st.integers(2, 9))
def test_equal_similarities_have_no_correlation(value, size):
    for similarity in (np.full(size, value), 1 + np.arange(size) * 1e-16):  # those that differ by rounding alone
        with pytest.raises(DataError, match="same similarity"):
            correlate("any", similarity, np.arange(size))


def pairs(gold: np.ndarray, name: str = "set") -> ScoredPairs:
    texts = [f"text {i}" for i in range(len(gold))]
    return ScoredPairs(name, texts, texts, gold, Path("file"), list(range(1, len(gold) + 1)), (Path("file"),))


SIDES = st.integers(2, 8).flatmap(lambda n: st.tuples(*[arrays(np.float32, (n, 3), elements=NUMBERS)] * 2))


@given(sides=SIDES, data=st.data())
def test_similarities_are_cosines_or_a_line_about_the_row(sides, data):
    first, second = sides
    row = data.draw(st.integers(0, len(first) - 1))
    usable = [bool(one.any()) for side in sides for one in side]
    if not all(usable):
        zeros = [i + 1 for side in sides for i, one in enumerate(side) if not one.any()]
        with pytest.raises(DataError, match=f"^file:({'|'.join(map(str, zeros))}): any set: .* is all zeros"):
            similarities("any", pairs(np.arange(len(first))), first, second)
        return
    lengths = [math.hypot(*map(float, one)) for side in sides for one in side]
    assume(min(lengths) > 1e-3)
    found = similarities("any", pairs(np.arange(len(first))), first, second)
    for one, a, b in zip(found, first.astype(float), second.astype(float), strict=True):
        assert one == pytest.approx(math.fsum(a * b) / math.hypot(*a) / math.hypot(*b), abs=1e-9)
    np.testing.assert_allclose(cosine(1e30 * first.astype(float), 1e-30 * second.astype(float)), found, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(unit_rows(first), axis=1), 1, atol=1e-12)
    sides[data.draw(st.integers(0, 1))][row, 1] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    with pytest.raises(DataError, match=f"file:{row + 1}: .*not finite"):
        similarities("any", pairs(np.arange(len(first))), first, second)


@given(sets=st.lists(columns(2, 2), min_size=1, max_size=3))
def test_a_task_is_scored_by_set_together_and_averaged(sets):
    assume(all(np.ptp(side) > 1e-3 for both in sets for side in both))
    subsets = [pairs(gold, f"set {i}") for i, (_, gold) in enumerate(sets)]
    found = score_task("task", "test", subsets, [similarity for similarity, _ in sets])
    assert found == score_task("task", "test", subsets, [similarity.copy() for similarity, _ in sets])
    assert "array" not in repr(found)
    alone = [correlate("x", similarity, gold) for similarity, gold in sets]
    assert list(found.subsets.values()) == alone
    together = [np.concatenate(side) for side in zip(*sets, strict=True)]
    assert found.all == correlate("x", *together)
    assert (found.score, found.points) == (found.all.spearman, 100 * found.all.spearman)
    sizes = [one.nsamples for one in alone]
    for kind, weights in ((found.mean, [1] * len(sizes)), (found.wmean, sizes)):
        for name in ("pearson", "spearman"):
            expected = math.fsum(w * getattr(one, name) for w, one in zip(weights, alone, strict=True)) / sum(weights)
            assert getattr(kind, name) == pytest.approx(expected, abs=1e-12)
        assert isinstance(kind, Correlation)
        assert kind.nsamples == sum(sizes)
    shown = found.as_senteval()
    assert json.loads(json.dumps(shown)) == shown and list(shown) == [*found.subsets, "all"]
    assert all(shown[name] == vars(one) for name, one in found.subsets.items())
    for name in ("pearson", "spearman"):
        averages = {kind: getattr(getattr(found, kind), name) for kind in ("all", "mean", "wmean")}
        assert shown["all"][name] == averages


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=8), data=st.data())
def test_matched_accuracy_is_that_of_the_best_of_all_matchings(labels, data):
    clusters = data.draw(st.lists(st.integers(0, 3), min_size=len(labels), max_size=len(labels)))
    best = max(
        sum(matching[cluster] == label for cluster, label in zip(clusters, labels, strict=True))
        for matching in itertools.permutations(range(4))
    )
    found = matched_accuracy(np.array(labels), np.array(clusters))
    assert found == pytest.approx(best / len(labels))
    renamed = data.draw(st.permutations(range(4)))
    assert matched_accuracy(np.array(labels), np.array([renamed[one] for one in clusters])) == pytest.approx(found)


@given(data=st.data())
def test_the_rank_of_an_answer_counts_the_rivals_before_it(data):
    count = data.draw(st.integers(2, 7))
    texts = data.draw(st.lists(st.sampled_from("abcde"), min_size=count, max_size=count))
    vectors = data.draw(arrays(np.float64, (count, 2), elements=st.integers(-2, 2).map(float)))
    assume(all(one.any() for one in vectors))
    queries = [(q, a) for q in range(count) for a in range(count) if texts[q] != texts[a]]
    assume(queries)

    def near(one: int, other: int) -> float:
        return math.fsum(vectors[one] * vectors[other]) / math.hypot(*vectors[one]) / math.hypot(*vectors[other])

    for (query, answer), rank in zip(queries, answer_ranks(texts, vectors, queries), strict=True):
        rivals = [row for row in range(count) if row != query and texts[row] != texts[answer]]
        assert rank == 1 + sum(near(query, row) >= near(query, answer) - 1e-9 for row in rivals)


@given(content=st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_lines_or_a_line_about_the_byte(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    for or_latin1 in (False, True):
        try:
            lines = read_lines(path, or_latin1, with_blank_end=True)
        except DataError as error:
            assert f"{path}:" in str(error)
            continue
        assert [line.number for line in lines] == list(range(1, len(lines) + 1))
        body = content.removeprefix(b"\xef\xbb\xbf")
        assert len(lines) == body.count(b"\n") + (body != b"" and not body.endswith(b"\n"))
        assert not any("\n" in line.text for line in lines)
        last = max((line.number for line in lines if line.text.strip()), default=0)
        assert read_lines(path, or_latin1) == lines[:last]


@given(text=st.text(max_size=20))
def test_single_blanks_are_single(text):
    found = single_blanks(text)
    assert found.split(" ") == text.split() or not text.split()
    assert single_blanks(found) == found


def test_cosines_are_exact_for_equal_rows_and_in_full_precision_for_others():
    rows = np.random.default_rng(7).standard_normal((500, 33)).astype(np.float32)
    assert set(cosine(rows, rows.copy()).tolist()) == {1.0}
    first, second = np.full((1, 4), 200, dtype=np.float16), np.array([[200, 200, 200, 100]], dtype=np.float16)
    np.testing.assert_allclose(cosine(first, second), [7 / math.sqrt(4 * 13)], rtol=1e-14)
    assert unit_rows(np.array([[0, 0, 0], [3, 0, 4]])).tolist() == [[0, 0, 0], [0.6, 0, 0.8]]
