"""`wheelhouse`: the group, and its commands that only look: list and path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import Options, shared
from spark_build.text import size

if TYPE_CHECKING:
    from spark_build.wheelhouse.generations import Generation


# name: (module, function, what `--help` says)
COMMANDS = {
    "list": ("spark_build.cli.wheelhouse", "list_", "Show the wheels of the current generation."),
    "inspect": ("spark_build.cli.inspect", "inspect", "Say what is inside a wheel, or compare two."),
    "path": ("spark_build.cli.wheelhouse", "path", "Print the folder to point installers at."),
    "generations": ("spark_build.cli.keeping", "generations", "Show what changed in each generation."),
    "rollback": ("spark_build.cli.keeping", "rollback", "Make an earlier generation current again."),
    "remove": ("spark_build.cli.keeping", "remove", "Publish a generation without some wheels."),
    "pin": ("spark_build.cli.keeping", "pin", "Keep a generation whatever gc is told."),
    "unpin": ("spark_build.cli.keeping", "unpin", "Let a pinned generation go again."),
    "gc": ("spark_build.cli.tidying", "gc", "Take away what nobody needs any more."),
    "check": ("spark_build.cli.tidying", "check", "See whether everything is whole; --repair mends."),
    "export": ("spark_build.cli.transfer", "export", "Write a generation for another machine."),
    "import": ("spark_build.cli.transfer", "import_", "Take in wheels, after proving every one."),
    "serve": ("spark_build.cli.serving", "serve", "Serve the wheels to other nodes over HTTP."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
@shared
def wheelhouse(_options: Options) -> None:
    """The wheels that were built, and those they need."""


def current(options: Options) -> Generation:
    """The current generation of the selected view."""
    from spark_build.errors import StoreError
    from spark_build.wheelhouse import generations

    view = options.setting().view
    found = generations.current(view)
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
        [wheel.name, wheel.version, wheel.origin, size(wheel.size), wheel.filename]
        for wheel in sorted(found.wheels, key=lambda wheel: (wheel.origin, wheel.name))
    ]
    render.print_table(["NAME", "VERSION", "ORIGIN", "SIZE", "FILE"], rows)


@click.command("list")
@shared
def list_(options: Options) -> None:
    """Show the wheels of the current generation."""
    found = current(options)
    if options.json:
        render.print_json(listing(found))
        return
    print(f"generation {found.number} in {found.folder}")
    print_wheels(found)


@click.command()
@shared
def path(options: Options) -> None:
    """Print the folder to point installers at: the current generation, resolved."""
    found = current(options)
    if options.json:
        render.print_json({"generation": found.number, "path": str(found.folder)})
    else:
        print(found.folder)
