"""Statistics of paired measurements. scipy is imported where it is used: start-up time.

Rates of one arm vary together with the machine, so everything is done on the log of the ratio of
the two rounds of a pair. A percentile bootstrap is not used: with ten pairs it claims a difference
in nearly 10% of A/A runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from spark_build.model.verification import Comparison

MARGIN = 0.02  # differences below this are not worth a word
ALPHA = 0.05
POWER = 0.8


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
    from scipy import stats

    mean, error = statistics.fmean(values), _standard_error(values)
    reach = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    return mean - reach, mean + reach


def t_test(values: Sequence[float], around: float = 0.0) -> float:
    """Two-sided p of a one-sample t-test."""
    from scipy import stats

    error = _standard_error(values)
    offset = statistics.fmean(values) - around
    if error == 0:
        return 1.0 if offset == 0 else 0.0
    return float(2 * stats.t.sf(abs(offset) / error, len(values) - 1))


def wilcoxon(values: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test; it cannot go below 2/2^n."""
    from scipy import stats

    if not any(values):
        return 1.0
    return float(stats.wilcoxon(list(values)).pvalue)


def tost(values: Sequence[float], margin: float = MARGIN) -> float:
    """p of two one-sided tests that exp(mean) lies outside 1 +- margin; small: equivalent."""
    from scipy import stats

    mean, error = statistics.fmean(values), _standard_error(values)
    low, high = math.log1p(-margin), math.log1p(margin)
    if error == 0:
        return 0.0 if low < mean < high else 1.0
    freedom = len(values) - 1
    above_low = float(stats.t.sf((mean - low) / error, freedom))
    below_high = float(stats.t.cdf((mean - high) / error, freedom))
    return max(above_low, below_high)


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of Welch's t-test for independent samples of unequal variance."""
    from scipy import stats

    if _standard_error(first) == 0 and _standard_error(second) == 0:
        return 1.0 if statistics.fmean(first) == statistics.fmean(second) else 0.0
    return float(stats.ttest_ind(list(first), list(second), equal_var=False).pvalue)


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
    from scipy import stats

    freedom = len(values) - 1
    reach = float(stats.t.ppf(1 - ALPHA / 2, freedom) + stats.t.ppf(power, freedom))
    return math.expm1(reach * _standard_error(values))


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


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
