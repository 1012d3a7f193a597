"""How sure a difference is: the paired bootstrap, against simulations whose answer is known."""

import numpy as np
import pytest
from scipy.stats import kstest, spearmanr
from senteval.bootstrap import Scored, gain


def simulated(seed: int, pairs: int, *noise: float) -> list[np.ndarray]:
    """Gold scores, and the similarities of encoders that see them through noise of these deviations."""
    random = np.random.default_rng(seed)
    gold = random.normal(size=pairs)
    return [gold, *(gold + deviation * random.normal(size=pairs) for deviation in noise)]


def test_the_value_is_the_difference_of_scipys_correlations_averaged_over_sets():
    sets = [simulated(seed, 60 + 40 * seed, 1.5, 0.8) for seed in (0, 1)]
    found = gain([Scored(*one) for one in sets], samples=20)
    each = [spearmanr(gold, after).statistic - spearmanr(gold, before).statistic for gold, before, after in sets]
    assert found.value == pytest.approx(np.mean(each), abs=1e-12)


def test_runs_of_an_encoder_are_averaged():
    gold, before, first, second = simulated(2, 80, 1.0, 0.9, 0.5)
    found = gain([Scored(gold, before, np.stack([first, second]))], samples=20)
    mean = np.mean([spearmanr(gold, run).statistic for run in (first, second)])
    assert found.value == pytest.approx(mean - spearmanr(gold, before).statistic, abs=1e-12)


def test_resamples_are_those_of_a_plain_loop():
    gold, before, after = simulated(3, 40, 1.0, 0.7)
    found = gain([Scored(gold, before, after)], samples=200, seed=5)
    random = np.random.default_rng(5)
    drawn = [random.integers(40, size=40) for _ in range(200)]
    gains = [spearmanr(gold[d], after[d]).statistic - spearmanr(gold[d], before[d]).statistic for d in drawn]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(gains, [0.025, 0.975])), abs=1e-12)
    assert found.p == 2 * (1 + min(sum(g <= 0 for g in gains), sum(g >= 0 for g in gains))) / 201


def test_the_interval_holds_the_gain_and_narrows_with_the_pairs():
    widths = []
    for pairs in (100, 1600):
        found = gain([Scored(*simulated(3, pairs, 1.5, 0.8))], samples=400)
        assert found.low < found.value < found.high
        widths.append(found.high - found.low)
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.5)


def test_equal_models_with_independent_noise_give_uniform_p():
    found = [gain([Scored(*simulated(seed, 60, 1.0, 1.0))], samples=199, seed=seed).p for seed in range(300)]
    assert kstest(found, "uniform").pvalue > 0.01
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.09


def test_plainly_different_models_give_a_small_p():
    assert gain([Scored(*simulated(0, 500, 1.0, 0.5))], samples=999).p == pytest.approx(2 / 1000)


def test_no_difference_has_an_interval_around_zero_and_p_1():
    gold, noisy = simulated(4, 200, 1.0)
    found = gain([Scored(gold, noisy, noisy)], samples=50)
    assert (found.value, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_what_cannot_be_resampled_is_refused():
    gold, before, after = simulated(5, 30, 1.0, 1.0)
    with pytest.raises(ValueError, match="the same length"):
        Scored(gold, before[:-1], after)
    with pytest.raises(ValueError, match="too few pairs"):
        gain([Scored(gold[:2], before[:2], after[:2])], samples=50)


@pytest.mark.parametrize("side", ["gold", "before", "after"])
def test_a_side_of_another_length_is_refused(side):
    sides = dict.fromkeys(("gold", "before", "after"), np.arange(4.0)) | {side: np.arange(3.0)}
    with pytest.raises(ValueError, match="three arrays of the same length"):
        Scored(**sides)
