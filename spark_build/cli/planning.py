"""`plan`: what would be done, and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.options import Options, local_sources, shared
from spark_build.text import duration

if TYPE_CHECKING:
    from spark_build.recipes.model import Plan, Step


@click.command()
@click.argument("recipes", nargs=-1)
@click.option("--with", "also", metavar="NAME", multiple=True, help="Also one that is not built by default.")
@click.option("--offline", is_flag=True, help="Also say what a build without network would lack.")
@local_sources
@shared
def plan(
    options: Options,
    recipes: tuple[str, ...],
    source: dict[str, str],
    also: tuple[str, ...],
    offline: bool,
) -> None:
    """Say for each recipe BUILD, REUSE, SKIP or BLOCKED, and why. Changes nothing."""
    from spark_build.build import scheduler
    from spark_build.build.context import with_local_sources
    from spark_build.build.requirements import missing_sources

    setting = with_local_sources(options.setting(), source)
    planned = scheduler.plan(setting, recipes, also)
    lacking = missing_sources(planned, setting.home) if offline else ()
    if options.json:
        document: dict[str, Any] = {
            "target": planned.target.name,
            "train": planned.train.name,
            "steps": [_step_document(step) for step in planned.steps],
        }
        missed = {"missing": [dataclasses.asdict(one) for one in lacking]} if offline else {}
        render.print_json(document | missed)
        return
    print_plan(planned)
    for one in lacking:
        print(f"missing without a network: {one.recipe}: {one.what}")
    concerned: dict[str, list[str]] = {}
    for step in planned.steps:
        for warning in step.warnings:
            concerned.setdefault(warning, []).append(step.recipe.name)
    for warning, names in concerned.items():
        print(f"warning: {', '.join(names)}: {warning}")


def _step_document(step: Step) -> dict[str, Any]:
    estimate = step.estimate
    return {
        "recipe": step.recipe.name,
        "version": step.pin.version,
        "decision": step.decision,
        "reasons": list(step.reasons),
        "key": step.key,
        "build_key": step.build_key or None,
        "needs": list(step.needs),
        "source": dataclasses.asdict(step.source) if step.source else None,
        "patches": [patch.file for patch in step.patches],
        "estimate": dataclasses.asdict(estimate) if estimate else None,
        "warnings": list(step.warnings),
    }


def print_plan(planned: Plan) -> None:
    """The plan as a table."""
    target = planned.target
    print(f"plan for {target.name} ({target.platform}, {target.python}), train {planned.train.name}")
    rows = []
    for step in planned.steps:
        cost = ""
        if step.decision == "BUILD" and step.estimate:
            jobs = f"{step.estimate.jobs} job{'s' if step.estimate.jobs > 1 else ''}"
            cost = f"about {duration(step.estimate.seconds)}, {jobs}"
        rows.append([step.recipe.name, step.pin.version, step.decision, cost, "; ".join(step.reasons)])
    render.print_table(["RECIPE", "VERSION", "DECISION", "ESTIMATE", "WHY"], rows)
