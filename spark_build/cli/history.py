"""`why` and `log`: what changed since the last build, and what the last one said."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.build.context import Setting
    from spark_build.events import LogDiagnosis
    from spark_build.recipes.model import Plan, Step

UNBUILT = "to be built first"


@click.command()
@click.argument("recipe")
@shared
def why(options: Options, recipe: str) -> None:
    """Say which inputs of RECIPE differ from those of its last build here."""
    from spark_build.build import recipe_build, scheduler
    from spark_build.build.keys import differences

    setting = options.setting()
    planned = scheduler.plan(setting, [recipe])
    step = _step(planned, recipe)
    last = _last_build(setting, recipe)
    before = recipe_build.recorded_inputs(setting.home.store, last) if last else {}
    found = differences(before, _inputs_now(setting, planned, step)) if last else ()
    if options.json:
        document = {
            "recipe": recipe,
            "key": step.build_key or None,
            "last": last["key"] if last else None,
            "differences": [one._asdict() for one in found],
        }
        render.print_json(document)
        return
    if last is None:
        print(f"{recipe} was never built here for {setting.target.platform}, {setting.target.python}")
    elif not found:
        again = "".join(f" after another audit: {one}" for one in step.stale[:1])
        print(f"{recipe}: nothing differs: it would be reused{again}")
    for one in found:
        print(f"{one.path}: {_shown(one.before)} -> {_shown(one.now)}")


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _step(planned: Plan, recipe: str) -> Step:
    return next(step for step in planned.steps if step.recipe.name == recipe)


def _inputs_now(setting: Setting, planned: Plan, step: Step) -> dict[str, Any]:
    """What the build key would be made of; the content of a need that is not built yet is unknown."""
    from spark_build.build.environment import locate
    from spark_build.build.keys import build_inputs
    from spark_build.build.recipe_build import tools_of

    keys = {one.recipe.name: one.stored_as for one in planned.steps if one.decision == "REUSE"}
    needs = {}
    for one in step.provisions:
        known = one.provider != "store" or one.need in keys
        needs[one.need] = locate(one, setting.home.store, keys).identity if known else UNBUILT
    return build_inputs(step.declared, needs, tools_of(step))


def _last_build(setting: Setting, recipe: str) -> Mapping[str, Any] | None:
    from spark_build.wheelhouse import store

    return store.last_build(setting.home.store, recipe, setting.target)


@click.command()
@click.argument("recipe")
@click.option("--diagnosis", is_flag=True, help="Only the first real error, why, and what mends it.")
@shared
def log(options: Options, recipe: str, diagnosis: bool) -> None:
    """Show the last log of RECIPE: of the running or failed build, else of the wheel in the store."""
    from spark_build.build.diagnosis import diagnose, last_command

    path, failed = _last_log(options.setting(), recipe)
    text = path.read_text(errors="replace")
    found = diagnose(last_command(text)) if failed else None
    if options.json:
        document = dataclasses.asdict(found) if found else None
        render.print_json({"recipe": recipe, "path": str(path), "diagnosis": document})
        return
    if not diagnosis:
        print(text, end="" if text.endswith("\n") else "\n")
    if found is not None:
        print("\n".join(_explained(found)))
    elif diagnosis:
        print(f"nothing in {path} looks like an error")


def _explained(found: LogDiagnosis) -> list[str]:
    place = f"{found.place}: " if found.place else ""
    lines = [f"error: {place}{found.error}"]
    if found.problem:
        lines += [f"  why:  {found.explanation}", f"  next: {found.fix}"]
    return lines


def _last_log(setting: Setting, recipe: str) -> tuple[Path, bool]:
    """The log and whether it is of a build that has not ended well."""
    from spark_build.build.recipe_build import LOG
    from spark_build.errors import UsageError
    from spark_build.wheelhouse import store

    setting.catalogue.recipe(recipe)
    trees = sorted((setting.home.build / recipe).glob(f"*/{LOG}"), key=lambda path: path.stat().st_mtime_ns)
    if trees:
        return trees[-1], True
    last = _last_build(setting, recipe)
    path = store.entry_folder(setting.home.store, str(last["key"])) / LOG if last else None
    if path is not None and path.is_file():
        return path, False
    raise UsageError(f"there is no log of {recipe}", hint=f"spark-build build {recipe}")
