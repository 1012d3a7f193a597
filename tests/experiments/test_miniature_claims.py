"""The miniature's claims and verdicts: against a bootstrap in loops, tests from textbooks, and Holm by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dcpcse.evaluation.significance import holm
from dcpcse.experiments.miniature.claims import CLAIMS, HIGHER, LENGTHS, LOWER, Claim
from dcpcse.experiments.miniature.measurement import RETRIEVAL, STS_TASKS, Measurement
from dcpcse.experiments.miniature.settings import VARIANTS
from dcpcse.experiments.miniature.verdicts import (
    FAILS,
    HOLDS,
    METRICS,
    NOT_RUN,
    OPEN,
    answer_claims,
)
from dcpcse.experiments.reproduction.published_rows import all_rows
from dcpcse.utils.errors import UserError

PAIRS = 40


def made_up_gold() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {task: np.round(np.clip(2.6 + 1.5 * random.normal(size=PAIRS), 0, 5) * 5) / 5 for task in STS_TASKS}


GOLD = made_up_gold()


def run_of(variant: str, seed: int | None, noise: float, random: np.random.Generator) -> Measurement:
    """A run whose cosines follow the gold scores with this much noise."""
    cosines = {
        task: np.tanh((gold + noise * random.normal(size=PAIRS)) / 5).astype(np.float32) for task, gold in GOLD.items()
    }
    scores = {task: 100 * stats.spearmanr(GOLD[task], cosines[task]).statistic for task in STS_TASKS}
    scores |= {"avg": float(np.mean(list(scores.values()))), "uniformity": -2 + noise + 0.1 * random.normal()}
    cosines[RETRIEVAL] = 1 / random.integers(1, 4, size=2 * 12).astype(np.float32)
    return Measurement(variant, seed, cosines, scores, 1.0, None if seed is None else 1e-3)


def runs_of(noises: dict[str, float], seed: int = 1) -> list[Measurement]:
    random = np.random.default_rng(seed)
    return [run_of(name, number, noise, random) for name, noise in noises.items() for number in VARIANTS[name].seeds]


ONE = Claim("one", "A paper", "Table 1", "better", "It is better.", "simcse", "dcpcse")


def test_a_claim_names_variants_and_published_rows_that_exist():
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert {claim.first, claim.second} <= set(VARIANTS), claim.key
        assert claim.metric in METRICS
        assert {row for row in claim.published if row} <= set(all_rows()), claim.key
        if claim.starred:
            assert VARIANTS[claim.first].starred and VARIANTS[claim.second].starred, claim.key
    assert set(LENGTHS.values()) <= set(VARIANTS)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_the_published_figures_are_on_the_claimed_side_and_in_the_sentence(claim):
    """A claim on the wrong side, or with the figure of another row, would be answered the wrong way round."""
    first, second = claim.figures
    for row, figure in zip(claim.published, claim.figures, strict=True):
        assert figure is None or any(f"{figure:.{digits}f}" in claim.says for digits in (2, 4)), row
    if first is not None and second is not None:
        low, high = claim.claimed
        assert low < second - first < high


def test_the_difference_is_that_of_a_plain_bootstrap():
    """Correlations of scipy's ranks of drawn pairs in a loop, and the sums of Obuchowski and Rockette."""

    def spearman(one, other):
        return np.corrcoef(stats.rankdata(one), stats.rankdata(other))[0, 1]

    measurements = runs_of({"simcse": 1.2, "dcpcse": 0.9, "untouched-cls": 1.5})
    claims = [ONE, replace(ONE, key="two", first="untouched-cls")]
    found = {one.claim.key: one for one in answer_claims(measurements, GOLD, claims, samples=25, seed=3)}
    drawn = {}
    for number, task in enumerate(STS_TASKS):
        random = np.random.default_rng([3, number])
        drawn[task] = [random.integers(PAIRS, size=PAIRS) for _ in range(25)]
    scores = {
        (run.variant, run.seed): np.array(
            [
                np.mean([spearman(GOLD[t][drawn[t][s]], run.similarities[t][drawn[t][s]]) for t in STS_TASKS])
                for s in range(25)
            ]
        )
        for run in measurements
    }
    observed = {(run.variant, run.seed): run.average / 100 for run in measurements}
    for key, first in {"one": "simcse", "two": "untouched-cls"}.items():
        sides = [[observed[name] for name in observed if name[0] == variant] for variant in (first, "dcpcse")]
        boots = [np.stack([scores[name] for name in scores if name[0] == variant]) for variant in (first, "dcpcse")]
        centred = [boot - boot.mean(axis=1, keepdims=True) for boot in boots]
        total = np.mean((centred[1].mean(axis=0) - centred[0].mean(axis=0)) ** 2)
        between, own, freedom = 0.0, 0.0, 0.0
        for values, boot in zip(sides, centred, strict=True):
            if len(values) > 1:  # the untouched encoder has no seeds
                own += np.mean(np.var(boot, axis=0, ddof=1)) / len(values)
                between += np.var(values, ddof=1) / len(values)
                freedom += (np.var(values, ddof=1) / len(values)) ** 2 / (len(values) - 1)
        variance = between + max(0, total - own)
        width = stats.t(variance**2 / freedom).ppf(0.975) * np.sqrt(variance)
        value = np.mean(sides[1]) - np.mean(sides[0])
        answer = found[key]
        assert (answer.value, answer.low, answer.high) == pytest.approx(
            (100 * value, 100 * (value - width), 100 * (value + width)), abs=1e-3
        )
        assert answer.p == pytest.approx(2 * stats.t(variance**2 / freedom).sf(value / np.sqrt(variance)), rel=1e-3)
        assert answer.covers == "pairs and seeds"
        assert answer.runs == (5 if key == "one" else 1, 5)


def test_uniformity_is_welchs_test_over_seeds():
    measurements = runs_of({"simcse": 0.3, "dcpcse": 0.9})
    (answer,) = answer_claims(measurements, GOLD, [replace(ONE, metric="uniformity")], samples=20)
    both = [[run.scores["uniformity"] for run in measurements if run.variant == name] for name in ("simcse", "dcpcse")]
    welch = stats.ttest_ind(both[1], both[0], equal_var=False)
    assert answer.p == pytest.approx(welch.pvalue, rel=1e-9)
    assert (answer.low, answer.high) == pytest.approx(tuple(welch.confidence_interval()), rel=1e-9)
    assert answer.covers == "seeds"


def test_alignment_and_recall_are_those_of_their_definitions():
    measurements = runs_of({"simcse": 0.3, "dcpcse": 0.9})
    claims = [replace(ONE, key=metric, metric=metric) for metric in ("alignment", "recall@1")]
    alignment, recall = answer_claims(measurements, GOLD, claims, samples=50)
    positive = GOLD["STSBenchmark"] > 4
    for place, name in enumerate(("simcse", "dcpcse")):
        runs = [run for run in measurements if run.variant == name]
        by_hand = np.mean([np.mean(2 - 2 * run.similarities["STSBenchmark"][positive]) for run in runs])
        assert alignment.scores[place] == pytest.approx(by_hand, rel=1e-6)
        first = [100 * np.mean(run.similarities[RETRIEVAL] == 1) for run in runs]
        assert recall.scores[place] == pytest.approx(np.mean(first), rel=1e-9)
    assert recall.covers == "queries and seeds" and recall.low < recall.value < recall.high


def test_the_queries_of_a_pair_are_drawn_together():
    """Two queries that always have the same rank count as one, so the interval does not shrink."""
    runs = runs_of({"simcse": 0.3, "dcpcse": 0.9})
    random = np.random.default_rng(0)
    once = {name: random.integers(1, 3, size=60) for name in ("simcse", "dcpcse")}  # all seeds find the same
    measured = [replace(run, similarities={RETRIEVAL: 1 / np.tile(once[run.variant], 2)}) for run in runs]
    (answer,) = answer_claims(measured, GOLD, [replace(ONE, metric="recall@1")], samples=2000)
    by_hand = stats.ttest_rel(*(1.0 * (once[name] == 1) for name in ("dcpcse", "simcse"))).confidence_interval()
    assert (answer.low, answer.high) == pytest.approx((100 * by_hand.low, 100 * by_hand.high), abs=1)


def test_a_verdict_is_read_off_the_interval_of_its_step_of_holm():
    noises = {"simcse": 2.5, "dcpcse": 0.5, "esimcse": 0.55, "dcpcse-mlm": 3.0, "scpcse": 0.5, "conpvp": 0.5}
    pairs = [("simcse", "dcpcse"), ("dcpcse", "dcpcse-mlm"), ("dcpcse", "esimcse"), ("scpcse", "conpvp")]
    claims = [replace(ONE, key=f"{first}-{second}", first=first, second=second) for first, second in pairs]
    claims.append(replace(claims[1], key="lower", claimed=LOWER))
    claims.append(replace(claims[2], key="level", claimed=(-30.0, 30.0)))
    claims.append(replace(claims[0], key="not level", claimed=(-1.0, 1.0)))
    answers = {one.claim.key: one for one in answer_claims(runs_of(noises), GOLD, claims, samples=100)}
    verdicts = {key: one.verdict for key, one in answers.items()}
    assert verdicts["simcse-dcpcse"] == HOLDS and verdicts["dcpcse-dcpcse-mlm"] == FAILS
    assert verdicts["lower"] == HOLDS and verdicts["not level"] == FAILS and verdicts["level"] == HOLDS
    assert verdicts["scpcse-conpvp"] == OPEN
    ordered = sorted(answers.values(), key=lambda one: one.p)
    assert [one.p_holm for one in answers.values()] == holm([one.p for one in answers.values()])
    open_yet = True
    for place, one in enumerate(ordered):
        level = 0.05 / (len(claims) - place)
        open_yet = open_yet and one.p < level
        assert (one.verdict != OPEN) == open_yet, "Holm's procedure, step by step"
        if open_yet:
            assert one.step_level == pytest.approx(1 - level)
        low, high = one.claim.claimed
        inside = low <= one.step_low and one.step_high <= high
        outside = one.step_high <= low or high <= one.step_low
        assert one.verdict == (HOLDS if inside else FAILS if outside else OPEN)
        assert one.step_low <= one.low <= one.value <= one.high <= one.step_high


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0, 4), (1.2, 30, 30)])
def test_families_without_differences_are_seldom_answered_and_large_ones_always(gain, least, most):
    """30 families of 5 claims, in which pairs, variants with pairs, and seeds have effects; some 5 % are answered."""
    random, names = np.random.default_rng(4), [name for name, one in VARIANTS.items() if one.method is not None]
    claims = [
        replace(ONE, key=first, first=first, second=second, metric="alignment", claimed=LOWER)
        for first, second in zip(names[:10:2], names[1:10:2], strict=True)
    ]
    gold, answered = {"STSBenchmark": np.full(PAIRS, 5.0)}, 0
    for _ in range(30):
        easy, runs = random.normal(size=PAIRS), []
        for place, name in enumerate(names[:10]):
            own = easy + 0.5 * random.normal(size=PAIRS) + gain * (place % 2)
            for seed in range(3):
                cosines = own + 0.2 * random.normal() + 0.5 * random.normal(size=PAIRS)
                runs.append(Measurement(name, seed, {"STSBenchmark": cosines.astype(np.float32)}, {}, 1.0))
        verdicts = {one.verdict for one in answer_claims(runs, gold, claims, samples=60)}
        assert FAILS not in verdicts or gain == 0
        answered += HOLDS in verdicts or FAILS in verdicts
    assert least <= answered <= most


def test_claims_without_units_are_not_run_and_have_a_p_value_of_1_for_holm():
    measurements = runs_of({"simcse": 2.5, "dcpcse": 0.5})
    claims = [ONE, replace(ONE, key="two", first="esimcse"), replace(ONE, key="three", first="untouched-cls")]
    missing = [run for run in measurements if run.variant != "simcse" or run.seed < 2]
    (alone,) = answer_claims(measurements, GOLD, [ONE], samples=50)
    first, second, third = answer_claims(measurements, GOLD, claims, samples=50)
    assert (alone.p_holm, alone.step_level) == (alone.p, pytest.approx(0.95))
    assert (first.p_holm, first.step_level) == pytest.approx((3 * alone.p, 1 - 0.05 / 3))
    assert (second.verdict, second.obstacle) == (NOT_RUN, "esimcse: 0 of 3 seeds")
    assert third.obstacle == "untouched-cls: not measured" and third.value is None
    (answer,) = answer_claims(missing, GOLD, [ONE], samples=50)
    assert answer.obstacle == "simcse: 2 of 3 seeds"
    assert {one.verdict for one in answer_claims([], GOLD, CLAIMS)} == {NOT_RUN}
    unranked = [
        replace(run, similarities={task: run.similarities[task] for task in STS_TASKS}) for run in measurements
    ]
    (answer,) = answer_claims(unranked, GOLD, [replace(ONE, metric="recall@1")], samples=50)
    assert answer.obstacle == "recall@1 of simcse: 0 of 3 seeds; recall@1 of dcpcse: 0 of 3 seeds"


def test_an_untrained_encoder_against_another_has_pairs_only():
    claim = replace(ONE, first="untouched-mean", second="untouched-template")
    (answer,) = answer_claims(runs_of({"untouched-mean": 3, "untouched-template": 0.5}), GOLD, [claim], samples=100)
    assert (answer.covers, answer.runs, answer.verdict) == ("pairs", (1, 1), HOLDS)


def test_measurements_of_other_data_are_refused():
    measurements = runs_of({"simcse": 1, "dcpcse": 1})
    shuffled = {task: gold[::-1] for task, gold in GOLD.items()}
    with pytest.raises(UserError, match="give the data that the units were measured on"):
        answer_claims(measurements, shuffled, [ONE], samples=20)
    with pytest.raises(UserError, match="STS12 has 40 cosines and 39 gold scores"):
        answer_claims(measurements, {**GOLD, "STS12": GOLD["STS12"][:-1]}, [ONE], samples=20)


def test_claims_about_pairs_that_cannot_be_resampled_are_not_run():
    few = {task: gold[:5] for task, gold in GOLD.items()}
    runs = runs_of({"simcse": 1, "dcpcse": 1})
    short = [replace(run, similarities={task: run.similarities[task][:5] for task in STS_TASKS}) for run in runs]
    claims = [ONE, replace(ONE, key="two", metric="uniformity")]
    first, second = answer_claims(short, few, claims, samples=20)
    assert (first.verdict, first.value) == (NOT_RUN, None)
    assert first.obstacle == "STS average: there are too few pairs (5); at least 10 are needed"
    assert second.value is not None and second.obstacle is None


def test_an_answer_is_json():
    answers = answer_claims(runs_of({"simcse": 2.5, "dcpcse": 0.5}), GOLD, [ONE, CLAIMS[0]], samples=50)
    first, second = json.loads(json.dumps([one.as_dict() for one in answers], allow_nan=False))
    assert first["claimed"] == [0.0, None] and first["verdict"] == HOLDS
    assert second["figures"] == [56.70, 78.49] and second["claimed"] == [HIGHER[0], None]
