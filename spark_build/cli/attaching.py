"""`--detach` and `attach`: builds that go on when the terminal is gone."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import DETACHED, Options, shared
from spark_build.text import duration

if TYPE_CHECKING:
    from spark_build.build.background import Background
    from spark_build.events import Emit


def start_background(options: Options, runs: Path, check: Callable[[Emit], object]) -> int:
    """Run this very command line again in the background, once `check` has found nothing wrong."""
    from spark_build.build import background
    from spark_build.journal import new_run

    with render.view(options.verbosity) as view:
        check(view.emit)
    folder = new_run(runs)
    # As this process was started, be it as a script or by `python -m`.
    command = [sys.executable, *sys.orig_argv[1:]]
    pid = background.start(folder, command, {**os.environ, DETACHED: str(folder)})
    if options.json:
        render.print_json({"run": folder.name, "pid": pid, "folder": str(folder)})
    else:
        print(f"{folder.name} runs in the background (process {pid})")
        print(f"watch it: {_again(options)}")
    return 0


def be_background(folder: str) -> int:
    """The process that `start_background` starts; returns the exit code."""
    from spark_build.build import background
    from spark_build.cli.main import Stopped, main

    # A session of its own gets none from a terminal; this is for a shell that sends it by hand.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    options = Options()
    options.background = Path(folder)
    with background.hold(options.background, sys.argv[1:]):
        try:
            code = main(sys.argv[1:], options)
        except Stopped as stop:
            code = 128 + stop.number
        # The exit code says that the output is whole.
        sys.stdout.flush()
        background.finish(options.background, code)
    return code


@click.command()
@click.argument("run", required=False)
@click.option("--list", "listing", is_flag=True, help="List what was detached.")
@click.option("--stop", is_flag=True, help="End it in good order; the next run goes on from there.")
@shared
def attach(options: Options, run: str | None, listing: bool, stop: bool) -> int:
    """Watch a detached build until it ends, then print its result and exit with its code.

    RUN is what --detach printed; without it, the newest one that runs. Ctrl-C only stops watching.
    """
    from spark_build.build import background

    runs = background.find_all(options.home().runs)
    if listing:
        _list(options, runs)
        return 0
    chosen = _chosen(runs, run)
    if stop:
        return _stop(options, chosen)
    if run is None and not chosen.alive and options.verbosity >= 0:
        click.echo(f"nothing runs in the background; the last one was {chosen.name}", err=True)
    # A terminal that goes away ends only the watching; nothing can be said to it any more.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        _watch(options, chosen)
    except KeyboardInterrupt:
        return _left(options, chosen)
    return _conclude(options, chosen)


def _chosen(runs: Sequence[Background], name: str | None) -> Background:
    """The run of that name; without one the newest that lives, else the newest."""
    from spark_build.errors import UsageError

    if name is not None:
        found = next((one for one in runs if one.name == name), None)
    else:
        found = next((one for one in runs if one.alive), runs[0] if runs else None)
    if found is None:
        raise UsageError(
            f"no run {name} was detached here" if name else "nothing was detached here",
            hint="spark-build attach --list" if runs else "spark-build build RECIPE --detach",
        )
    return found


class _Replay:
    """The view's clock; while an event is shown it stands at the time when that happened."""

    def __init__(self) -> None:
        self.late = 0.0

    def __call__(self) -> float:
        return time.monotonic() - self.late


def _watch(options: Options, run: Background) -> None:
    """Show what has happened and what happens, as the command itself would in the foreground."""
    from spark_build.build import background

    if run.alive and options.verbosity >= 0:
        age = duration((datetime.now(UTC) - run.started).total_seconds())
        click.echo(f"{run.name}: {_command(run)}, began {age} ago; Ctrl-C only stops watching", err=True)
    clock = _Replay()
    with render.view(options.verbosity, clock) as view:
        for events in background.follow(run.folder):
            for at, event in events:
                clock.late = max(0.0, time.time() - at)
                view.emit(event)
            clock.late = 0.0


def _left(options: Options, run: Background) -> int:
    """Ctrl-C while watching."""
    click.echo(f"{run.name} goes on", err=True)
    click.echo(f"  back: {_again(options, run.name)}", err=True)
    click.echo(f"  stop: {_again(options, '--stop', run.name)}", err=True)
    if options.json:
        render.print_json(_row(run))
    return 130


def _conclude(options: Options, watched: Background) -> int:
    """What the run printed, and its exit code."""
    from spark_build.build import background
    from spark_build.errors import HostError

    run = background.find(watched.folder) or watched
    click.echo((run.folder / background.STDERR).read_bytes(), err=True, nl=False)
    if run.exit_code is None:
        raise HostError(
            f"{run.name} ended without a result: killed (out of memory?), or the machine went down",
            hint=f"{_command(run)}  (goes on where it stopped)",
        )
    output = (run.folder / background.STDOUT).read_bytes()
    if options.json and not _is_json(output):
        render.print_json({**_row(run), "output": output.decode(errors="replace")})
    else:
        click.echo(output, nl=False)
    return run.exit_code


def _is_json(output: bytes) -> bool:
    """Whether the run itself was asked for --json."""
    import json

    with contextlib.suppress(ValueError):
        json.loads(output)
        return True
    return False


def _stop(options: Options, run: Background) -> int:
    """End a run; one that has ended is fine, too."""
    from spark_build.build import background

    if run.alive:
        background.stop(run)
    if options.json:
        render.print_json(_row(background.find(run.folder) or run))
    elif run.alive:
        print(f"{run.name} is stopped\n  go on: {_command(run)}")
    else:
        print(f"{run.name} had ended before")
    return 0


def _list(options: Options, runs: Sequence[Background]) -> None:
    if options.json:
        render.print_json({"runs": [_row(run) for run in runs]})
        return
    rows = [
        [run.name, _state(run), f"{run.started.astimezone():%Y-%m-%d %H:%M}", _command(run)] for run in runs
    ]
    render.print_table(["RUN", "STATE", "BEGAN", "COMMAND"], rows)


def _state(run: Background) -> str:
    if run.alive:
        return "running"
    return "lost" if run.exit_code is None else f"exit code {run.exit_code}"


def _row(run: Background) -> dict[str, Any]:
    return {
        "run": run.name,
        "state": "running" if run.alive else "lost" if run.exit_code is None else "ended",
        "exit_code": run.exit_code,
        "pid": run.pid,
        "folder": str(run.folder),
        "started": run.started.isoformat(),
        "command": list(run.command),
    }


def _command(run: Background) -> str:
    """What the user typed."""
    return shlex.join(["spark-build", *run.command])


def _again(options: Options, *arguments: str) -> str:
    """An `attach` that finds the same folder."""
    return typeable(shlex.join(["spark-build", "attach", *arguments]), options, ("--root",))
