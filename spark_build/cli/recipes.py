"""The commands of recipes: list, show, lint, schema, new, pin, outdated."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import Options, as_one, command, shared
from spark_build.errors import CHECK_NETWORK, Finding, RecipeError, UsageError, ours
from spark_build.text import nearest

if TYPE_CHECKING:
    from spark_build.authoring.pins import Row
    from spark_build.authoring.scaffold import Created
    from spark_build.build.context import Context
    from spark_build.paths import Home
    from spark_build.recipes.model import Evaluated, Pin, Recipe, Source

# name: (module, function, what `--help` says); modules load only when their command runs.
COMMANDS = {
    "list": ("spark_build.cli.recipes", "list_", "Show all recipes with their versions in the train."),
    "show": ("spark_build.cli.recipes", "show", "Show one recipe for a target and train, with reasons."),
    "lint": ("spark_build.cli.recipes", "lint", "Check recipes, trains and targets without building."),
    "schema": ("spark_build.cli.recipes", "schema", "Print the JSON Schema of the files, for editors."),
    "new": ("spark_build.cli.recipes", "new", "Write a pinned recipe for any sdist or git tag."),
    "pin": ("spark_build.cli.recipes", "pin", "Write missing hashes and locks, or move to another version."),
    "outdated": ("spark_build.cli.recipes", "outdated", "Compare pins with the newest versions."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
@shared
def recipes(_options: Options) -> None:
    """List, show and check recipes, and write your own."""


@command("list")
@click.option(
    "--catalogue", "catalogue", is_flag=True, help="Show the recipes that are built only when named."
)
@shared
def list_(options: Options, *, catalogue: bool) -> None:
    """Show the recipes with their versions in the selected train."""
    setting = options.setting()
    pins = setting.train.components
    known = setting.catalogue.recipes
    shown = {name: recipe for name, recipe in known.items() if recipe.in_catalogue is catalogue}
    found = [
        {
            "recipe": name,
            "version": pins[name].version if name in pins else "",
            "kind": recipe.kind,
            "cuda": recipe.requires.cuda,
            "summary": recipe.summary,
        }
        for name, recipe in sorted(shown.items())
    ]
    if options.json:
        render.print_json({"train": setting.train.name, "recipes": found})
        return
    rows = [
        [one if isinstance(one, str) else "yes" if one else "no" for one in row.values()] for row in found
    ]
    render.print_table(["RECIPE", f"IN {setting.train.name}", "KIND", "CUDA", "WHAT"], rows)
    others = len(known) - len(shown)
    if others and not catalogue and options.verbosity >= 0:
        sys.stdout.flush()
        again = typeable(ours("recipes list --catalogue"), options)
        print(f"{others} more are built only when named: {again}", file=sys.stderr)


@command()
@click.argument("recipes", nargs=-1)
@shared
def lint(options: Options, recipes: tuple[str, ...]) -> int:
    """Check all recipes, trains and targets; exit 3 when there are errors."""
    from spark_build.recipes.lint import lint as lint_all
    from spark_build.recipes.loader import read_files

    files = read_files(options.home().data)
    names = {Path(file).stem for file in files.texts if file.count("/") == 1}
    for name in recipes:
        if name not in names:
            raise UsageError(f"no recipe is named '{name}'{nearest(name, names)}", hint=ours("recipes list"))
    found = lint_all(files.recipes, files.trains, files.targets, files.texts, files.problems)
    findings = [one for one in found if not recipes or one.place.subject in recipes]
    _print(options, findings)
    return RecipeError.exit_code if any(finding.severity == "error" for finding in findings) else 0


def _row(finding: Finding) -> dict[str, Any]:
    file, line, recipe, _ = finding.place
    said = {"message": finding.message, "hint": finding.hint, "recipe": recipe}
    return {"severity": finding.severity, "file": file, "line": line, **said}


def _print(options: Options, findings: Sequence[Finding]) -> None:
    if options.json:
        render.print_json({"findings": [_row(finding) for finding in findings]})
        return
    for finding in findings:
        if finding.severity == "error" or options.verbosity >= 0:
            print(f"{finding}{f' ({typeable(finding.hint)})' if finding.hint else ''}")
    errors = sum(finding.severity == "error" for finding in findings)
    if options.verbosity >= 0:
        sys.stdout.flush()
        said = f"{errors} error{'s' * (errors != 1)}, {len(findings) - errors} warnings"
        print(said if findings else "no findings", file=sys.stderr)


@command()
@click.argument("kind", type=click.Choice(("recipe", "train", "target")), default="recipe")
@shared
def schema(_options: Options, kind: str) -> None:
    """Print the JSON Schema of recipe, train or target files, for use in editors."""
    from spark_build.recipes.loader import schema_text

    print(schema_text(kind), end="")


Document = dict[str, Any]
COSTS = ("memory_per_job_mib", "threads_per_job", "core_minutes", "disk_mib")


@command()
@click.argument("name")
@click.option("--env", "only_env", is_flag=True, help="Show only the environment variables.")
@shared
def show(options: Options, name: str, *, only_env: bool) -> None:
    """Show a recipe for the selected target and train.

    The build replaces what stands in {...}.
    """
    setting = options.setting()
    recipe = setting.catalogue.recipe(name)
    pin = setting.train.components.get(name)
    if pin is None:
        having = sorted(train.name for train in setting.catalogue.trains.values() if name in train.components)
        raise UsageError(
            f"train {setting.train.name} has no version of {name}",
            hint=f"trains that have one: {', '.join(having)}" if having else None,
        )
    document = _document(setting, recipe, pin)
    if options.json:
        wanted = {"recipe", "version", "target", "train", "env"}
        shown = {key: value for key, value in document.items() if not only_env or key in wanted}
        render.print_json(shown)
    elif only_env:
        for line in _env_lines(document["env"]):
            print(line)
    else:
        _print_recipe(document)


def _document(setting: Context, recipe: Recipe, pin: Pin) -> Document:
    from spark_build.build.plan import choose_source
    from spark_build.recipes.evaluation import evaluate, for_target, patches_for

    recipe = for_target(recipe, setting.target, setting.train)
    evaluated = evaluate(recipe, pin, setting.target, setting.train)
    source = choose_source(pin, setting.target)
    return {
        "recipe": recipe.name,
        "distribution": recipe.distribution,
        "summary": recipe.summary,
        "version": pin.version,
        "wheel_version": evaluated.wheel_version,
        "kind": recipe.kind,
        "target": setting.target.name,
        "train": setting.train.name,
        "source": _source(source) if source else None,
        "extra_sources": {name: _source(extra) for name, extra in pin.extra_sources.items()},
        "patches": [asdict(patch) for patch in patches_for(recipe, setting.train)],
        "needs": [asdict(need) for need in recipe.needs],
        "requires": list(evaluated.requires),
        "options": {name: asdict(one) for name, one in recipe.options.items()},
        "compile_flags": list(evaluated.compile_flags),
        "built_by_default": recipe.default,
        "env": _environment(setting, recipe, pin, evaluated),
        "cmake": asdict(recipe.cmake) if recipe.kind == "cmake" else None,
        "scons": asdict(recipe.scons) if recipe.kind == "scons" else None,
        "prefix": asdict(recipe.prefix) if recipe.kind in ("repack", "assemble") else None,
        "features": [asdict(feature) for feature in evaluated.features],
        "system": {"apt": list(evaluated.apt), "dnf": list(evaluated.dnf)},
        "costs": {name: getattr(recipe.build, name) for name in COSTS},
        "repair": asdict(recipe.repair),
        "preflight": asdict(recipe.preflight),
        "audit": asdict(recipe.audit),
        "checks": list(recipe.verify.checks),
        "notes": list(recipe.notes),
        "unestablished": list(pin.unestablished),
    }


def _environment(setting: Context, recipe: Recipe, pin: Pin, evaluated: Evaluated) -> Document:
    """Return each variable: its value as far as known, its text in the file, its reason."""
    from spark_build.build.plan import jobs_for
    from spark_build.recipes import evaluation

    capabilities = setting.target.cuda_architectures
    values = {
        "jobs": str(jobs_for(recipe, setting.machine, setting.limits)),
        "version": pin.version,
        "label": evaluated.label,
        "wheel_version": evaluated.wheel_version,
        **{
            f"arch_list:{consumer}": evaluation.arch_list(consumer, capabilities)
            for consumer in evaluation.CONSUMERS
        },
        **{f"version:{name}": one.version for name, one in setting.train.components.items()},
    }
    return {
        name: {"value": _filled(one.value, values), "template": one.value, "why": one.why}
        for name, one in sorted(evaluated.env.items())
    }


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{([^{}]*)\}", lambda match: values.get(match[1], match[0]), text)


def _source(source: Source) -> Document:
    return {key: value for key, value in asdict(source).items() if value}


def _env_lines(env: Mapping[str, Document]) -> list[str]:
    """Return NAME=value lines with their reasons, aligned where values are short."""
    pairs = [f"{name}={one['value']}" for name, one in env.items()]
    width = max((len(pair) for pair in pairs if len(pair) <= 60), default=0)
    return [f"{pair:<{width}}  # {one['why']}" for pair, one in zip(pairs, env.values(), strict=True)]


HEADING = (
    "recipe", "distribution", "summary", "version", "wheel_version", "kind", "target", "train",
    "built_by_default",
)  # fmt: skip


def _print_recipe(document: Document) -> None:
    print(f"{document['recipe']} {document['version']}: {document['summary']}")
    print(f"  for {document['target']}, train {document['train']}; kind {document['kind']}")
    print(f"  makes {document['distribution']} {document['wheel_version']}")
    if not document["built_by_default"]:
        print(f"  built for {document['target']} only when named")
    for name, value in document.items():
        lines = _env_lines(value) if name == "env" else _lines(value) if name not in HEADING else []
        if lines:
            print(f"{name}:")
        for line in lines:
            print(f"  {line}")


def _lines(value: Any) -> list[str]:
    """Return a field's contents on lines, the names of inner tables in front; what is empty is left out."""
    lines = list(map(_line, value)) if isinstance(value, list | tuple) else [_line(value)]
    if isinstance(value, dict):
        inner = {name: _lines(one) if _is_nested(one) else [_line(one)] for name, one in value.items()}
        lines = [f"{name}: {line}" for name, lines in inner.items() for line in lines if line]
    return list(filter(None, lines))


def _is_nested(value: Any) -> bool:
    """Return whether this is a list of tables, or a table of them without a reason of its own."""
    if isinstance(value, dict):
        return "why" not in value and any(isinstance(one, dict) for one in value.values())
    return isinstance(value, list | tuple) and any(isinstance(one, dict) for one in value)


def _line(value: Any) -> str:
    """Return a value on one line, of a table its fields, and its reason behind them; "" for what is empty."""
    if isinstance(value, list | tuple):
        return ", ".join(_line(one) or "''" for one in value)
    if isinstance(value, bool):
        return "true" if value else ""
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    said = {name: text for name, one in value.items() if name != "why" and (text := _line(one))}
    fields = "; ".join(f"{name} {text}" for name, text in said.items()).removeprefix("value ")
    return f"{fields}  # {value['why']}" if value.get("why") else fields


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Options of where a new recipe's source is, and what it needs."""

    sdist: str = ""
    git: str = ""
    needs: tuple[str, ...] = ()


@command("new")
@click.argument("name", default="")
@click.option("--sdist", metavar="PKG==VER", default="", help="A source release on the configured index.")
@click.option("--git", metavar="URL@TAG", default="", help="A tag of a git repository.")
@click.option(
    "-r",
    "--requirement",
    "requirements",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="All projects of a requirements file, together.",
)
@click.option("--needs", metavar="RECIPE", multiple=True, help="A recipe that it is built against.")
@click.option(
    "--in", "folder", metavar="DIR", type=click.Path(file_okay=False), help="Write DIR/recipes/NAME.toml."
)
@click.option("--force", is_flag=True, help="Replace a recipe of that name.")
@as_one(SourceOptions, "source")
@shared
def new(
    options: Options,
    name: str,
    source: SourceOptions,
    requirements: Path | None,
    folder: str | None,
    *,
    force: bool,
) -> int:
    """Write a pinned recipe for any library that has an sdist or a repository.

    With -r FILE: one for every project that the file names, with versions that fit each other.
    """
    from spark_build.authoring.scaffold import Request, create, shadowed
    from spark_build.paths import path_given
    from spark_build.recipes.loader import load

    home = options.home()
    base = path_given(folder, "--in").absolute() if folder else _own_folder(home)
    if requirements is not None:
        if name or source != SourceOptions():
            raise UsageError(
                "-r stands alone: each project is named in the file", hint=ours("recipes new -r FILE")
            )
        return _new_set(options, requirements, base, force=force)
    if not name or bool(source.sdist) == bool(source.git):
        raise UsageError(
            "give a name and one source", hint="NAME --sdist PKG==VER, NAME --git URL@TAG, or -r FILE"
        )
    request = Request(name=name, base=base, force=force, **asdict(source))
    catalogue = load(home.data)
    with render.open_view(options.verbosity) as view:
        created = create(request, home, catalogue, view.emit)
    notes = [*created.recipe.notes, *shadowed(name, catalogue)]
    following = _to_build(options, base, [name])
    if options.json:
        render.print_json({**_created_document(created), "notes": notes, "next": following})
        return 0
    print(f"wrote {created.path}: {created.recipe.distribution} {created.version}")
    with render.details(options):
        _print_created(created, notes)
        print(f"next: {following}")
    return 0


def _new_set(options: Options, file: Path, base: Path, *, force: bool) -> int:
    """Write recipes for all projects of a requirements file; 5 when one of them has none."""
    from spark_build.authoring.recipe_set import create_set, parse_requirements
    from spark_build.recipes.loader import load

    home = options.home()
    wanted = parse_requirements(file.read_text(errors="replace"), str(file))
    if not wanted:
        if options.json:
            render.print_json({"recipes": [], "kept": [], "failed": {}, "next": ""})
        return nothing_checked(f"{file} names no project", "one NAME or NAME==VERSION on a line")
    with render.open_view(options.verbosity) as view:
        done = create_set(wanted, base, home, load(home.data), view.emit, force=force)
    names = [one.recipe.name for one in done.created]
    following = _to_build(options, base, names) if names else ""
    if options.json:
        render.print_json(
            {
                "recipes": [_created_document(one) for one in done.created],
                "kept": list(done.kept),
                "failed": {name: error.message for name, error in done.failed.items()},
                "next": following,
            }
        )
    else:
        rows = [
            [one.recipe.name, one.version, " ".join(need.name for need in one.recipe.needs), str(one.path)]
            for one in done.created
        ]
        rows += [[name, "", "", "there is a recipe already (--force replaces it)"] for name in done.kept]
        with render.details(options):
            render.print_table(["RECIPE", "VERSION", "NEEDS", "FILE"], rows)
        if following:
            print(f"next: {following}")
    for name, error in done.failed.items():
        click.echo(f"error: {name}: {error.message}", err=True)
    return 5 if done.failed else 0


def _print_created(created: Created, notes: Sequence[str]) -> None:
    recipe = created.recipe
    print(f"  pinned to build it: {' '.join(recipe.build.requires) or 'nothing'}")
    for need in recipe.needs:
        print(f"  needs {need.name}: {need.why}")
    for note in notes:
        print(f"  note: {note}")


def _created_document(created: Created) -> dict[str, Any]:
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


@command("pin")
@click.argument("names", metavar="[RECIPE|trains/TRAIN]...", nargs=-1)
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 5 when a source changed.")
@click.option("--version", "moves", metavar="NAME=VER", multiple=True, help="Pin another version.")
@shared
def pin(options: Options, names: tuple[str, ...], moves: tuple[str, ...], *, only_check: bool) -> int:
    """Write missing hashes and locks, compare them, or move to another version.

    Hashes, sizes and commits of sources go into the selected train, those of build requirements and of a
    train's public wheels into recipes/locks/. Without names: your own recipes, or all where you have none.
    """
    from spark_build.authoring import locks, pins
    from spark_build.recipes.loader import load

    home = options.home()
    if moves and (names or only_check):
        raise UsageError("--version stands alone", hint=ours("recipes pin --version NAME=VER"))
    rows: list[Row] = []
    changed: list[str] = []
    if moves:
        for move in moves:
            name, _, version = move.partition("=")
            (site,) = pins.sites(home, options.train, [name])
            moved, files = pins.move_pin(site, version.lstrip("="))
            rows += moved
            changed += map(str, files)
    elif only_check:
        chosen, owners = pins.chosen_by(home, options.train, names)
        rows = pins.check_pins(chosen) + locks.check_locks(home, owners)
    else:
        chosen, owners = pins.chosen_by(home, options.train, names)
        rows, files = pins.fill_pins(chosen, sizes=bool(names))
        if not any(map(_is_unknown, rows)):  # else the files may be no recipes yet
            more, written = locks.write_locks(home, load(home.data), owners, anew=bool(names))
            rows, files = [*rows, *more], (*files, *written)
        changed += map(str, files)
    _show(options, rows, list(dict.fromkeys(changed)))
    lost = [row for row in rows if row.state == "changed" or (not only_check and _is_unknown(row))]
    for row in lost:
        click.echo(f"error: {row.recipe}: {row.source}: {_why(row)}", err=True)
    if only_check and all(map(_is_unknown, rows)):
        return _unasked(options.train or "selected", rows[0].state if rows else "")
    return 5 if lost else 0


@command("outdated")
@click.argument("names", metavar="[RECIPE]...", nargs=-1)
@shared
def outdated(options: Options, names: tuple[str, ...]) -> int:
    """Compare the pins of the selected train with the newest versions.

    Without RECIPEs: your own, or all where you have none.
    """
    from spark_build.authoring.pins import ages, sites
    from spark_build.recipes.loader import load

    home = options.home()
    catalogue = load(home.data)
    train = catalogue.train(options.train)
    found = ages(train, catalogue.recipes, [site.recipe for site in sites(home, options.train, names)])
    if options.json:
        render.print_json({"components": [asdict(age) for age in found]})
    else:
        rows = [[age.recipe, age.pinned, age.newest, age.source, age.state] for age in found]
        with render.details(options):
            render.print_table(["RECIPE", "PINNED", "NEWEST", "ASKED", "STATE"], rows)
        if options.verbosity < 0:
            print(render.counted(age.state for age in found))
    if all(age.state.startswith("unknown") for age in found):
        return _unasked(train.name, found[0].state if found else "")
    return 0


def _unasked(train: str, state: str) -> int:
    """Report why no pin of a train could be compared; returns the exit code."""
    if not state:
        return nothing_checked(f"train {train} pins nothing", ours("recipes list"))
    return nothing_checked(
        f"no index or repository answers for any pin of train {train}: "
        f"{state.removeprefix('unknown (').removesuffix(')')}",
        CHECK_NETWORK,
    )


def _show(options: Options, rows: list[Row], changed: list[str]) -> None:
    if options.json:
        render.print_json({"pins": [asdict(row) for row in rows], "files": changed})
        return
    with render.details(options):
        render.print_table(
            ["RECIPE", "SOURCE", "STATE"], [[row.recipe, row.source, row.state] for row in rows]
        )
        for path in changed:
            print(f"wrote {path}")
    if options.verbosity < 0:
        print(render.counted(row.state for row in rows))


def _is_unknown(row: Row) -> bool:
    return row.state.startswith("unknown")


def _why(row: Row) -> str:
    if row.state == "changed":
        return f"pinned {row.pinned}, but now it is {row.found}"
    return row.state.removeprefix("unknown (").removesuffix(")")


def _own_folder(home: Home) -> Path:
    """Return the folder of the user's own recipes: with the state, unless that is in the data folders."""
    base = home.wheelhouse.parent
    return base if home.build.parent == base else Path.cwd()


def _to_build(options: Options, base: Path, names: Sequence[str]) -> str:
    """Return the line that builds these, with --root when they would not be found without it."""
    from spark_build.paths import locate

    root = () if options.root is None and base in locate(None).data else ("--root", str(base))
    return typeable(ours("build", *names, options=root), options, repeat=("--root",))
