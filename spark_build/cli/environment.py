"""`env`: virtual environments from the wheelhouse only."""

from __future__ import annotations

from pathlib import Path

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared


@click.group()
@shared
def env(_options: Options) -> None:
    """Virtual environments from the wheelhouse only."""


@env.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.argument("packages", nargs=-1)
@click.option("--without-pip", is_flag=True, help="Leave pip out of the environment.")
@shared
def create(options: Options, folder: Path, packages: tuple[str, ...], without_pip: bool) -> None:
    """Make an environment in FOLDER: offline, hashes required, origin of every file proven."""
    from spark_build.cli.wheelhouse import current
    from spark_build.host.install import install

    generation = current(options)
    installed = install(generation, folder.absolute(), packages, with_pip=not without_pip)
    if options.json:
        render.print_json(
            {"folder": str(folder.absolute()), "generation": generation.number, "installed": list(installed)}
        )
        return
    print(f"{folder}: {', '.join(installed)}, every file as in generation {generation.number}")
    print(f"use it: . {folder}/bin/activate")
