import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from spark_build.measure import statistics

FIRST = [100.0, 103.0, 98.0, 101.0, 99.5, 102.0, 97.0, 100.5, 101.5, 99.0]
SECOND = [103.1, 105.2, 102.3, 103.9, 101.0, 106.1, 100.2, 104.4, 103.8, 103.3]
rates = st.floats(1e6, 1e15)


def noisy(chance: random.Random, pairs: int, effect: float, noise: float) -> tuple[list[float], list[float]]:
    """Rates with `noise` as the relative standard deviation of every round."""
    first = [100 * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
    return first, [100 * (1 + effect) * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]


def test_against_scipy() -> None:
    seen = statistics.compare(FIRST, SECOND)
    a, b = [math.log(value) for value in FIRST], [math.log(value) for value in SECOND]
    logs = [y - x for x, y in zip(a, b, strict=True)]
    paired = reference.ttest_rel(b, a)
    low, high = paired.confidence_interval(0.95)
    assert seen.ratio == pytest.approx(reference.gmean(SECOND) / reference.gmean(FIRST))
    assert seen.ci95 == pytest.approx((math.exp(low), math.exp(high)))
    assert seen.t_p == pytest.approx(paired.pvalue)
    assert seen.wilcoxon_p == pytest.approx(reference.wilcoxon(logs).pvalue)
    assert seen.welch_p == pytest.approx(reference.ttest_ind(b, a, equal_var=False).pvalue)
    assert seen.mann_whitney_p == pytest.approx(reference.mannwhitneyu(a, b).pvalue)
    above = reference.ttest_1samp(logs, math.log(0.98), alternative="greater").pvalue
    below = reference.ttest_1samp(logs, math.log(1.02), alternative="less").pvalue
    assert seen.tost_p == pytest.approx(max(above, below))
    assert statistics.differs(seen)
    assert not statistics.equivalent(seen)


def test_by_hand() -> None:
    # Ratios 1.1, 1.1, 1.1, 1.21: logs l, l, l, 2l with l = ln 1.1; mean 1.25 l, stdev 0.5 l.
    seen = statistics.compare([10, 20, 30, 40], [11, 22, 33, 48.4])
    unit = math.log(1.1)
    assert seen.ratio == pytest.approx(1.1**1.25)
    reach = 3.182446305 * 0.5 * unit / 2  # t(97.5%, 3), standard error stdev / sqrt(4)
    assert seen.ci95 == pytest.approx((math.exp(1.25 * unit - reach), math.exp(1.25 * unit + reach)))
    assert seen.detectable == pytest.approx(math.expm1((3.182446305 + 0.978472312) * 0.25 * unit))


def test_signed_rank_cannot_go_below_its_floor() -> None:
    assert statistics.wilcoxon([1, 2, 3, 4, 5, 6]) == pytest.approx(2 / 2**6)
    assert statistics.wilcoxon(range(1, 11)) == pytest.approx(2 / 2**10)


def test_a_claim_needs_both_tests() -> None:
    # Five pairs: the interval is far from 1, but the signed-rank test cannot go below 2/32.
    seen = statistics.compare(FIRST[:5], [2 * value for value in SECOND[:5]])
    assert seen.ci95[0] > 1
    assert seen.wilcoxon_p > statistics.ALPHA
    assert not statistics.differs(seen)


def test_without_any_spread() -> None:
    same = statistics.compare([5.0] * 6, [5.0] * 6)
    assert (same.ratio, same.ci95, same.t_p, same.wilcoxon_p, same.welch_p) == (1, (1, 1), 1, 1, 1)
    assert same.cohen_d is None
    assert statistics.equivalent(same)
    assert not statistics.differs(same)
    twice = statistics.compare([5.0] * 6, [10.0] * 6)
    assert statistics.differs(twice)
    assert twice.tost_p == 1


@pytest.mark.filterwarnings("ignore:Precision loss")  # samples without spread are among the examples
@settings(max_examples=25, deadline=None)  # exact tests on ties take their time
@given(st.lists(st.tuples(rates, rates), min_size=2, max_size=8))
def test_swapping_the_arms_inverts_the_ratio(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    there, back = statistics.compare(first, second), statistics.compare(second, first)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ci95[0] * back.ci95[1] == pytest.approx(1, rel=1e-6)
    assert there.wilcoxon_p == pytest.approx(back.wilcoxon_p)
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
        statistics.compare([1.0], [1.0])


def test_drop_and_variation() -> None:
    assert statistics.drop([100, 100, 95, 95, 90, 90, 80, 80]) == pytest.approx(0.2)
    assert statistics.drop([7]) == 0
    assert statistics.variation([9, 10, 11]) == pytest.approx(0.1)


def test_the_detectable_difference_is_found_four_times_out_of_five() -> None:
    chance = random.Random(23)
    expected = statistics.detectable([0.02 * sign for sign in (1, -1) * 5])  # stdev about 0.021
    noise = 0.02 * math.sqrt(10 / 9) / math.sqrt(2)
    logs = [statistics.compare(*noisy(chance, 10, expected, noise)) for _ in range(400)]
    assert 0.72 <= sum(each.ci95[0] > 1 for each in logs) / 400 <= 0.88
