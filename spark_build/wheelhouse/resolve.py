"""Select wheels that fit a platform, and find missing requirements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from spark_build.wheels.model import StoredWheel


def needed(
    names: Iterable[str], wheels: Sequence[StoredWheel], environment: Mapping[str, str]
) -> tuple[tuple[StoredWheel, ...], tuple[str, ...]]:
    """Return the wheels that `names` need, themselves included, and the requirements that no wheel meets.

    `environment` has the marker variables of the interpreter installed into. Of several versions of
    one name the highest that meets every requirement on it is taken.
    """
    limits: dict[str, SpecifierSet] = {}
    asked = [Requirement(name) for name in names]
    while True:
        before = dict(limits)
        chosen, missing = _walk(asked, wheels, environment, limits)
        if limits == before:
            return tuple(chosen[name] for name in sorted(chosen)), tuple(sorted(missing))
        # A version chosen before all requirements on it were known: once more, with what is known now.


def _walk(
    asked: Iterable[Requirement],
    wheels: Sequence[StoredWheel],
    environment: Mapping[str, str],
    limits: dict[str, SpecifierSet],
) -> tuple[dict[str, StoredWheel], set[str]]:
    """Walk all requirements once; returns chosen wheels and missing requirements, tightens `limits`."""
    missing: set[str] = set()
    chosen: dict[str, StoredWheel] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    pending = [one for one in asked if one.marker is None or one.marker.evaluate(dict(environment))]
    while pending:
        # In one order, whatever order the requirements came in.
        pending.sort(key=str)
        requirement = pending.pop(0)
        name = canonicalize_name(requirement.name)
        limits[name] = limits.get(name, SpecifierSet()) & requirement.specifier
        own = [wheel for wheel in wheels if wheel.name == name]
        fitting = [wheel for wheel in own if limits[name].contains(wheel.version, prereleases=True)]
        if not fitting:
            alone = not any(requirement.specifier.contains(one.version, prereleases=True) for one in own)
            missing.add(str(requirement) if alone else f"{name}{limits[name]}")
            continue
        extras = frozenset(requirement.extras)
        if (name, extras) not in done:
            done.add((name, extras))
            chosen[name] = max(fitting, key=_preference)
            pending.extend(requirements_of(chosen[name], extras, environment))
    return chosen, missing


def _preference(wheel: StoredWheel) -> tuple[object, ...]:
    _, version, build, _ = parse_wheel_filename(wheel.filename)
    return (version, build)


def requirements_of(
    wheel: StoredWheel, extras: frozenset[str], environment: Mapping[str, str]
) -> list[Requirement]:
    """Return a wheel's requirements with these extras, markers evaluated."""
    wanted = []
    for line in wheel.requires:
        requirement = Requirement(line)
        variants = [{**environment, "extra": extra} for extra in (extras or frozenset({""}))]
        if requirement.marker is None or any(requirement.marker.evaluate(one) for one in variants):
            requirement.marker = None
            wanted.append(requirement)
    return wanted


def roots(wheels: Sequence[StoredWheel]) -> tuple[tuple[StoredWheel, ...], ...]:
    """Return sets that should install: the newest build of all made here, then each older one alone."""
    own = [wheel for wheel in wheels if wheel.origin != "public"]
    by_version: dict[str, dict[str, StoredWheel]] = defaultdict(dict)
    for wheel in sorted(own, key=_preference, reverse=True):
        by_version[wheel.name].setdefault(wheel.version, wheel)
    together = tuple(next(iter(by_version[name].values())) for name in sorted(by_version))
    older = [wheel for name in sorted(by_version) for wheel in list(by_version[name].values())[1:]]
    return tuple(group for group in (together, *((wheel,) for wheel in older)) if group)


def gaps(
    chosen: Sequence[StoredWheel],
    wheels: Sequence[StoredWheel],
    markers: Mapping[str, str],
    tags: Collection[Tag],
) -> tuple[str, ...]:
    """Return why `chosen` cannot be installed together from `wheels`; () when no reason is found.

    Not a resolver: it looks at each requirement, and at all requirements on one package together.
    """
    usable: dict[str, list[StoredWheel]] = defaultdict(list)
    unusable: dict[str, list[StoredWheel]] = defaultdict(list)
    for wheel in wheels:
        fits = not parse_wheel_filename(wheel.filename)[3].isdisjoint(tags)
        (usable if fits else unusable)[wheel.name].append(wheel)
    found = [
        f"{wheel.filename} is for another platform or Python"
        for wheel in chosen
        if wheel in unusable[wheel.name]
    ]
    wishes: dict[str, dict[str, Requirement]] = defaultdict(dict)
    for wheel, requirement in _needs(chosen, usable, markers):
        name = canonicalize_name(requirement.name)
        who = f"{wheel.name} {wheel.version}"
        pinned = [one for one in chosen if one.name == name] or usable[name]
        if not usable[name]:
            others = ", ".join(one.filename for one in unusable[name])
            but = f"{others} is for another platform or Python" if others else f"there is no wheel of {name}"
            found.append(f"{who} requires {requirement}, and {but}")
        elif not _fitting(requirement, pinned):
            found.append(f"{who} requires {requirement}, and there is {_versions(pinned)}")
        else:
            wishes[name][who] = requirement
    for project, wanted in wishes.items():
        if not [one for one in usable[project] if all(_fitting(each, [one]) for each in wanted.values())]:
            listed = ", ".join(f"{who} requires {each}" for who, each in wanted.items())
            found.append(f"no {project} suits all: {listed}; there is {_versions(usable[project])}")
    return tuple(dict.fromkeys(found))


def _needs(
    chosen: Sequence[StoredWheel], usable: Mapping[str, Sequence[StoredWheel]], markers: Mapping[str, str]
) -> Iterator[tuple[StoredWheel, Requirement]]:
    """Yield every requirement reachable from `chosen`, with its wheel."""
    pending = [(wheel, frozenset[str]()) for wheel in chosen]
    done = set()
    while pending:
        wheel, extras = pending.pop()
        if (wheel.filename, extras) in done:
            continue
        done.add((wheel.filename, extras))
        try:
            wanted = requirements_of(wheel, extras, markers)
        except InvalidRequirement:  # the resolver has said it
            continue
        for requirement in wanted:
            yield wheel, requirement
            name = canonicalize_name(requirement.name)
            fitting = [one for one in chosen if one.name == name] or _fitting(
                requirement, usable.get(name, ())
            )
            if fitting:
                best = max(fitting, key=_preference)
                pending.append((best, frozenset(requirement.extras)))


def _fitting(requirement: Requirement, wheels: Sequence[StoredWheel]) -> list[StoredWheel]:
    return [one for one in wheels if requirement.specifier.contains(one.version, prereleases=True)]


def _versions(wheels: Sequence[StoredWheel]) -> str:
    versions = sorted({one.version for one in wheels}, key=Version)
    return f"{wheels[0].name} {', '.join(versions)}" + ("" if len(versions) > 1 else " only")


def reverse_dependencies(
    going: Sequence[StoredWheel], staying: Sequence[StoredWheel], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return remaining wheels that would lack a removed one, as lines "name needs requirement".

    `environment` has the marker variables of the interpreter installed into; extras do not count.
    """
    names = {wheel.name for wheel in going}
    versions: dict[str, list[str]] = {}
    for wheel in staying:
        versions.setdefault(wheel.name, []).append(wheel.version)
    found = []
    for wheel in staying:
        for line in wheel.requires:
            needed = Requirement(line)
            name = canonicalize_name(needed.name)
            if name not in names or (
                needed.marker and not needed.marker.evaluate({**environment, "extra": ""})
            ):
                continue
            if not any(needed.specifier.contains(one, prereleases=True) for one in versions.get(name, ())):
                found.append(f"{wheel.name} needs {needed.name}{needed.specifier}")
    return tuple(found)
