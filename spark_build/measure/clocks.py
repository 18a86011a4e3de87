"""Why a GPU's clocks are what they are, as its driver says it."""

from __future__ import annotations

from spark_build.machine import REASONS, THROTTLING
from spark_build.measure.model import Sample


def held_down(first: Sample, now: Sample) -> tuple[str, ...] | None:
    """What holds the clocks down now, in words; () for nothing, None where nothing about it is told.

    Counters that moved since the first look count, too: an event may end between two looks.
    """
    if "reasons" not in now and "throttled" not in now:
        return None
    reasons = int(now.get("reasons", 0))
    found = [word for bit, _, word in REASONS if reasons & bit]
    if not reasons & THROTTLING and now.get("throttled", 0.0) > first.get("throttled", 0.0):
        found.append("throttled in this round")
    return tuple(found)
