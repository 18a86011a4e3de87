"""The command patches check: whether the patches of a train still apply."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked
from spark_build.cli.options import Options, group, shared
from spark_build.errors import Hint, PatchError, SourceError, ours
from spark_build.events import Emit, Note, Progress
from spark_build.paths import path_given
from spark_build.reporting import Reporter, reporting

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.recipes.model import Patch, Source


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One patch and the result of its check; untried: why it was not tried."""

    recipe: str
    patch: str
    state: str
    detail: str
    untried: str = ""


@group()
@shared
def patches(_options: Options) -> None:
    """Check the patches of the selected train."""


@patches.command()
@click.argument("recipes", nargs=-1)
@click.option("--source", "given", multiple=True, metavar="NAME=DIR", help="Check against the tree in DIR.")
@click.option("--offline", is_flag=True, help="Use no network: only sources fetched before.")
@shared
def check(options: Options, recipes: tuple[str, ...], given: tuple[str, ...], offline: bool) -> int:
    """Check that each patch applies.

    Shows where one fails, and which are upstream already.

    Without RECIPES: your own, or all where you have none. Fetches the pinned sources of recipes without
    --source. Never changes the tree in --source.
    """
    from spark_build.authoring.pins import sites

    setting = options.setting()
    trees = dict(_tree(text) for text in given)
    for name in (*recipes, *trees):
        setting.catalogue.recipe(name)
    pinned = {site.recipe for site in sites(setting.home, setting.train.name, ())}
    names = recipes or sorted({*trees, *(pinned & setting.catalogue.recipes.keys())})
    rows: list[_Row] = []
    with render.open_view(options.verbosity) as view:
        for name in names:
            rows += _check_recipe(setting, name, trees.get(name), view.emit, offline=offline)
    _print(options, setting.train.name, rows)
    return _exit_code(setting.train.name, rows)


def _tree(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    path = path_given(folder, f"--source {name}")
    if not name or not folder or not path.is_dir():
        raise click.UsageError(f"--source {text}: write NAME=DIR, with a folder that exists")
    return name, path.absolute()


def _check_recipe(setting: Context, name: str, tree: Path | None, emit: Emit, *, offline: bool) -> list[_Row]:
    """Check all patches of one recipe in order, each on top of those before it."""
    from spark_build.files import remove_tree
    from spark_build.recipes.evaluation import patches_for

    wanted = patches_for(setting.catalogue.recipes[name], setting.train)
    if not wanted:
        return []
    build = setting.home.build
    build.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".patches-", dir=build))
    try:
        found = tree or _fetched(setting, name, scratch, emit, offline=offline)
        return _check_all(setting, name, wanted, found, scratch / "work")
    except SourceError as error:
        return [_unchecked(name, patch, error.message) for patch in wanted]
    finally:
        remove_tree(scratch)


def _fetched(setting: Context, name: str, scratch: Path, emit: Emit, *, offline: bool) -> Path:
    """Return the recipe's pinned source, unpacked."""
    from spark_build.sources import source_types

    source = _source(setting, name)
    if source is None:
        raise SourceError(f"train {setting.train.name} names no source for {setting.target.platform}")

    unit: Literal["steps", "bytes"] = "steps" if source.kind == "git" else "bytes"

    def progress(done: int, total: int) -> None:
        emit(Progress(recipe=name, stage="fetch", done=done, total=total, unit=unit))

    folder = setting.home.sources
    emit(Note(recipe=name, message="fetching the source"))
    to = Reporter(lambda text: emit(Note(recipe=name, message=text)), progress)
    with (scratch / "log").open("wb") as log, reporting(to):
        obtained = source_types.obtain(source, folder=folder, offline=offline, log=log)
    source_types.write_tree(source, obtained, folder=folder, destination=scratch / "src")
    return scratch / "src"


def _source(setting: Context, name: str) -> Source | None:
    """Return the source that is built here; of a component for other machines, its first source."""
    from spark_build.build.plan import choose_source

    pin = setting.train.components.get(name)
    if pin is None:
        return None
    return choose_source(pin, setting.target) or next(iter(pin.sources), None)


def _check_all(setting: Context, name: str, wanted: Sequence[Patch], tree: Path, work: Path) -> list[_Row]:
    """Check in `work`, which gets only what the patches touch."""
    from spark_build.build import patches as build_patches

    rows = []
    seen: set[str] = set()
    for patch in wanted:
        try:
            file = build_patches.located(patch, setting.home)
            touched = build_patches.touched_files(file)
        except PatchError as error:
            rows.append(_Row(recipe=name, patch=patch.file, state="does-not-apply", detail=error.message))
            continue
        problem = build_patches.copy_touched(touched - seen, tree, work)
        seen |= touched
        found = build_patches.check(file, work)
        detail = problem or found.detail
        if found.state == "applies" and not problem:
            build_patches.apply(file, work, None)
            detail = f"marked unverified: {patch.unverified}" if patch.unverified else ""
        state = "does-not-apply" if problem else found.state
        rows.append(_Row(recipe=name, patch=patch.file, state=state, detail=detail))
    return rows


def _unchecked(name: str, patch: Patch, why: str) -> _Row:
    """Return the row of a patch whose source cannot be fetched; its `unverified` note comes first."""
    state, detail = "unknown", why
    if patch.unverified:
        state, detail = "unverified", f"{patch.unverified} (now: {why})"
    return _Row(recipe=name, patch=patch.file, state=state, detail=detail, untried=why)


def _print(options: Options, train: str, rows: Sequence[_Row]) -> None:
    if options.json:
        shown = [dataclasses.asdict(row) for row in rows]
        for row in shown:
            del row["untried"]  # `detail` says it, too
        document: dict[str, Any] = {"train": train, "patches": shown}
        render.print_json(document)
        return
    table = [[row.recipe, row.patch, row.state.replace("-", " "), row.detail] for row in rows]
    with render.details(options):
        render.print_table(["RECIPE", "PATCH", "STATE", "DETAIL"], table)
    if options.verbosity < 0:
        print(render.counted(row[2] for row in table))


def _exit_code(train: str, rows: Sequence[_Row]) -> int:
    """Return 6 when a patch does not apply, 12 when none could be tried, else 0."""
    if any(row.state == "does-not-apply" for row in rows):
        return PatchError.exit_code
    if not rows:
        return nothing_checked(f"train {train} has no patches for these recipes", ours("recipes list"))
    untried = [row for row in rows if row.untried]
    if len(untried) == len(rows):
        return nothing_checked(
            f"no source can be had: {untried[0].untried}",
            Hint(
                "check the network and `pip config list`; or name a tree: ",
                ours("patches check --source", f"{untried[0].recipe}=DIR"),
            ),
        )
    for row in untried:
        click.echo(f"note: {row.recipe}: {row.patch} was not tried: {row.untried}", err=True)
    return 0
