"""A comparison as values: cases, classes of work, memory, and what makes it doubtful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_build.measure.bench import Kind

Finding = Literal["faster", "slower", "equivalent", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A sample in the unit of its values."""

    count: int
    mean: float
    std: float | None  # of the sample; None for one value
    median: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """Two samples of launches. Ratios are second over first, above 1 is better; p-values two-sided."""

    paired: bool
    counts: tuple[int, int]  # launches of either; of pairs: twice the same
    ratio: float  # of the geometric means
    ci95: tuple[float, float]  # by t on log ratios, or by Welch where nothing pairs the launches
    p: float  # of the same test
    rank_p: float  # Wilcoxon's signed ranks for pairs, else Mann-Whitney
    tost_p: float  # small: within +-2%
    welch_p: float
    mann_whitney_p: float
    normal_p: float | None  # Shapiro-Wilk, of log ratios or of the less normal arm; None: too few
    cohen_d: float | None  # None without any spread
    detectable: float  # smallest relative difference found 4 times out of 5
    power: float  # chance to find a difference of 5%


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseChange:
    """One case in two arms."""

    case: str
    unit: str
    lower: bool  # a lower value is better
    kind: Kind | None
    first: str
    second: str
    values: tuple[Summary, Summary]  # one value for each launch, in `unit`
    calls: tuple[Summary | None, Summary | None]  # seconds of one call, over all launches
    ratios: tuple[float, ...]  # of each pair, or of each launch of the second to the first's mean
    contrast: Contrast
    holm_p: float  # corrected over all cases of the two arms
    finding: Finding
    overhead: float  # percent of time that the second takes more; negative: less
    overhead95: tuple[float, float]
    band: str  # of `overhead`


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassChange:
    """All cases that the same part of the device bounds; every case counts the same."""

    kind: Kind
    first: str
    second: str
    cases: tuple[str, ...]
    contrast: Contrast
    holm_p: float  # corrected over the classes
    finding: Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChange:
    """One kind of memory that one case needs more of in one arm than in the other."""

    case: str
    what: str  # allocated, reserved, rss, ...
    first: str
    second: str
    values: tuple[float, float]  # geometric means, bytes
    holm_p: float
    finding: str  # "same speed, different memory", or "different memory" where speed is not the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """All that may be said of two or more arms."""

    arms: tuple[str, ...]  # the first is the baseline
    paired: bool
    indicative: bool  # few launches, or a quick run
    changes: tuple[CaseChange, ...]
    classes: tuple[ClassChange, ...]
    memory: tuple[MemoryChange, ...]
    doubts: tuple[str, ...]  # why nothing of it may be claimed
    left_out: tuple[str, ...] = ()  # cases that one side lacks or has in another unit, and why
    notes: tuple[str, ...] = ()
