"""Statistics of paired and of two-sample measurements; the order in which they are made."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence

from spark_build.measure.model import Contrast, Effect, RateFinding, Slot, Summary

MARGIN = 0.02  # differences below this are not worth a word
ALPHA = 0.05
# A balanced order makes signs depend on each other: at 5% of flips, 5.8% of waves of six rounds would pass.
FLIPS = 0.04
POWER = 0.8
RANK_PAIRS = math.floor(math.log2(2 / ALPHA)) + 1  # with fewer the sign-flip test never reaches ALPHA
TRIM = 10  # one pair in so many is left out at either end
EXACT = 12  # pairs up to which all combinations of signs are tried
HUGE = 690.0  # logarithm of what a float can just hold, with room to spare


def differs(seen: Contrast) -> bool:
    """Return whether a difference may be claimed: the t-interval and the signed-rank test agree."""
    low, high = seen.ci95
    return (low > 1 or high < 1) and (seen.rank_p < ALPHA if seen.flip_p is None else seen.flip_p < FLIPS)


def equivalent(seen: Contrast) -> bool:
    """Return whether the two are shown to differ by less than the margin."""
    return seen.tost_p < ALPHA


def paired_effect(values: Sequence[float]) -> Effect:
    """Return the effect of paired log ratios: their mean without a tenth at either end (Yuen).

    So one slow round moves it little. A balanced order draws positions without replacement: what
    alternates with them varies by n/(n-1) more than in independent draws, and the standard error is
    widened by that.
    """
    count, cut = len(values), len(values) // TRIM
    ranked = sorted(values)
    kept = ranked[cut : count - cut]
    if kept[0] == kept[-1]:
        return Effect(offset=kept[0], error=0.0, freedom=len(kept) - 1)
    drawn_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    mean = statistics.fmean(drawn_in)
    squares = math.fsum((value - mean) ** 2 for value in drawn_in) / (len(kept) * (len(kept) - 1))
    return Effect(
        offset=statistics.fmean(kept), error=math.sqrt(squares * count / (count - 1)), freedom=len(kept) - 1
    )


def welch_effect(first: Sequence[float], second: Sequence[float]) -> Effect:
    """Effect of two independent samples of logarithms, second less first (Welch)."""
    a, b = standard_error(first) ** 2, standard_error(second) ** 2
    spread = a**2 / (len(first) - 1) + b**2 / (len(second) - 1)
    offset = statistics.fmean(second) - statistics.fmean(first)
    return Effect(offset=offset, error=math.sqrt(a + b), freedom=(a + b) ** 2 / spread if spread else 1.0)


def interval(effect: Effect) -> tuple[float, float]:
    """Return the t-based 95% confidence interval of an effect."""
    reach = _t_quantile(0.975, effect.freedom) * effect.error if effect.error else 0.0
    return effect.offset - reach, effect.offset + reach


def below(effect: Effect, limit: float) -> float:
    """One-sided p of the effect being `limit` or more; small: it is shown to lie below."""
    if effect.error == 0:
        return 0.0 if effect.offset < limit else 1.0
    return _t_below((effect.offset - limit) / effect.error, effect.freedom)


def above(effect: Effect, limit: float) -> float:
    """One-sided p of the effect being `limit` or less; small: it is shown to lie above."""
    return below(Effect(offset=-effect.offset, error=effect.error, freedom=effect.freedom), -limit)


def outside(effect: Effect) -> float:
    """Return the p of an effect of ±MARGIN or more (TOST); small: it is shown to lie within."""
    reach = math.log1p(MARGIN)
    return max(above(effect, -reach), below(effect, reach))


def two_sided(effect: Effect) -> float:
    """Two-sided p of an effect of 0."""
    if effect.error == 0:
        return 1.0 if effect.offset == 0 else 0.0
    return 2 * _t_below(-abs(effect.offset) / effect.error, effect.freedom)


def sign_flips(values: Sequence[float]) -> float:
    """Two-sided p of the trimmed mean among those with every combination of signs (drawn ones beyond EXACT).

    Exact for arms that differ in nothing, whatever the noise: which of a pair came first was drawn. It cannot
    go below 2/2^n.
    """
    import numpy as np

    logs, count = np.asarray(values), len(values)
    if count <= EXACT:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    else:
        signs = np.random.default_rng(0).choice((-1, 1), size=(2**EXACT, count))
        signs[0] = 1
    cut = count // TRIM
    means = np.abs(np.sort(signs * logs, axis=1)[:, cut : count - cut].mean(axis=1))
    seen = abs(paired_effect(values).offset) * math.sqrt((count - 1) / count)
    return float((means >= seen * (1 - 1e-12)).mean())


def wilcoxon(values: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test; it cannot go below 2/2^n."""
    from scipy import stats

    return float(stats.wilcoxon(values).pvalue) if any(values) else 1.0


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test."""
    from scipy import stats

    if len({*first, *second}) == 1:  # of equal values SciPy 1.18 knows none
        return 1.0
    return float(stats.mannwhitneyu(list(first), list(second)).pvalue)


def cohen_d(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return difference of the means in pooled standard deviations; None when nothing varies."""
    m, n = len(first), len(second)
    variance = ((m - 1) * statistics.variance(first) + (n - 1) * statistics.variance(second)) / (m + n - 2)
    if variance == 0:
        return None
    return (statistics.fmean(second) - statistics.fmean(first)) / math.sqrt(variance)


def smallest(effect: Effect) -> float:
    """Return the smallest relative difference that this standard error shows four times out of five.

    The usual approximation: (t at 97.5% + t at POWER) standard errors.
    """
    reach = _t_quantile(1 - ALPHA / 2, effect.freedom) + _t_quantile(POWER, effect.freedom)
    return math.expm1(min(reach * effect.error, HUGE))


def power_to_find(effect: Effect, difference: float) -> float:
    """Return the chance that a t-test finds a true relative difference at this standard error."""
    from scipy import stats

    if effect.error == 0:
        return 1.0
    freedom = effect.freedom
    shift, limit = math.log1p(difference) / effect.error, _t_quantile(1 - ALPHA / 2, freedom)
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
    """Return the value below which `share` of them are, linear between neighbours (numpy's default)."""
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
    """Return coefficient of variation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / statistics.fmean(values)


def drop(values: Sequence[float]) -> float:
    """Return relative loss from the first to the last quarter of a series; negative: it rose."""
    if len(values) < 2:
        return 0.0
    part = max(1, len(values) // 4)
    first = statistics.fmean(values[:part])
    return 1 - statistics.fmean(values[-part:]) / first


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


FEW_PAIRS = 1.1  # from fewer than RANK_PAIRS pairs nothing less is claimed: what comes and goes does as much
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
    return contrast_of_logs(list(map(math.log, first)), list(map(math.log, second)), paired=paired)


def contrast_of_logs(a: Sequence[float], b: Sequence[float], *, paired: bool) -> Contrast:
    """Return the contrast of two samples of log rates; paired: of log rates of the same visits."""
    logs = [y - x for x, y in zip(a, b, strict=True)] if paired else []
    effect = paired_effect(logs) if paired else welch_effect(a, b)
    low, high = interval(effect)
    ranks = mann_whitney(a, b)
    normal = [p for p in map(normality, (logs,) if paired else (a, b)) if p is not None]
    return Contrast(
        paired=paired,
        counts=(len(a), len(b)),
        ratio=_exp(effect.offset),
        ci95=(_exp(low), _exp(high)),
        p=two_sided(effect),
        rank_p=wilcoxon(logs) if paired else ranks,
        flip_p=sign_flips(logs) if paired else None,
        tost_p=outside(effect),
        slower_p=below(effect, -math.log1p(MARGIN)),
        not_slower_p=above(effect, -math.log1p(MARGIN)),
        welch_p=two_sided(welch_effect(a, b)),
        mann_whitney_p=ranks,
        normal_p=min(normal, default=None),
        cohen_d=cohen_d(a, b),
        detectable=smallest(effect),
        power=power_to_find(effect, POWER_AT),
    )


def _exp(value: float) -> float:
    """Return e to the power of `value`, bounded so that a float holds it."""
    return math.exp(max(-HUGE, min(HUGE, value)))


def finding(seen: Contrast, holm_p: float) -> RateFinding:
    """Return the finding in a word; `holm_p` is the corrected p of the t-test."""
    if min(seen.counts) < LEAST:
        return "unclear"
    if seen.tost_p < ALPHA:
        return "equivalent"
    if seen.paired and seen.counts[0] < RANK_PAIRS and 1 / FEW_PAIRS < seen.ratio < FEW_PAIRS:
        return "unclear"
    low, high = seen.ci95
    second, limit = (seen.rank_p, ALPHA) if seen.flip_p is None else (seen.flip_p, FLIPS)
    agrees = second <= max(limit, _floor(seen)) + 1e-9
    if (low > 1 or high < 1) and holm_p < ALPHA and agrees:
        return "faster" if seen.ratio > 1 else "slower"
    return "unclear"


def _floor(seen: Contrast) -> float:
    """Return the least p that the rank test can reach with so many launches."""
    first, second = seen.counts
    if first + second > 40:
        return 0.0
    return float(2 / 2**first if seen.paired else 2 / math.comb(first + second, first))


def balanced_order(arms: Sequence[str], pairs: int, seed: int, most: int = 0) -> tuple[Slot, ...]:
    """Return the places of `pairs` rounds of every arm, and of more up to `most`; a seed gives one order.

    Rows of a Williams design in random order: within a set of them every arm has every place and follows
    every other arm equally often, so that drift and what a round leaves behind cancel, and chance keeps what
    comes and goes with the rounds from favouring an arm. What is no whole set has rows with their reverse.
    Raises ValueError for arms that are not distinct.
    """
    if len(set(arms)) != len(arms) or not arms:
        raise ValueError(f"arms must be distinct and at least one: {list(arms)}")
    chance, slots = random.Random(seed), list[Slot]()
    rows: list[tuple[int, tuple[str, ...]]] = []
    for count in (pairs, most - pairs):
        wanted = len(rows) + max(0, count)
        while len(rows) < wanted:
            named = chance.sample(list(arms), len(arms))
            couples = list(_williams(len(arms)))
            chance.shuffle(couples)
            drawn = [row for couple in couples for row in chance.sample(couple, len(couple))]
            part = drawn[: wanted - len(rows)]
            chance.shuffle(part)
            block = rows[-1][0] + 1 if rows else 0
            rows += [(block, tuple(named[place] for place in row)) for row in part]
    for visit, (block, row) in enumerate(rows):
        slots += [
            Slot(index=len(slots) + at, visit=visit, block=block, arm=arm) for at, arm in enumerate(row)
        ]
    return tuple(slots)


def drawn_order(arms: Sequence[str], pairs: int, seed: int) -> tuple[Slot, ...]:
    """Return the places of `pairs` rounds of every arm, each round's order drawn by itself.

    Then no disturbance, periodic or not, favours an arm, and the sign-flip test is exact for any; a balanced
    order lets two rounds in a row share a wave's sign.
    """
    chance = random.Random(seed)
    drawn = [(visit, arm) for visit in range(pairs) for arm in chance.sample(list(arms), len(arms))]
    return tuple(Slot(index=at, visit=visit, block=visit, arm=arm) for at, (visit, arm) in enumerate(drawn))


def _williams(count: int) -> Iterator[list[tuple[int, ...]]]:
    """Rows of a Williams design for so many treatments, each with its reverse."""
    zigzag = [(place + 1) // 2 if place % 2 else -place // 2 for place in range(count)]
    for shift in range(count if count % 2 else count // 2):
        row = tuple((place + shift) % count for place in zigzag)
        yield [row, row[::-1]] if count > 1 else [row]
