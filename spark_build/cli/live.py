"""Moving parts of a terminal: a line for each running stage, and the page of a burn-in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import ControlType, Segment
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
from spark_build.events import Event, MachineSeen, Usage
from spark_build.text import format_duration, format_flops

TONES = {"fail": "bold red", "warn": "yellow", "ok": "green", "unknown": "dim"}
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧"
SHORTEST_BAR, LONGEST_BAR = 8, 30  # columns
CONTROL = [(ControlType.BELL,)]  # rich does not measure or escape a segment that has any
PER_SECOND = 2  # it is drawn: on a CPU the drawing takes from what is measured
SAID = "The verdict comes at the end. Ctrl-C is safe: the same command goes on."


@dataclass
class StageRow:
    """A running stage; times in seconds of the clock."""

    name: str
    since: float
    done: int = 0
    total: int = 0  # 0: not known
    amount: str = ""
    left: str = ""


class Stages:
    """Shows the running stages, and what all of them use together below."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.rows: dict[tuple[str, str], StageRow] = {}
        self.usage: tuple[Usage, str] | None = None
        self._clock = clock
        self._drawing = _Drawing(console, self._lines, per_second=8)

    def row(self, recipe: str, stage: str) -> StageRow:
        """Return the row of a stage, a new one at the end if there is none."""
        name = f"{recipe} {stage}".strip()
        return self.rows.setdefault((recipe, stage), StageRow(name=name, since=self._clock()))

    def start(self) -> None:
        """Begin to draw."""
        self._drawing.start()

    def stop(self) -> None:
        """Take the lines off the terminal."""
        self._drawing.stop()

    def _lines(self, width: int) -> list[Text]:
        now = self._clock()
        rows = list(self.rows.values())  # at once: another thread adds
        lines = [line for row in rows for line in stage_lines(row, now, width)]
        if rows and self.usage is not None:
            event, text = self.usage
            lines += _fitted("  memory", [text], event.memory_mib / max(1, event.budget_mib), width)
        return lines


class _Drawing:
    """Draws lines again and again in their place, by a thread of its own."""

    def __init__(self, console: Console, lines: Callable[[int], list[Text]], *, per_second: float) -> None:
        self._console = console
        self._lines = lines  # for a width in columns
        self._per_second = per_second
        self._live: Live | None = None
        self._drawn: tuple[int, list[Text]] = (0, [])  # the width it was drawn for

    def start(self) -> None:
        """Begin to draw, if it has not begun."""
        if self._live is None:
            self._live = Live(
                get_renderable=self._draw,
                console=self._console,
                refresh_per_second=self._per_second,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # else what belongs into a file would go to the terminal
            )
            self._live.start()

    def stop(self) -> None:
        """Take the lines off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> RenderableType:
        width = self._console.width - 1  # terminals fold a line that is as wide as they
        lines = self._lines(width)
        (before, drawn), self._drawn = self._drawn, (width, lines)
        folded = sum(max(0, line.cell_len - 1) // (width + 1) for line in drawn) if width < before else 0
        return _Frame(lines, folded)


class _Frame:
    """Lines, which a terminal that is narrower already must not fold; erases what it folded before, once."""

    def __init__(self, lines: list[Text], folded: int) -> None:
        self._lines = lines
        self._folded = folded
        if lines:
            lines[-1].end = ""

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        folded, self._folded = self._folded, 0
        yield Segment("\x1b[1A\x1b[2K" * folded + "\x1b[?7l", None, CONTROL)
        yield from self._lines
        yield Segment("\x1b[?7h", None, CONTROL)


def stage_lines(row: StageRow, now: float, width: int) -> list[Text]:
    """Return a stage on lines of at most `width` columns: with a bar where one fits, else without."""
    spent = str(timedelta(seconds=int(now - row.since)))
    share = row.done / row.total if row.total else None
    moving = SPINNER[int(now * 8) % len(SPINNER)]
    return _fitted(f"{moving} {row.name}", [row.amount, spent, row.left], share, width)


def _fitted(head: str, parts: Sequence[str], share: float | None, width: int) -> list[Text]:
    """Return head, bar and parts; on several lines, cut nowhere, where one is too short."""
    words = [head, *filter(None, parts)]
    room = width - sum(len(word) + 2 for word in words)
    if share is not None and room >= SHORTEST_BAR:
        size = min(room, LONGEST_BAR)
        full = round(min(1.0, share) * size)
        bar = (("━" * full, "green"), ("─" * (size - full), "dim"))
        return [Text.assemble(head, "  ", *bar, "  ", "  ".join(words[1:]), no_wrap=True)]
    lines = [head]
    for word in words[1:]:
        if len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(f"  {word}")
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


class LivePage:
    """Shows a burn-in while one runs; its events only note what is known.

    The drawing has a thread of its own: a terminal that stands still must hold up nothing else.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.burn: Burn | None = None
        self._console = console
        self._clock = clock
        self._drawing = _Drawing(console, self._lines, per_second=PER_SECOND)

    def follow(self, event: Event) -> None:
        """Note an event; the first and the last of a burn-in open and close the page."""
        self.burn = follow(self.burn, event, self._clock())
        if self.burn is not None:
            self._drawing.start()
        else:
            self._drawing.stop()

    def leave(self) -> None:
        """Close the page; of a burn-in that has not ended say what is kept."""
        self._drawing.stop()
        if self.burn is not None:
            self._console.print(kept(self.burn), highlight=False)

    def _lines(self, width: int) -> list[Text]:
        burn = self.burn  # once: another thread replaces it
        if burn is None:
            return []
        options = self._console.options.update(width=width, height=None)
        found = self._console.render_lines(page(burn, self._clock(), width), options, pad=False)
        lines = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in found]
        for line in lines:
            line.no_wrap = True
            line.rstrip()  # a terminal that folds lines does not count blanks at their end
        return lines


def page(burn: Burn, clock: float, width: int) -> RenderableType:
    """Return the page: progress, the running round, the arms' rates so far, the gates."""
    said = Text(SAID, style="dim")
    return Group(*_where(burn, clock, width), Text(), _arms(burn, width), Text(), _gates(burn), said)


def _where(burn: Burn, clock: float, width: int) -> list[Text]:
    number = burn.now.number if burn.now else len(burn.rounds)
    progress = [Text.assemble(("burn-in  ", "bold"), f"round {number} of {burn.plan.rounds}")]
    if burn.plan.rounds:
        progress.append(Text(f"about {format_duration(burn.left(clock))} left"))
    running = [Text(part) for part in doing(burn).split(", ")]
    rate = Text(format_flops(burn.rate.rate) if burn.rate else f"rate {UNKNOWN} so far")
    seen = burn.machine or MachineSeen()
    parts = [Text(text, style="dim" if UNKNOWN in text else "") for text in
             (clock_text(seen), power_text(seen), heat_text(seen))]  # fmt: skip
    held = held_text(seen)
    tone = "dim" if seen.held is None else "yellow" if seen.held else ""
    return [
        *_packed(progress, ", ", width),
        *_packed(running, ", ", width),
        *_packed([rate, Text(sparkline(burn.recent), "cyan")], "  ", width),
        *_packed(parts, "   ", width),
        Text.assemble("held down by: ", (held, tone)),
    ]


def _packed(parts: Sequence[Text], between: str, width: int) -> list[Text]:
    """Return the parts on as few lines as hold them; no number is parted from its unit."""
    lines = [Text()]
    for number, part in enumerate(parts):
        if number and lines[-1].cell_len + len(between) + part.cell_len > width:
            lines[-1].append(between.rstrip())
            lines.append(Text("  "))
        elif number:
            lines[-1].append(between)
        lines[-1].append_text(part)
    return lines


def _arms(burn: Burn, width: int) -> RenderableType:
    """Mean rates of the finished rounds, of the running case and of the headline: a table where one fits."""
    running = burn.rate.case if burn.rate else burn.plan.headline
    cases = list(dict.fromkeys((running, burn.plan.headline)))
    rows = [
        [arm, str(sum(each.arm == arm for each in burn.rounds))]
        + [mean_text(burn.rates(arm, case)) for case in cases]
        for arm in burn.plan.arms
    ]
    heads = ["ARM", "ROUNDS", *cases]
    tones = ["cyan" if burn.now and burn.now.arm == arm else "" for arm in burn.plan.arms]
    if sum(max(map(cell_len, column)) + 2 for column in zip(heads, *rows, strict=True)) - 2 > width:
        lines = []
        for (arm, count, *rates), tone in zip(rows, tones, strict=True):
            lines.append(Text(f"{arm}, rounds: {count}", tone))
            lines += [Text(f"  {case}  {rate}") for case, rate in zip(cases, rates, strict=True)]
        return Group(*lines)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for (arm, *others), tone in zip(rows, tones, strict=True):
        table.add_row(Text(arm, tone), *others)
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
