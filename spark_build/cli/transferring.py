"""`wheelhouse export` and `import`: wheels from one machine to another."""

from __future__ import annotations

from pathlib import Path

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared
from spark_build.cli.wheelhouse import current, listing, print_wheels


@click.command()
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


@click.command("import")
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
