"""What an arm tells while it measures, and that telling it never holds it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.events import RateSeen
from spark_build.measure.telemetry import MARK, parse_tick

BENCH = Path(__file__).resolve().parents[2] / "bench"
RATE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


def told(code: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a few lines that tell ticks as an arm does."""
    lines = f"import sys; sys.path.insert(0, {str(BENCH)!r})\nfrom ticks import tell\n{code}"
    return subprocess.run([sys.executable, "-c", lines], check=True, timeout=60, **streams)


def test_what_is_told_is_read() -> None:
    done = told(
        "print('noise', end='', flush=True)\ntell('fp16:64:ab', 'window', 1.25, 3e9)", stdout=subprocess.PIPE
    )
    assert parse_tick(done.stdout.decode()) == RateSeen(
        case="fp16:64:ab", part="window", seconds=1.25, rate=3e9
    )


def test_telling_never_waits_for_a_reader() -> None:
    """Nobody reads the pipe: what does not fit is lost, what fits is whole."""
    reader, writer = os.pipe()
    told("for n in range(5000): tell('fp16:64:ab', 'window', n, 1.0)", stdout=writer)
    os.close(writer)
    with os.fdopen(reader) as stream:
        ticks = [parse_tick(line) for line in stream]
    assert 100 < len(ticks) < 5000
    assert [tick.seconds for tick in ticks if tick] == list(range(len(ticks)))


@pytest.mark.parametrize("lost", ["os.close(1)", "a, b = os.pipe(); os.dup2(b, 1); os.close(a)"])
def test_a_reader_that_is_gone_does_no_harm(lost: str) -> None:
    told(f"import os\n{lost}\ntell('fp16:64:ab', 'window', 1.0, 1.0)")


@given(st.text(), st.sampled_from(["warm-up", "window"]), RATE, RATE)
def test_every_tick_comes_back(case: str, part: Any, seconds: float, rate: float) -> None:
    fields = {"case": case, "part": part, "seconds": seconds, "rate": rate}
    expected = RateSeen(case=case, part=part, seconds=seconds, rate=rate)
    assert parse_tick(MARK + json.dumps(fields)) == expected


@given(st.text() | st.text().map(lambda text: MARK + text) | JSON.map(lambda raw: MARK + json.dumps(raw)))
def test_other_lines_are_no_ticks(line: str) -> None:
    assert parse_tick(line) is None


@pytest.mark.parametrize(
    "change",
    [
        {"rate": float("nan")},
        {"rate": -1},
        {"rate": 10**400},
        {"rate": True},
        {"seconds": "1"},
        {"seconds": None},
        {"part": "pause"},
        {"part": ["window"]},
        {"case": 7},
    ],
    ids=str,
)
def test_damaged_ticks_are_none(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"case": "fp16:64:ab", "part": "window", "seconds": 1, "rate": 1e12}
    assert parse_tick(MARK + json.dumps(fields)) is not None
    assert parse_tick(MARK + json.dumps({**fields, **change})) is None
