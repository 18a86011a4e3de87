"""Validity gates: conditions of the machine under which the numbers mean something.

A gate that fails makes a run INCONCLUSIVE, never a failure of what was measured. What cannot be
read is unknown, not zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spark_build.events import Gate, GateStatus
from spark_build.measure.model import (
    Arm,
    CaseResult,
    Check,
    Device,
    Launch,
    Measurement,
    Reference,
    Round,
    Settings,
    Telemetry,
)
from spark_build.measure.statistics import differs, equivalent, variation
from spark_build.text import format_flops

Judged = tuple[GateStatus, str]  # with the evidence
BUSY = 0.8  # least share of the window in which the work really ran
OTHERS_FAIL, OTHERS_WARN = 0.10, 0.05  # processor time taken by other processes
STEAL_FAIL, STEAL_WARN = 0.05, 0.02  # taken by the hypervisor
CLOCK_CV = 0.05
RATE_CV = 0.05
CAPPED = 0.01  # share of the time at the power cap that is worth telling
FREE_MIB_FAIL, FREE_MIB_WARN = 1024, 4096
SLACK = 0.1  # of a window: what its ticks may miss of it, or exceed it by
IN_FLIGHT = 0.05  # seconds of a batch that was under way when a window began or ended
UNREAD: Judged = ("unknown", "cannot be read here")
ABOVE_NOMINAL = 1.1  # clocks beyond those of a data sheet
# More than any device to date: FLOP per cycle of a multiprocessor or a processor core, and Hz.
PER_CYCLE: dict[str, dict[str, int]] = {
    "cuda": {"fp32": 256, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "fp4": 32768},
    "cpu": {"fp32": 64, "bf16": 2048, "fp8": 4096},
}
FASTEST = {"cuda": 3.2e9, "cpu": 6.5e9}


def window_problem(
    begin: float,
    start: float,
    end: float,
    ticks: Sequence[Sequence[float]],
    within: tuple[float, float],
    *,
    waits: bool = False,
) -> str:
    """Say why a timed window cannot be as its arm tells it; "" where it can.

    `begin` of the warm-up, `start` and `end` of the window, and `within` (the parent's, around the process)
    are seconds of CLOCK_MONOTONIC; ticks are (seconds, calls). `waits`: it may do more than what is timed.
    """
    times = (begin, start, end)
    if problem := number_problem(*times, *(value for tick in ticks for value in tick)) or (
        not ticks and "no ticks"
    ):
        return problem
    if not within[0] <= begin <= start < end <= within[1]:
        return f"its times ({begin:.3f} to {end:.3f}) are not within the round's by the parent's clock"
    told, took = math.fsum(seconds for seconds, _ in ticks), end - start
    room = SLACK * took + 2 * max(IN_FLIGHT, *(seconds / calls for seconds, calls in ticks))
    if told > took + room or (told < took - room and not waits):
        return f"its ticks add up to {told:.3f} s, and the window took {took:.3f} s by the clock"
    return ""


def number_problem(*values: object, least: float = 0.0) -> str:
    """Say which of an arm's numbers is none, or not finite and above `least`; "" where all are well."""
    bad = (each for each in values if type(each) not in (int, float) or not least < each < math.inf)  # type: ignore[operator] # a number
    return next((f"{each} where a number above {least:g} must be" for each in bad), "")


def rate_problem(
    dtype: str, rate: float, device: Device, report: Mapping[str, Any], reference: Reference | None
) -> str:
    """Say why a rate in FLOP/s cannot be: not above 0, or more than the device has on paper; "" where it can.

    Without a reference the limit is what no device to date does per cycle. `report` is the arm's own.
    """
    if problem := number_problem(rate):
        return problem
    paper = reference.nominal.get(dtype) if reference else None
    whose = reference.name if paper and reference else "any such device"
    units = report.get("device", {}).get("multiprocessors")
    if device == "cpu":
        units = report.get("torch", {}).get("threads")
    if paper is None and units and dtype in PER_CYCLE[device]:
        paper = units * PER_CYCLE[device][dtype] * FASTEST[device]
    if paper is None or rate <= ABOVE_NOMINAL * paper:
        return ""
    return f"{format_flops(rate)} is more than the {format_flops(paper)} of {whose} on paper"


def failures(rounds: Sequence[Launch]) -> list[tuple[Launch, Check]]:
    """Return the checks that failed, each with its round."""
    return [(each, check) for each in rounds for check in each.checks if check.status == "fail"]


def machine_gates(
    good: Sequence[Launch],
    device: Device,
    breaks: Sequence[str],
    reference: Reference | None = None,
    arms: Sequence[Arm] = (),
) -> tuple[Gate, ...]:
    """Judge the machine, whatever ran on it: the arm that had it worst counts."""
    found = {
        "other processes": _load(_by_arm(good, lambda seen: seen.others), OTHERS_WARN, OTHERS_FAIL),
        "stolen time": _load(_by_arm(good, lambda seen: seen.steal), STEAL_WARN, STEAL_FAIL),
        "known clock": _known_clock(good, reference),
        "throttling": _throttling(good),
        "memory": _memory(good),
        "surroundings": _surroundings(good, arms),
        **({"GPU processes": _company(good)} if device == "cuda" else {}),
        "interruptions": ("warn" if breaks else "ok", "; ".join(breaks) or "none"),
    }
    return _named(found)


def judge(
    settings: Settings,
    planned: int,
    rounds: Sequence[Round],
    cases: Sequence[CaseResult],
    breaks: Sequence[str],
    reference: Reference | None = None,
    arms: Sequence[Arm] = (),
) -> tuple[Gate, ...]:
    """Return all gates of a burn-in in the order in which they are shown."""
    good = [each for each in rounds if not each.problem]
    windows = [each for one in good for each in one.measurements]
    found = {
        "rounds": _complete(planned, good, [each for each in rounds if each.killed or each.invalid]),
        "A/A control": _control(cases),
        "utilisation": _busy(good),
        "clock": _clock(good),
        "warm-up": _warm(windows),
        "steadiness": _spread(windows),
    }
    return (*_named(found), *machine_gates(good, settings.device, breaks, reference, arms))


def _named(found: Mapping[str, Judged]) -> tuple[Gate, ...]:
    return tuple(
        Gate(name=name, status=status, evidence=evidence) for name, (status, evidence) in found.items()
    )


def _by_arm(good: Sequence[Launch], value: Callable[[Telemetry], float | None]) -> dict[str, list[float]]:
    """Return what is known of a value in the rounds of each arm."""
    found: dict[str, list[float]] = {}
    for each in good:
        if (known := value(each.telemetry)) is not None:
            found.setdefault(each.slot.arm, []).append(known)
    return found


# What must be the same in all arms, how much it may differ (of the larger one), and how it is told.
EQUAL: tuple[tuple[str, Callable[[Telemetry], float | None], float, float], ...] = (
    ("power limit in W", lambda seen: seen.limit_watts, 0.01, 0.0),
    ("clock in MHz", lambda seen: seen.clock_mhz, 0.4, 0.0),  # at a power cap other work has another clock
    ("share of processors with the governor performance", lambda seen: seen.performance, 0.0, 0.0),
    ("share of the processors used by others", lambda seen: seen.others, 0.0, 0.05),
)


def _surroundings(good: Sequence[Launch], arms: Sequence[Arm]) -> Judged:
    """Judge whether all arms ran in the same; what two arms of one environment are given is the claim."""
    differing = []
    for name, value, share, least in EQUAL:
        seen = {arm: statistics.median(values) for arm, values in _by_arm(good, value).items()}
        low, high = min(seen, key=seen.__getitem__, default=""), max(seen, key=seen.__getitem__, default="")
        if seen and seen[high] - seen[low] > max(share * seen[high], least) + 1e-9:
            differing.append(f"{name}: {seen[low]:.3g} in {low}, {seen[high]:.3g} in {high}")
    told: dict[str, dict[str, str]] = {}
    for each in good:
        told.setdefault(each.slot.arm, _told(each.environment))
    base = next((arm for arm in arms if arm.role == "baseline"), None)
    for arm in arms:
        if base is None or arm is base or same_environment(base, arm):
            continue
        one, other = told.get(base.name, {}), told.get(arm.name, {})
        differing += [
            f"{name}: {one[name]} in {base.name}, {other[name]} in {arm.name}"
            for name in one
            if name in other and one[name] != other[name]
        ]
    if not good:
        return "unknown", "no round finished"
    return "fail" if differing else "ok", "; ".join(differing) or "the same in all arms"


def _told(environment: Mapping[str, Any]) -> dict[str, str]:
    device, variables = environment.get("device", {}), environment.get("variables", {})
    return {
        "device": f"{device.get('name')} {device.get('multiprocessors', '')}".strip(),
        "threads": str(environment.get("torch", {}).get("threads")),
        "CUDA_VISIBLE_DEVICES": str(variables.get("CUDA_VISIBLE_DEVICES", "unset")),
    }


def same_environment(one: Arm, other: Arm) -> bool:
    """Return whether two arms run one environment, with variables or threads of their own at most."""
    return (one.python, one.image, one.swapped) == (other.python, other.image, other.swapped)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _worse(value: float, warn: float, fail: float) -> GateStatus:
    return "fail" if value > fail else "warn" if value > warn else "ok"


def _complete(planned: int, good: Sequence[Round], spoilt: Sequence[Round]) -> Judged:
    if spoilt:
        said = [f"round {one.slot.index + 1} of {one.slot.arm} {one.problem}" for one in spoilt]
        return "fail", "; ".join(said)
    status: GateStatus = "ok" if len(good) == planned else "fail"
    return status, f"{len(good)} of {planned} rounds finished"


def _control(cases: Sequence[CaseResult]) -> Judged:
    control = next((each for each in cases if each.headline and each.role == "control"), None)
    if control is None:
        return "unknown", "not measured"
    seen = control.comparison
    evidence = f"the same environment twice: {seen.ratio:.4f} [{seen.ci95[0]:.4f}, {seen.ci95[1]:.4f}]"
    if not differs(seen):
        return "ok", evidence
    return "warn" if equivalent(seen) else "fail", f"{evidence}: they seem to differ"


def _busy(good: Sequence[Round]) -> Judged:
    shares: dict[str, list[float]] = {}
    for each in good:
        told = [*(measured.busy for measured in each.measurements), each.telemetry.utilisation]
        shares.setdefault(each.slot.arm, []).extend(_known(told))
    if not any(shares.values()):
        return UNREAD
    arm, middle = min(_medians(shares), key=lambda each: each[1])
    least = min(share for values in shares.values() for share in values)
    evidence = f"the work ran in {middle:.0%} of its time in {arm} (lowest {least:.0%}); wanted {BUSY:.0%}"
    return "ok" if middle >= BUSY else "fail", evidence


def _medians(values: Mapping[str, Sequence[float]]) -> list[tuple[str, float]]:
    return [(arm, statistics.median(some)) for arm, some in values.items() if some]


def _load(shares: Mapping[str, Sequence[float]], warn: float, fail: float) -> Judged:
    if not shares:
        return UNREAD
    arm, middle = max(_medians(shares), key=lambda each: each[1])
    most = max(share for values in shares.values() for share in values)
    evidence = f"{middle:.1%} of the processors in {arm} (highest {most:.1%}); at most {fail:.0%} allowed"
    return _worse(middle, warn, fail), evidence


def _clock(good: Sequence[Round]) -> Judged:
    """Check that the clock is constant over rounds and within each window, by arm and case.

    At a power cap each case has a clock of its own: an H200 runs FP8 at 1300 MHz and FP32 at 1980. Where a
    round has no clocks of its windows, those of all its windows together count.
    """
    series: dict[tuple[str, str], list[float]] = {}
    within: list[float] = []
    for each in good:
        for measured in each.measurements:
            if measured.clock_mhz is not None:
                series.setdefault((each.slot.arm, str(measured.case)), []).append(measured.clock_mhz)
            within += _known([measured.clock_cv])
    if not series:
        series = {(arm, ""): clocks for arm, clocks in _by_arm(good, lambda seen: seen.clock_mhz).items()}
        within = _known(each.telemetry.clock_cv for each in good)
    clocks = [clock for one in series.values() for clock in one]
    if len(clocks) < 2:
        return UNREAD
    spread = max([*map(variation, series.values()), *within])
    evidence = f"{_range(clocks)}, varying by {spread:.1%} at the same work; at most {CLOCK_CV:.0%} allowed"
    return "fail" if spread > CLOCK_CV else "ok", evidence


def _range(clocks: Sequence[float]) -> str:
    low, high = min(clocks), max(clocks)
    return f"{low:.0f} MHz" if round(low) == round(high) else f"{low:.0f} to {high:.0f} MHz"


def _known_clock(good: Sequence[Launch], reference: Reference | None) -> Judged:
    clocks = _by_arm(good, lambda seen: seen.clock_mhz)
    if not clocks or reference is None or reference.least_clock is None:
        return "unknown", "no clock, or no reference for this device"
    middle = min(clock for _, clock in _medians(clocks))
    evidence = (
        f"{middle:.0f} MHz under load; a healthy {reference.name} has {reference.least_clock:.0f} or more"
    )
    return "ok" if middle >= reference.least_clock else "fail", evidence


def _throttling(good: Sequence[Launch]) -> Judged:
    counts = _known(each.telemetry.throttled for each in good)
    reasons = sorted({reason for each in good for reason in each.telemetry.reasons})
    if not counts:
        return "unknown", "no counters can be read here"
    moved = sum(count > 0 for count in counts)
    if moved:
        return "fail", f"thermal or power-brake counters moved in {moved} rounds"
    capped = _known(each.telemetry.capped for each in good)
    if reasons or any(share > CAPPED for share in capped):
        share = f" for {statistics.median(capped):.0%} of the time" if capped else ""
        named = ", ".join(reasons) or "SW power cap"
        return "warn", f"no thermal event; clocks held down{share} by: {named}"
    return "ok", "the counters stood still"


def _memory(good: Sequence[Launch]) -> Judged:
    free = _known(each.telemetry.free_mib for each in good)
    if not free:
        return UNREAD
    least = min(free)
    status: GateStatus = "fail" if least < FREE_MIB_FAIL else "warn" if least < FREE_MIB_WARN else "ok"
    return status, f"at least {least:.0f} MiB were free before a round"


def _company(good: Sequence[Launch]) -> Judged:
    counts = _known(each.telemetry.other_processes for each in good)
    if not counts:
        return UNREAD
    met = sum(count > 0 for count in counts)
    return "fail" if met else "ok", f"others used the GPU in {met} of {len(counts)} rounds"


def _warm(windows: Sequence[Measurement]) -> Judged:
    met = sum(each.steady for each in windows)
    still = "the rate stood still (0.5% over three ticks, a GPU's clock 5 MHz)"
    return "ok" if met == len(windows) else "warn", f"{still} before {met} of {len(windows)} windows"


def _spread(windows: Sequence[Measurement]) -> Judged:
    met = sum(each.cv <= RATE_CV for each in windows)
    lost = max((each.drop for each in windows), default=0.0)
    evidence = (
        f"the rate varied by at most {RATE_CV:.0%} within {met} of {len(windows)} windows; "
        f"largest loss from the first to the last quarter of one: {max(lost, 0.0):.1%}"
    )
    return "ok" if met == len(windows) else "warn", evidence
