"""`all` and `build`: from recipes to a published generation."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.attaching import start_background
from spark_build.cli.hints import typeable
from spark_build.cli.options import SIZE, Options, Renamed, local_sources, shared
from spark_build.cli.planning import print_plan
from spark_build.cli.results import Outcome, compared, conclude, document

if TYPE_CHECKING:
    from pathlib import Path

    from spark_build.build.context import Setting
    from spark_build.events import Emit, RecipeResult
    from spark_build.recipes.model import BuildOptions, Plan
    from spark_build.wheelhouse.generations import Generation

Command = Callable[..., Any]
BUILDING = "building"  # what `gc` says of us: it leaves the store alone meanwhile
STAGES = ("fetch", "patch", "environment", "build", "audit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the options of a command that builds ask for."""

    source: dict[str, str]
    jobs: int | None
    memory: int | None  # MiB
    keep_going: bool
    stop_after: str
    insist: bool
    offline: bool
    no_closure: bool
    detach: bool

    def setting(self, options: Options) -> Setting:
        """What the command works on."""
        from spark_build.build.context import with_limits, with_local_sources

        return with_local_sources(with_limits(options.setting(), self.jobs, self.memory), self.source)

    def build_options(self) -> BuildOptions:
        """How the engine is to go about it."""
        from spark_build.recipes.model import BuildOptions

        return BuildOptions(
            offline=self.offline, keep_going=self.keep_going, stop_after=self.stop_after or ""
        )


def _build_options(function: Command) -> Command:
    """Options of the commands that build, handed on as one Wish."""

    def command(*arguments: Any, **named: Any) -> Any:
        wish = Wish(**{one.name: named.pop(one.name) for one in fields(Wish)})
        return function(*arguments, wish=wish, **named)

    decorated: Command = update_wrapper(command, function)
    for declare in (
        click.option("--no-closure", is_flag=True, help="Leave the third-party wheels out."),
        click.option("--offline", is_flag=True, help="Use only what is here already."),
        click.option(
            "--ignore-memory",
            "--insist",
            "insist",
            cls=Renamed,
            is_flag=True,
            help="Build although too little memory is free.",
        ),
        click.option("--stop-after", type=click.Choice(STAGES), help="Go no further than this stage."),
        click.option("--keep-going", is_flag=True, help="After a failure start independent recipes, too."),
        click.option("--memory", type=SIZE, help="Memory for all builds together, such as 64G."),
        click.option("--jobs", type=click.IntRange(min=1), help="Compile jobs at once (default: what fits)."),
        click.option("--detach", is_flag=True, help="Go on in the background; `attach` shows it."),
        local_sources,
    ):
        decorated = declare(decorated)
    return decorated


@click.command("all")
@click.argument("recipes", nargs=-1)
@_build_options
@click.option("--with", "also", metavar="NAME", multiple=True, help="Also one that is not built by default.")
@click.option("--burn-in", is_flag=True, help="Also measure what the build is worth.")
@click.option("--reverify", is_flag=True, help="Verify again what was verified.")
@shared
def all_(
    options: Options,
    recipes: tuple[str, ...],
    wish: Wish,
    also: tuple[str, ...],
    burn_in: bool,
    reverify: bool,
) -> int:
    """Build what is missing, publish it, verify it. Safe to repeat: what is done stays done."""
    from spark_build.cli.measuring import Asked
    from spark_build.cli.verify import judge
    from spark_build.wheelhouse.store import in_use

    setting = wish.setting(options)

    def ready(emit: Emit) -> Plan:
        return _ready(setting, recipes, emit, wish, also)

    if wish.detach and options.background is None:
        return start_background(options, setting.home.runs, ready)
    with running(options, setting.home.runs) as (folder, emit), in_use(setting.home.store, BUILDING):
        planned = ready(emit)
        if not options.json:
            print_plan(planned)
        results, generation = _build(setting, planned, emit, wish)
        judged = None
        if not wish.stop_after:
            asked = Asked() if burn_in else None
            judged = judge(setting, generation, folder, emit, reverify=reverify, burn_in=asked)
    built = document(results, generation)
    if judged is None:
        return conclude(options, results, None, built, [], 0)
    code, lines = judged.code, judged.lines
    if judged.unchecked:
        why, following = judged.unchecked
        lines = [*lines, f"not verified: {why}", typeable(f"  next: {following}")]
        code = code if burn_in else 0  # wheels were asked for, and are there; a measurement would not be
    return conclude(options, results, generation, {**built, **judged.document}, lines, code)


@click.command()
@click.argument("recipes", nargs=-1, required=True)
@_build_options
@click.option("--shell", is_flag=True, help="Enter the tree of one recipe, with its build's environment.")
@click.option("--check-reproducible", is_flag=True, help="Build RECIPES twice: are the bytes the same?")
@shared
def build(
    options: Options, recipes: tuple[str, ...], wish: Wish, shell: bool, check_reproducible: bool
) -> int:
    """Build and publish RECIPES and what they need."""
    from spark_build.wheelhouse.store import in_use

    setting = wish.setting(options)
    if shell and wish.detach:
        raise click.UsageError("--shell needs this terminal, which --detach gives up")
    if check_reproducible and (shell or wish.stop_after):
        raise click.UsageError("--check-reproducible builds to the end: no --shell, no --stop-after")

    def ready(emit: Emit) -> Plan:
        planned = _ready(setting, recipes, emit, wish)
        _refuse_unbuildable(planned, recipes)
        return planned

    if wish.detach and options.background is None:
        return start_background(options, setting.home.runs, ready)
    with running(options, setting.home.runs) as (_, emit), in_use(setting.home.store, BUILDING):
        planned = ready(emit)
        if not shell:
            results, generation = _build(setting, planned, emit, wish, cached=not check_reproducible)
            names = recipes if check_reproducible else ()
            twice = _repeat(setting, planned, names, results, emit, wish)
    if shell:
        return _enter(options, setting, planned, recipes, wish)
    whole = {**document(results, generation), **twice.document}
    return conclude(options, results, generation, whole, twice.lines, twice.code)


def _enter(options: Options, setting: Setting, planned: Plan, recipes: Sequence[str], wish: Wish) -> int:
    """Open a shell in a recipe's tree."""
    from spark_build import process
    from spark_build.build import scheduler
    from spark_build.errors import UsageError

    if len(recipes) != 1:
        raise UsageError("--shell enters the tree of one recipe", hint="spark-build build NAME --shell")
    with ExitStack() as stack:
        with render.view(options.verbosity) as view:
            shell = scheduler.shell(setting, planned, recipes[0], view.emit, wish.build_options())
            command = stack.enter_context(shell)
        click.echo(f"{command.told}; `exit` leaves it", err=True)
        return process.interactive(command.args, cwd=command.cwd, env=command.env, keep=command.keep)


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
    from spark_build.events import Event
    from spark_build.journal import Journal, new_run

    one_at_a_time = threading.Lock()
    detached = options.background is not None
    journal = Journal(options.background or new_run(runs), whole=detached)
    # What a background process would show, `attach` shows; its stderr has the errors only.
    with render.view(-1 if detached else options.verbosity, plain=options.json) as view:

        def emit(event: Event) -> None:
            with one_at_a_time:  # recipes build side by side
                journal.emit(event)
                view.emit(event)

        yield journal.folder, emit


def _ready(
    setting: Setting, recipes: Sequence[str], emit: Emit, wish: Wish, also: Sequence[str] = ()
) -> Plan:
    """A plan whose requirements this machine meets; system packages are installed where allowed."""
    from spark_build.build import scheduler
    from spark_build.doctor import collect as doctors
    from spark_build.errors import HostError

    planned = scheduler.plan(setting, recipes, also)
    if not any(step.decision == "BUILD" for step in planned.steps):
        return planned
    failures = [
        one
        for one in doctors.examine(setting.home, planned, setting.machine, setting.limits)
        if one.status == "fail"
    ]
    waived = ("packages", "memory") if wish.insist else ("packages",)
    others = [one for one in failures if one.check not in waived]
    if others:
        raise HostError("; ".join(one.message for one in others), hint=others[0].fix)
    if wish.offline:
        from spark_build.build import requirements

        requirements.refuse(planned, setting.home, stop_after=wish.stop_after or "")
    missing = doctors.packages_to_install(planned)
    suggested = () if wish.offline else doctors.packages_to_suggest(planned)
    # The installed tools are part of the build keys.
    return scheduler.plan(setting, recipes, also) if install_packages(missing, suggested, emit) else planned


def install_packages(missing: Sequence[str], suggested: Sequence[str], emit: Emit) -> bool:
    """Install what is missing, and what is suggested where that can be done; whether anything was installed.

    Raises HostError for what is missing only: builds work without the rest.
    """
    from spark_build.doctor import probe
    from spark_build.errors import HostError
    from spark_build.events import Note

    wanted = [*missing, *suggested] if probe.can_install() else [*missing]
    if not wanted:
        return False
    emit(Note(message=f"installing system packages: {', '.join(wanted)}"))
    try:
        probe.install(wanted)
    except HostError as error:
        if not suggested or wanted == [*missing]:
            raise
        emit(Note(message=f"warning: going on without {', '.join(suggested)}: {error.message}"))
        if missing:
            probe.install(missing)
    return True


def _repeat(
    setting: Setting,
    planned: Plan,
    names: Sequence[str],
    results: Sequence[RecipeResult],
    emit: Emit,
    wish: Wish,
) -> Outcome:
    """Build the named recipes once more and compare; nothing after a failure, which is told anyway."""
    from spark_build.build import scheduler

    if not names or any(result.error for result in results):
        return Outcome()
    return compared(scheduler.repeat(setting, planned, names, results, emit, wish.build_options()))


def _build(
    setting: Setting, planned: Plan, emit: Emit, wish: Wish, *, cached: bool = True
) -> tuple[tuple[RecipeResult, ...], Generation | None]:
    """Build, publish, and name the published wheels in the results."""
    from spark_build.build import scheduler

    options = dataclasses.replace(wish.build_options(), cached=cached)
    results = scheduler.build(setting, planned, emit, options)
    if wish.stop_after:
        return results, None
    closure = not wish.no_closure
    generation, _ = scheduler.publish(setting, results, with_closure=closure, offline=wish.offline, emit=emit)
    files = {wheel.key: wheel.filename for wheel in generation.wheels} if generation else {}
    named = tuple(
        dataclasses.replace(result, wheels=(files[result.build_key],))
        if result.build_key in files
        else result
        for result in results
    )
    return named, generation
