"""`wheelhouse`: list, inspect, path, export, import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import inspect_wheel, render
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.host.wheelhouse import Generation


@click.group()
@shared
def wheelhouse(_options: Options) -> None:
    """The wheels that were built, and those they need."""


def current(options: Options) -> Generation:
    """The current generation of the selected view."""
    from spark_build.errors import StoreError
    from spark_build.host import wheelhouse as views

    view = options.setting().view
    found = views.current(view)
    if found is None:
        others = sorted(path.parent.name for path in view.parent.glob("*/current"))
        known = f"; there are {', '.join(others)} (--target, --train)" if others else ""
        raise StoreError(f"nothing is published for {view.name} yet{known}", hint="spark-build all")
    return found


def listing(found: Generation) -> dict[str, Any]:
    """A generation as JSON."""
    return {
        "generation": found.number,
        "path": str(found.folder),
        "wheels": [
            {
                "name": wheel.name,
                "version": wheel.version,
                "filename": wheel.filename,
                "sha256": wheel.sha256,
                "key": wheel.key,
                "origin": wheel.origin,
                "size": wheel.size,
                "path": str(found.folder / wheel.filename),
            }
            for wheel in found.wheels
        ],
    }


def print_wheels(found: Generation) -> None:
    """A generation as a table."""
    rows = [
        [wheel.name, wheel.version, wheel.origin, render.size(wheel.size), wheel.filename]
        for wheel in sorted(found.wheels, key=lambda wheel: (wheel.origin, wheel.name))
    ]
    render.print_table(["NAME", "VERSION", "ORIGIN", "SIZE", "FILE"], rows)


@wheelhouse.command("list")
@shared
def list_(options: Options) -> None:
    """Show the wheels of the current generation."""
    found = current(options)
    if options.json:
        render.print_json(listing(found))
        return
    print(f"generation {found.number} in {found.folder}")
    print_wheels(found)


wheelhouse.add_command(inspect_wheel.inspect)


@wheelhouse.command()
@shared
def path(options: Options) -> None:
    """Print the folder to point installers at: the current generation, resolved."""
    found = current(options)
    if options.json:
        render.print_json({"generation": found.number, "path": str(found.folder)})
    else:
        print(found.folder)


@wheelhouse.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@shared
def export(options: Options, file: Path) -> None:
    """Write the current generation to FILE, a plain tar of real files with hashes."""
    from spark_build.host.transfer import export as write

    found = current(options)
    count = write(found, options.home().store, file.absolute())
    if options.json:
        render.print_json({"file": str(file.absolute()), "size": count, **listing(found)})
    else:
        print(f"{file}: {len(found.wheels)} wheels, {render.size(count)}")


@wheelhouse.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@shared
def import_(options: Options, file: Path) -> None:
    """Take in what `export` wrote, after proving every wheel."""
    from spark_build.host.transfer import import_archive

    found, new = import_archive(options.home(), file)
    if options.json:
        render.print_json({"new": new, **listing(found)})
        return
    print(f"generation {found.number} in {found.folder}" + ("" if new else " (had it already)"))
    print_wheels(found)
