"""The commands all and build."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from spark_build.cli import render
from spark_build.cli.farm import (
    CERTIFICATES,
    FarmOptions,
    farm_option,
    opened,
    refuse_certificates,
    with_gpu,
)
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.history import start_background
from spark_build.cli.options import SIZE, Options, Renamed, as_one, command, local_sources, shared
from spark_build.cli.plan import also_built, print_plan
from spark_build.cli.render import running
from spark_build.errors import (
    AuditError,
    Hint,
    HostError,
    NothingCheckedError,
    RecipeError,
    UsageError,
    joint_exit_code,
    ours,
)
from spark_build.events import Emit, JudgedFeature, Note, RecipeResult, Repetition
from spark_build.text import format_duration, format_size

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.recipes.model import BuildOptions, Plan
    from spark_build.wheelhouse.generations import Generation
    from spark_build.wheels.model import StoredWheel

Command = Callable[..., Any]
BUILDING = "building"  # what `gc` says of us: it leaves the store alone meanwhile
STAGES = ("fetch", "patch", "environment", "preflight", "configure", "build", "audit")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest(FarmOptions):
    """Options of a command that builds."""

    source: dict[str, str]
    keep_going: bool
    stop_after: str
    offline: bool
    no_closure: bool
    detach: bool
    require_sandbox: bool

    @property
    def configures(self) -> bool:
        """True when the build ends after the configure step."""
        return self.stop_after == "configure"

    @property
    def compiles(self) -> bool:
        """True when the build goes beyond the configure step."""
        return not self.stop_after or STAGES.index(self.stop_after) >= STAGES.index("build")

    def setting(self, options: Options) -> Context:
        """Return the settings that the command works with."""
        from spark_build.build.context import with_limits, with_local_sources

        setting = with_local_sources(with_limits(options.setting(), self.jobs, self.memory), self.source)
        setting.remotes.offline = self.offline
        return setting

    def refuse_here(self, **others: bool) -> None:
        """Raise UsageError for what a farm cannot do and for a wrong niceness; `others`: of one command."""
        named = {"source": bool(self.source), "stop_after": bool(self.stop_after), **others}
        for name, given in named.items():
            if self.farm and given:
                raise click.UsageError(f"--{name.replace('_', '-')} works on this machine only: no --farm")
        away = self.farm is not None and self.farm.kind != "local"
        source = click.get_current_context().get_parameter_source
        for name, there in (("jobs", "`farm worker --jobs N`"), ("memory", "`farm worker --memory SIZE`")):
            if away and source(name) is ParameterSource.COMMANDLINE:  # settings are for many commands
                raise click.UsageError(f"--{name} is an option of the worker: {there}")
        refuse_certificates(self.farm)
        from spark_build.process import niceness

        niceness(os.environ)

    def build_options(self) -> BuildOptions:
        """Return the options for the scheduler."""
        from spark_build.recipes.model import BuildOptions

        return BuildOptions(
            offline=self.offline,
            keep_going=self.keep_going,
            stop_after=self.stop_after or "",
            require_sandbox=self.require_sandbox,
        )


def building_options(function: Command) -> Command:
    """Add the options of commands that build, passed on as one BuildRequest."""
    decorated = as_one(BuildRequest, "wish")(function)
    for declare in (
        click.option(
            "--no-closure", is_flag=True, help="Leave out the public wheels that the built ones require."
        ),
        click.option("--offline", is_flag=True, help="Use no network: only what was fetched before."),
        click.option(
            "--ignore-memory",
            "--insist",
            "insist",
            cls=Renamed,
            is_flag=True,
            help="Build although memory is short.",
        ),
        click.option(
            "--stop-after",
            type=click.Choice(STAGES),
            metavar="STAGE",
            help=f"Stop after one of {', '.join(STAGES)}; configure is the first part of build.",
        ),
        click.option(
            "--keep-going",
            is_flag=True,
            help="After a failure, build what does not depend on it.",
        ),
        click.option("--require-sandbox", is_flag=True, help="Build only in the full sandbox."),
        click.option("--memory", type=SIZE, help="Memory for all builds together, such as 64G."),
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            help="Compile jobs at once (default: what memory allows).",
        ),
        click.option("--detach", is_flag=True, help="Run in the background; `attach` shows it."),
        CERTIFICATES,
        farm_option("Build on the workers of tls://HOST:PORT; ssh:HOSTS and local:N start some."),
        local_sources,
    ):
        decorated = declare(decorated)
    return decorated


@command("all")
@click.argument("recipes", nargs=-1)
@building_options
@also_built
@click.option("--burn-in", is_flag=True, help="Also measure it against the public wheels.")
@click.option("--reverify", is_flag=True, help="Verify again even if nothing changed.")
@shared
def all_(
    options: Options,
    recipes: tuple[str, ...],
    wish: BuildRequest,
    also: tuple[str, ...],
    burn_in: bool,
    reverify: bool,
) -> int:
    """Build what is missing, publish it and verify it.

    Safe to repeat: finished work is kept.
    """
    from spark_build.cli.judgement import default_burn_in, judge
    from spark_build.wheelhouse.store import shared_lock

    wish.refuse_here()
    setting = wish.setting(options)
    if wish.configures and (burn_in or reverify):
        raise click.UsageError("--stop-after configure builds nothing: no --burn-in, no --reverify")

    def ready(emit: Emit) -> Plan:
        planned = make_ready(setting, recipes, emit, wish, also)
        _refuse_unbuildable(planned, (*recipes, *also))
        return planned

    if wish.detach and options.background is None:
        return start_background(options, setting.home.runs, ready)
    with running(options, setting.home.runs) as (folder, emit), shared_lock(setting.home.store, BUILDING):
        planned = ready(emit)
        if not options.json and options.verbosity >= 0:
            print_plan(planned)
        results, generation = carry_out(options, setting, planned, emit, wish, named=recipes)
        if not wish.stop_after:
            measured = default_burn_in() if burn_in else None
            judged = judge(setting, generation, folder, emit, reverify=reverify, burn_in=measured)
            asked, own = wish.build_options(), _published(results, generation)
            judged = with_gpu(options, setting, asked, wish, own, judged, reverify=reverify)
    built = document(results, generation)
    if wish.stop_after:
        only = configured(results, recipes) if wish.configures else Outcome()
        return conclude(options, results, None, built, only.lines, only.code, planned=planned)
    text = ["; ".join(judged.in_short)] if options.verbosity < 0 else judged.lines
    code = conclude(options, results, generation, built | judged.document, text, judged.code, planned=planned)
    return nothing_checked(*judged.unchecked) if judged.unchecked and code == judged.code else code


@command()
@click.argument("recipes", nargs=-1, required=True)
@building_options
@click.option(
    "--shell", is_flag=True, help="Open a shell in one recipe's tree, with its build's environment."
)
@click.option("--check-reproducible", is_flag=True, help="Build RECIPES twice and compare the bytes.")
@shared
def build(
    options: Options, recipes: tuple[str, ...], wish: BuildRequest, shell: bool, check_reproducible: bool
) -> int:
    """Build and publish RECIPES and what they need."""
    from spark_build.wheelhouse.store import shared_lock

    wish.refuse_here(shell=shell, check_reproducible=check_reproducible)
    setting = wish.setting(options)
    if shell and wish.detach:
        raise click.UsageError("--shell needs this terminal, which --detach gives up")
    if check_reproducible and (shell or wish.stop_after):
        raise click.UsageError("--check-reproducible builds to the end: no --shell, no --stop-after")

    if shell and wish.configures:
        raise click.UsageError("--shell enters the tree as it is: configure it first, without --shell")

    def ready(emit: Emit) -> Plan:
        planned = make_ready(setting, recipes, emit, wish)
        _refuse_unbuildable(planned, recipes)
        return planned

    if wish.detach and options.background is None:
        return start_background(options, setting.home.runs, ready)
    with running(options, setting.home.runs) as (_, emit), shared_lock(setting.home.store, BUILDING):
        planned = ready(emit)
        if not shell:
            cached = not check_reproducible
            results, generation = carry_out(
                options, setting, planned, emit, wish, named=recipes, cached=cached
            )
            names = recipes if check_reproducible else ()
            more = _repeat(setting, planned, names, results, emit, wish)
    if shell:
        return _enter(options, setting, planned, recipes, wish)
    if wish.configures:
        more = configured(results, recipes)
    whole = {**document(results, generation), **more.document}
    return conclude(options, results, generation, whole, more.lines, more.code)


def _enter(
    options: Options, setting: Context, planned: Plan, recipes: Sequence[str], wish: BuildRequest
) -> int:
    """Open a shell in a recipe's tree."""
    from spark_build import process
    from spark_build.build import scheduler

    if len(recipes) != 1:
        raise UsageError("--shell enters the tree of one recipe", hint=ours("build NAME --shell"))
    with ExitStack() as stack:
        with render.open_view(options.verbosity) as view:
            shell = scheduler.shell(setting, planned, recipes[0], view.emit, wish.build_options())
            command = stack.enter_context(shell)
        click.echo(f"{command.told}; `exit` leaves it", err=True)
        return process.interactive(command.args, cwd=command.cwd, pass_fds=command.keep)


def _refuse_unbuildable(planned: Plan, recipes: Sequence[str]) -> None:
    """Raise for recipes that were named and cannot be built; others are only reported."""
    for step in planned.steps:
        if step.recipe.name in recipes and step.decision in ("SKIP", "BLOCKED"):
            raise HostError(
                f"{step.recipe.name} cannot be built for {planned.target.name}: {'; '.join(step.reasons)}",
                hint=ours("plan", options=("--target", "gb10")),
            )


def make_ready(
    setting: Context, recipes: Sequence[str], emit: Emit, wish: BuildRequest, also: Sequence[str] = ()
) -> Plan:
    """Return a plan whose requirements this machine meets; installs system packages where allowed."""
    from spark_build.build import scheduler
    from spark_build.recipes.loader import closure_locks

    planned = scheduler.plan(setting, recipes, also)
    if not any(step.decision == "BUILD" for step in planned.steps):
        return planned
    if not (wish.no_closure or wish.stop_after):  # its publication would fail, after all builds
        planned_recipes = [step.recipe for step in planned.steps if step.decision in ("BUILD", "REUSE")]
        for lock in closure_locks(setting.home, setting.train, setting.target.platform, planned_recipes):
            if lacking := [pin for pin, files in lock.wheels.items() if not files]:
                said = f"{lock.file} lacks {', '.join(lacking)}"
                raise RecipeError(said, hint=ours("recipes pin", lock.owner))
    if wish.farm:
        return planned
    from spark_build.build import compiler_cache
    from spark_build.doctor import collect as doctors

    compiler_cache.choose(os.environ)  # what is wrong there would end the first build after minutes
    failures = [
        one
        for one in doctors.examine(setting.home, planned, setting.machine, setting.limits)
        if one.severity == "error"
    ]
    # What comes before compiling takes little of what that takes.
    spared = () if wish.compiles else ("memory", "disk")
    waived = ("packages", *(("memory",) if wish.insist else ()), *spared)
    others = [failure for failure in failures if failure.rule not in waived]
    if others:
        raise HostError("; ".join(other.message for other in others), hint=others[0].hint)
    if wish.offline:
        from spark_build.build import requirements

        requirements.refuse(planned, setting.home, stop_after=wish.stop_after or "")
    missing = doctors.packages_to_install(planned)
    suggested = () if wish.offline else doctors.packages_to_suggest(planned)
    # The installed tools are part of the build keys.
    return scheduler.plan(setting, recipes, also) if install_packages(missing, suggested, emit) else planned


def install_packages(missing: Sequence[str], suggested: Sequence[str], emit: Emit) -> bool:
    """Install missing packages, and suggested ones where possible; returns whether anything was installed.

    Raises HostError for what is missing only: builds work without the rest.
    """
    from spark_build.doctor import probe

    wanted = [*missing, *suggested] if probe.can_install() else [*missing]
    if not wanted:
        return False
    emit(Note(message=f"installing system packages: {', '.join(wanted)}"))
    try:
        probe.apt_install(wanted)
    except HostError as error:
        if not suggested or wanted == [*missing]:
            raise
        emit(Note(message=f"warning: going on without {', '.join(suggested)}: {error.message}"))
        if missing:
            probe.apt_install(missing)
    return True


def _repeat(
    setting: Context,
    planned: Plan,
    names: Sequence[str],
    results: Sequence[RecipeResult],
    emit: Emit,
    wish: BuildRequest,
) -> Outcome:
    """Build the named recipes a second time and compare; does nothing after a failure."""
    from spark_build.build import scheduler

    if not names or any(result.error for result in results):
        return Outcome()
    return compared(scheduler.repeat(setting, planned, names, results, emit, wish.build_options()))


def carry_out(
    options: Options,
    setting: Context,
    planned: Plan,
    emit: Emit,
    wish: BuildRequest,
    *,
    named: tuple[str, ...],
    cached: bool = True,
) -> tuple[tuple[RecipeResult, ...], Generation | None]:
    """Build, publish, and name the published wheels in the results."""
    from spark_build.build import scheduler

    asked = replace(wish.build_options(), cached=cached, named=named)
    with ExitStack() as stack:
        farm = None
        if wish.farm and any(step.decision == "BUILD" or step.remote for step in planned.steps):
            farm = stack.enter_context(opened(options, setting, planned, asked, wish, emit))
        results = scheduler.build(setting, planned, emit, asked, farm)
    if wish.stop_after:
        return results, None
    closure = not wish.no_closure
    generation, _ = scheduler.publish(setting, results, with_closure=closure, offline=wish.offline, emit=emit)
    files = {wheel.key: wheel.filename for wheel in generation.wheels} if generation else {}
    published = tuple(
        replace(result, wheels=(files[result.build_key],)) if result.build_key in files else result
        for result in results
    )
    return published, generation


def _published(
    results: Sequence[RecipeResult], generation: Generation | None
) -> dict[str, list[StoredWheel]]:
    """Return the wheels of each recipe that were published."""
    wheels = {wheel.filename: wheel for wheel in generation.wheels} if generation else {}
    return {result.recipe: [wheels[name] for name in result.wheels] for result in results if result.wheels}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Results beyond the build: for the document, for people, for the shell."""

    document: dict[str, Any] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    code: int = 0


def compared(repetitions: Sequence[Repetition]) -> Outcome:
    """Return the outcome of building twice; differences count as a failed audit."""
    lines: list[str] = []
    for repetition in repetitions:
        if not repetition.differences:
            lines.append(
                f"\nreproducible: {repetition.product}, built twice, has the same bytes ({repetition.sha256})"
            )
            continue
        count = len(repetition.differences)
        lines.append(f"\nnot reproducible: {repetition.product}, built twice, has {count} differences")
        lines += [f"  {difference.file}: {difference.what}" for difference in repetition.differences]
    rows = [{**asdict(repetition), "identical": not repetition.differences} for repetition in repetitions]
    differs = any(repetition.differences for repetition in repetitions)
    code = AuditError.exit_code if differs else 0
    return Outcome(document={"repetitions": rows}, lines=tuple(lines), code=code)


def document(results: Sequence[RecipeResult], generation: Generation | None) -> dict[str, Any]:
    """Return the JSON document of a build."""
    return {
        "results": [
            {
                "recipe": result.recipe,
                "version": result.version,
                "status": result.status,
                "seconds": round(result.seconds, 3),
                "wheels": list(result.wheels),
                "log": result.log,
                "peak_memory_mib": result.cost.peak_mib or None,
                "cache": result.cost.cache or None,
                "reasons": list(result.reasons),
                "features": [_feature_row(feature) for feature in result.features],
                "error": result.error.message if result.error else None,
            }
            for result in results
        ],
        "generation": generation.number if generation else None,
        "path": str(generation.folder) if generation else None,
    }


def _feature_row(feature: JudgedFeature) -> dict[str, Any]:
    return {
        "name": feature.name,
        "expected": feature.expected,
        "found": feature.found,
        "status": "missing" if feature.missing else "not printed" if feature.found is None else "ok",
    }


def configured(results: Sequence[RecipeResult], named: Sequence[str]) -> Outcome:
    """Return the outcome of a configure-only run; NothingCheckedError's code when no recipe got there."""
    done = [result for result in results if result.status == "configured"]
    lines = [line for result in done for line in _configured_lines(result)]
    looked_at = {
        *(result.recipe for result in results if result.status in ("configured", "reused", "failed"))
    }
    left = [result for result in results if result.recipe in named and result.recipe not in looked_at]
    if not left and (looked_at or not results):
        return Outcome(lines=tuple(lines))
    for result in left or results:
        lines.append(f"\nnothing was checked of {result.recipe}: {'; '.join(result.reasons)}")
        if result.status == "stopped":
            needs = [row.recipe for row in done if any(row.recipe in reason for reason in result.reasons)]
            lines += [
                typeable(Hint("  next: ", ours("build", name), f", or --provide {name}=DIR"))
                for name in needs
            ]
    return Outcome(lines=tuple(lines), code=NothingCheckedError.exit_code)


def _configured_lines(result: RecipeResult) -> list[str]:
    """Return one recipe's features, its log and how to continue."""
    found = [
        f"{feature.name} {feature.found or 'empty'}"
        for feature in result.features
        if feature.found is not None
    ]
    unseen = [feature.name for feature in result.features if feature.found is None]
    said = f"features: {', '.join(found)}" if found else "no feature was printed"
    if not result.features:
        said = "its recipe expects no features"
    return [
        f"\n{result.recipe}: configured, {said}" + (f"; not printed: {', '.join(unseen)}" if unseen else ""),
        f"  log:  {result.log}",
        typeable(Hint("  next: ", ours("build", result.recipe), "  (goes on in the same tree)")),
    ]


def conclude(
    options: Options,
    results: Sequence[RecipeResult],
    generation: Generation | None,
    document: dict[str, Any],
    lines: Sequence[str],
    code: int,
    *,
    planned: Plan | None = None,
) -> int:
    """Print the outcome and return the exit code. planned: a plan that was printed above."""
    from spark_build.cli.wheelhouse import print_wheels

    errors = [result.error for result in results if result.error]
    exit_code = joint_exit_code(errors) or code
    if options.json:
        render.print_json({**document, "exit_code": exit_code})
    elif options.verbosity < 0:
        print(_in_one_line(results, generation, lines))
    else:
        print()
        print_results(results, planned)
        if generation is not None:
            print(f"\nwheels of generation {generation.number} in {generation.folder}")
            print_wheels(generation)
        for line in lines:
            print(line)
    print_failures(results)
    return exit_code


def _in_one_line(results: Sequence[RecipeResult], generation: Generation | None, lines: Sequence[str]) -> str:
    """Return the outcome for --quiet: how many of each result, the generation, what was verified."""
    done = render.counted(result.status for result in results) or "nothing to build"
    published = [f"generation {generation.number} in {generation.folder}"] if generation else []
    return "; ".join([done, *published, *(line.strip() for line in lines[:1])])


def print_results(results: Sequence[RecipeResult], planned: Plan | None = None) -> None:
    """Print a row for each recipe, without those whose reason a plan printed above has."""
    told = {(step.recipe.name, step.reasons) for step in planned.steps} if planned else set()
    skipped = [
        result
        for result in results
        if result.status == "skipped" and (result.recipe, tuple(result.reasons)) in told
    ]
    rows = [
        [
            result.recipe,
            result.version,
            result.status,
            format_duration(result.seconds) if result.seconds else "",
            format_size(result.cost.peak_mib << 20) if result.cost.peak_mib else "",
            result.cost.cache,
            "; ".join(result.reasons),
        ]
        for result in results
        if result not in skipped
    ]
    headers = ["RECIPE", "VERSION", "RESULT", "TIME", "PEAK MEMORY", "CACHE", "WHY"]
    render.print_table(headers, rows, always=3)
    if skipped:
        print(f"{len(skipped)} skipped: the plan above says why")


def print_failures(results: Sequence[RecipeResult]) -> None:
    """Report the failures on stderr, each with what to type next."""
    for result in results:
        error = result.error
        if error is None:
            continue
        place = f"{error.where}: " if error.where else ""
        click.echo(f"error: {result.recipe}: {place}{error.message}", err=True)
        if error.log:
            click.echo(f"  log:  {error.log}", err=True)
            click.echo(typeable(Hint("  look: ", ours("build", result.recipe, "--shell"))), err=True)
        following = error.hint or Hint(ours("build", result.recipe), "  (goes on where it stopped)")
        click.echo(f"  next: {typeable(following)}", err=True)
