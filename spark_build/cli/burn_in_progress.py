"""State of a running burn-in from its events, as text, and the page that a terminal shows meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # rich is imported where the page is drawn: it takes long
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

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
    passed = f"{burn.rate.part} {burn.rate.seconds:.0f} of {least}{length:.0f} s"
    return f"{burn.now.arm}: {burn.rate.case}, {passed}"


def by_state(gates: Sequence[Gate]) -> list[tuple[GateStatus, list[Gate]]]:
    """Gates by how they stand, the worst first."""
    order: tuple[GateStatus, ...] = ("fail", "warn", "ok", "unknown")
    found = [(state, [gate for gate in gates if gate.status == state]) for state in order]
    return [(state, some) for state, some in found if some]


TONES = {"fail": "bold red", "warn": "yellow", "ok": "green", "unknown": "dim"}
PER_SECOND = 2  # it is drawn: on a CPU the drawing takes from what is measured
SAID = "The verdict comes at the end. Ctrl-C is safe: the same command goes on."


class LivePage:
    """Shows a burn-in while one runs; its events only note what is known.

    The drawing has a thread of its own: a terminal that stands still must hold up nothing else.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.burn: Burn | None = None
        self._console = console
        self._clock = clock
        self._live: Live | None = None

    def follow(self, event: Event) -> None:
        """Note an event; the first and the last of a burn-in open and close the page."""
        from rich.live import Live

        self.burn = follow(self.burn, event, self._clock())
        if self.burn is not None and self._live is None:
            self._live = Live(
                get_renderable=self._draw,
                console=self._console,
                refresh_per_second=PER_SECOND,
                transient=True,
            )
            self._live.start()
        elif self.burn is None:
            self._close()

    def leave(self) -> None:
        """Close the page; of a burn-in that has not ended say what is kept."""
        self._close()
        if self.burn is not None:
            self._console.print(kept(self.burn), highlight=False)

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> RenderableType:
        from rich.text import Text

        burn = self.burn  # once: another thread replaces it
        return Text() if burn is None else page(burn, self._clock())


def page(burn: Burn, clock: float) -> RenderableType:
    """Return the page: progress, the running round, the arms' rates so far, the gates."""
    from rich.console import Group
    from rich.text import Text

    said = Text(SAID, style="dim")
    return Group(*_where(burn, clock), Text(), _arms(burn), Text(), _gates(burn), said)


def _where(burn: Burn, clock: float) -> list[Text]:
    from rich.text import Text

    number = burn.now.number if burn.now else len(burn.rounds)
    left = f", about {format_duration(burn.left(clock))} left" if burn.plan.rounds else ""
    lines = [
        Text.assemble(("burn-in  ", "bold"), f"round {number} of {burn.plan.rounds}{left}"),
        Text(doing(burn)),
        Text.assemble(
            format_flops(burn.rate.rate) if burn.rate else f"rate {UNKNOWN} so far",
            ("  " + sparkline(burn.recent), "cyan"),
        ),
    ]
    seen = burn.machine or MachineSeen()
    parts = [Text(text, style="dim" if UNKNOWN in text else "") for text in
             (clock_text(seen), power_text(seen), heat_text(seen))]  # fmt: skip
    held = held_text(seen)
    tone = "dim" if seen.held is None else "yellow" if seen.held else ""
    return [*lines, Text("   ").join(parts), Text.assemble("held down by: ", (held, tone))]


def _arms(burn: Burn) -> Table:
    """Mean rates of the finished rounds: of the case that runs, and of the headline."""
    from rich.table import Table
    from rich.text import Text

    running = burn.rate.case if burn.rate else burn.plan.headline
    cases = list(dict.fromkeys((running, burn.plan.headline)))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("ARM", "ROUNDS", *cases):
        table.add_column(head, overflow="fold")
    for arm in burn.plan.arms:
        count = str(sum(each.arm == arm for each in burn.rounds))
        style = "cyan" if burn.now and burn.now.arm == arm else ""
        table.add_row(Text(arm, style), count, *(mean_text(burn.rates(arm, case)) for case in cases))
    return table


def _gates(burn: Burn) -> Table:
    """Those that stand in the way with what was seen, the others by name."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    if not burn.gates:
        table.add_row(Text("gates: judged after each round", style="dim"))
    for state, gates in by_state(burn.gates):
        mark = Text(state, TONES[state])
        if state in ("fail", "warn"):
            for one in gates:
                table.add_row(mark, Text(f"{one.name}: {one.evidence}"))
        else:
            table.add_row(mark, Text(", ".join(gate.name for gate in gates)))
    return table
