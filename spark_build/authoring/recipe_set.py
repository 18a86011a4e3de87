"""Write recipes for all projects that a requirements file names."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from spark_build.authoring.pins import facts_of
from spark_build.authoring.scaffold import Created, Draft, Request, look_into, recipes_of, resolve, write
from spark_build.errors import Hint, SourceError, SparkBuildError, UsageError, ours
from spark_build.events import Emit, Note, Progress
from spark_build.paths import Home
from spark_build.recipes.loader import Catalogue
from spark_build.sources.simple_api import Indexes, configured, files_of

Result = TypeVar("Result")
WORKERS = 4  # most of it is waiting for indexes and pip


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeSet:
    """Result for each project: recipes in build order, existing ones, failures."""

    created: tuple[Created, ...]
    kept: tuple[str, ...]
    failed: Mapping[str, SparkBuildError]


def parse_requirements(text: str, file: str) -> tuple[Requirement, ...]:
    """Return the requirements of a file as pip reads it that apply to this machine; hashes are left out.

    Raises UsageError for lines that do not name a project of an index.
    """
    joined = re.sub(r"\\\n", " ", text)
    found: dict[str, Requirement] = {}
    for number, line in enumerate(joined.splitlines(), 1):
        said = re.sub(r"(^|\s)#.*|\s--hash=\S+", "", line).strip()
        if not said:
            continue
        try:
            one = Requirement(said)
            applies = one.marker is None or one.marker.evaluate()
        except ValueError:  # also a marker that compares what cannot be compared
            raise UsageError(
                f"{file}, requirement {number}: '{said}' names no project of an index",
                hint="write NAME or NAME==VERSION; options, paths and other files are not followed",
            ) from None
        if one.url:
            raise UsageError(
                f"{file}, requirement {number}: {one.name} is given by a URL",
                hint=Hint("for a repository: ", ours("recipes new NAME --git URL@TAG")),
            )
        if applies:
            name = canonicalize_name(one.name)
            before = found.get(name)
            one.specifier &= before.specifier if before else one.specifier
            found[name] = one
    return tuple(found.values())


def create_set(
    requirements: Sequence[Requirement],
    base: Path,
    home: Home,
    catalogue: Catalogue,
    emit: Emit,
    *,
    force: bool,
) -> RecipeSet:
    """Write recipes/<project>.toml for every project, with the versions of one resolution, needs in order.

    One that fails leaves the others. Raises SourceError when the requirements contradict each other.
    """
    names: dict[str, Requirement] = {canonicalize_name(one.name): one for one in requirements}
    kept = tuple(name for name in names if not force and name in catalogue.recipes)
    wanted = {name: one for name, one in names.items() if name not in kept}
    failed: dict[str, SparkBuildError] = {}
    with tempfile.TemporaryDirectory(prefix="spark-build-new-") as scratch:
        emit(Note(message=f"choosing versions of {len(wanted)} projects"))
        versions = _versions(wanted, Path(scratch), failed, emit)
        recipes = {**recipes_of(catalogue), **{name: name for name in versions}}

        def drafted(name: str) -> Draft | SparkBuildError:
            request = Request(name=name, base=base, sdist=f"{name}=={versions[name]}", force=force)
            try:
                return look_into(request, home, catalogue, recipes, emit)
            except SparkBuildError as error:
                return error

        results = _side_by_side(drafted, list(versions), emit, "looking into projects")
    failed |= {name: one for name, one in results.items() if isinstance(one, SparkBuildError)}
    drafts = {name: one for name, one in results.items() if not isinstance(one, SparkBuildError)}
    created: list[Created] = []
    for name in _in_order(drafts):
        emit(Progress(recipe="", stage="writing recipes", done=len(created), total=len(drafts)))
        one = write(drafts[name].without_needs(failed), home, catalogue, emit)
        catalogue = replace(catalogue, recipes={**catalogue.recipes, name: one.recipe})
        created.append(one)
    return RecipeSet(created=tuple(created), kept=kept, failed=failed)


def _side_by_side(
    work: Callable[[str], Result], names: Sequence[str], emit: Emit, stage: str
) -> dict[str, Result]:
    """Return the result of each name's work, in the order of the names; shows how many are done."""
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        running = {name: pool.submit(copy_context().run, work, name) for name in names}
        for done, _ in enumerate(as_completed(running.values()), 1):
            emit(Progress(recipe="", stage=stage, done=done, total=len(names)))
        return {name: one.result() for name, one in running.items()}


def _versions(
    wanted: Mapping[str, Requirement], folder: Path, failed: dict[str, SparkBuildError], emit: Emit
) -> dict[str, Version]:
    """Return each project's version: by pip for those with wheels, else the newest sdist that will do.

    Where there is no wheel, only the project's own code could tell what it requires, and that is not run.
    """
    indexes = configured()
    versions: dict[str, Version] = {}
    resolved: list[str] = []

    def asked(name: str) -> tuple[bool, list[Version]] | SourceError:
        try:
            return _offered(wanted[name], indexes)
        except SourceError as error:
            return error

    for name, answer in _side_by_side(asked, list(wanted), emit, "asking indexes").items():
        one = wanted[name]
        if isinstance(answer, SourceError):
            failed[name] = answer
            continue
        has_wheel, sdists = answer
        if has_wheel:
            resolved.append(str(one))
        elif sdists:
            versions[name] = max(sdists)
        else:
            failed[name] = SourceError(f"no index has an sdist of {one}")
    for pin in resolve(tuple(resolved), folder, what="a set of versions that fit each other"):
        name, _, version = pin.partition("==")
        if name in wanted:
            versions[name] = Version(version)
    return {name: versions[name] for name in wanted if name in versions}


def _offered(requirement: Requirement, indexes: Indexes) -> tuple[bool, list[Version]]:
    """Return whether a wheel for this Python will do, and the versions of sdists that will."""
    here = frozenset(sys_tags())
    facts = [facts_of(file.filename, requirement.name) for file in files_of(requirement.name, indexes)]
    fitting = [one for one in facts if one and requirement.specifier.contains(one[0], prereleases=False)]
    return any(tags & here for _, tags in fitting), [version for version, tags in fitting if not tags]


def _in_order(drafts: Mapping[str, Draft]) -> Iterator[str]:
    """Yield the recipes, needs first; where two need each other, in the order of the file."""
    graph = {name: [one for one in draft.needs if one in drafts] for name, draft in drafts.items()}
    try:
        yield from TopologicalSorter(graph).static_order()
    except CycleError:
        yield from drafts
