"""The command matrix: all combinations of trains, targets and Pythons, each built as `build` does."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.build import (
    BUILDING,
    BuildRequest,
    Command,
    building_options,
    carry_out,
    document,
    make_ready,
    print_failures,
)
from spark_build.cli.hints import nothing_checked, typeable
from spark_build.cli.history import start_background
from spark_build.cli.options import Options, as_one, command, shared
from spark_build.cli.plan import also_built, names_of, step_document
from spark_build.cli.render import running
from spark_build.errors import (
    NothingCheckedError,
    SparkBuildError,
    UsageError,
    joint_exit_code,
    ours,
)
from spark_build.events import Emit, Note, RecipeResult
from spark_build.files import from_os_error
from spark_build.text import format_duration

if TYPE_CHECKING:
    from spark_build.build.context import Context
    from spark_build.recipes.model import Plan
    from spark_build.wheelhouse.generations import Generation

DONE = ("built", "configured", "stopped", "reused")
DECISIVE_FIRST = ("failed", *DONE, "blocked", "skipped")


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixOptions:
    """Options of the matrix; an empty list stands for what is usual."""

    trains: tuple[str, ...]
    targets: tuple[str, ...]
    pythons: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One train, target and Python; status: of one that is left out; reasons: for that or for less."""

    setting: Context
    target: str  # as it is typed
    planned: Plan
    seconds: float  # that it will probably take
    status: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def builds(self) -> bool:
        """True when anything is to be compiled or unpacked."""
        return any(step.decision == "BUILD" for step in self.planned.steps)

    @property
    def names(self) -> list[str]:
        """Train, target and Python."""
        target = self.planned.target
        return [self.planned.train.name, target.name, target.python]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Result of a combination; error: why it ended before or after its recipes did."""

    of: Combination
    seconds: float = 0.0
    results: tuple[RecipeResult, ...] = ()
    generation: Generation | None = None
    error: SparkBuildError | None = None

    @property
    def status(self) -> str:
        """Return what decides: a failure, else what was done, else why nothing was."""
        found = {result.status for result in self.results} | {self.of.status}
        if self.error:
            return "failed"
        return next((one for one in DECISIVE_FIRST if one in found), "skipped")

    @property
    def errors(self) -> list[SparkBuildError]:
        """All failures."""
        return [error for error in (self.error, *(one.error for one in self.results)) if error]

    @property
    def reasons(self) -> list[str]:
        """Return what explains the status."""
        said = [f"{one.recipe}: {one.error.message}" for one in self.results if one.error]
        said += [self.error.message] if self.error else []
        return [*said, *self.of.reasons]


def _list(name: str, values: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, metavar=values, multiple=True, callback=names_of, help=text)


@command()
@click.argument("recipes", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@_list("--pythons", "X.Y[,X.Y]", "Pythons, in place of the targets'.")
@_list("--targets", "NAME[,NAME]", "Machines to build for.")
@_list("--trains", "NAME[,NAME]", "Sets of versions to build.")
@as_one(MatrixOptions, "asked")
@building_options
@also_built
@shared
def matrix(
    options: Options,
    recipes: tuple[str, ...],
    wish: BuildRequest,
    also: tuple[str, ...],
    asked: MatrixOptions,
) -> int:
    """Build and publish RECIPES for all combinations of trains, targets and Pythons.

    One after another, on a farm all at once; a failed one does not stop the others. Those that this machine
    cannot build are left out. Nothing is verified: `verify` does that. Without --trains, --targets or
    --pythons: the selected train, the selected target, the target's Python.
    """
    from spark_build.build.scheduler import in_order
    from spark_build.wheelhouse.store import shared_lock

    wish.refuse_here()
    home = options.home()
    chosen = {one.setting.view.name: one for one in _combinations(options, wish, recipes, also, asked)}
    if asked.dry_run or (not options.json and options.verbosity >= 0 and options.background is None):
        _show_plan(options, chosen)
    if asked.dry_run:
        return 0
    if wish.detach and options.background is None:
        return start_background(options, home.runs, lambda _: None)
    with running(options, home.runs) as (_, emit), shared_lock(home.store, BUILDING):

        def work(view: str) -> Ended:
            return _carry_out(options, chosen[view], recipes, also, wish, emit)

        ended = []
        for view, one in in_order(
            dict.fromkeys(chosen, ()), work, workers=lambda: len(chosen) if _is_lasting(wish) else 1
        ):
            emit(Note(message=f"{view}: {one.status}"))
            ended.append(one)
    ended.sort(key=lambda one: [*chosen].index(one.of.setting.view.name))
    return _conclude(options, ended)


def _combinations(
    options: Options,
    wish: BuildRequest,
    recipes: Sequence[str],
    also: Sequence[str],
    asked: MatrixOptions,
) -> Iterator[Combination]:
    """Plan each combination. Raise UsageError for a name that there is not."""
    from spark_build.build.plan import total
    from spark_build.build.scheduler import plan
    from spark_build.recipes.evaluation import machine_of

    abis = [_abi(text) for text in asked.pythons]
    lists: tuple[Sequence[str | None], ...] = (
        asked.trains or [options.train],
        asked.targets or [options.target],
        abis or [""],
    )
    for train, target, abi in product(*lists):
        options.train, options.target = train, target or "auto"
        setting = wish.setting(options)
        if abi:
            setting = replace(setting, target=replace(setting.target, python=abi))
            options.target = f"{setting.target.name}-{abi}"
        there = machine_of(setting.target, setting.machine)
        planned = plan(setting, recipes, also, None if there == setting.machine else there)
        costs = total(planned, setting.machine)
        status, reasons = _left_out(setting, planned, recipes, costs.here, wish)
        yield Combination(
            setting=setting,
            target=options.target,
            planned=planned,
            seconds=costs.seconds,
            status=status,
            reasons=reasons,
        )


def _is_lasting(wish: BuildRequest) -> bool:
    """Return whether the farm is there already; others start anew for each combination."""
    return wish.farm is not None and wish.farm.kind == "tls"


def _abi(text: str) -> str:
    """Return 3.12 as targets write it: cp312."""
    if not re.fullmatch(r"3\.\d+t?", text):
        raise UsageError(f"--pythons {text}: write 3.12")
    return f"cp{text.replace('.', '')}"


def _left_out(
    setting: Context, planned: Plan, recipes: Sequence[str], here: Sequence[str], wish: BuildRequest
) -> tuple[str, tuple[str, ...]]:
    """Return the status of a combination that is not built, "" for others, and why what is left out is."""
    named = [step for step in planned.steps if step.recipe.name in recipes]
    stuck = [step for step in named if step.decision in ("SKIP", "BLOCKED")]
    told = tuple(f"{step.recipe.name}: {'; '.join(step.reasons)}" for step in stuck)
    if named and stuck == named:
        return "blocked", told
    building = (step.recipe.name for step in planned.steps if step.decision == "BUILD")
    foreign = ", ".join(name for name in building if name not in here)
    if foreign and (wish.farm is None or wish.farm.kind == "local"):
        machine = setting.machine
        return "skipped", (f"this machine ({machine.platform}, {machine.python}) cannot build {foreign}",)
    return "", told


def _carry_out(
    options: Options,
    one: Combination,
    recipes: tuple[str, ...],
    also: Sequence[str],
    wish: BuildRequest,
    emit: Emit,
) -> Ended:
    """Build and publish a combination; a failure of it is a value."""
    if one.status:
        return Ended(of=one)
    start = time.monotonic()
    results: tuple[RecipeResult, ...] = ()
    generation = error = None
    try:
        # An earlier combination may have built what this one shares with it.
        planned = make_ready(one.setting, recipes, emit, wish, also) if one.builds else one.planned
        results, generation = carry_out(options, one.setting, planned, emit, wish, named=recipes)
    except (SparkBuildError, OSError) as failure:
        error = from_os_error(failure) if isinstance(failure, OSError) else failure
        if error is None:
            raise
    return Ended(
        of=one, seconds=time.monotonic() - start, results=results, generation=generation, error=error
    )


def _show_plan(options: Options, chosen: dict[str, Combination]) -> None:
    rows = [*chosen.values()]
    if options.json:
        planned = [
            _row(one, one.status or "planned", one.seconds, one.reasons)
            | {"steps": [step_document(step) for step in one.planned.steps]}
            for one in rows
        ]
        render.print_json({"combinations": planned})
        return
    lines = []
    for one in rows:
        decisions = [step.decision for step in one.planned.steps]
        counts = [str(decisions.count(word) or "") for word in ("BUILD", "REUSE", "SKIP", "BLOCKED")]
        cost = f"about {format_duration(one.seconds)}" if one.builds and not one.status else ""
        lines.append([*one.names, *counts, cost, "; ".join((*filter(None, [one.status]), *one.reasons))])
    render.print_table(
        ["TRAIN", "TARGET", "PYTHON", "BUILD", "REUSE", "SKIP", "BLOCKED", "ESTIMATE", "LEFT OUT"], lines
    )


def _row(one: Combination, status: str, seconds: float, reasons: Sequence[str]) -> dict[str, Any]:
    train, target, python = one.names
    named = {"train": train, "target": target, "python": python, "view": one.setting.view.name}
    return {**named, "status": status, "seconds": round(seconds, 3), "reasons": [*reasons]}


def _conclude(options: Options, ended: Sequence[Ended]) -> int:
    """Print the one table and return the exit code."""
    code = joint_exit_code([error for one in ended for error in one.errors])
    idle = not any(one.status in DONE for one in ended)
    if options.json:
        rows = [
            document(one.results, one.generation) | _row(one.of, one.status, one.seconds, one.reasons)
            for one in ended
        ]
        said = code or (NothingCheckedError.exit_code if idle else 0)
        render.print_json({"combinations": rows, "exit_code": said})
    elif options.verbosity < 0:
        print(render.counted(one.status for one in ended))
    else:
        print()
        _print_results(ended)
        if not idle:
            _say_unverified(ended)
    for one in ended:
        options.train, options.target = one.of.names[0], one.of.target
        print_failures(one.results)
        if one.error is not None:
            click.echo(f"error: {one.of.setting.view.name}: {one.error.message}", err=True)
            if one.error.hint:
                click.echo(f"  next: {typeable(one.error.hint)}", err=True)
    if code or not idle:
        return code
    return nothing_checked("no combination can be built here", ours("plan"))


def _say_unverified(ended: Sequence[Ended]) -> None:
    """Print that nothing was verified, and what to type for what runs here."""
    lines = [
        typeable(ours("verify", options=("--train", one.of.names[0], "--target", one.of.target)))
        for one in ended
        if one.status in DONE and one.of.setting.is_here
    ]
    print("nothing of this was verified" + (":" if lines else ": that is for machines of these targets"))
    for line in lines:
        print(f"  {line}")


def _print_results(ended: Sequence[Ended]) -> None:
    lines = [
        [
            *one.of.names,
            one.status,
            render.counted(result.status for result in one.results),
            format_duration(one.seconds) if one.results else "",
            str(one.generation.number) if one.generation else "",
            "; ".join(one.reasons),
        ]
        for one in ended
    ]
    render.print_table(["TRAIN", "TARGET", "PYTHON", "RESULT", "RECIPES", "TIME", "GENERATION", "WHY"], lines)
