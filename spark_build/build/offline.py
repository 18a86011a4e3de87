"""What the recipes to be built would have to ask the network for, found out before anything is done."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from spark_build import venv
from spark_build.build import patches, requirements
from spark_build.errors import PatchError, SourceError
from spark_build.paths import Home
from spark_build.process import run
from spark_build.recipes.model import Plan, Provision, Step
from spark_build.sources import simple_api, source_types
from spark_build.sources.simple_api import Indexes

_BEFORE_ENVIRONMENT = ("fetch", "patch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Something that a recipe's build takes and that is not on this machine."""

    recipe: str
    what: str


def missing(plan: Plan, home: Home, *, stop_after: str = "") -> tuple[Missing, ...]:
    """All of it, for every recipe to be built; changes nothing. stop_after: the last stage that is wanted."""
    indexes = cache(simple_api.configured)
    public = cache(_public)
    return tuple(
        Missing(recipe=step.recipe.name, what=what)
        for step in plan.steps
        if step.decision == "BUILD"
        for what in (
            *_of_sources(step, home, indexes),
            *requirements.missing(
                requirements.wanted(step, plan.target), folder=home.sources, indexes=indexes
            ),
            *(_of_patches(step, home) if stop_after != "fetch" else ()),
            *(_of_needs(step, home, public) if stop_after not in _BEFORE_ENVIRONMENT else ()),
        )
    )


def refuse(plan: Plan, home: Home, *, stop_after: str = "") -> None:
    """SourceError that names everything that is missing, if anything is."""
    found: dict[str, list[str]] = {}
    for one in missing(plan, home, stop_after=stop_after):
        found.setdefault(one.recipe, []).append(one.what)
    if found:
        listed = "; ".join(f"{recipe}: {', '.join(what)}" for recipe, what in found.items())
        raise SourceError(
            f"--offline, and not on this machine: {listed}",
            hint="where there is a network: the same command with --stop-after fetch instead of --offline; "
            "else bring the files along in a folder that PIP_FIND_LINKS names (docs/offline.md)",
        )


def _of_sources(step: Step, home: Home, indexes: Callable[[], Indexes]) -> Iterator[str]:
    for source in (step.source, *step.evaluated.extra_sources.values()):
        if source is not None:
            try:
                yield from source_types.missing(source, folder=home.sources, indexes=indexes)
            except SourceError as error:  # of what is here and damaged
                yield error.message


def _of_patches(step: Step, home: Home) -> Iterator[str]:
    for patch in step.patches:
        try:
            patches.located(patch, home)
        except PatchError as error:
            yield error.message


def _of_needs(step: Step, home: Home, public: Callable[[Provision], str]) -> Iterator[str]:
    """Public wheels for the build environment, unless that is there already."""
    if not step.recipe.is_compiled or _has_environment(step, home):
        return
    for one in step.provisions:
        if one.provider == "public" and one.coupling == "content" and (lacking := public(one)):
            yield lacking


def _has_environment(step: Step, home: Home) -> bool:
    """Whether an earlier run left the environment for the very same build."""
    work = home.build / step.recipe.name / step.key
    mark = work / "build-key"
    return (
        mark.is_file()
        and mark.read_text() == step.build_key
        and (work / "stamps" / "environment.json").is_file()
        and venv.python_of(work / "env").exists()
    )


def _public(one: Provision) -> str:
    """What is missing of a public wheel and of all that it requires; "" when it could be installed."""
    wanted = f"{one.distribution}=={one.version}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    options = ["--dry-run", "--ignore-installed", "--no-index", "--only-binary=:all:", "--quiet"]
    done = run([*command, *options, wanted], env=venv.clean_environment())
    if done.returncode == 0:
        return ""
    lacking = re.findall(r"No matching distribution found for (\S+)", done.output) or [wanted]
    return f"public wheel {wanted}" + (f" (it requires {lacking[0]})" if lacking[0] != wanted else "")
