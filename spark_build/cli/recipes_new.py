"""`recipes new`, `recipes pin`, `recipes outdated`: recipes and pins of one's own."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.authoring.pins import Row
    from spark_build.authoring.scaffold import Created
    from spark_build.paths import Home


@click.command("new")
@click.argument("name")
@click.option("--sdist", metavar="PKG==VER", default="", help="A source release on the configured index.")
@click.option("--git", metavar="URL@TAG", default="", help="A tag of a git repository.")
@click.option("--needs", metavar="RECIPE", multiple=True, help="A recipe that it is built against.")
@click.option(
    "--in", "folder", metavar="DIR", type=click.Path(file_okay=False), help="Write DIR/recipes/NAME.toml."
)
@click.option("--force", is_flag=True, help="Replace a recipe of that name.")
@shared
def new(
    options: Options,
    name: str,
    sdist: str,
    git: str,
    needs: tuple[str, ...],
    folder: str | None,
    *,
    force: bool,
) -> int:
    """Write a pinned recipe for any library that has an sdist or a repository."""
    from spark_build.authoring.scaffold import Request, create, shadowed
    from spark_build.errors import UsageError
    from spark_build.recipes.loader import load

    if bool(sdist) == bool(git):
        raise UsageError("give one source", hint="--sdist PKG==VER or --git URL@TAG")
    home = options.home()
    base = Path(folder).expanduser().absolute() if folder else _own_folder(home)
    request = Request(name=name, base=base, sdist=sdist, git=git, needs=needs, force=force)
    catalogue = load(home.data)
    with render.view(options.verbosity) as view:
        created = create(request, home, catalogue, view.emit)
    notes = [*created.recipe.notes, *shadowed(name, catalogue)]
    following = shlex.join(["spark-build", *_root_option(options, base), "build", name])
    if options.json:
        render.print_json({**_document(created), "notes": notes, "next": following})
        return 0
    recipe = created.recipe
    print(f"wrote {created.path}: {recipe.distribution} {created.version}")
    print(f"  pinned to build it: {' '.join(recipe.build.requires) or 'nothing'}")
    for need in recipe.needs:
        print(f"  needs {need.name}: {need.why}")
    for note in notes:
        print(f"  note: {note}")
    print(f"next: {following}")
    return 0


def _document(created: Created) -> dict[str, Any]:
    recipe = created.recipe
    return {
        "recipe": recipe.name,
        "file": str(created.path),
        "version": created.version,
        "source": asdict(recipe.pin.sources[0]) if recipe.pin else {},
        "requires": list(recipe.build.requires),
        "needs": [need.name for need in recipe.needs],
        "cuda": recipe.requires.cuda,
    }


@click.command("pin")
@click.argument("names", metavar="[RECIPE]...", nargs=-1)
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 5 when a source changed.")
@click.option("--version", "moves", metavar="NAME=VER", multiple=True, help="Pin another version.")
@shared
def pin(options: Options, names: tuple[str, ...], moves: tuple[str, ...], *, only_check: bool) -> int:
    """Write missing hashes into the selected train, compare them, or move to another version."""
    from spark_build.authoring import pins
    from spark_build.errors import UsageError

    home = options.home()
    if moves and (names or only_check):
        raise UsageError("--version stands alone", hint="recipes pin --version NAME=VER")
    rows: list[Row] = []
    changed: list[str] = []
    if moves:
        for move in moves:
            name, _, version = move.partition("=")
            (site,) = pins.sites(home, options.train, [name])
            moved, files = pins.move(site, version.lstrip("="))
            rows += moved
            changed += map(str, files)
    elif only_check:
        rows = pins.check(pins.sites(home, options.train, names))
    else:
        rows, files = pins.fill(pins.sites(home, options.train, names))
        changed += map(str, files)
    _show(options, rows, list(dict.fromkeys(changed)))
    lost = [
        row for row in rows if row.state == "changed" or (not only_check and row.state.startswith("unknown"))
    ]
    for row in lost:
        click.echo(f"error: {row.recipe}: {row.source}: {_why(row)}", err=True)
    if only_check and all(row.state.startswith("unknown") for row in rows):
        return _unasked(options.train or "selected", rows[0].state if rows else "")
    return 5 if lost else 0


@click.command("outdated")
@shared
def outdated(options: Options) -> int:
    """Compare the selected train's pins with the newest versions that can be found."""
    from spark_build.authoring.pins import ages
    from spark_build.recipes.loader import load

    train = load(options.home().data).train(options.train)
    found = ages(train)
    if options.json:
        render.print_json({"components": [asdict(age) for age in found]})
    else:
        rows = [[age.recipe, age.pinned, age.newest, age.source, age.state] for age in found]
        render.print_table(["RECIPE", "PINNED", "NEWEST", "ASKED", "STATE"], rows)
    if all(age.state.startswith("unknown") for age in found):
        return _unasked(train.name, found[0].state if found else "")
    return 0


def _unasked(train: str, state: str) -> int:
    """Nobody answered for any pin of a train, or it has none; `state` is that of the first."""
    if not state:
        return nothing_checked(f"train {train} pins nothing", "spark-build recipes list")
    return nothing_checked(
        f"nobody answers for any pin of train {train}: {state.removeprefix('unknown (').removesuffix(')')}",
        "check the network and `pip config list`, then the same command again",
    )


def _show(options: Options, rows: list[Row], changed: list[str]) -> None:
    if options.json:
        render.print_json({"pins": [asdict(row) for row in rows], "files": changed})
        return
    render.print_table(["RECIPE", "SOURCE", "STATE"], [[row.recipe, row.source, row.state] for row in rows])
    for path in changed:
        print(f"wrote {path}")


def _why(row: Row) -> str:
    if row.state == "changed":
        return f"pinned {row.pinned}, but now it is {row.found}"
    return row.state.removeprefix("unknown (").removesuffix(")")


def _own_folder(home: Home) -> Path:
    """Where one's own recipes are: with the state, unless that lies in the user's data folders."""
    base = home.wheelhouse.parent
    return base if home.build.parent == base else Path.cwd()


def _root_option(options: Options, base: Path) -> list[str]:
    """--root, when the recipe would not be found without it."""
    from spark_build.paths import locate

    return [] if options.root is None and base in locate(None).data else ["--root", str(base)]
