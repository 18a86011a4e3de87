"""The command env: virtual environments from the wheelhouse only."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import carry_over, nothing_checked, typeable
from spark_build.cli.options import Options, group, shared
from spark_build.errors import Finding, HostError, StoreError, ours

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.environments.installed import EnvironmentChange, State
    from spark_build.wheelhouse.generations import Generation


@group()
@shared
def env(_options: Options) -> None:
    """Make virtual environments from the wheelhouse only."""


_folder = click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
_packages = click.argument("packages", nargs=-1)
_installer = click.option(
    "--installer",
    type=click.Choice(["auto", "uv", "pip"]),
    default="auto",
    help="Installer; auto: uv if available, else pip.",
)


@env.command()
@_folder
@_packages
@_installer
@click.option("--python", "wanted", metavar="PATH|VERSION", help="Interpreter to use, such as 3.12.")
@click.option("--without-pip", is_flag=True, help="Leave pip out of the environment.")
@click.option("--jupyter", is_flag=True, help="Install ipykernel and register a Jupyter kernel.")
@shared
def create(
    options: Options,
    folder: Path,
    packages: tuple[str, ...],
    installer: str,
    wanted: str | None,
    without_pip: bool,
    jupyter: bool,
) -> None:
    """Make an environment in FOLDER, offline, with hashes.

    The origin of every file is proven. PACKAGES are installed with their requirements; by default
    everything that was built.
    """
    from spark_build.cli.wheelhouse import current
    from spark_build.environments import create as environments_create
    from spark_build.environments import interpreters

    setting = options.setting()
    _refuse_foreign(setting)
    generation = current(options)
    folder = folder.absolute() if folder.is_symlink() else folder.resolve()
    if jupyter:
        interpreters.refuse_without(generation)
    wish = environments_create.CreateOptions(
        names=(*packages, interpreters.PACKAGE) if jupyter else packages,
        everything=not packages,
        with_pip=not without_pip,
        python=interpreters.find_interpreter(wanted) if wanted else None,
        installer=installer,
    )
    with render.open_view(options.verbosity):
        state = environments_create.create(generation, folder, wish)
    _show_created(options, folder, state, interpreters.register_kernel(folder) if jupyter else None)


def _show_created(options: Options, folder: Path, state: State, kernel: tuple[str, Path] | None) -> None:
    installed = [f"{package.name}=={package.version}" for package in state.packages]
    if options.json:
        about: dict[str, Any] = {
            "folder": str(folder),
            "generation": state.generation,
            "view": state.view,
            "python": state.python,
            "installed": installed,
        }
        render.print_json(about | ({"kernel": {"name": kernel[0], "path": str(kernel[1])}} if kernel else {}))
        return
    print(f"{folder}: {', '.join(installed)}, every file as in generation {state.generation}")
    with render.details(options):
        if kernel:
            print(f"kernel {kernel[0]} for Jupyter in {kernel[1]}")
        print(f"use it: . {quote(str(folder))}/bin/activate")


def _refuse_foreign(setting: Context) -> None:
    """Raise HostError where the wheels are for another platform than this machine's."""
    if setting.target.platform != setting.machine.platform:
        raise HostError(
            f"the wheels of target {setting.target.name} are for {setting.target.platform}, "
            f"this machine is {setting.machine.platform}",
            hint=carry_over("env create there", ("--target", setting.target.name)),
        )


@env.command()
@_folder
@_packages
@_installer
@click.option(
    "--generation", "number", type=int, metavar="N", help="Update to (or go back to) this generation."
)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--repair", is_flag=True, help="Compare every file; reinstall what was changed.")
@shared
def update(
    options: Options,
    folder: Path,
    packages: tuple[str, ...],
    installer: str,
    number: int | None,
    dry_run: bool,
    repair: bool,
) -> None:
    """Bring FOLDER to the current generation, and install PACKAGES.

    Packages that you added stay. The next update finishes an interrupted one.
    """
    from spark_build.environments import create as environments_create
    from spark_build.environments import installed

    folder = folder.resolve()
    generation = _generation(options, installed.read(folder).view, number)
    wish = environments_create.UpdateOptions(
        more=packages, installer=installer, dry_run=dry_run, repair=repair
    )
    with render.open_view(options.verbosity):
        before, change = environments_create.update(folder, generation, wish, kept=options.home().store)
    if options.json:
        render.print_json(_as_json(folder, before, generation, change, dry_run=dry_run))
    else:
        _print_change(options, folder, before, generation, change, dry_run=dry_run)


def _generation(options: Options, view: str, number: int | None) -> Generation:
    """Return the target generation, of the environment's own view unless another is asked for."""
    from spark_build.cli.wheelhouse import current
    from spark_build.wheelhouse import generations

    if options.target != "auto" or options.train is not None:
        setting = options.setting()
        _refuse_foreign(setting)
        if number is None:
            return current(options)
        place = setting.view
    else:
        place = options.home().views / view
    if number is None:
        found = generations.current(place)
        if found is None:
            raise StoreError(
                f"this wheelhouse has no {view}, which the environment is made from",
                where=str(place.parent),
                hint="--root DIR names the one that has it",
            )
        return found
    return generations.read(generations.folder_of(place, number))


def _as_json(
    folder: Path, before: State, generation: Generation, change: EnvironmentChange, *, dry_run: bool
) -> dict[str, Any]:
    def named(packages: Any) -> list[dict[str, str]]:
        return [{"name": package.name, "version": package.version} for package in packages]

    return {
        "folder": str(folder),
        "from": {"view": before.view, "generation": before.generation},
        "to": {"view": generation.folder.parent.parent.name, "generation": generation.number},
        "dry_run": dry_run,
        "changed": not change.empty,
        "added": named(change.added),
        "replaced": [
            {
                "name": replacement.wheel.name,
                "from": replacement.before,
                "to": replacement.wheel.version,
                "why": replacement.why,
            }
            for replacement in change.replaced
        ],
        "removed": named(change.removed),
        "released": named(change.released),
        "unchanged": list(change.same),
        "others": list(change.others),
    }


def _print_change(
    options: Options,
    folder: Path,
    before: State,
    generation: Generation,
    change: EnvironmentChange,
    *,
    dry_run: bool,
) -> None:
    rows = [["add", wheel.name, wheel.version, ""] for wheel in change.added]
    rows += [
        [
            "replace",
            replacement.wheel.name,
            f"{replacement.before} -> {replacement.wheel.version}",
            replacement.why,
        ]
        for replacement in change.replaced
    ]
    rows += [
        ["remove", package.name, package.version, "not asked for by this generation"]
        for package in change.removed
    ]
    rows += [
        ["leave", package.name, package.version, "you replaced it: it is yours now"]
        for package in change.released
    ]
    with render.details(options):
        render.print_table(["", "PACKAGE", "VERSION", "WHY"], rows)
    way = "" if before.generation == generation.number else f", from generation {before.generation}"
    if change.empty:
        print(f"{folder}: already as in generation {generation.number}{way}")
    else:
        would = "would be" if dry_run else "is now"
        print(f"{folder} {would} as in generation {generation.number}{way}; {len(change.same)} unchanged")
    if change.others and options.verbosity >= 0:
        print(f"yours, left alone: {', '.join(change.others)}")


@env.command()
@_folder
@shared
def check(options: Options, folder: Path) -> int:
    """Check that every file in FOLDER is as in the wheelhouse."""
    from spark_build.environments import create as environments_create
    from spark_build.environments import installed

    folder = folder.resolve()
    state = installed.read(folder)
    with render.open_view(options.verbosity):
        faults = list(environments_create.check(folder, state, options.home().store))
    others = environments_create.others(folder, state)
    _show_check(options, folder, state, faults, others)
    if not state.packages and not faults and not state.unfinished:
        return nothing_checked(
            f"{folder} holds no wheel of the wheelhouse",
            ours("env update", folder, "PACKAGE"),
        )
    return 10 if faults or state.unfinished else 0


def _show_check(
    options: Options, folder: Path, state: State, faults: list[Finding], others: tuple[str, ...]
) -> None:
    rows = [(fault.place.subject, fault.place.file, fault.message) for fault in faults]
    if options.json:
        render.print_json(
            {
                "folder": str(folder),
                "view": state.view,
                "generation": state.generation,
                "packages": [f"{package.name}=={package.version}" for package in state.packages],
                "ok": not faults and not state.unfinished,
                "unfinished": state.unfinished,
                "problems": [dict(zip(("package", "file", "problem"), row, strict=True)) for row in rows],
                "others": list(others),
            }
        )
        return
    render.print_table(["PACKAGE", "FILE", "PROBLEM"], rows)
    if state.unfinished == "create":
        print(f"{folder} was never finished; next: {typeable(ours('env create', folder), options)}")
    elif faults:
        again = ours("env update", folder, "--repair", "--generation", state.generation)
        # The generation is one of the environment's own view, which --target would change.
        print(f"next: {typeable(again, options, ('--root',))}")
    elif state.packages:
        count = f"{len(state.packages)} package{'' if len(state.packages) == 1 else 's'}"
        print(f"{folder}: {count}, every file as in generation {state.generation}")
    if others and options.verbosity >= 0:
        print(f"yours: {', '.join(others)}")
