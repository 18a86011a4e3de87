"""Contents and wording of the suite's reports."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from spark_build.events import Gate
from spark_build.measure.bounds import WORDS, Ceilings, RooflinePlace, ceilings, figures, places
from spark_build.measure.comparison import Trial, band_of, compare, from_bench, gates_of, overhead
from spark_build.measure.model import (
    JOULES,
    Bench,
    CaseChange,
    ClassChange,
    Compared,
    MemoryChange,
    Work,
)
from spark_build.measure.statistics import LEAST, quantile
from spark_build.text import format_quantity, format_size, three_digits

COLOURS = ("#3987e5", "#e8722c", "#5b9a3c", "#a469c9", "#b08a1e")  # readable on white and on near-black


@dataclass(frozen=True, kw_only=True)
class SuiteView:
    """A run as its report shows it: what follows from it is computed when it is asked for."""

    bench: Bench

    @cached_property
    def trial(self) -> Trial:
        """The values of each arm and case."""
        return from_bench(self.bench)

    @cached_property
    def compared(self) -> Compared:
        """Compare the arms."""
        return compare(self.trial)

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """The state of the machine."""
        return gates_of(self.bench)

    @cached_property
    def roofs(self) -> Ceilings:
        """The highest rates seen."""
        return ceilings(self.bench)

    @cached_property
    def places(self) -> dict[str, dict[str, RooflinePlace]]:
        """Places on the roofline by arm and case."""
        return {arm: places(self.bench, arm) for arm in self.arms}

    @cached_property
    def paint(self) -> dict[str, str]:
        """Colours of the arms."""
        return {arm: COLOURS[at % len(COLOURS)] for at, arm in enumerate(self.arms)}

    @property
    def arms(self) -> tuple[str, ...]:
        """Names, the baseline first."""
        return self.trial.arms

    @property
    def title(self) -> str:
        """Arms that are compared."""
        base, *others = self.arms
        return f"{', '.join(others)} against {base}" if others else base

    @property
    def rounds(self) -> str:
        """Number of rounds asked for."""
        pairs = self.bench.settings.pairs
        return f"{pairs} round{'s' if pairs > 1 else ''} of each arm"

    @property
    def fit(self) -> bool:
        """True when no gate failed and no round is invalid: only then ceilings bound anything."""
        spoilt = any(gate.status == "fail" for gate in self.gates)
        return not spoilt and not any(each.invalid for each in self.bench.rounds)

    @property
    def works(self) -> list[Work]:
        """The cases that any arm has a figure of."""
        known = {case for _, case in self.trial.values}
        return [work for work in self.bench.works if work.name in known]

    @property
    def remarks(self) -> list[str]:
        """Further remarks: on the run, and on what could not be compared."""
        left_out = [f"Left out: {line}" for line in self.compared.left_out]
        return [*self.bench.notes, *self.bench.breaks, *left_out]

    @property
    def sentences(self) -> list[Said]:
        """Sentences on top."""
        lines = headline_text(self.compared) or of_places(self.places[self.arms[0]])
        if lines:
            return lines
        if self.works:
            return [("", "No case lies on a roofline: each is held by what a plain one of its kind reaches.")]
        return [("unclear", "No case has a figure: nothing can be said.")]


Said = tuple[str, str]  # what was found, in one word; and a sentence


def of_class(change: ClassChange) -> str:
    """One sentence."""
    seen = change.contrast
    count = f"{len(change.cases)} case{'s' if len(change.cases) > 1 else ''}"
    word = WORDS[change.kind]
    start = f"{word[0].upper()}{word[1:]} work ({count}): {change.second}"
    of = f"ratio {seen}"
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
        f"{format_size(abs(second - first))} {more} {what} than {largest.first} "
        f"({format_size(second)} against {format_size(first)})."
    )


def finding_text(change: CaseChange) -> str:
    """Return the finding in a word; of a capacity, which is no speed, "more" or "less"."""
    if change.kind != "capacity" or change.finding not in ("faster", "slower"):
        return change.finding
    return "more" if (change.finding == "faster") != change.lower else "less"


def headline_text(compared: Compared) -> list[Said]:
    """Return the sentences on top: one for each class, then on memory."""
    kinds = list(WORDS)
    classes = sorted(compared.classes, key=lambda each: (each.second, kinds.index(each.kind)))
    lines: list[Said] = [(each.finding, of_class(each)) for each in classes]
    if not lines:
        words = [finding_text(each) for each in compared.changes]
        order = ("faster", "more", "equivalent", "slower", "less", "unclear")
        counts = [f"{words.count(word)} {word}" for word in order if word in words]
        count = f"{len(words)} case{'s' if len(words) > 1 else ''}"
        lines = [("", f"{count}: {', '.join(counts)}.")] if words else []
    return lines + [("unclear", line) for line in of_memory(compared.memory)]


SERVING = ("case", "arm", "time of", "p50", "p95", "p99", "tokens/s", "J/token", "peak memory", "KV cache")
TIMES = {"prefill": "first token", "generate": "next token"}  # TTFT and TPOT


def serving_rows(bench: Bench, trial: Trial) -> list[tuple[str, ...]]:
    """Return rows under SERVING: percentiles of single calls of the serving workload, cost, memory."""
    rows = []
    for work in bench.works:
        for arm in trial.arms:
            calls = trial.calls.get((arm, work.name), ())
            if work.mode not in TIMES or work.workload != "serving" or not calls:
                continue
            found = figures(bench, work.name, arm)
            joules = [each.facts[JOULES] for each in found if JOULES in each.facts]
            peak = max(each.peak.get("allocated", each.peak.get("rss", 0.0)) for each in found)
            kept, each_token = (found[0].facts.get(name, 0) for name in ("kv_bytes", "kv_bytes_per_token"))
            rows.append(
                (
                    work.name, arm, TIMES[work.mode],
                    *(format_quantity(quantile(calls, share), "s") for share in (0.5, 0.95, 0.99)),
                    three_digits(statistics.fmean(each.rate for each in found)),
                    three_digits(statistics.fmean(joules)) if joules else "unknown",
                    format_size(peak) if peak else "unknown",
                    f"{format_size(kept)} ({format_size(each_token)} a token)",
                )
            )  # fmt: skip
    return rows


def of_places(places: Mapping[str, RooflinePlace]) -> list[Said]:
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
