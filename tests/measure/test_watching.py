"""From lines of an arm and looks at the machine to events."""

from __future__ import annotations

from spark_build.events import Event, Gate, MachineSeen, RateSeen, RoundFinished, RoundStarted
from spark_build.measure.model import Case, Measurement, Round, Slot, Telemetry
from spark_build.measure.telemetry import ArmMonitor, held_down

SLOT = Slot(index=2, visit=1, block=0, arm="mine")
CASE = Case(dtype="fp16", size=8192, layout="ab")
GATE = Gate(name="memory", status="ok", evidence="enough")


def watched(events: list[Event]) -> ArmMonitor:
    return ArmMonitor({"fp16:8192:ab": str(CASE)}, lambda _: (GATE,), events.append)


def test_a_round_as_events() -> None:
    events: list[Event] = []
    watch = watched(events)
    watch.begin(SLOT)
    watch.look({"clock_mhz": 1400, "reasons": 0x4, "load": 3})
    watch.line('@tick {"case": "fp16:8192:ab", "part": "window", "seconds": 2.0, "rate": 6e14}')
    measured = Measurement(case=CASE, rate=6.1e14, cv=0, drop=0, steady=True, busy=None)
    telemetry = Telemetry(clock_mhz=1390, watts=690, reasons=("SW power cap",))
    done = Round(slot=SLOT, launch="", started="", seconds=90, measurements=(measured,), telemetry=telemetry)
    watch.end([done], kept=False)
    assert events == [
        RoundStarted(arm="mine", number=3),
        MachineSeen(clock_mhz=1400, held=("SW power cap",)),
        RateSeen(case="FP16 8192^3 a@b", part="window", seconds=2, rate=6e14),
        RoundFinished(
            arm="mine",
            number=3,
            seconds=90,
            rates={"FP16 8192^3 a@b": 6.1e14},
            machine=MachineSeen(clock_mhz=1390, watts=690, held=("SW power cap",)),
            gates=(GATE,),
        ),
    ]


def test_what_an_arm_writes_besides_is_its_own_business() -> None:
    events: list[Event] = []
    watch = watched(events)
    for line in (
        "Traceback (most recent call last):",
        '@tick {"case": "fp16:8192:ab", "part": "window", "seconds"',
        '@tick {"case": "\\u001b[2J", "part": "window", "seconds": 2.0, "rate": 6e14}',  # clears a terminal
    ):
        watch.line(line)
    assert events == []


def test_a_failing_watcher_costs_neither_arm_nor_telemetry() -> None:
    def full(_: Event) -> None:
        raise OSError(28, "no space left on device")

    watch = ArmMonitor({"fp16:8192:ab": str(CASE)}, lambda _: (), full)
    watch.look({"clock_mhz": 1400})
    watch.line('@tick {"case": "fp16:8192:ab", "part": "window", "seconds": 2.0, "rate": 6e14}')


def test_what_holds_clocks_down() -> None:
    assert held_down({}, {"clock_mhz": 1400}) is None  # not told is not "nothing"
    assert held_down({}, {"reasons": 0x1}) == ()  # idle is no hold
    assert held_down({}, {"reasons": 0x4 | 0x40}) == ("SW power cap", "HW thermal slowdown")
    counted = {"reasons": 0.0, "throttled": 7.0}
    assert held_down(counted, counted) == ()
    assert held_down(counted, {**counted, "throttled": 7.5}) == ("throttled in this round",)
    assert held_down(counted, {"reasons": 0x20, "throttled": 7.5}) == ("SW thermal slowdown",)
