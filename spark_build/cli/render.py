"""Results on stdout, progress on stderr: rich on a terminal, plain lines elsewhere, or JSON."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import IO, TYPE_CHECKING, Any, Self

from spark_build.cli import burn_in_progress
from spark_build.cli.options import Options
from spark_build.cli.terminal import console
from spark_build.events import (
    BurnInFinished,
    BurnInStarted,
    Emit,
    Event,
    ExpectedUsage,
    Note,
    Progress,
    RecipeFinished,
    RoundFinished,
    StageFinished,
    StageStarted,
    Usage,
)
from spark_build.reporting import Reporter, reporting
from spark_build.resources import policy
from spark_build.text import format_duration, format_size, printable

if TYPE_CHECKING:
    from pathlib import Path


def is_plain(stream: IO[str]) -> bool:
    """Return whether a stream gets plain lines: no terminal, NO_COLOR, or a dumb one."""
    return not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


@contextmanager
def details(options: Options) -> Iterator[None]:
    """Let nothing that is printed meanwhile on stdout pass with --quiet: the line of the result follows."""
    with redirect_stdout(io.StringIO()) if options.verbosity < 0 else nullcontext():
        yield


def counted(words: Iterable[str]) -> str:
    """Return how often each word is there: "3 built, 1 reused"."""
    return ", ".join(f"{number} {word}" for word, number in Counter(words).items())


def print_json(value: Any) -> None:
    """Print the one JSON document of a command."""
    print(json.dumps(value, indent=1))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, always: int | None = None) -> None:
    """Print a table on stdout, on a terminal in colours; what does not fit stands below its row.

    always: how many columns are shown though they are empty (default: all).
    """
    if not rows:
        return
    if always is not None:
        kept = [at for at in range(len(headers)) if at < always or any(row[at] for row in rows)]
        headers, rows = [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]
    table = [list(headers), *([printable(cell) for cell in row] for row in rows)]
    if is_plain(sys.stdout):
        for parts in _laid_out(table, columns()):
            print("".join(parts).rstrip())
        # Progress follows on stderr: keep the order when both go to one place.
        sys.stdout.flush()
        return
    from rich.text import Text

    terminal = console()
    for number, parts in enumerate(_laid_out(table, columns())):
        styles = ["bold" if number == 0 else STYLES.get(part.rstrip(), "") for part in parts]
        line = Text.assemble(*zip(parts, styles, strict=True))
        line.rstrip()
        terminal.print(line, soft_wrap=True)


def _laid_out(table: Sequence[Sequence[str]], width: int) -> Iterator[list[str]]:
    """Yield lines of padded cells. The last column folds; where it has no room, it stands below the row.

    So do the columns before it that have none, by their names. width: 0 for any.
    """
    headers, last = table[0], len(table[0]) - 1
    widths = [max(len(row[column]) for row in table) for column in range(last + 1)]
    kept, indent = last, sum(widths[:-1]) + 2 * last
    longest = max((len(word) for row in table for word in row[last].split()), default=0)
    least = max(SHORTEST, longest) if indent >= SHORTEST else SHORTEST
    is_below = indent + widths[-1] > width > 0 and width < indent + least
    if is_below:
        indent = 4
        while kept > 1 and sum(widths[:kept]) + 2 * (kept - 1) > width:
            kept -= 1
    for row in table:
        cells = [f"{cell.ljust(each)}  " for cell, each in zip(row[:kept], widths, strict=False)]
        named = zip(headers[kept:last], row[kept:last], strict=True)
        more = [f"{name.lower()} {cell}" for name, cell in named if cell and row is not headers]
        first, *others = _folded("; ".join(filter(None, [*more, row[last]])), width - indent if width else 0)
        if is_below:
            yield cells
            others = [first, *others]
        else:
            yield [*cells, first]
        yield from ([f"{'':{indent}}{rest}"] for rest in others if rest)


def columns() -> int:
    """Return the width of the terminal, or COLUMNS; 0 where lines go to a file or a program."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return 0


def print_wrapped(text: str) -> None:
    """Print a sentence on lines that fit, the later ones indented."""
    for number, line in enumerate(_folded(printable(text), columns() - 2)):
        print(f"{'  ' if number else ''}{line}")


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a text; one where there is no width."""
    if width <= 0 or len(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


SHORTEST = 30  # columns: below, words would stand in a tower
LINE_EVERY = 5.0  # seconds, at least, between two lines of one stage
SILENCE = 60.0  # seconds after which a stage that does something says how far it is

STYLES = {
    "BUILD": "cyan",
    "REUSE": "green",
    "SKIP": "dim",
    "BLOCKED": "yellow",
    "built": "green",
    "configured": "green",
    "reused": "green",
    "failed": "bold red",
    "blocked": "yellow",
    "skipped": "dim",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}


Clock = Callable[[], float]


@contextmanager
def open_view(verbosity: int, clock: Clock = time.monotonic, *, plain: bool = False) -> Iterator[RunView]:
    """Show a run on this stderr, messages of the reporter too; `clock` gives the time of the shown event."""
    view = RunView()
    if verbosity >= 0:
        view = Lines(clock) if plain or is_plain(sys.stderr) else Live(clock)
    with view, reporting(Reporter(lambda text: view.emit(Note(message=text)))):
        yield view


class RunView:
    """Something that shows events while work goes on; this one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        del details

    def emit(self, event: Event) -> None:
        """Show one event."""


class _TimeLeft:
    """Time left of a running stage: from an earlier build on this machine, else from its own pace."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start: dict[tuple[str, str], tuple[float, int]] = {}
        self._stage: dict[tuple[str, str], tuple[float, ExpectedUsage | None]] = {}

    def begin(self, event: StageStarted) -> None:
        """Start a stage, or start it again."""
        key = (event.recipe, event.stage)
        self._start.pop(key, None)
        self._stage[key] = (self._clock(), event.expected)

    def of(self, event: Progress) -> str:
        """In words: at a guess up to a fifth of the steps of a first build; empty until anything is known."""
        now = self._clock()
        entered, expected = self._stage.get((event.recipe, event.stage), (now, None))
        if event.done >= event.total:
            rest = (expected.seconds or 0.0) - (now - entered) if expected else 0.0
            uncounted = ", then linking and packing" if event.stage == "build" else ""
            return f", about {format_duration(rest)} left" if rest >= 1 else uncounted
        known = policy.time_left(event.done, event.total, now - entered, expected)
        if known is not None:
            return f", about {format_duration(known)} left"
        began, first = self._start.setdefault((event.recipe, event.stage), (now, event.done))
        guess = expected.guess if expected and now - entered < (expected.guess or 0.0) else None
        rest = event.total - event.done
        known = policy.time_left_of_first(event.done - first, rest, now - began, guess)
        if known is None:
            return ""
        word = "at a guess" if guess and event.done * 5 < event.total else "about"
        return f", {word} {format_duration(known)} left"


def describe(event: Event) -> str | None:
    """One line for an event; None for those that only move a bar."""
    if isinstance(event, Note):
        return f"{event.recipe}: {event.message}" if event.recipe else event.message
    if isinstance(event, StageFinished):
        result = event.result
        if result.status == "failed":
            return f"{event.recipe}: {result.stage} failed after {format_duration(result.seconds)}"
        if result.status == "kept":
            return f"{event.recipe}: {result.stage} kept from the last run"
        return f"{event.recipe}: {result.stage} done in {format_duration(result.seconds)}"
    return None


class Lines(RunView):
    """Plain lines without control codes: one per stage or round, of a long one one per tenth or minute."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._left = _TimeLeft(clock)
        self._shown: dict[tuple[str, str], tuple[float, int]] = {}
        self._usage: Usage | None = None
        self._burn: burn_in_progress.Burn | None = None

    def __exit__(self, *details: object) -> None:
        if self._burn is not None:
            print(burn_in_progress.kept(self._burn), file=sys.stderr, flush=True)

    def emit(self, event: Event) -> None:
        """Print a line when there is something to say."""
        line = describe(event)
        self._burn = burn_in_progress.follow(self._burn, event, self._clock())
        if self._burn is not None and isinstance(event, RoundFinished) and not event.kept:
            line = burn_in_progress.round_line(self._burn, self._clock())
        if isinstance(event, StageStarted):
            self._left.begin(event)
            self._shown.pop((event.recipe, event.stage), None)
        if isinstance(event, Usage):
            self._usage = event
        if isinstance(event, Progress) and event.total > 0 and self._burn is None:
            line = self._progress(event)
        if line is not None:
            print(line, file=sys.stderr, flush=True)

    def _progress(self, event: Progress) -> str | None:
        """Return a line at every tenth or minute, but at most every few seconds."""
        left = self._left.of(event)
        now, tenth = self._clock(), event.done * 10 // event.total
        last, shown = self._shown.setdefault((event.recipe, event.stage), (now, 0))
        if now - last < (SILENCE if tenth == shown else LINE_EVERY):
            return None
        self._shown[event.recipe, event.stage] = (now, tenth)
        who = f"{event.recipe}: " if event.recipe else ""
        used = f" ({usage(self._usage)})" if self._usage is not None and event.unit == "steps" else ""
        return f"{who}{event.stage} {_amount(event)}{left}{used}"


def usage(event: Usage) -> str:
    """Jobs and memory in words: "3 of 20 jobs, 10.2 GiB of 96.0 GiB"."""
    memory = f"{format_size(event.memory_mib << 20)} of {format_size(event.budget_mib << 20)}"
    return f"{event.jobs} of {event.allowed} jobs, {memory}"


def _amount(event: Progress) -> str:
    if event.unit == "bytes":
        return f"{format_size(event.done)} of {format_size(event.total)}"
    return f"{event.done}/{event.total}"


class Live(RunView):
    """One moving line per running stage, finished ones scroll up; a page while a burn-in runs."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        from spark_build.cli.live import LivePage, Stages

        self._clock = clock
        self._left = _TimeLeft(clock)
        self._console = console(stderr=True)
        self._stages = Stages(self._console, clock)
        self._page = LivePage(self._console, clock)

    def __enter__(self) -> Self:
        self._stages.start()
        return self

    def __exit__(self, *details: object) -> None:
        del details
        self._page.leave()
        self._stages.stop()

    def emit(self, event: Event) -> None:
        """Move a bar, scroll a line, or show it on the page."""
        if isinstance(event, BurnInStarted):
            self._stages.stop()
        self._page.follow(event)
        if isinstance(event, BurnInFinished):
            self._stages.start()
        if self._page.burn is None:
            self._move(event)
        line = describe(event)
        if line is not None:
            self._console.print(line, markup=False, highlight=False)

    def _move(self, event: Event) -> None:
        stages = self._stages
        if isinstance(event, StageStarted):
            self._left.begin(event)
            guess = event.expected.guess if event.expected else None
            stages.row(event.recipe, event.stage).left = (
                f"a guess: {format_duration(guess)} in all" if guess else ""
            )
        elif isinstance(event, Usage):
            stages.usage = event, usage(event)
        elif isinstance(event, Progress):
            row = stages.row(event.recipe, event.stage)
            row.done, row.total, row.amount = event.done, event.total, _amount(event)
            row.left = self._left.of(event).removeprefix(", ")
            if not event.recipe and event.done >= event.total:  # of no recipe's stage: no other end is told
                stages.rows.pop(("", event.stage))
        elif isinstance(event, StageFinished):
            stages.rows.pop((event.recipe, event.result.stage), None)
        elif isinstance(event, RecipeFinished):
            for key in [key for key in stages.rows if key[0] == event.result.recipe]:
                stages.rows.pop(key)


@contextmanager
def running(options: Options, runs: Path) -> Iterator[tuple[Path, Emit]]:
    """Yield a run's folder, and an emitter that shows and records."""
    from spark_build.journal import Journal, new_run

    one_at_a_time = threading.Lock()
    detached = options.background is not None
    journal = Journal(options.background or new_run(runs), whole=detached)
    # What a background process would show, `attach` shows; its stderr has the errors only.
    with open_view(-1 if detached else options.verbosity, plain=options.json) as view:

        def emit(event: Event) -> None:
            with one_at_a_time:  # recipes build side by side
                journal.emit(event)
                view.emit(event)

        with reporting(Reporter(lambda text: emit(Note(message=text)))):
            yield journal.folder, emit
