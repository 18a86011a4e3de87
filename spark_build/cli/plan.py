"""The command plan, and how a plan is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.hints import typeable
from spark_build.cli.options import Options, command, local_sources, shared
from spark_build.errors import ours
from spark_build.text import format_duration, format_size

if TYPE_CHECKING:
    from spark_build.build.plan import PlanTotal
    from spark_build.machine import Machine
    from spark_build.recipes.model import Plan, Step


def names_of(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of all values, each of which may have several with commas between them."""
    named = [text.replace(",", " ").split() for text in values]
    if not all(named):
        raise click.BadParameter("it names nothing")
    return tuple(name for names in named for name in names)


def with_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --with, which names recipes that are not built by default."""
    return click.option("--with", "also", metavar="NAME[,NAME]", multiple=True, callback=names_of, help=text)


also_built = with_option("Also build these, which are not built by default.")


@command()
@click.argument("recipes", nargs=-1)
@also_built
@click.option("--offline", is_flag=True, help="Also list what an offline build would lack.")
@local_sources
@shared
def plan(
    options: Options,
    recipes: tuple[str, ...],
    source: dict[str, str],
    also: tuple[str, ...],
    offline: bool,
) -> None:
    """Show for each recipe BUILD, REUSE, SKIP or BLOCKED, and why. Changes nothing."""
    from spark_build.build import scheduler
    from spark_build.build.context import with_local_sources
    from spark_build.recipes.evaluation import machine_of

    setting = with_local_sources(options.setting(), source)
    setting.remotes.offline = offline
    builder = machine_of(setting.target, setting.machine)
    there = None if builder == setting.machine else builder
    planned = scheduler.plan(setting, recipes, also, there)
    if offline:  # reads indexes: its imports take a third of a plan
        from spark_build.build.requirements import missing_sources
    lacking = missing_sources(planned, setting.home) if offline else ()
    lines = _lines_to_type(planned, recipes, also, is_here=there is None)
    if options.json:
        missed = {"missing": [asdict(need) for need in lacking]} if offline else {}
        render.print_json(_plan_document(planned, setting.machine, lines, is_here=there is None) | missed)
        return
    if options.verbosity < 0:
        print(render.counted(step.decision for step in planned.steps) or "nothing to build")
        return
    print_plan(planned)
    for need in lacking:
        print(f"missing without a network: {need.recipe}: {need.what}")
    concerned: dict[str, list[str]] = {}
    for step in planned.steps:
        for warning in step.warnings:
            concerned.setdefault(warning, []).append(step.recipe.name)
    for warning, names in concerned.items():
        render.print_wrapped(f"warning: {', '.join(names)}: {warning}")
    _print_total(planned, setting.machine, lines, is_here=there is None)


def _plan_document(planned: Plan, here: Machine, lines: Sequence[str], *, is_here: bool) -> dict[str, Any]:
    from spark_build.build.plan import total

    builder = planned.machine or here
    return {
        "target": planned.target.name,
        "train": planned.train.name,
        "steps": [step_document(step) for step in planned.steps],
        "machine": {"cores": builder.cores, "memory_mib": builder.memory_mib, "here": is_here},
        "total": asdict(total(planned, here)),
        "commands": lines,
    }


def step_document(step: Step) -> dict[str, Any]:
    """Return the JSON document of a plan's step."""
    estimate = step.estimate
    return {
        "recipe": step.recipe.name,
        "version": step.pin.version,
        "decision": step.decision,
        "reasons": list(step.reasons),
        "key": step.key,
        "build_key": step.build_key or None,
        "remote": step.remote or None,
        "needs": list(step.needs),
        "source": asdict(step.source) if step.source else None,
        "patches": [patch.file for patch in step.patches],
        "estimate": asdict(estimate) if estimate else None,
        "downloads": {
            "count": len(step.downloads),
            "bytes": sum(one.size or 0 for one in step.downloads),
            "unknown": sum(one.size is None for one in step.downloads),
        },
        "warnings": list(step.warnings),
    }


def _print_total(planned: Plan, here: Machine, lines: Sequence[str], *, is_here: bool) -> None:
    """Print what the whole plan takes, what it needs besides recipes, and what to type where."""
    from spark_build.build.plan import total
    from spark_build.wheels.model import python_version

    found, target, builder = total(planned, here), planned.target, planned.machine or here
    if not lines:
        return
    measured = all(
        step.estimate.measured for step in planned.steps if step.decision == "BUILD" and step.estimate
    )
    print()
    render.print_wrapped(
        f"in total: {'about' if measured else 'at a guess'} {format_duration(found.seconds)} "
        f"on {builder.cores} cores with "
        f"{_gib(builder.memory_mib)}, one recipe after the other; up to {_gib(found.memory_mib)} of memory, "
        f"{_gib(found.disk_mib)} of disk"
    )
    spans = {count: format_duration(found.makespan_seconds[count]) for count in (2, 4)}
    if spans[2] != format_duration(found.makespan_seconds[1]):
        more = " and no less on 4" if spans[4] == spans[2] else f", of 4 {spans[4]}"
        render.print_wrapped(f"on a farm of 2 such machines {spans[2]}{more}")
    _print_downloads(found, is_here=is_here)
    needs = [f"Python {python_version(target)}"]
    needs += [f"for the GPU a driver of CUDA {target.cuda} or newer"] if target.cuda_architectures else []
    needs += [f"system packages: {' '.join(found.packages)}"] if found.packages else []
    render.print_wrapped(f"it needs {'' if is_here else 'there '}{'; '.join(needs)}")
    if not is_here:
        mine = ", ".join(found.here) or "nothing of it"
        render.print_wrapped(f"this machine ({here.platform}, {here.python}) can build: {mine}")
    print(f"to type{'' if is_here else ' there'}, in this order:")
    for line in lines:
        print(f"  {line}")


def _print_downloads(found: PlanTotal, *, is_here: bool) -> None:
    """Print what is to be downloaded, how long that takes, and of how much no pin knows the size."""
    counts = {
        "git repositories": found.git,
        "files": found.files,
        "wheels to build with": found.wheels,
        "public wheels with all they require": found.public,
    }
    whole, known = sum(counts.values()), sum(counts.values()) - found.downloads_unknown
    listed = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    said = []
    if known:
        lasting = f"{format_duration(found.download_seconds)} of that time, at an assumed 100 Mbit/s"
        said.append(f"{format_size(found.download_bytes)} ({lasting})")
    if found.downloads_unknown:
        said.append(f"{found.downloads_unknown} of {whole} have no known size and are not in that time")
    if whole:
        less = ", less what was fetched already" if is_here else ""
        render.print_wrapped(f"downloads{less}: {listed}; {'; '.join(said)}")


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"


def _lines_to_type(planned: Plan, recipes: Sequence[str], also: Sequence[str], *, is_here: bool) -> list[str]:
    """Return the commands that carry the plan out; none where nothing is to be built or pinned."""
    from spark_build.build.plan import unpinned_source

    train, target = planned.train.name, planned.target
    unpinned = [
        step.recipe.name
        for step in planned.steps
        if step.decision == "BLOCKED" and unpinned_source(step.pin, target) is not None
    ]
    if not unpinned and not any(step.decision == "BUILD" for step in planned.steps):
        return []
    more = [word for name in also for word in ("--with", name)]
    view = ("--target", target.name, "--train", train)
    steps = (
        [ours("recipes pin", *unpinned, options=("--train", train), elsewhere=not is_here)]
        if unpinned
        else []
    )
    steps += [
        ours(command, *recipes, *more, options=view, elsewhere=not is_here) for command in ("doctor", "all")
    ]
    return [*map(typeable, steps)]


def print_plan(planned: Plan) -> None:
    """Print the plan as a table."""
    target = planned.target
    print(f"plan for {target.name} ({target.platform}, {target.python}), train {planned.train.name}")
    rows = []
    for step in planned.steps:
        cost = ""
        if step.decision == "BUILD" and step.estimate:
            jobs = f"{step.estimate.jobs} job{'s' if step.estimate.jobs > 1 else ''}"
            word = "about" if step.estimate.measured else "a guess:"
            seconds = step.estimate.seconds + step.estimate.download_seconds
            cost = f"{word} {format_duration(seconds)}, {jobs}"
        decision = f"{step.decision} FROM {step.remote}" if step.remote else step.decision
        fetched = _download_text(step)
        rows.append([step.recipe.name, step.pin.version, decision, cost, fetched, "; ".join(step.reasons)])
    headers = ["RECIPE", "VERSION", "DECISION", "ESTIMATE", "DOWNLOAD", "WHY"]
    render.print_table(headers, rows, always=4)


def _download_text(step: Step) -> str:
    """Return the size of what a step fetches, and of how many things it is unknown; "" for nothing."""
    unknown = sum(one.size is None for one in step.downloads)
    size = sum(one.size or 0 for one in step.downloads)
    said = [format_size(size)] if size else []
    return " + ".join([*said, f"{unknown} of unknown size"] if unknown else said)
