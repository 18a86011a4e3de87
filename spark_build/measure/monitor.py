"""Turn progress lines of an arm into events; read throttle reasons."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_build.events import Emit, Event, Gate, MachineSeen, RateSeen, RoundFinished, RoundStarted
from spark_build.machine import REASONS, THROTTLING
from spark_build.measure.model import Launch, Sample, Slot, Telemetry

Judge = Callable[[Sequence[Any]], tuple[Gate, ...]]


class ArmMonitor:
    """Emits what a watcher wants to know. `cases`: as the arm calls them -> as people do."""

    def __init__(self, cases: Mapping[str, str], judge: Judge, emit: Emit) -> None:
        self._cases, self._judge, self._emit = cases, judge, emit
        self._first: Sample | None = None

    def begin(self, slot: Slot) -> None:
        """Start watching a round."""
        self._first = None
        self._emit(RoundStarted(arm=slot.arm, number=slot.index + 1))

    def line(self, text: str) -> None:
        """Handle a line that the arm wrote; lines that are no ticks of a known case are ignored."""
        tick = parse_tick(text)
        if tick is not None and tick.case in self._cases:
            name = self._cases[tick.case]
            self._tell(RateSeen(case=name, part=tick.part, seconds=tick.seconds, rate=tick.rate))

    def look(self, sample: Sample) -> None:
        """Look at the machine, from the sampling thread."""
        self._first = self._first or sample
        self._tell(
            MachineSeen(
                clock_mhz=sample.get("clock_mhz"),
                watts=sample.get("watts"),
                limit_watts=sample.get("limit_watts"),
                celsius=sample.get("celsius"),
                held=held_down(self._first, sample),
            )
        )

    def end(self, rounds: Sequence[Launch], *, kept: bool) -> None:
        """End watching after the last of `rounds`, which may have been measured earlier."""
        done = rounds[-1]
        self._emit(
            RoundFinished(
                arm=done.slot.arm,
                number=done.slot.index + 1,
                seconds=done.seconds,
                rates={str(one.case): one.rate for one in getattr(done, "measurements", ())},
                machine=_means(done.telemetry),
                gates=self._judge(rounds),
                problem=done.problem,
                kept=kept,
            )
        )

    def _tell(self, event: Event) -> None:
        # A full disk or a closed terminal must cost neither telemetry nor the arm; the next round tells.
        with contextlib.suppress(OSError):
            self._emit(event)


def silent() -> ArmMonitor:
    """Return a monitor that tells nobody."""
    return ArmMonitor({}, lambda _: (), lambda _: None)


def _means(seen: Telemetry) -> MachineSeen:
    return MachineSeen(
        clock_mhz=seen.clock_mhz,
        watts=seen.watts,
        limit_watts=seen.limit_watts,
        celsius=seen.celsius,
        held=seen.reasons if seen.throttled is not None or seen.reasons else None,
    )


MARK = "@tick "


def parse_tick(line: str) -> RateSeen | None:
    """Return the tick of a line; None for any other line, also a damaged one."""
    _, mark, text = line.rpartition(MARK)
    try:
        raw: Any = json.loads(text) if mark else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    case, part = raw.get("case"), raw.get("part")
    seconds, rate = _positive(raw.get("seconds")), _positive(raw.get("rate"))
    if not isinstance(case, str) or part not in ("warm-up", "window") or seconds is None or rate is None:
        return None
    return RateSeen(case=case, part=part, seconds=seconds, rate=rate)


def _positive(value: Any) -> float | None:
    """Return a number as a float; None for anything that cannot be a rate."""
    try:
        number = float(value) if type(value) in (int, float) else -1.0
    except OverflowError:
        return None
    return number if number >= 0 and math.isfinite(number) else None


def held_down(first: Sample, now: Sample) -> tuple[str, ...] | None:
    """Return what limits the clocks now, in words; () for nothing, None where this is unknown.

    Counters that moved since the first look count, too: an event may end between two looks.
    """
    if "reasons" not in now and "throttled" not in now:
        return None
    reasons = int(now.get("reasons", 0))
    found = [word for bit, _, word in REASONS if reasons & bit]
    if not reasons & THROTTLING and now.get("throttled", 0.0) > first.get("throttled", 0.0):
        found.append("throttled in this round")
    return tuple(found)
