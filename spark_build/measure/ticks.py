"""What an arm tells while it measures (bench/ticks.py), read from its output line by line."""

from __future__ import annotations

import json
import math
from typing import Any

from spark_build.events import RateSeen

MARK = "@tick "


def parse_tick(line: str) -> RateSeen | None:
    """The tick that a line tells; None for any other line, be it a damaged one."""
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
    """A number as a float; None for what is no number, or none that a rate can be."""
    try:
        number = float(value) if type(value) in (int, float) else -1.0
    except OverflowError:
        return None
    return number if number >= 0 and math.isfinite(number) else None
