"""What counts as a break between two rounds."""

from __future__ import annotations

from spark_build.measure.model import Round, Slot
from spark_build.measure.rounds import _breaks


def at(index: int, started: str, launch: str = "1") -> Round:
    slot = Slot(index=index, visit=0, block=0, arm="a")
    return Round(slot=slot, launch=launch, started=f"2026-01-01T{started}+00:00", seconds=60)


def test_a_pause_is_a_break_whoever_made_it() -> None:
    assert _breaks([at(0, "10:00:00"), at(1, "10:01:05"), at(2, "10:02:10")]) == []
    assert _breaks([at(0, "10:00:00"), at(1, "11:01:00")]) == ["a break of 3600 s after round 1"]
    assert _breaks([at(0, "10:00:00"), at(1, "10:01:05", launch="2")]) == ["a break of 5 s after round 1"]
