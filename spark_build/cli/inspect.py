"""`wheelhouse inspect`: what is in a wheel, or what two have not in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_build.cli import render
from spark_build.cli.hints import nothing_checked
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.build.context import Setting
    from spark_build.cli.wheel_page import Judged, Page
    from spark_build.recipes.model import Recipe
    from spark_build.wheelhouse.generations import Generation
    from spark_build.wheels.model import Finding, WheelFacts

AUDIT_SAID_NO = 8


@click.command()
@click.argument("wheel")
@click.argument("other", required=False)
@click.option("--cross-check", is_flag=True, help="Compare the device code with what cuobjdump lists.")
@shared
def inspect(options: Options, wheel: str, other: str | None, *, cross_check: bool) -> int:
    """Show what is in WHEEL, a file or a name of the current generation; with OTHER, what differs."""
    from spark_build.cli import wheel_page

    first = _page(options, wheel, cross_check=cross_check)
    second = _page(options, other, cross_check=cross_check) if other else None
    if second is None:
        render.print_json(wheel_page.document(first)) if options.json else wheel_page.show(first)
    else:
        _compare(options, first, second)
    pages = [first, *([second] if second else [])]
    differs = any(rows for page in pages if page.checked for rows in page.checked.values())
    if cross_check and not any(page.checked for page in pages):
        return nothing_checked(
            "there is no device code that --cross-check could compare", "leave --cross-check out"
        )
    return AUDIT_SAID_NO if differs else 0


def _compare(options: Options, first: Page, second: Page) -> None:
    from spark_build.cli import wheel_page
    from spark_build.wheels.diff import Side, changes, members

    found = changes(*(Side(facts=one.facts, members=members(one.path)) for one in (first, second)))
    if options.json:
        differences = [dataclasses.asdict(one) for one in found]
        other = wheel_page.document(second)
        render.print_json({**wheel_page.document(first), "other": other, "differences": differences})
    else:
        wheel_page.show_changes(first, second, found)


def _page(options: Options, wheel: str, *, cross_check: bool) -> Page:
    """Read and judge a wheel."""
    from spark_build.cli.wheel_page import Page
    from spark_build.wheels.diff import known_libraries
    from spark_build.wheels.reader import read_facts
    from spark_build.wheels.rules import explain

    path, setting = _located(options, wheel)
    cuobjdump = _cuobjdump() if cross_check else None
    facts = read_facts(path)
    recipe = _recipe(setting, facts) if setting else None
    findings, judged = _judge(facts, setting, recipe)
    checked = None
    if cuobjdump:
        from spark_build.wheels.diff import cross_checked

        checked = cross_checked(path, facts.device_code, cuobjdump)
    return Page(
        path=path,
        facts=facts,
        findings=findings,
        needed=explain(
            facts,
            system_libraries=known_libraries(_platform(facts)),
            provided=recipe.repair.exclude if recipe else (),
        ),
        judged=judged,
        checked=checked,
    )


def _located(options: Options, wheel: str) -> tuple[Path, Setting | None]:
    """The file, and by what it is judged: a name belongs to a view, a file to what --target says."""
    from spark_build.errors import UsageError

    path = Path(wheel)
    if path.is_file():
        return path, options.setting() if options.target != "auto" else None
    if wheel.endswith(".whl") or "/" in wheel or path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{wheel} {what}", hint="name the file of a wheel, or a wheel of the wheelhouse")
    from spark_build.cli.wheelhouse import current

    return _published(current(options), wheel), options.setting()


def _published(found: Generation, name: str) -> Path:
    from packaging.utils import canonicalize_name

    from spark_build.errors import UsageError
    from spark_build.text import did_you_mean

    for one in found.wheels:
        if canonicalize_name(one.name) == canonicalize_name(name):
            return found.folder / one.filename
    known = did_you_mean(name, [one.name for one in found.wheels])
    raise UsageError(f"no wheel of generation {found.number} is named '{name}'{known}")


def _cuobjdump() -> Path:
    from spark_build.errors import HostError
    from spark_build.wheels.device_code import find_cuobjdump

    found = find_cuobjdump()
    if found is None:
        raise HostError(
            "--cross-check needs cuobjdump, which is neither on PATH nor in the package triton",
            hint="install the CUDA toolkit, or leave --cross-check out",
        )
    return found


def _recipe(setting: Setting, facts: WheelFacts) -> Recipe | None:
    """The recipe whose wheel this is, if the train has a version of it."""
    from packaging.utils import canonicalize_name

    for recipe in setting.catalogue.recipes.values():
        pinned = recipe.name in setting.train.components or recipe.pin is not None
        if pinned and canonicalize_name(recipe.distribution) == facts.name:
            return recipe
    return None


def _judge(
    facts: WheelFacts, setting: Setting | None, recipe: Recipe | None
) -> tuple[tuple[Finding, ...], Judged]:
    """By the recipe and its target as when publishing; without them by what the wheel says of itself."""
    from spark_build.cli.wheel_page import Judged
    from spark_build.wheels.audit import findings_alone
    from spark_build.wheels.diff import known_libraries, known_policies

    target = setting.target.name if setting else ""
    train = setting.train.name if setting else ""
    if setting is None or recipe is None:
        findings = findings_alone(
            facts,
            system_libraries=known_libraries,
            policies=known_policies,
            capabilities=setting.target.cuda_architectures if setting else (),
        )
        return findings, Judged(target=target, train=train)
    return _by_recipe(facts, setting, recipe), Judged(recipe=recipe.name, target=target, train=train)


def _by_recipe(facts: WheelFacts, setting: Setting, recipe: Recipe) -> tuple[Finding, ...]:
    from spark_build.recipes.evaluation import evaluate
    from spark_build.wheels.audit import as_vendor, audit
    from spark_build.wheels.diff import known_libraries, known_policies
    from spark_build.wheels.rules_device import demand, device_findings

    pin = setting.train.components.get(recipe.name) or recipe.pin
    assert pin is not None  # `_recipe` has looked
    platform = setting.target.platform
    findings = audit(
        facts,
        distribution=recipe.distribution,
        version=evaluate(recipe, pin, setting.target, setting.train).wheel_version,
        platform=platform,
        python=setting.target.python,
        provided=recipe.repair.exclude,
        system_libraries=known_libraries(platform),
        policies=known_policies(platform),
    )
    findings += device_findings(facts, demand(recipe, setting.target))
    return as_vendor(findings) if recipe.kind == "repack" else findings


def _platform(facts: WheelFacts) -> str:
    from spark_build.wheels.audit import platforms

    return platforms(facts)[0]
