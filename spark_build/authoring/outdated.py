"""Which pins have newer versions, as far as indexes and repositories answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from spark_build.authoring.asking import facts_of
from spark_build.authoring.scaffold import version_in
from spark_build.errors import SourceError
from spark_build.recipes.model import Pin, Source, Train
from spark_build.sources import git_remote
from spark_build.sources.simple_api import Indexes, configured, files_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Age:
    """One component. state: current, outdated, ahead, unknown (reason)."""

    recipe: str
    pinned: str
    newest: str
    source: str  # who was asked: index, git
    state: str


def ages(train: Train) -> list[Age]:
    """All components of a train; what cannot be asked is unknown, with the reason."""
    indexes = configured()
    return [_age(name, pin, indexes) for name, pin in sorted(train.components.items())]


def _age(name: str, pin: Pin, indexes: Indexes) -> Age:
    """The first source that answers decides."""
    if len({source.project for source in pin.sources if source.kind == "wheel"}) > 1:
        state = "unknown (a set of wheels that belong together: the project that it is for decides)"
        return Age(recipe=name, pinned=pin.version, newest="", source="", state=state)
    reasons: list[str] = []
    for source in pin.sources:
        try:
            newest = _newest(_offered(source, pin, indexes), pin.version)
        except SourceError as error:
            reasons.append(error.message)
            continue
        asked = "git" if source.kind == "git" else "index"
        return Age(
            recipe=name, pinned=pin.version, newest=str(newest), source=asked, state=_state(newest, pin)
        )
    state = f"unknown ({'; '.join(dict.fromkeys(reasons)) or 'it has no source'})"
    return Age(recipe=name, pinned=pin.version, newest="", source="", state=state)


def _offered(source: Source, pin: Pin, indexes: Indexes) -> list[Version]:
    if source.kind in ("sdist", "wheel"):
        facts = [facts_of(file.filename, source.project) for file in files_of(source.project, indexes)]
        return [one[0] for one in facts if one]
    if source.kind == "archive":
        raise SourceError("an archive's server lists no versions")
    before, found, after = source.tag.partition(pin.version)
    if not found:
        raise SourceError("it is pinned by a commit, not by a version's tag")
    tags = [tag for tag in git_remote.tags(source.url) if tag.startswith(before) and tag.endswith(after)]
    names = [tag[len(before) : len(tag) - len(after)] for tag in tags]
    return list(_versions(name for name in names if version_in(name) == name))


def _versions(names: Iterable[str]) -> Iterable[Version]:
    for name in names:
        try:
            yield Version(name)
        except InvalidVersion:
            continue


def _newest(offered: list[Version], pinned: str) -> Version:
    """Releases count; others only when nothing else is there, or one is pinned."""
    if any(one.is_prerelease for one in _versions([pinned])):
        releases = offered
    else:
        releases = [one for one in offered if not one.is_prerelease] or offered
    if not releases:
        raise SourceError("no version of it is there")
    return max(releases)


def _state(newest: Version, pin: Pin) -> str:
    for pinned in _versions([pin.version]):
        if pinned == newest:
            return "current"
        return "outdated" if pinned < newest else "ahead"
    return "unknown (its pin is no version)"
