"""Select wheels that are needed, and find missing requirements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

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
            pending.extend(_requirements_of(chosen[name], extras, environment))
    return chosen, missing


def _preference(wheel: StoredWheel) -> tuple[object, ...]:
    _, version, build, _ = parse_wheel_filename(wheel.filename)
    return (version, build)


def _requirements_of(
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
