"""State of a running burn-in from its events, as text; no terminal here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_build.events import (
    BurnInFinished,
    BurnInStarted,
    Event,
    Gate,
    GateStatus,
    MachineSeen,
    RateSeen,
    RoundFinished,
    RoundStarted,
)
from spark_build.text import format_duration, format_flops

TICKS = 30  # of the running part, in the sparkline
BARS = "▁▂▃▄▅▆▇█"
STEADY = 0.9  # of the highest bar: what varies by less than a tenth looks nearly flat
UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Burn:
    """A burn-in as its events tell it so far; times by the view's clock."""

    plan: BurnInStarted
    now: RoundStarted | None = None  # the round that runs
    since: float = 0.0
    rate: RateSeen | None = None
    recent: tuple[float, ...] = ()  # FLOP/s of the ticks of the running part
    machine: MachineSeen | None = None
    rounds: tuple[RoundFinished, ...] = ()

    @property
    def gates(self) -> tuple[Gate, ...]:
        """As they stand since the last round."""
        return self.rounds[-1].gates if self.rounds else ()

    def rates(self, arm: str, case: str) -> tuple[float, ...]:
        """Of the finished rounds of an arm."""
        return tuple(each.rates[case] for each in self.rounds if each.arm == arm and case in each.rates)

    def left(self, clock: float) -> float:
        """Seconds that are left, by the pace of the rounds so far."""
        taken = [one.seconds for one in self.rounds] or [self.plan.round_seconds]
        each = sum(taken) / len(taken)
        begun = clock - self.since if self.now else 0.0
        return max(0.0, (self.plan.rounds - len(self.rounds)) * each - min(begun, each))


def follow(burn: Burn | None, event: Event, clock: float) -> Burn | None:
    """Return the state after one more event; None while no burn-in runs."""
    if isinstance(event, BurnInStarted):
        return Burn(plan=event)
    if burn is None or isinstance(event, BurnInFinished):
        return None
    if isinstance(event, RoundStarted):
        return replace(burn, now=event, since=clock, rate=None, recent=())
    if isinstance(event, RateSeen):
        same = burn.rate is not None and (burn.rate.case, burn.rate.part) == (event.case, event.part)
        before = burn.recent if same else ()
        return replace(burn, rate=event, recent=(*before, event.rate)[-TICKS:])
    if isinstance(event, MachineSeen):
        return replace(burn, machine=event)
    if isinstance(event, RoundFinished):
        return replace(burn, now=None, rounds=(*burn.rounds, event))
    return burn


def kept(burn: Burn) -> str:
    """Return what an interruption keeps."""
    return f"{len(burn.rounds)} of {burn.plan.rounds} rounds are measured and kept"


def round_line(burn: Burn, clock: float) -> str:
    """One line for the round that ended last."""
    done = burn.rounds[-1]
    name = burn.plan.headline if burn.plan.headline in done.rates else next(iter(done.rates), "")
    found = f"{format_flops(done.rates[name])} ({name})" if name else done.problem or "no rate"
    machine = ", ".join((clock_text(done.machine), power_text(done.machine), heat_text(done.machine)))
    over = f"; about {format_duration(burn.left(clock))} left" if burn.left(clock) else ""
    return f"round {done.number} of {burn.plan.rounds}: {done.arm}, {found}; {machine}{over}"


def sparkline(values: Sequence[float]) -> str:
    """Values as bars; the lowest bar is a tenth below the highest value, or the lowest value."""
    if not values or max(values) <= 0:
        return ""
    top = max(values)
    bottom = min(STEADY * top, *values)
    if top == bottom:  # a tenth less than the smallest floats is no less
        return BARS[-1] * len(values)
    steps = len(BARS) - 1
    return "".join(BARS[round((value - bottom) / (top - bottom) * steps)] for value in values)


def clock_text(seen: MachineSeen) -> str:
    """Return the clock with its unit."""
    return f"clock {UNKNOWN}" if seen.clock_mhz is None else f"{seen.clock_mhz:.0f} MHz"


def power_text(seen: MachineSeen) -> str:
    """Power and its limit."""
    if seen.watts is None:
        return f"power {UNKNOWN}"
    limit = f"limit {UNKNOWN}" if seen.limit_watts is None else f"of {seen.limit_watts:.0f} W"
    return f"{seen.watts:.0f} W {limit}"


def heat_text(seen: MachineSeen) -> str:
    """Return the temperature."""
    return f"temperature {UNKNOWN}" if seen.celsius is None else f"{seen.celsius:.0f} °C"


def held_text(seen: MachineSeen) -> str:
    """Return what limits the clocks."""
    return UNKNOWN if seen.held is None else ", ".join(seen.held) or "nothing"


def mean_text(rates: Sequence[float]) -> str:
    """Return the geometric mean of the rates of some rounds."""
    return format_flops(math.exp(sum(map(math.log, rates)) / len(rates))) if rates and min(rates) > 0 else "-"


def doing(burn: Burn) -> str:
    """Return what the running round does."""
    if burn.now is None:
        return "between two rounds" if burn.rounds else "starting"
    if burn.rate is None:
        return f"{burn.now.arm}: starting, and checking the products"
    length = burn.plan.warmup if burn.rate.part == "warm-up" else burn.plan.window
    least = "at least " if burn.rate.part == "warm-up" else ""
    passed = f"{burn.rate.part} {burn.rate.seconds:.0f} of {least}{length:g} s"
    return f"{burn.now.arm}: {burn.rate.case}, {passed}"


def by_state(gates: Sequence[Gate]) -> list[tuple[GateStatus, list[Gate]]]:
    """Gates by how they stand, the worst first."""
    order: tuple[GateStatus, ...] = ("fail", "warn", "ok", "unknown")
    found = [(state, [gate for gate in gates if gate.status == state]) for state in order]
    return [(state, some) for state, some in found if some]
