"""The commands of wheelhouse: list, path, generations, gc, check."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import Options, command, shared
from spark_build.errors import Hint, StoreError, ours
from spark_build.events import Progress
from spark_build.text import format_duration, format_size

if TYPE_CHECKING:
    from spark_build.wheelhouse.fsck import Suspect
    from spark_build.wheelhouse.gc import Collected
    from spark_build.wheelhouse.generations import Generation, KeptGeneration

# name: (module, function, what `--help` says)
COMMANDS = {
    "list": ("spark_build.cli.wheelhouse", "list_", "Show the wheels of the current generation."),
    "inspect": ("spark_build.cli.inspect", "inspect", "Show what is inside a wheel, or compare two."),
    "path": ("spark_build.cli.wheelhouse", "path", "Print the folder to point installers at."),
    "generations": ("spark_build.cli.wheelhouse", "generations", "Show what changed in each generation."),
    "rollback": ("spark_build.cli.wheelhouse", "rollback", "Make an earlier generation current again."),
    "remove": ("spark_build.cli.wheelhouse", "remove", "Publish a generation without some wheels."),
    "pin": ("spark_build.cli.wheelhouse", "pin", "Keep a generation: gc never removes it."),
    "unpin": ("spark_build.cli.wheelhouse", "unpin", "Let gc remove a pinned generation again."),
    "gc": ("spark_build.cli.wheelhouse", "gc", "Remove what nobody needs any more."),
    "check": ("spark_build.cli.wheelhouse", "check", "Check that everything is whole; --repair mends."),
    "export": ("spark_build.cli.transfer", "export", "Write a generation for another machine."),
    "import": ("spark_build.cli.transfer", "import_", "Take in wheels after checking every one."),
    "trust": ("spark_build.cli.transfer", "trust", "Manage the keys whose exports are accepted."),
    "serve": ("spark_build.cli.transfer", "serve", "Serve the wheels to other nodes over HTTP."),
}
SECTIONS = {"Look": "list", "Generations": "rollback", "Upkeep": "gc", "Other machines": "export"}


@click.group(cls=LazyGroup, table=COMMANDS, sections=SECTIONS)
@shared
def wheelhouse(_options: Options) -> None:
    """List, inspect, keep and move the wheels that were built, and those they need."""


def current(options: Options) -> Generation:
    """Return the current generation of the selected view."""
    from spark_build.wheelhouse import generations as wheelhouse_generations

    setting = options.setting()
    view = setting.view
    found = wheelhouse_generations.current(view)
    if found is None:
        others = sorted(path.parent.name for path in view.parent.glob("*/current"))
        known = f"; there are {', '.join(others)} (--target, --train)" if others else ""
        on = f"on a {setting.target.name} machine: "
        there = Hint(on, ours("all", elsewhere=True), ", and import what it exports")
        hint = ours("all") if setting.is_here else there
        raise StoreError(f"nothing is published for {view.name} yet{known}", hint=hint)
    return found


LISTED = ("name", "version", "filename", "sha256", "key", "origin", "imported", "size")


def listing(found: Generation) -> dict[str, Any]:
    """Return a generation as JSON."""
    return {
        "generation": found.number,
        "path": str(found.folder),
        "wheels": [
            {**{name: getattr(wheel, name) for name in LISTED}, "path": str(found.folder / wheel.filename)}
            for wheel in found.wheels
        ],
    }


def print_wheels(found: Generation) -> None:
    """Print a generation as a table."""
    rows = [
        [wheel.name, wheel.version, wheel.shown_origin, format_size(wheel.size), wheel.filename]
        for wheel in sorted(found.wheels, key=lambda wheel: (wheel.origin, wheel.name))
    ]
    render.print_table(["NAME", "VERSION", "ORIGIN", "SIZE", "FILE"], rows)


@command("list")
@shared
def list_(options: Options) -> None:
    """Show the wheels of the current generation."""
    found = current(options)
    if options.json:
        render.print_json(listing(found))
        return
    print(f"generation {found.number} in {found.folder}")
    print_wheels(found)


@command()
@shared
def path(options: Options) -> None:
    """Print the real path of the current generation's folder, for installers."""
    found = current(options)
    if options.json:
        render.print_json({"generation": found.number, "path": str(found.folder)})
    else:
        print(found.folder)


SHOWN = 6  # changes in a line of the table; --json has all


@command()
@shared
def generations(options: Options) -> None:
    """Show every generation, and what changed in it against the one that it was made from."""
    from spark_build.wheelhouse.generations import states

    view = options.setting().view
    rows = [_described(view, one) for one in states(view)]
    if options.json:
        render.print_json({"view": view.name, "path": str(view), "generations": rows})
        return
    if not rows:
        print(f"nothing is published for {view.name} yet")
    table = []
    for row in reversed(rows):
        marks = [name for name in ("current", "pinned", "verified") if row[name]]
        against = f"against {row['against']}: " if row["against"] not in (0, row["generation"] - 1) else ""
        table.append([str(row["generation"]), row["created"], ", ".join(marks), against + _line(row)])
    render.print_table(["GENERATION", "CREATED (UTC)", "IS", "CHANGES"], table)


def _described(view: Path, state: KeptGeneration) -> dict[str, Any]:
    """Return a generation as JSON; an unreadable manifest is reported in it."""
    from spark_build.wheelhouse import generations as wheelhouse_generations
    from spark_build.wheelhouse.gc import generation_changes

    folder = view / "generations" / str(state.number)
    row = {
        "generation": state.number,
        "path": str(folder),
        "current": state.current,
        "pinned": state.pinned,
        "verified": False,
        "created": "",
        "against": 0,
        "wheels": 0,
        "changes": [],
        "problem": None,
    }
    try:
        found = wheelhouse_generations.read(folder)
    except StoreError as error:
        return row | {"problem": error.message}
    before = _before(view, found)
    wheels = before.wheels if before else ()
    verdict = wheelhouse_generations.verdict_of(found)
    checks = verdict.get("checks", []) if verdict else []
    return row | {
        "verified": bool(checks) and not any(check["status"] == "fail" for check in checks),
        "created": found.created.removesuffix("+00:00"),
        "against": before.number if before else 0,
        "wheels": len(found.wheels),
        "changes": [dataclasses.asdict(one) for one in generation_changes(wheels, found.wheels)],
    }


def _before(view: Path, found: Generation) -> Generation | None:
    """Return the generation to compare with: the one it was made from, else the next older readable one."""
    from spark_build.wheelhouse import generations as wheelhouse_generations

    older = [number for number in reversed(wheelhouse_generations.numbers(view)) if number < found.number]
    for number in sorted(older, key=lambda number: number != found.before):
        with suppress(StoreError):
            return wheelhouse_generations.read(view / "generations" / str(number))
    return None


def _line(row: dict[str, Any]) -> str:
    if row["problem"]:
        return typeable(Hint(f"{row['problem']}; ", ours("wheelhouse check --repair")))
    words = [_words(one) for one in row["changes"]]
    rest = [f"and {len(words) - SHOWN} more"] if len(words) > SHOWN else []
    return ", ".join([*words[:SHOWN], *rest]) or "the same wheels"


def _words(change: dict[str, Any]) -> str:
    name, kind = change["name"], change["kind"]
    if kind == "version":
        return f"{name} {change['before']} -> {change['after']}"
    if kind == "rebuilt":
        return f"rebuilt {name} {change['after']}"
    return f"{'+' if kind == 'added' else '-'}{name} {change['after'] or change['before']}"


@command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@shared
def rollback(options: Options, number: int | None) -> None:
    """Make generation NUMBER current again; by default the one that the current was made from."""
    from spark_build.wheelhouse import generations as wheelhouse_generations
    from spark_build.wheelhouse.gc import generation_changes

    was, found = wheelhouse_generations.rollback(options.setting().view, number)
    changed = generation_changes(was.wheels, found.wheels) if was else ()
    if options.json:
        document = {
            "from": was.number if was else None,
            "changes": [dataclasses.asdict(one) for one in changed],
        }
        render.print_json({**document, **listing(found)})
    elif was and was.number == found.number:
        print(f"generation {found.number} is current already")
    else:
        print(f"generation {found.number} is current again" + (f", instead of {was.number}" if was else ""))
        with render.details(options):
            for one in changed:
                print(f"  {_words(dataclasses.asdict(one))}")


@command()
@click.argument("wheels", nargs=-1, required=True, metavar="NAME[==VERSION]...")
@click.option("--force", is_flag=True, help="Remove it although another wheel needs it.")
@shared
def remove(options: Options, wheels: tuple[str, ...], force: bool) -> None:
    """Publish a generation without these wheels. The store keeps them until `gc`."""
    from spark_build.wheelhouse import generations as wheelhouse_generations

    setting = options.setting()
    made, gone, lacking = wheelhouse_generations.remove(
        setting.view, setting.home.store, wheels, markers=setting.markers, force=force
    )
    if options.json:
        names = [{"name": wheel.name, "version": wheel.version} for wheel in gone]
        render.print_json({"removed": names, "lacking": list(lacking), **listing(made)})
        return
    print(f"generation {made.number} is without {', '.join(f'{one.name} {one.version}' for one in gone)}")
    for line in lacking:
        print(f"warning: {line}, which is not there any more")


def _pinning(options: Options, number: int | None, *, wanted: bool) -> None:
    from spark_build.wheelhouse import generations as wheelhouse_generations

    view = options.setting().view
    chosen = number or wheelhouse_generations.current_number(view) or current(options).number
    new = (wheelhouse_generations.pin if wanted else wheelhouse_generations.unpin)(view, chosen)
    if options.json:
        render.print_json({"generation": chosen, "pinned": wanted, "new": new})
        return
    state = "is pinned: gc never takes it" if wanted else "is not pinned"
    print(f"generation {chosen} {state}{'' if new else ' (nothing changed)'}")


@command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@shared
def pin(options: Options, number: int | None) -> None:
    """Keep generation NUMBER (default: the current one): `gc` never removes it."""
    _pinning(options, number, wanted=True)


@command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@shared
def unpin(options: Options, number: int | None) -> None:
    """Let `gc` remove generation NUMBER (default: the current one) again."""
    _pinning(options, number, wanted=False)


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MOST = 200  # wheels of a view that `check` resolves unasked
KINDS = {
    "generation": "generations",
    "pages": "index pages",
    "entry": "store entries",
    "leftover": "leftovers",
    "run": "runs",
}


class _Age(click.ParamType[float]):
    """Seconds from what people write: 30d, 12h, 90m, 45s, 2w; a bare number is days."""

    name = "age"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        said = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", str(value).strip().lower())
        if said is None:
            self.fail(f"{value!r} is no age: write 30d, 12h or 90m")
        return float(said[1]) * UNITS[said[2] or "d"]


AGE = _Age()


@command()
@click.option(
    "--keep", type=click.IntRange(min=1), default=3, show_default=True, help="Newest generations to keep."
)
@click.option("--older-than", type=_Age(), default="7d", show_default=True, help="Remove nothing younger.")
@click.option(
    "--grace", type=_Age(), default="1h", show_default=True, help="Spare what installers may still read."
)
@click.option(
    "--keep-runs",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Newest run folders to keep.",
)
@click.option(
    "--runs-older-than",
    type=_Age(),
    default="30d",
    show_default=True,
    help="Remove no run folder younger than this.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared
def gc(
    options: Options,
    keep: int,
    older_than: float,
    grace: float,
    keep_runs: int,
    runs_older_than: float,
    dry_run: bool,
) -> None:
    """Remove old generations of all views, store entries that nothing needs, and old run folders.

    Never removed: the current generation, a pinned one, what those were built from, a run that measured.
    The age of a generation counts from when it was last current.
    """
    from spark_build.wheelhouse.gc import collect

    home = options.home()
    done = collect(
        home,
        keep=keep,
        older_than=older_than,
        grace=grace,
        dry_run=dry_run,
        keep_runs=keep_runs,
        runs_older_than=runs_older_than,
    )
    if options.json:
        taken = [dataclasses.asdict(one) for one in done.taken]
        render.print_json(
            {"dry_run": dry_run, "freed": done.freed, "taken": taken, "held": done.held or None}
        )
        return
    _print_collected(options, done, max(older_than, grace), dry_run=dry_run)


def _print_collected(options: Options, done: Collected, age: float, *, dry_run: bool) -> None:
    kinds = {"leftover": "left by a killed process", "pages": "pages of the index", "entry": "store"}
    rows = [
        [kinds.get(one.kind, one.kind), one.name, format_size(one.size)]
        for one in done.taken
        if one.kind != "pages"
    ]
    with render.details(options):
        render.print_table(["WHAT", "NAME", "SIZE"], rows)
    counts = Counter[str](one.kind for one in done.taken)
    what = ", ".join(f"{words}: {counts[kind]}" for kind, words in KINDS.items() if counts[kind])
    if what:
        print(f"{'would free' if dry_run else 'freed'} {format_size(done.freed)} ({what})")
    else:
        older = format_duration(age) if age < UNITS["d"] else f"{age / UNITS['d']:g} days"
        print(f"nothing to collect that is older than {older}")
    if done.held:
        print(f"the store is left alone, somebody uses it: {done.held}; run gc again later")


@command()
@click.option("--deep", is_flag=True, help="Also read every byte (sha256).")
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@click.option(
    "--resolve/--no-resolve",
    default=None,
    help=f"Try with a resolver whether the wheels install (default: for up to {MOST}).",
)
@shared
def check(options: Options, deep: bool, repair: bool, resolve: bool | None) -> int:
    """Check store and views: links, records, provenance, foreign files, and whether the wheels install.

    Exits 10 for faults, 12 where there is nothing to check.
    """
    from spark_build.environments.closure import unresolved
    from spark_build.recipes.loader import load
    from spark_build.wheelhouse import fsck

    with render.open_view(options.verbosity) as view:

        def told(done: int, total: int) -> None:
            view.emit(Progress(recipe="", stage="check", done=done, total=total, unit="bytes"))

        home = options.home()
        found = fsck.check(home, deep=deep, repair=repair, told=told)
        # What is damaged would only be told a second time.
        if resolve is not False and all(one.mended for one in found):
            targets = load(home.data).targets.values()
            found += unresolved(home, targets, most=None if resolve else MOST, told=note)
    left = [one for one in found if not one.mended]
    empty = not found and fsck.is_empty(home)
    if options.json:
        rows = [_row(one) for one in found]
        render.print_json({"faults": rows, "mended": len(found) - len(left), "left": len(left)})
    elif not empty:
        _print_faults(found, deep=deep)
    if empty:
        return nothing_checked(
            f"{home.wheelhouse} holds no wheel and no view",
            Hint(ours("all"), "; or --root DIR names another"),
        )
    return 10 if left else 0


def note(message: str) -> None:
    """On stderr."""
    click.echo(f"note: {message}", err=True)


def _row(fault: Suspect) -> dict[str, Any]:
    one = fault.finding
    row = {"kind": one.rule, "path": one.place.file, "message": one.message, "fix": typeable(one.hint)}
    return {**row, "mended": fault.mended}


def _print_faults(found: tuple[Suspect, ...], *, deep: bool) -> None:
    for one in found:
        print(f"{'mended' if one.mended else one.finding.rule}: {one.finding.place}: {one.finding.message}")
        if not one.mended:
            print(f"  next: {typeable(one.finding.hint)}")
    left = sum(not one.mended for one in found)
    if not found:
        print(f"all is as it was recorded{'' if deep else ' (--deep reads every byte, too)'}")
    else:
        print(f"faults: {len(found)}, mended: {len(found) - left}, left: {left}")
