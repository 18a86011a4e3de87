"""Two samples of launches held against each other, and the word that may be said about them.

With three launches of each arm no rank test can reach 5%, and with ten none survives a correction over
thirty cases. So the t-test carries the correction for being many, and the rank test must agree as far as
that many launches let it: every pair the same way where there are five or fewer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from spark_build.measure import statistics as measure_statistics
from spark_build.measure.comparing import Contrast, Finding, Summary

LEAST = 3  # launches of either arm before anything is claimed
POWER_AT = 0.05  # the relative difference for which the power is told


def summary(values: Sequence[float]) -> Summary:
    """Of one value or more."""
    return Summary(
        count=len(values),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        median=statistics.median(values),
        p95=measure_statistics.quantile(values, 0.95),
        p99=measure_statistics.quantile(values, 0.99),
    )


def contrast(first: Sequence[float], second: Sequence[float], *, paired: bool) -> Contrast:
    """Of positive values for which more is better; of pairs in their order.

    Raises ValueError for fewer than two of either, or pairs that are not complete.
    """
    if min(len(first), len(second)) < 2 or (paired and len(first) != len(second)):
        raise ValueError(f"need two or more launches of either arm, not {len(first)} and {len(second)}")
    a, b = [math.log(value) for value in first], [math.log(value) for value in second]
    logs = [y - x for x, y in zip(a, b, strict=True)] if paired else []
    error, freedom = (
        (measure_statistics.standard_error(logs), len(logs) - 1.0)
        if paired
        else measure_statistics.welch_error(a, b)
    )
    offset = statistics.fmean(b) - statistics.fmean(a)
    low, high = (
        measure_statistics.mean_interval(logs) if paired else measure_statistics.unpaired_interval(a, b)
    )
    ranks = measure_statistics.mann_whitney(a, b)
    normal = [p for p in map(measure_statistics.normality, (logs,) if paired else (a, b)) if p is not None]
    return Contrast(
        paired=paired,
        counts=(len(a), len(b)),
        ratio=_exp(offset),
        ci95=(_exp(low), _exp(high)),
        p=measure_statistics.two_sided(offset, error, freedom),
        rank_p=measure_statistics.wilcoxon(logs) if paired else ranks,
        tost_p=measure_statistics.outside(offset, error, freedom),
        welch_p=measure_statistics.welch(a, b),
        mann_whitney_p=ranks,
        normal_p=min(normal, default=None),
        cohen_d=measure_statistics.cohen_d(a, b),
        detectable=measure_statistics.smallest(error, freedom),
        power=measure_statistics.power_to_find(error, freedom, POWER_AT),
    )


def _exp(value: float) -> float:
    """Two launches that differ much have an interval that no float holds."""
    return math.exp(max(-measure_statistics.HUGE, min(measure_statistics.HUGE, value)))


def finding(seen: Contrast, holm_p: float) -> Finding:
    """The word; `holm_p` is the corrected p of the t-test."""
    if min(seen.counts) < LEAST:
        return "unclear"
    if seen.tost_p < measure_statistics.ALPHA:
        return "equivalent"
    low, high = seen.ci95
    agrees = seen.rank_p <= max(measure_statistics.ALPHA, _floor(seen)) + 1e-9
    if (low > 1 or high < 1) and holm_p < measure_statistics.ALPHA and agrees:
        return "faster" if seen.ratio > 1 else "slower"
    return "unclear"


def _floor(seen: Contrast) -> float:
    """The least p that the rank test can have with so many launches."""
    first, second = seen.counts
    if first + second > 40:
        return 0.0
    return float(2 / 2**first if seen.paired else 2 / math.comb(first + second, first))
