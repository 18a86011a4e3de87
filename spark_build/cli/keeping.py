"""`wheelhouse generations`, `rollback`, `remove`, `pin`, `unpin`: what a view held, and holds."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared
from spark_build.cli.wheelhouse import listing

if TYPE_CHECKING:
    from spark_build.wheelhouse.generations import Generation
    from spark_build.wheelhouse.model import Change, Kept

SHOWN = 6  # changes in a line of the table; --json has all


def tell(message: str) -> None:
    """Say on stderr whom we wait for."""
    click.echo(f"waiting for another spark-build: {message}", err=True)


@click.command()
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


def _described(view: Path, state: Kept) -> dict[str, Any]:
    """A generation as JSON; one whose manifest cannot be read says so."""
    from spark_build.errors import StoreError
    from spark_build.wheelhouse import generations as wheelhouse_generations
    from spark_build.wheelhouse.gc import changes

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
        "changes": [dataclasses.asdict(one) for one in changes(wheels, found.wheels)],
    }


def _before(view: Path, found: Generation) -> Generation | None:
    """What a generation is compared with: the one it was made from, else the next older that is readable."""
    from spark_build.errors import StoreError
    from spark_build.wheelhouse import generations as wheelhouse_generations

    older = [number for number in reversed(wheelhouse_generations.numbers(view)) if number < found.number]
    for number in sorted(older, key=lambda number: number != found.before):
        with suppress(StoreError):
            return wheelhouse_generations.read(view / "generations" / str(number))
    return None


def _line(row: dict[str, Any]) -> str:
    if row["problem"]:
        return f"{row['problem']}; spark-build wheelhouse check --repair"
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


@click.command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@shared
def rollback(options: Options, number: int | None) -> None:
    """Make generation NUMBER current again; by default the one that the current was made from."""
    from spark_build.wheelhouse import generations as wheelhouse_generations
    from spark_build.wheelhouse.gc import changes

    was, found = wheelhouse_generations.rollback(options.setting().view, number, tell)
    changed = changes(was.wheels, found.wheels) if was else ()
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
        _print_changes(changed)


def _print_changes(changed: tuple[Change, ...]) -> None:
    for one in changed:
        print(f"  {_words(dataclasses.asdict(one))}")


@click.command()
@click.argument("wheels", nargs=-1, required=True, metavar="NAME[==VERSION]...")
@click.option("--force", is_flag=True, help="Also where another wheel of the set needs it.")
@shared
def remove(options: Options, wheels: tuple[str, ...], force: bool) -> None:
    """Publish a generation without these wheels. The store keeps them until `gc`."""
    from spark_build.wheelhouse import generations as wheelhouse_generations

    setting = options.setting()
    made, gone, lacking = wheelhouse_generations.remove(
        setting.view, setting.home.store, wheels, markers=setting.markers, force=force, waiting=tell
    )
    if options.json:
        names = [{"name": wheel.name, "version": wheel.version} for wheel in gone]
        render.print_json({"removed": names, "lacking": list(lacking), **listing(made)})
        return
    print(f"generation {made.number} is without {', '.join(f'{one.name} {one.version}' for one in gone)}")
    for line in lacking:
        print(f"warning: {line}, which is not there any more")


def _pinning(options: Options, number: int | None, *, wanted: bool) -> None:
    from spark_build.errors import UsageError
    from spark_build.wheelhouse import generations as wheelhouse_generations

    view = options.setting().view
    chosen = number or wheelhouse_generations.current_number(view)
    if not chosen:
        raise UsageError(f"nothing is published for {view.name} yet", hint="spark-build all")
    new = (wheelhouse_generations.pin if wanted else wheelhouse_generations.unpin)(view, chosen, tell)
    if options.json:
        render.print_json({"generation": chosen, "pinned": wanted, "new": new})
        return
    state = "is pinned: gc never takes it" if wanted else "is not pinned"
    print(f"generation {chosen} {state}{'' if new else ' (nothing changed)'}")


@click.command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@shared
def pin(options: Options, number: int | None) -> None:
    """Keep generation NUMBER (default: the current one) whatever `gc` is told."""
    _pinning(options, number, wanted=True)


@click.command()
@click.argument("number", type=click.IntRange(min=1), required=False)
@shared
def unpin(options: Options, number: int | None) -> None:
    """Let generation NUMBER (default: the current one) go again."""
    _pinning(options, number, wanted=False)
