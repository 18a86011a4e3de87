"""Statistics of the suite against scipy and numpy, and how often its words are wrong."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.measure import statistics
from spark_build.measure.model import Effect
from spark_build.measure.statistics import contrast, finding, summary
from tests.helpers.simulated import MACHINES, judged_only, suite_finding, suite_share

FIRST = [100.0, 103.0, 98.0, 101.0, 99.5, 102.0, 97.0, 100.5, 101.5, 99.0]
SECOND = [103.1, 105.2, 102.3, 103.9, 101.0, 106.1, 100.2, 104.4, 103.8, 103.3]


def test_pairs_against_scipy() -> None:
    from scipy import stats as reference

    seen = contrast(FIRST, SECOND, paired=True)
    a, b = np.log(FIRST), np.log(SECOND)
    assert seen.welch_p == pytest.approx(reference.ttest_ind(b, a, equal_var=False).pvalue)
    assert seen.mann_whitney_p == pytest.approx(reference.mannwhitneyu(a, b).pvalue)
    assert seen.normal_p == pytest.approx(reference.shapiro(b - a).pvalue)
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert seen.cohen_d == pytest.approx((b.mean() - a.mean()) / pooled)


def test_equal_values_are_no_difference() -> None:
    """Of them SciPy 1.18 returns no number."""
    assert statistics.mann_whitney([1.0, 1.0], [1.0, 1.0, 1.0]) == 1.0


def test_two_runs_against_scipy() -> None:
    from scipy import stats as reference

    seen = contrast(FIRST, SECOND[:7], paired=False)
    a, b = np.log(FIRST), np.log(SECOND[:7])
    welch = reference.ttest_ind(b, a, equal_var=False)
    assert seen.counts == (10, 7)
    assert seen.ratio == pytest.approx(math.exp(b.mean() - a.mean()))
    assert seen.ci95 == pytest.approx(tuple(np.exp(welch.confidence_interval(0.95))))
    assert seen.p == seen.welch_p == pytest.approx(welch.pvalue)
    assert seen.rank_p == pytest.approx(reference.mannwhitneyu(a, b).pvalue)
    assert seen.normal_p == pytest.approx(min(reference.shapiro(a).pvalue, reference.shapiro(b).pvalue))
    # Two one-sided tests are the 90% interval within the margin.
    low, high = welch.confidence_interval(0.9)
    assert (seen.tost_p < 0.05) == (-math.log(1.02) < low and high < math.log(1.02))


def test_power_against_the_noncentral_t() -> None:
    from scipy import stats as reference

    for error, freedom in ((0.02, 9), (0.005, 5), (0.1, 2.7)):
        shift, limit = math.log1p(0.05) / error, reference.t.ppf(0.975, freedom)
        expected = reference.nct.sf(limit, freedom, shift) + reference.nct.cdf(-limit, freedom, shift)
        assert statistics.power_to_find(
            Effect(offset=0, error=error, freedom=freedom), 0.05
        ) == pytest.approx(expected, abs=1e-6)
    assert statistics.power_to_find(Effect(offset=0, error=0, freedom=9), 0.05) == 1
    assert statistics.power_to_find(Effect(offset=0, error=1e-6, freedom=9), 0.05) == 1
    assert contrast(FIRST, SECOND, paired=True).power == pytest.approx(1, abs=1e-3)


def test_a_difference_of_the_detectable_size_has_that_power() -> None:
    for error, freedom in ((0.01, 9), (0.03, 20)):
        effect = Effect(offset=0, error=error, freedom=freedom)
        assert statistics.power_to_find(effect, statistics.smallest(effect)) == pytest.approx(0.8, abs=0.01)


def test_summaries_against_numpy() -> None:
    chance = random.Random(3)
    values = [chance.lognormvariate(0, 0.3) for _ in range(137)]
    seen = summary(values)
    assert seen.count == 137
    assert seen.mean == pytest.approx(np.mean(values))
    assert seen.std == pytest.approx(np.std(values, ddof=1))
    expected = np.percentile(values, [50, 95, 99])
    assert (seen.median, seen.p95, seen.p99) == pytest.approx(tuple(expected))
    assert summary([7.0]).std is None
    assert summary([7.0]).p99 == 7


def test_normality_of_what_is_not_normal() -> None:
    assert statistics.normality([1.0, 1.0, 1.0]) is None
    assert statistics.normality([1.0, 2.0]) is None
    assert statistics.normality([0.0, 1.0] * 3000) is None  # the test is not made for so many
    skewed = statistics.normality([0.0, 0.01, 0.02, 0.01, 0.0, 0.02, 0.01, 5.0])
    assert skewed is not None
    assert skewed < 0.001


def test_three_launches_may_say_something_and_two_nothing() -> None:
    three = contrast([10.0, 10.1, 9.9], [20.1, 19.9, 20.0], paired=True)
    assert finding(three, three.p) == "faster"
    assert finding(three, 0.2) == "unclear"  # corrected for many others
    near = contrast([10.0, 10.1, 9.9], [10.8, 10.9, 10.7], paired=True)
    assert near.ci95[0] > 1
    assert finding(near, near.p) == "unclear"  # a wave could do that to three pairs
    mixed = contrast([10.0] * 5, [20.0, 20.1, 19.9, 20.0, 9.6], paired=True)
    assert mixed.ci95[0] > 1
    assert finding(mixed, mixed.p) == "unclear"  # one of five pairs points the other way
    two = contrast([10.0, 10.0001], [20.0, 20.0001], paired=True)
    assert two.p < 0.05
    assert finding(two, two.p) == "unclear"
    apart = contrast([10.0, 10.1, 9.9], [5.1, 4.9, 5.0], paired=False)
    assert finding(apart, apart.p) == "slower"
    same = contrast(FIRST, [value * 1.001 for value in FIRST], paired=True)
    assert finding(same, same.p) == "equivalent"
    with pytest.raises(ValueError, match="two or more"):
        contrast([1.0], [1.0, 2.0], paired=False)


values = st.lists(st.floats(1e-99, 1e99), min_size=2, max_size=6)


@pytest.mark.filterwarnings("ignore:Precision loss")  # samples without spread are among the examples
@settings(max_examples=80, deadline=None)
@given(values, values, st.booleans())
def test_whatever_is_measured_there_are_numbers(
    first: list[float], second: list[float], paired: bool
) -> None:
    if paired:
        second = (second * 3)[: len(first)]
    there, back = contrast(first, second, paired=paired), contrast(second, first, paired=paired)
    for seen in (there, back):
        found = (seen.ratio, *seen.ci95, seen.p, seen.rank_p, seen.tost_p, seen.detectable, seen.power)
        assert all(math.isfinite(value) for value in found)
        assert seen.ci95[0] <= seen.ratio * (1 + 1e-9)
        assert seen.ratio <= seen.ci95[1] * (1 + 1e-9)
        assert 0 <= seen.power <= 1
    assert there.ratio * back.ratio == pytest.approx(1)
    opposite = {"faster": "slower", "slower": "faster"}
    word, other = finding(there, there.p), finding(back, back.p)
    assert other == opposite.get(word, word)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("pairs", [3, 6, 10])
def test_the_same_twice_is_rarely_called_different(machine: str, pairs: int) -> None:
    """One time in twenty at most, in the order that the suite draws."""
    count = 200
    assert suite_share(MACHINES[machine], pairs, count) <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize("pairs", [3, 5, 8, 10, 13])
def test_what_is_left_out_of_simulations_decides_nothing(pairs: int) -> None:
    for machine in ("noisy", "drifting"):
        whole = [suite_finding(MACHINES[machine], pairs, seed) for seed in range(20)]
        with judged_only():
            assert whole == [suite_finding(MACHINES[machine], pairs, seed) for seed in range(20)]
