"""What was found, in sentences for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from spark_build.measure.bands import band_of, overhead
from spark_build.measure.bounds import WORDS, Place
from spark_build.measure.comparing import ClassChange, Compared, Contrast, MemoryChange
from spark_build.measure.contrast import LEAST
from spark_build.text import size

Said = tuple[str, str]  # what was found, in one word; and a sentence


def interval(seen: Contrast) -> str:
    """Ratio and 95% interval."""
    return f"{seen.ratio:.3f} [{seen.ci95[0]:.3f}, {seen.ci95[1]:.3f}]"


def of_class(change: ClassChange) -> str:
    """One sentence."""
    seen = change.contrast
    count = f"{len(change.cases)} case{'s' if len(change.cases) > 1 else ''}"
    word = WORDS[change.kind]
    start = f"{word[0].upper()}{word[1:]} work ({count}): {change.second}"
    of = f"ratio {interval(seen)}"
    if change.finding == "equivalent":
        return f"{start} is as fast as {change.first} within 2% ({of})."
    if change.finding == "faster":
        return f"{start} is {seen.ratio:.2f} times as fast as {change.first} ({of})."
    if change.finding == "slower":
        percent = overhead(seen.ratio)
        longer = f"{percent:.1f}% longer than" if percent < 100 else f"{1 / seen.ratio:.1f} times as long as"
        return f"{start} takes {longer} {change.first}, band {band_of(percent).name} ({of})."
    could = f"; about {seen.detectable:.1%} could have been told" if seen.detectable < 1 else ""
    if min(seen.counts) < LEAST:
        could = f"; fewer than {LEAST} launches of each decide nothing"
    return f"{start} against {change.first} is unclear ({of}{could})."


def of_memory(changes: Sequence[MemoryChange]) -> list[str]:
    """One sentence for each kind of memory: the case with the largest difference, and how many more."""
    groups: dict[tuple[str, str, str], list[MemoryChange]] = {}
    for each in changes:
        groups.setdefault((each.finding, each.what, each.second), []).append(each)
    # "same speed, ..." first: it is a finding of its own.
    return [_of_group(groups[key]) for key in sorted(groups, reverse=True)]


def _of_group(changes: Sequence[MemoryChange]) -> str:
    largest = max(changes, key=lambda each: abs(each.values[1] - each.values[0]))
    first, second = largest.values
    more = "more" if second > first else "less"
    named = largest.what if "mem" in largest.what.lower() else f"{largest.what} memory"
    what = {"rss": "memory of the process"}.get(largest.what, named)
    others = (
        f" and {len(changes) - 1} other case{'s' if len(changes) > 2 else ''}" if len(changes) > 1 else ""
    )
    return (
        f"{largest.finding.capitalize()}: on {largest.case}{others} {largest.second} needs up to "
        f"{size(abs(second - first))} {more} {what} than {largest.first} "
        f"({size(second)} against {size(first)})."
    )


def headline(compared: Compared) -> list[Said]:
    """The sentences on top: one for each class, then of memory."""
    order = list(WORDS)
    classes = sorted(compared.classes, key=lambda each: (each.second, order.index(each.kind)))
    lines: list[Said] = [(each.finding, of_class(each)) for each in classes]
    if not lines:
        words = [each.finding for each in compared.changes]
        counts = [
            f"{words.count(word)} {word}"
            for word in ("faster", "equivalent", "slower", "unclear")
            if word in words
        ]
        count = f"{len(words)} case{'s' if len(words) > 1 else ''}"
        lines = [("", f"{count}: {', '.join(counts)}.")] if words else []
    return lines + [("unclear", line) for line in of_memory(compared.memory)]


def of_places(places: Mapping[str, Place]) -> list[Said]:
    """One environment alone: what bounds the cases, and how near to the roof they come."""
    lines: list[Said] = []
    for kind, word in WORDS.items():
        shares = [each.share for each in places.values() if each.kind == kind and each.share is not None]
        if shares:
            middle = statistics.median(shares)
            count = f"{len(shares)} case{'s reach' if len(shares) > 1 else ' reaches'}"
            text = f"{word[0].upper()}{word[1:]} work: {count} {middle:.0%} of what the device was seen to do"
            lines.append(("", f"{text} (median)." if len(shares) > 1 else f"{text}."))
    return lines
