import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.measure import statistics
from spark_build.measure.model import Effect
from spark_build.measure.statistics import contrast

FIRST = [100.0, 103.0, 98.0, 101.0, 99.5, 102.0, 97.0, 100.5, 101.5, 99.0]
SECOND = [103.1, 105.2, 102.3, 103.9, 101.0, 106.1, 100.2, 104.4, 103.8, 103.3]
rates = st.floats(1e6, 1e15)


def noisy(chance: random.Random, pairs: int, effect: float, noise: float) -> tuple[list[float], list[float]]:
    """Rates with `noise` as the relative standard deviation of every round."""
    first = [100 * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
    return first, [100 * (1 + effect) * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]


def test_against_scipy() -> None:
    from scipy import stats as reference

    seen = contrast(FIRST, SECOND, paired=True)
    a, b = np.log(FIRST), np.log(SECOND)
    logs = b - a
    # Yuen: one of ten left out at either end; the spread of the sample with those drawn in to their neighbours.
    mean = reference.trim_mean(logs, 0.1)
    drawn_in = np.asarray(reference.mstats.winsorize(logs, (0.1, 0.1)))
    error = drawn_in.std(ddof=1) * math.sqrt(9 / (8 * 7)) * math.sqrt(10 / 9)  # without replacement: n/(n-1)
    reach = reference.t.ppf(0.975, 7) * error
    assert seen.ratio == pytest.approx(math.exp(mean))
    assert seen.ci95 == pytest.approx((math.exp(mean - reach), math.exp(mean + reach)))
    assert seen.p == pytest.approx(2 * reference.t.sf(mean / error, 7))
    assert seen.rank_p == pytest.approx(reference.wilcoxon(logs).pvalue)
    limit = math.log(1.02)  # as far up as down
    assert seen.tost_p == pytest.approx(reference.t.cdf((mean - limit) / error, 7))
    assert seen.slower_p == pytest.approx(reference.t.cdf((mean + limit) / error, 7))
    assert seen.not_slower_p == pytest.approx(1 - seen.slower_p)
    assert statistics.differs(seen)
    assert not statistics.equivalent(seen)


def test_few_pairs_by_hand() -> None:
    # Ratios 1.1, 1.1, 1.1, 1.21: logs l, l, l, 2l with l = ln 1.1; mean 1.25 l, stdev 0.5 l. Nothing is left out.
    seen = contrast([10, 20, 30, 40], [11, 22, 33, 48.4], paired=True)
    unit = math.log(1.1)
    assert seen.ratio == pytest.approx(1.1**1.25)
    error = 0.5 * unit / 2 * math.sqrt(4 / 3)
    assert seen.ci95 == pytest.approx(
        [math.exp(1.25 * unit + sign * 3.182446305 * error) for sign in (-1, 1)]
    )
    assert seen.detectable == pytest.approx(math.expm1((3.182446305 + 0.978472312) * error))


def test_signs_by_hand() -> None:
    """Of 64 combinations two are as far from 0, or four that a balanced order's variance cannot tell apart."""
    assert statistics.sign_flips([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 64)
    assert statistics.sign_flips([0.5, 2, 3, 4, 5, 6]) == pytest.approx(4 / 64)
    assert statistics.sign_flips([1.0, -1.0] * 5) == 1
    assert statistics.sign_flips([3.0, 3.1] * 10) < 0.002  # more than EXACT: drawn


def test_one_slow_round_in_thirty_disarms_nothing() -> None:
    chance = random.Random(4)
    found = 0
    for _ in range(200):
        first, second = noisy(chance, 10, 0.03, 0.01)
        slow = chance.randrange(30)
        if slow < 20:
            (first if slow < 10 else second)[slow % 10] *= 0.6
        seen = contrast(first, second, paired=True)
        found += statistics.differs(seen) and seen.ratio > 1
    assert found / 200 >= 0.8


def test_ratios_up_and_down_are_as_far() -> None:
    """A ratio and its inverse are equivalent, or neither is; and 2% is 1.02 either way."""
    up, down = contrast(FIRST, [1.0195 * x for x in FIRST], paired=True), contrast(FIRST, FIRST, paired=True)
    assert statistics.equivalent(up)
    assert statistics.equivalent(contrast([1.0195 * x for x in FIRST], FIRST, paired=True))
    assert not statistics.equivalent(contrast([1.0201 * x for x in FIRST], FIRST, paired=True))
    assert down.slower_p == 1
    assert contrast(FIRST, [0.97 * x for x in FIRST], paired=True).slower_p < 0.001


def test_signed_rank_cannot_go_below_its_floor() -> None:
    assert statistics.wilcoxon([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 2**6)
    assert statistics.wilcoxon(range(1, 11)) == pytest.approx(2 / 2**10)


def test_a_claim_needs_both_tests() -> None:
    # Five pairs: the interval is far from 1, but no combination of five signs is rarer than 2/32.
    seen = contrast(FIRST[:5], [2 * value for value in SECOND[:5]], paired=True)
    assert seen.ci95[0] > 1
    assert seen.flip_p is not None
    assert seen.flip_p > statistics.ALPHA
    assert not statistics.differs(seen)


def test_without_any_spread() -> None:
    same = contrast([5.0] * 6, [5.0] * 6, paired=True)
    assert (same.ratio, same.ci95, same.p, same.flip_p, same.welch_p) == (1, (1, 1), 1, 1, 1)
    assert same.cohen_d is None
    assert statistics.equivalent(same)
    assert not statistics.differs(same)
    twice = contrast([5.0] * 6, [10.0] * 6, paired=True)
    assert statistics.differs(twice)
    assert twice.tost_p == 1


@pytest.mark.filterwarnings("ignore:Precision loss")  # samples without spread are among the examples
@settings(max_examples=25, deadline=None)  # exact tests on ties take their time
@given(st.lists(st.tuples(rates, rates), min_size=2, max_size=8))
def test_swapping_the_arms_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    there, back = (contrast(*two, paired=True) for two in ((first, second), (second, first)))
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ci95[0] * back.ci95[1] == pytest.approx(1, rel=1e-6)
    assert there.flip_p == pytest.approx(back.flip_p)
    assert statistics.differs(there) == statistics.differs(back)
    assert there.ci95[0] <= there.ratio * (1 + 1e-12)
    assert there.ratio <= there.ci95[1] * (1 + 1e-12)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_only_raises_and_keeps_the_order(values: list[float]) -> None:
    adjusted = statistics.holm(values)
    assert all(value <= corrected <= 1 for value, corrected in zip(values, adjusted, strict=True))
    ranked = sorted(zip(values, adjusted, strict=True))
    assert [high for _, high in ranked] == sorted(adjusted)


def test_holm_by_hand() -> None:
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx((0.06, 0.03, 0.06))
    assert statistics.holm([]) == ()


def test_one_pair_is_no_sample() -> None:
    with pytest.raises(ValueError, match="two or more"):
        contrast([1.0], [1.0], paired=True)


def test_drop_and_variation() -> None:
    assert statistics.drop([100, 100, 95, 95, 90, 90, 80, 80]) == pytest.approx(0.2)
    assert statistics.drop([7]) == 0
    assert statistics.variation([9, 10, 11]) == pytest.approx(0.1)


def test_the_detectable_difference_is_found_four_times_out_of_five() -> None:
    chance = random.Random(23)
    noise = 0.02
    effect = Effect(offset=0, error=noise * math.sqrt(2 / 9), freedom=7)  # as if none of ten were left out
    expected = statistics.smallest(effect)
    logs = [contrast(*noisy(chance, 10, expected, noise), paired=True) for _ in range(300)]
    assert 0.7 <= sum(each.ci95[0] > 1 for each in logs) / 300 <= 0.9
