"""Statistics of paired and of two-sample measurements."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence

from spark_build.measure.model import Comparison, Contrast, Finding, Summary

MARGIN = 0.02  # differences below this are not worth a word
ALPHA = 0.05
POWER = 0.8
RANK_PAIRS = math.floor(math.log2(2 / ALPHA)) + 1  # with fewer the signed-rank test never reaches ALPHA
HUGE = 690.0  # logarithm of what a float can just hold, with room to spare


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare paired positive rates (any unit); raises ValueError for fewer than two pairs."""
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"need two or more complete pairs, not {len(first)} and {len(second)}")
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    low, high = mean_interval(logs)
    a, b = [math.log(value) for value in first], [math.log(value) for value in second]
    return Comparison(
        pairs=len(logs),
        ratio=math.exp(statistics.fmean(logs)),
        ci95=(math.exp(low), math.exp(high)),
        t_p=t_test(logs),
        wilcoxon_p=wilcoxon(logs),
        tost_p=tost(logs),
        welch_p=welch(a, b),
        mann_whitney_p=mann_whitney(a, b),
        cohen_d=cohen_d(a, b),
        detectable=detectable(logs),
    )


def differs(comparison: Comparison) -> bool:
    """Whether a difference may be claimed: the t-interval and the signed-rank test agree."""
    low, high = comparison.ci95
    return (low > 1 or high < 1) and comparison.wilcoxon_p < ALPHA


def equivalent(comparison: Comparison) -> bool:
    """Whether the two are shown to differ by less than the margin."""
    return comparison.tost_p < ALPHA


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """t-based confidence interval of the mean."""
    mean, error = statistics.fmean(values), standard_error(values)
    reach = _t_quantile((1 + level) / 2, len(values) - 1) * error
    return mean - reach, mean + reach


def t_test(values: Sequence[float], around: float = 0.0) -> float:
    """Two-sided p of a one-sample t-test."""
    return two_sided(statistics.fmean(values) - around, standard_error(values), len(values) - 1)


def two_sided(offset: float, error: float, freedom: float) -> float:
    """Two-sided p of an offset with this standard error."""
    if error == 0:
        return 1.0 if offset == 0 else 0.0
    return 2 * _t_below(-abs(offset) / error, freedom)


def wilcoxon(values: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test; it cannot go below 2/2^n."""
    if not any(values):
        return 1.0
    sizes = sorted(map(abs, values))
    if sizes[0] == 0 or any(small == large for small, large in itertools.pairwise(sizes)):
        return _signed_rank(tuple(values))
    # Without ties only the order of sizes and the signs count: equal questions are asked once.
    ordered = sorted(values, key=abs)
    return _signed_rank(tuple(math.copysign(rank, value) for rank, value in enumerate(ordered, 1)))


@functools.lru_cache(maxsize=4096)
def _signed_rank(values: tuple[float, ...]) -> float:
    from scipy import stats

    return float(stats.wilcoxon(values).pvalue)


def tost(values: Sequence[float], margin: float = MARGIN) -> float:
    """p of two one-sided tests that exp(mean) lies outside 1 +- margin; small: equivalent."""
    return outside(statistics.fmean(values), standard_error(values), len(values) - 1, margin)


def outside(offset: float, error: float, freedom: float, margin: float = MARGIN) -> float:
    """The same of a log ratio with this standard error."""
    low, high = math.log1p(-margin), math.log1p(margin)
    if error == 0:
        return 0.0 if low < offset < high else 1.0
    return max(_t_below((low - offset) / error, freedom), _t_below((offset - high) / error, freedom))


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of Welch's t-test for independent samples of unequal variance."""
    error, freedom = welch_error(first, second)
    return two_sided(statistics.fmean(first) - statistics.fmean(second), error, freedom)


def unpaired_interval(
    first: Sequence[float], second: Sequence[float], level: float = 0.95
) -> tuple[float, float]:
    """Welch's confidence interval of the difference of the means, second less first."""
    error, freedom = welch_error(first, second)
    offset = statistics.fmean(second) - statistics.fmean(first)
    reach = _t_quantile((1 + level) / 2, freedom) * error if error else 0.0
    return offset - reach, offset + reach


def welch_error(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """(standard error of the difference of the means, degrees of freedom)."""
    a, b = standard_error(first) ** 2, standard_error(second) ** 2
    if a + b == 0:
        return 0.0, 1.0
    return math.sqrt(a + b), (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test."""
    from scipy import stats

    return float(stats.mannwhitneyu(list(first), list(second)).pvalue)


def cohen_d(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Difference of the means in pooled standard deviations; None when nothing varies."""
    m, n = len(first), len(second)
    variance = ((m - 1) * statistics.variance(first) + (n - 1) * statistics.variance(second)) / (m + n - 2)
    if variance == 0:
        return None
    return (statistics.fmean(second) - statistics.fmean(first)) / math.sqrt(variance)


def detectable(values: Sequence[float], power: float = POWER) -> float:
    """Smallest relative difference that this spread and number of pairs would show.

    The usual approximation: (t at 97.5% + t at `power`) standard errors.
    """
    return smallest(standard_error(values), len(values) - 1, power)


def smallest(error: float, freedom: float, power: float = POWER) -> float:
    """The same of a log ratio with this standard error."""
    reach = _t_quantile(1 - ALPHA / 2, freedom) + _t_quantile(power, freedom)
    return math.expm1(min(reach * error, HUGE))


def power_to_find(error: float, freedom: float, effect: float) -> float:
    """Chance that a t-test finds a true relative difference at this standard error (noncentral t)."""
    from scipy import stats

    if error == 0:
        return 1.0
    shift, limit = math.log1p(effect) / error, _t_quantile(1 - ALPHA / 2, freedom)
    power = float(stats.nct.sf(limit, freedom, shift))
    # Far out the series does not converge: there the answer is 1.
    return 1.0 if math.isnan(power) else min(1.0, power + float(stats.nct.cdf(-limit, freedom, shift)))


def normality(values: Sequence[float]) -> float | None:
    """p of the Shapiro-Wilk test; None for fewer than 3 values, more than 5000, or without any spread."""
    from scipy import stats

    if not 3 <= len(values) <= 5000 or standard_error(values) == 0:
        return None
    # Around 0 and of unit size: values that differ in late digits only lose them in the test.
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    return float(stats.shapiro([(value - mean) / spread for value in values]).pvalue)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, linear between neighbours (numpy's default)."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down correction, in the order given."""
    ranked = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, index in enumerate(ranked):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return tuple(adjusted)


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / statistics.fmean(values)


def drop(values: Sequence[float]) -> float:
    """Relative loss from the first to the last quarter of a series; negative: it rose."""
    if len(values) < 2:
        return 0.0
    part = max(1, len(values) // 4)
    first = statistics.fmean(values[:part])
    return 1 - statistics.fmean(values[-part:]) / first


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive values."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def standard_error(values: Sequence[float]) -> float:
    """Of the mean."""
    if min(values) == max(values):
        return 0.0
    mean, count = statistics.fmean(values), len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)


def _t_below(value: float, freedom: float) -> float:
    """Student's distribution function; scipy.special, because scipy.stats takes 100 times as long."""
    from scipy import special

    return float(special.stdtr(freedom, value))


def _t_quantile(level: float, freedom: float) -> float:
    from scipy import special

    return float(special.stdtrit(freedom, level))


LEAST = 3  # launches of either arm before anything is claimed
POWER_AT = 0.05  # the relative difference for which the power is told


def summary(values: Sequence[float]) -> Summary:
    """Of one value or more."""
    return Summary(
        count=len(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        median=statistics.median(values),
        p95=quantile(values, 0.95),
        p99=quantile(values, 0.99),
    )


def contrast(first: Sequence[float], second: Sequence[float], *, paired: bool) -> Contrast:
    """Of positive values for which more is better; of pairs in their order.

    Raises ValueError for fewer than two of either, or pairs that are not complete.
    """
    if min(len(first), len(second)) < 2 or (paired and len(first) != len(second)):
        raise ValueError(f"need two or more launches of either arm, not {len(first)} and {len(second)}")
    a, b = [math.log(value) for value in first], [math.log(value) for value in second]
    logs = [y - x for x, y in zip(a, b, strict=True)] if paired else []
    error, freedom = (standard_error(logs), len(logs) - 1.0) if paired else welch_error(a, b)
    offset = statistics.fmean(b) - statistics.fmean(a)
    low, high = mean_interval(logs) if paired else unpaired_interval(a, b)
    ranks = mann_whitney(a, b)
    normal = [p for p in map(normality, (logs,) if paired else (a, b)) if p is not None]
    return Contrast(
        paired=paired,
        counts=(len(a), len(b)),
        ratio=_exp(offset),
        ci95=(_exp(low), _exp(high)),
        p=two_sided(offset, error, freedom),
        rank_p=wilcoxon(logs) if paired else ranks,
        tost_p=outside(offset, error, freedom),
        welch_p=welch(a, b),
        mann_whitney_p=ranks,
        normal_p=min(normal, default=None),
        cohen_d=cohen_d(a, b),
        detectable=smallest(error, freedom),
        power=power_to_find(error, freedom, POWER_AT),
    )


def _exp(value: float) -> float:
    """Two launches that differ much have an interval that no float holds."""
    return math.exp(max(-HUGE, min(HUGE, value)))


def finding(seen: Contrast, holm_p: float) -> Finding:
    """The word; `holm_p` is the corrected p of the t-test."""
    if min(seen.counts) < LEAST:
        return "unclear"
    if seen.tost_p < ALPHA:
        return "equivalent"
    low, high = seen.ci95
    agrees = seen.rank_p <= max(ALPHA, _floor(seen)) + 1e-9
    if (low > 1 or high < 1) and holm_p < ALPHA and agrees:
        return "faster" if seen.ratio > 1 else "slower"
    return "unclear"


def _floor(seen: Contrast) -> float:
    """The least p that the rank test can have with so many launches."""
    first, second = seen.counts
    if first + second > 40:
        return 0.0
    return float(2 / 2**first if seen.paired else 2 / math.comb(first + second, first))
