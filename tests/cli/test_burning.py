"""What people see of a running burn-in, from its events alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark_build.cli.burn_in_progress import Burn, follow, kept, round_line, sparkline
from spark_build.cli.live import page
from spark_build.cli.render import Lines
from spark_build.events import (
    BurnInFinished,
    BurnInStarted,
    Event,
    Gate,
    MachineSeen,
    Note,
    Progress,
    RateSeen,
    RoundFinished,
    RoundStarted,
)

FP16, BF16 = "FP16 8192^3 a@b", "BF16 8192^3 a@b"
PLAN = BurnInStarted(
    arms=("public", "wheelhouse", "public-again"),
    headline=FP16,
    rounds=30,
    warmup=20,
    window=60,
    round_seconds=166,
)
SEEN = MachineSeen(clock_mhz=1388, watts=693.4, limit_watts=700, celsius=62, held=("SW power cap",))
GATES = (
    Gate(name="A/A control", status="unknown", evidence="not measured"),
    Gate(name="throttling", status="warn", evidence="no thermal event; held down by: SW power cap"),
    Gate(name="memory", status="ok", evidence="143155 MiB were free"),
    Gate(name="GPU processes", status="fail", evidence="others used the GPU in 1 of 2 rounds"),
)


def finished(number: int, arm: str, fp16: float, **changes: object) -> RoundFinished:
    done = RoundFinished(
        arm=arm, number=number, seconds=180, rates={FP16: fp16, BF16: 6.5e14}, machine=SEEN, gates=GATES
    )
    return dataclasses.replace(done, **changes)  # type: ignore[arg-type] # by name


RUN: list[Event] = [
    PLAN,
    RoundStarted(arm="public", number=1),
    finished(1, "public", 6.40e14),
    finished(2, "public", 6.44e14),
    RoundStarted(arm="wheelhouse", number=3),
    SEEN,
    *(RateSeen(case=BF16, part="warm-up", seconds=n, rate=n * 1e14) for n in (1, 2)),
    *(RateSeen(case=BF16, part="window", seconds=n, rate=6e14 + n * 1e13) for n in (1, 2, 3)),
]


def burn_of(events: Iterable[Event], clock: float = 0.0) -> Burn:
    burn = None
    for event in events:
        burn = follow(burn, event, clock)
    assert burn is not None
    return burn


def shown(burn: Burn, width: int = 80, clock: float = 0.0) -> list[str]:
    console = Console(width=width, height=100, color_system=None)
    with console.capture() as capture:
        console.print(page(burn, clock, width))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_page() -> None:
    assert shown(burn_of(RUN), clock=30) == [
        "burn-in  round 3 of 30, about 1 h 23 min left",
        "wheelhouse: BF16 8192^3 a@b, window 3 of 60 s",
        "630.0 TFLOP/s  ▆▇█",
        "1388 MHz   693 W of 700 W   62 °C",
        "held down by: SW power cap",
        "",
        "ARM           ROUNDS  BF16 8192^3 a@b  FP16 8192^3 a@b",
        "public        2       650.0 TFLOP/s    642.0 TFLOP/s",
        "wheelhouse    0       -                -",
        "public-again  0       -                -",
        "",
        "fail    GPU processes: others used the GPU in 1 of 2 rounds",
        "warn    throttling: no thermal event; held down by: SW power cap",
        "ok      memory",
        "unknown A/A control",
        "The verdict comes at the end. Ctrl-C is safe: the same command goes on.",
    ]


def test_half_a_second_is_not_shown_as_none() -> None:
    short = [dataclasses.replace(PLAN, window=0.5), *RUN[1:]]
    assert shown(burn_of(short))[1].endswith("of 0.5 s")


def test_the_page_of_a_narrow_terminal_parts_no_number_from_its_unit() -> None:
    assert shown(burn_of(RUN), width=43, clock=30)[:16] == [
        "burn-in  round 3 of 30,",
        "  about 1 h 23 min left",
        "wheelhouse: BF16 8192^3 a@b,",
        "  window 3 of 60 s",
        "630.0 TFLOP/s  ▆▇█",
        "1388 MHz   693 W of 700 W   62 °C",
        "held down by: SW power cap",
        "",
        "public, rounds: 2",
        "  BF16 8192^3 a@b  650.0 TFLOP/s",
        "  FP16 8192^3 a@b  642.0 TFLOP/s",
        "wheelhouse, rounds: 0",
        "  BF16 8192^3 a@b  -",
        "  FP16 8192^3 a@b  -",
        "public-again, rounds: 0",
        "  BF16 8192^3 a@b  -",
    ]


def test_what_cannot_be_read_is_unknown() -> None:
    lines = shown(burn_of([PLAN, RoundStarted(arm="public", number=1), MachineSeen()]))
    assert lines[1:5] == [
        "public: starting, and checking the products",
        "rate unknown so far",
        "clock unknown   power unknown   temperature unknown",
        "held down by: unknown",
    ]
    assert "gates: judged after each round" in lines
    lines = shown(burn_of([PLAN, MachineSeen(watts=0, celsius=0, held=())]))
    assert lines[3:5] == ["clock unknown   0 W limit unknown   0 °C", "held down by: nothing"]


def test_a_line_for_a_round() -> None:
    burn = burn_of([PLAN, finished(1, "public", 6.4e14)])
    assert round_line(burn, 0) == (
        "round 1 of 30: public, 640.0 TFLOP/s (FP16 8192^3 a@b); 1388 MHz, 693 W of 700 W, 62 °C; "
        "about 1 h 27 min left"
    )
    hung = burn_of([PLAN, finished(1, "public", 1, rates={}, machine=MachineSeen(), problem="hung")])
    assert "public, hung; clock unknown, power unknown, temperature unknown" in round_line(hung, 0)
    assert kept(hung) == "1 of 30 rounds are measured and kept"


def test_plain_lines_are_one_for_each_measured_round(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with Lines(lambda: now) as lines:
        for number, event in enumerate(
            [PLAN, finished(1, "public", 6.4e14, kept=True), *RUN[1:], Note(message="hm")]
        ):
            now = 100.0 * number  # late enough for a line of progress at any time
            lines.emit(event)
            lines.emit(Progress(recipe="", stage="burn-in", done=number, total=10))
        lines.emit(BurnInFinished())
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["round 1 of 30", "round 2 of 30", "hm"]


def test_an_interrupted_one_says_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(KeyboardInterrupt), Lines(lambda: 0.0) as lines:
        lines.emit(PLAN)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "0 of 30 rounds are measured and kept\n"


def test_time_left_follows_the_pace() -> None:
    burn = burn_of([PLAN, RoundStarted(arm="public", number=1)], clock=1000)
    assert burn.left(1000) == 30 * 166
    assert burn.left(1066) == 30 * 166 - 66
    assert burn.left(9000) == 29 * 166  # late: the others still take their time
    assert burn_of([PLAN, finished(1, "public", 1, seconds=200)]).left(0) == 29 * 200


def test_sparklines() -> None:
    assert sparkline(()) == sparkline((0.0,)) == ""
    assert sparkline((100, 99, 97)) == "█▇▆"  # a percent is a bar, not a cliff
    assert sparkline((5e-324, 5e-324)) == "██"  # nothing lies between it and zero
    assert sparkline((0, 50, 100)) == "▁▅█"


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
NUMBER = st.floats(min_value=0, max_value=1e18)
MACHINE = st.builds(MachineSeen, clock_mhz=st.none() | NUMBER, watts=st.none() | NUMBER, limit_watts=st.none() | NUMBER,
                    celsius=st.none() | NUMBER, held=st.none() | st.tuples(TEXT))  # fmt: skip
GATE = st.builds(Gate, name=TEXT, evidence=TEXT)
EVENTS = st.lists(
    st.builds(RoundStarted, arm=TEXT)
    | st.builds(RateSeen, case=TEXT, seconds=NUMBER, rate=NUMBER)
    | MACHINE
    | st.builds(RoundFinished, arm=TEXT, seconds=NUMBER, rates=st.dictionaries(TEXT, NUMBER), machine=MACHINE,
                gates=st.lists(GATE).map(tuple), problem=TEXT)
    | st.builds(BurnInStarted, arms=st.lists(TEXT).map(tuple), headline=TEXT, rounds=st.integers(0, 99), warmup=NUMBER,
                window=NUMBER, round_seconds=NUMBER),
    max_size=12,
)  # fmt: skip


@given(EVENTS, st.integers(20, 120))
def test_any_order_of_events_can_be_shown(events: list[Event], width: int) -> None:
    burn = burn_of([PLAN, *events])
    console = Console(width=width, color_system=None)
    lines = console.render_lines(page(burn, 5.0, width), pad=False)
    assert all(sum(segment.cell_length for segment in line) <= width for line in lines)
    if burn.rounds:
        assert "\n" not in round_line(burn, 5.0)
