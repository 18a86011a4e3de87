"""The commands why and log, and attach for background runs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import DETACHED, Options, command, shared
from spark_build.errors import Hint, HintStep, HostError, UsageError, ours
from spark_build.events import Emit
from spark_build.text import format_duration

if TYPE_CHECKING:
    from spark_build.build.background import Background
    from spark_build.build.context import Context
    from spark_build.build.diagnosis import LogDiagnosis
    from spark_build.recipes.model import Plan, Step

UNBUILT = "to be built first"


@command()
@click.argument("recipe")
@shared
def why(options: Options, recipe: str) -> None:
    """Show which inputs of RECIPE changed since its last build here."""
    from spark_build.build import recipe_build, scheduler
    from spark_build.build.keys import key_differences

    setting = options.setting()
    planned = scheduler.plan(setting, [recipe])
    step = _step(planned, recipe)
    last = _last_build(setting, recipe)
    before = recipe_build.recorded_inputs(setting.home.store, last) if last else {}
    found = key_differences(before, _inputs_now(setting, planned, step)) if last else ()
    if options.json:
        document = {
            "recipe": recipe,
            "key": step.build_key or None,
            "last": last["key"] if last else None,
            "imported": last["imported"] if last else "",
            "differences": [one._asdict() for one in found],
        }
        render.print_json(document)
        return
    if last is None:
        print(f"{recipe} was never built here for {setting.target.platform}, {setting.target.python}")
    elif not found and step.decision == "BUILD":
        print(f"{recipe}: nothing differs, and yet: {'; '.join(step.reasons)}")
    elif not found:
        again = "".join(f" after another audit: {reason}" for reason in step.stale[:1])
        print(f"{recipe}: nothing differs: it would be reused{again}")
    if last and last["imported"]:
        print(f"{recipe}: the last one was not built here: imported ({last['imported']})")
    for one in found:
        print(f"{one.path}: {_shown(one.before)} -> {_shown(one.now)}")


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _step(planned: Plan, recipe: str) -> Step:
    return next(step for step in planned.steps if step.recipe.name == recipe)


def _inputs_now(setting: Context, planned: Plan, step: Step) -> dict[str, Any]:
    """Return the build key's inputs as of now; the content of an unbuilt need is unknown."""
    from spark_build.build.environment import locate
    from spark_build.build.keys import build_inputs
    from spark_build.build.recipe_build import tools_of

    keys = {one.recipe.name: one.stored_as for one in planned.steps if one.stored_as}
    needs = {}
    for provision in step.provisions:
        known = provision.provider != "store" or provision.need in keys
        needs[provision.need] = locate(provision, setting.home.store, keys).identity if known else UNBUILT
    return build_inputs(step.declared, needs, tools_of(step))


def _last_build(setting: Context, recipe: str) -> Mapping[str, Any] | None:
    from spark_build.wheelhouse import store

    return store.last_build(setting.home.store, recipe, setting.target)


@command()
@click.argument("recipe")
@click.option("--diagnosis", is_flag=True, help="Only show the first real error, its cause and its fix.")
@shared
def log(options: Options, recipe: str, diagnosis: bool) -> None:
    """Show the last log of RECIPE.

    Shows that of a build that runs or failed, else of the one whose wheel is in the store.
    """
    from spark_build.build.diagnosis import diagnose, last_command

    path, failed = _last_log(options.setting(), recipe)
    text = path.read_text(errors="replace")
    found = diagnose(last_command(text)) if failed else None
    if options.json:
        document = found and _diagnosis_row(found)
        render.print_json({"recipe": recipe, "path": str(path), "diagnosis": document})
        return
    if not diagnosis:
        print(text, end="" if text.endswith("\n") else "\n")
    if found is not None:
        print("\n".join(_explained(found)))
    elif diagnosis:
        print(f"nothing in {path} looks like an error")


def _diagnosis_row(found: LogDiagnosis) -> dict[str, str]:
    one = found.finding
    row = {"problem": one.rule, "error": one.message, "place": str(one.place)}
    return {**row, "explanation": found.explanation, "fix": typeable(one.hint)}


def _explained(found: LogDiagnosis) -> list[str]:
    lines = [f"error: {found.finding}"]
    if found.finding.rule:
        lines += [f"  why:  {found.explanation}", f"  next: {typeable(found.finding.hint)}"]
    return lines


def _last_log(setting: Context, recipe: str) -> tuple[Path, bool]:
    """Return the log, and whether its build is running or failed."""
    from spark_build.build.recipe_build import LOG
    from spark_build.wheelhouse import store

    setting.catalogue.recipe(recipe)
    trees = sorted((setting.home.build / recipe).glob(f"*/{LOG}"), key=lambda path: path.stat().st_mtime_ns)
    if trees:
        return trees[-1], not trees[-1].with_name("configured").exists()
    last = _last_build(setting, recipe)
    path = store.entry_folder(setting.home.store, str(last["key"])) / LOG if last else None
    if path is not None and path.is_file():
        return path, False
    raise UsageError(f"there is no log of {recipe}", hint=ours("build", recipe))


def start_background(options: Options, runs: Path, check: Callable[[Emit], object]) -> int:
    """Run this command line again in the background, once `check` passes."""
    from spark_build.build import background
    from spark_build.journal import new_run

    with render.open_view(options.verbosity) as view:
        check(view.emit)
    folder = new_run(runs)
    # As this process was started, be it as a script or by `python -m`.
    command = [sys.executable, *sys.orig_argv[1:]]
    # Its tables are for the terminal that is here, and has none itself.
    wide = {"COLUMNS": str(width)} if (width := render.columns()) else {}
    pid = background.start(folder, command, {**os.environ, **wide, DETACHED: str(folder)})
    if options.json:
        render.print_json({"run": folder.name, "pid": pid, "folder": str(folder)})
    else:
        print(f"{folder.name} runs in the background (process {pid})")
        with render.details(options):
            print(f"watch it: {_again(options)}")
    return 0


@command()
@click.argument("run", required=False)
@click.option("--list", "listing", is_flag=True, help="List the detached runs.")
@click.option("--stop", is_flag=True, help="Stop the run cleanly; the next one continues from there.")
@shared
def attach(options: Options, run: str | None, listing: bool, stop: bool) -> int:
    """Watch a detached build until it ends; exit with its code.

    RUN is the name that --detach printed (default: the newest that runs). Ctrl-C only stops watching.
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
    """Return the run of that name; by default the newest that is alive, else the newest."""
    if name is not None:
        found = next((run for run in runs if run.name == name), None)
    else:
        found = next((run for run in runs if run.alive), runs[0] if runs else None)
    if found is None:
        raise UsageError(
            f"no run {name} was detached here" if name else "nothing was detached here",
            hint=ours("attach --list") if runs else ours("build RECIPE --detach"),
        )
    return found


class _Replay:
    """A clock for the view: while an event is shown, it stands at that event's time."""

    def __init__(self) -> None:
        self.late = 0.0

    def __call__(self) -> float:
        return time.monotonic() - self.late


def _watch(options: Options, run: Background) -> None:
    """Show past and new events as the command itself does in the foreground."""
    from spark_build.build import background

    if run.alive and options.verbosity >= 0:
        age = format_duration((datetime.now(UTC) - run.started).total_seconds())
        click.echo(f"{run.name}: {_command(run)}, began {age} ago; Ctrl-C only stops watching", err=True)
    clock = _Replay()
    with render.open_view(options.verbosity, clock) as view:
        for events in background.follow(run.folder):
            for at, event in events:
                clock.late = max(0.0, time.time() - at)
                view.emit(event)
            clock.late = 0.0


def _left(options: Options, run: Background) -> int:
    """Print how to return, after Ctrl-C while watching."""
    click.echo(f"{run.name} goes on", err=True)
    click.echo(f"  back: {_again(options, run.name)}", err=True)
    click.echo(f"  stop: {_again(options, '--stop', run.name)}", err=True)
    if options.json:
        render.print_json(_row(run))
    return 130


def _conclude(options: Options, watched: Background) -> int:
    """Print the run's output and return its exit code."""
    from spark_build.build import background

    run = background.find(watched.folder) or watched
    click.echo((run.folder / background.STDERR).read_text(errors="replace"), err=True, nl=False)
    if run.exit_code is None:
        raise HostError(
            f"{run.name} ended without a result: killed (out of memory?), or the machine went down",
            hint=Hint(HintStep("ours", options=run.command), "  (goes on where it stopped)"),
        )
    output = (run.folder / background.STDOUT).read_bytes()
    if options.json and not _is_json(output):
        render.print_json({**_row(run), "output": output.decode(errors="replace")})
    else:
        click.echo(output.decode(errors="replace"), nl=False)
    return run.exit_code


def _is_json(output: bytes) -> bool:
    """Return whether the run was started with --json."""
    with contextlib.suppress(ValueError):
        json.loads(output)
        return True
    return False


def _stop(options: Options, run: Background) -> int:
    """Stop a run; one that has ended is fine."""
    from spark_build.build import background

    if run.alive:
        background.stop(run)
    if options.json:
        render.print_json(_row(background.find(run.folder) or run))
    elif run.alive:
        again = typeable(HintStep("ours", options=run.command), options, ("--root",))
        print(f"{run.name} is stopped\n  go on: {again}")
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
    """Return the command line that the user typed."""
    return shlex.join(["spark-build", *run.command])


def _again(options: Options, *arguments: str) -> str:
    """Return an `attach` command line that finds the same folder."""
    return typeable(ours("attach", *arguments), options, ("--root",))
