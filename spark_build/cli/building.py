"""`all` and `build`: from recipes to a published generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.options import Options, local_sources, shared
from spark_build.cli.planning import print_plan

if TYPE_CHECKING:
    from pathlib import Path

    from spark_build.host.wheelhouse import Generation
    from spark_build.model.event import Emit
    from spark_build.model.plan import Plan
    from spark_build.model.result import RecipeResult
    from spark_build.setting import Setting

Command = Callable[..., Any]


def _build_options(function: Command) -> Command:
    """Options of the commands that build."""
    for declare in (
        click.option("--no-closure", is_flag=True, help="Leave the third-party wheels out."),
        click.option("--offline", is_flag=True, help="Use only what is here already."),
        click.option("--jobs", type=click.IntRange(min=1), help="Compile jobs (default: what fits)."),
        local_sources,
    ):
        function = declare(function)
    return function


@click.command("all")
@click.argument("recipes", nargs=-1)
@_build_options
@click.option("--burn-in", is_flag=True, help="Also measure what the build is worth.")
@click.option("--reverify", is_flag=True, help="Verify again what was verified.")
@shared
def all_(
    options: Options,
    recipes: tuple[str, ...],
    source: dict[str, str],
    jobs: int | None,
    offline: bool,
    no_closure: bool,
    burn_in: bool,
    reverify: bool,
) -> int:
    """Build what is missing, publish it, verify it. Safe to repeat: what is done stays done."""
    from spark_build.cli.verification import judge
    from spark_build.setting import with_local_sources

    setting = with_local_sources(options.setting(), source)
    with running(options, setting.home.runs) as (folder, emit):
        planned = _ready(setting, recipes, emit)
        if not options.json:
            print_plan(planned)
        results, generation = _build(setting, planned, emit, jobs, offline, closure=not no_closure)
        judged = judge(setting, generation, folder, emit, reverify=reverify, burn_in=burn_in)
    document = {**_document(results, generation), **judged.document}
    return _conclude(options, results, generation, document, judged.lines, judged.code)


@click.command()
@click.argument("recipes", nargs=-1, required=True)
@_build_options
@shared
def build(
    options: Options,
    recipes: tuple[str, ...],
    source: dict[str, str],
    jobs: int | None,
    offline: bool,
    no_closure: bool,
) -> int:
    """Build and publish RECIPES and what they need."""
    from spark_build.setting import with_local_sources

    setting = with_local_sources(options.setting(), source)
    with running(options, setting.home.runs) as (_, emit):
        planned = _ready(setting, recipes, emit)
        _refuse_unbuildable(planned, recipes)
        results, generation = _build(setting, planned, emit, jobs, offline, closure=not no_closure)
    return _conclude(options, results, generation, _document(results, generation), [], 0)


def _refuse_unbuildable(planned: Plan, recipes: Sequence[str]) -> None:
    """What was asked for by name and cannot be built is an error, not a remark."""
    from spark_build.errors import HostError

    for step in planned.steps:
        if step.recipe.name in recipes and step.decision in ("SKIP", "BLOCKED"):
            raise HostError(
                f"{step.recipe.name} cannot be built for {planned.target.name}: {'; '.join(step.reasons)}",
                hint="spark-build plan --target gb10",
            )


@contextmanager
def running(options: Options, runs: Path) -> Iterator[tuple[Path, Emit]]:
    """A run: its folder, and an emitter that shows and records."""
    from spark_build.host.journal import Journal, new_run
    from spark_build.model.event import Event

    journal = Journal(new_run(runs))
    with render.view(options.verbosity) as view:

        def emit(event: Event) -> None:
            journal.emit(event)
            view.emit(event)

        yield journal.folder, emit


def _ready(setting: Setting, recipes: Sequence[str], emit: Emit) -> Plan:
    """A plan whose requirements this machine meets; system packages are installed where allowed."""
    from spark_build import engine
    from spark_build.errors import HostError
    from spark_build.host import doctor as doctors
    from spark_build.host import system
    from spark_build.model.event import Note

    planned = engine.plan(setting, recipes)
    if not any(step.decision == "BUILD" for step in planned.steps):
        return planned
    failures = [
        one for one in doctors.examine(setting.home, planned, setting.machine) if one.status == "fail"
    ]
    others = [one for one in failures if one.check != "packages"]
    if others:
        raise HostError("; ".join(one.message for one in others), hint=others[0].fix)
    missing = doctors.packages_to_install(planned)
    suggested = doctors.packages_to_suggest(planned)
    if suggested and system.can_install():
        missing += suggested
    if missing:
        emit(Note(message=f"installing system packages: {', '.join(missing)}"))
        system.install(missing)
        # The installed tools are part of the build keys.
        planned = engine.plan(setting, recipes)
    return planned


def _build(
    setting: Setting, planned: Plan, emit: Emit, jobs: int | None, offline: bool, *, closure: bool
) -> tuple[tuple[RecipeResult, ...], Generation | None]:
    """Build, publish, and name the published wheels in the results."""
    from spark_build import engine

    results = engine.build(setting, planned, emit, jobs=jobs, offline=offline)
    generation, _ = engine.publish(setting, results, with_closure=closure, offline=offline, emit=emit)
    files = {wheel.key: wheel.filename for wheel in generation.wheels} if generation else {}
    named = tuple(
        dataclasses.replace(result, wheels=(files[result.build_key],))
        if result.build_key in files
        else result
        for result in results
    )
    return named, generation


def _document(results: Sequence[RecipeResult], generation: Generation | None) -> dict[str, Any]:
    return {
        "results": [
            {
                "recipe": result.recipe,
                "version": result.version,
                "status": result.status,
                "seconds": round(result.seconds, 3),
                "wheels": list(result.wheels),
                "log": result.log,
                "reasons": list(result.reasons),
                "error": result.error.message if result.error else None,
            }
            for result in results
        ],
        "generation": generation.number if generation else None,
        "path": str(generation.folder) if generation else None,
    }


def _conclude(
    options: Options,
    results: Sequence[RecipeResult],
    generation: Generation | None,
    document: dict[str, Any],
    lines: Sequence[str],
    code: int,
) -> int:
    """Say how it ended; returns the exit code."""
    from spark_build.cli.wheelhouse import print_wheels
    from spark_build.errors import joint_exit_code

    errors = [result.error for result in results if result.error]
    exit_code = joint_exit_code(errors) or code
    if options.json:
        render.print_json({**document, "exit_code": exit_code})
    else:
        print()
        print_results(results)
        if generation is not None:
            print(f"\nwheels of generation {generation.number} in {generation.folder}")
            print_wheels(generation)
        for line in lines:
            print(line)
    for result in results:
        if result.error is not None:
            _print_failure(result)
    return exit_code


def print_results(results: Sequence[RecipeResult]) -> None:
    """What became of each recipe."""
    rows = [
        [
            result.recipe,
            result.version,
            result.status,
            render.duration(result.seconds) if result.seconds else "",
            "; ".join(result.reasons),
        ]
        for result in results
    ]
    render.print_table(["RECIPE", "VERSION", "RESULT", "TIME", "WHY"], rows)


def _print_failure(result: RecipeResult) -> None:
    error = result.error
    if error is None:
        return
    place = f"{error.where}: " if error.where else ""
    click.echo(f"error: {result.recipe}: {place}{error.message}", err=True)
    if error.log:
        click.echo(f"  log:  {error.log}", err=True)
    click.echo(
        f"  next: {error.hint or f'spark-build build {result.recipe}  (goes on where it stopped)'}", err=True
    )
