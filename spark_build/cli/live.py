"""The page that a terminal shows while a burn-in runs."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_build.cli.burn_in_progress import (
    UNKNOWN,
    Burn,
    by_state,
    clock_text,
    doing,
    follow,
    heat_text,
    held_text,
    kept,
    mean_text,
    power_text,
    sparkline,
)
from spark_build.events import Event, MachineSeen
from spark_build.text import format_duration, format_flops

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
        burn = self.burn  # once: another thread replaces it
        return Text() if burn is None else page(burn, self._clock())


def page(burn: Burn, clock: float) -> RenderableType:
    """Return the page: progress, the running round, the arms' rates so far, the gates."""
    said = Text(SAID, style="dim")
    return Group(*_where(burn, clock), Text(), _arms(burn), Text(), _gates(burn), said)


def _where(burn: Burn, clock: float) -> list[Text]:
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
