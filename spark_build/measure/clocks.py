"""Why a GPU's clocks are what they are, as its driver says it."""

from __future__ import annotations

from spark_build.measure.model import Sample

# NVML's bit, nvidia-smi's name, ours.
REASONS = (
    (0x2, "applications_clocks_setting", "applications clocks setting"),
    (0x4, "sw_power_cap", "SW power cap"),
    (0x8, "hw_slowdown", "HW slowdown"),
    (0x20, "sw_thermal_slowdown", "SW thermal slowdown"),
    (0x40, "hw_thermal_slowdown", "HW thermal slowdown"),
    (0x80, "hw_power_brake_slowdown", "HW power brake"),
)
# Heat or the power brake: a rate that was measured meanwhile means nothing.
THROTTLING = 0x8 | 0x20 | 0x40 | 0x80


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
