"""How durations, sizes and events read."""

from __future__ import annotations

import pytest

from spark_build.cli.render import describe, duration, size
from spark_build.model.event import Note, StageFinished
from spark_build.model.result import StageResult


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (48.2, "48 s"), (59.7, "1 min 00 s"), (192, "3 min 12 s"), (7500, "2 h 05 min")],
)  # fmt: skip
def test_durations_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (18_245_223, "17.4 MiB"), (3 << 30, "3.0 GiB")]
)  # fmt: skip
def test_sizes_as_people_say_them(count: int, text: str) -> None:
    assert size(count) == text


def test_events_as_lines() -> None:
    done = StageResult(stage="build", status="done", seconds=3.21)
    assert describe(StageFinished(recipe="onnx", result=done)) == "onnx: build done in 3.2 s"
    assert describe(Note(message="hello")) == "hello"
