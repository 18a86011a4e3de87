"""`wheelhouse gc` and `check`: take away what nobody needs, and see whether the rest is whole."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.keeping import tell
from spark_build.cli.options import Options, shared
from spark_build.text import duration, size

if TYPE_CHECKING:
    from spark_build.wheelhouse.model import Collected, Fault

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MOST = 200  # wheels of a view that `check` resolves unasked
KINDS = {
    "generation": "generations",
    "pages": "index pages",
    "entry": "store entries",
    "leftover": "leftovers",
}


class _Age(click.ParamType[float]):
    """Seconds from what people write: 30d, 12h, 90m, 45s, 2w; a bare number is days."""

    name = "age"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        said = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", str(value).strip().lower())
        if said is None:
            self.fail(f"{value!r} is no age: write 30d, 12h or 90m")
        return float(said[1]) * UNITS[said[2] or "d"]


@click.command()
@click.option(
    "--keep", type=click.IntRange(min=1), default=3, show_default=True, help="Newest generations to keep."
)
@click.option("--older-than", type=_Age(), default="7d", show_default=True, help="Take nothing younger.")
@click.option(
    "--grace", type=_Age(), default="1h", show_default=True, help="For installers that are still reading."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@shared
def gc(options: Options, keep: int, older_than: float, grace: float, dry_run: bool) -> None:
    """Take away old generations of all views, and what nothing in the store's use needs.

    Never the current generation, a pinned one, or what those were built from. A generation's age
    counts from when it was last current.
    """
    from spark_build.wheelhouse.gc import collect

    home = options.home()
    done = collect(home, keep=keep, older_than=older_than, grace=grace, dry_run=dry_run, waiting=tell)
    if options.json:
        taken = [dataclasses.asdict(one) for one in done.taken]
        render.print_json(
            {"dry_run": dry_run, "freed": done.freed, "taken": taken, "held": done.held or None}
        )
        return
    _print_collected(done, max(older_than, grace), dry_run=dry_run)


def _print_collected(done: Collected, age: float, *, dry_run: bool) -> None:
    kinds = {"leftover": "left by a killed process", "pages": "pages of the index", "entry": "store"}
    rows = [
        [kinds.get(one.kind, one.kind), one.name, size(one.size)] for one in done.taken if one.kind != "pages"
    ]
    render.print_table(["WHAT", "NAME", "SIZE"], rows)
    counts = Counter[str](one.kind for one in done.taken)
    what = ", ".join(f"{words}: {counts[kind]}" for kind, words in KINDS.items() if counts[kind])
    if what:
        print(f"{'would free' if dry_run else 'freed'} {size(done.freed)} ({what})")
    else:
        older = duration(age) if age < UNITS["d"] else f"{age / UNITS['d']:g} days"
        print(f"nothing to collect that is older than {older}")
    if done.held:
        print(f"the store is left alone, somebody uses it: {done.held}; run gc again later")


@click.command()
@click.option("--deep", is_flag=True, help="Also read every byte (sha256).")
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@click.option(
    "--resolve/--no-resolve",
    default=None,
    help=f"Whether the wheels install, by a resolver (default: up to {MOST} wheels).",
)
@shared
def check(options: Options, deep: bool, repair: bool, resolve: bool | None) -> int:
    """Check the store and every view: links, records, papers, foreign files; whether the wheels install.

    Exit code 10 for faults, 12 where there is nothing.
    """
    from spark_build.environments.fsck import check as examine
    from spark_build.environments.fsck import is_empty, unresolved
    from spark_build.events import Progress
    from spark_build.recipes.loader import load

    with render.view(options.verbosity) as view:

        def told(done: int, total: int) -> None:
            view.emit(Progress(recipe="", stage="check", done=done, total=total, unit="bytes"))

        home = options.home()
        found = examine(home, deep=deep, repair=repair, told=told, waiting=tell)
        # What is damaged would only be told a second time.
        if resolve is not False and all(one.mended for one in found):
            targets = load(home.data).targets.values()
            found += unresolved(home, targets, most=None if resolve else MOST, told=note)
    found = tuple(dataclasses.replace(one, fix=typeable(one.fix)) for one in found)
    left = [one for one in found if not one.mended]
    empty = not found and is_empty(home)
    if options.json:
        rows = [dataclasses.asdict(one) for one in found]
        render.print_json({"faults": rows, "mended": len(found) - len(left), "left": len(left)})
    elif not empty:
        _print_faults(found, deep=deep)
    if empty:
        return nothing_checked(
            f"{home.wheelhouse} holds no wheel and no view", "spark-build all; or --root DIR names another"
        )
    return 10 if left else 0


def note(message: str) -> None:
    """On stderr."""
    click.echo(f"note: {message}", err=True)


def _print_faults(found: tuple[Fault, ...], *, deep: bool) -> None:
    for one in found:
        print(f"{'mended' if one.mended else one.kind}: {one.path}: {one.message}")
        if not one.mended:
            print(f"  next: {one.fix}")
    left = sum(not one.mended for one in found)
    if not found:
        print(f"all is as it was recorded{'' if deep else ' (--deep reads every byte, too)'}")
    else:
        print(f"faults: {len(found)}, mended: {len(found) - left}, left: {left}")
