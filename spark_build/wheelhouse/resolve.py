"""Which wheels of a set an installation needs, by their own metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from spark_build.wheels.model import StoredWheel


def needed(
    names: Iterable[str], wheels: Sequence[StoredWheel], environment: Mapping[str, str]
) -> tuple[tuple[StoredWheel, ...], tuple[str, ...]]:
    """(wheels that `names` need, themselves included; requirements that no wheel meets).

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
    """One way through all requirements: what is chosen, what is missing. Tightens `limits`."""
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
    from packaging.utils import parse_wheel_filename

    _, version, build, _ = parse_wheel_filename(wheel.filename)
    return (version, build)


def requirements_of(
    wheel: StoredWheel, extras: frozenset[str], environment: Mapping[str, str]
) -> list[Requirement]:
    """What a wheel requires when installed with these extras; markers are settled here."""
    wanted = []
    for line in wheel.requires:
        requirement = Requirement(line)
        variants = [{**environment, "extra": extra} for extra in (extras or frozenset({""}))]
        if requirement.marker is None or any(requirement.marker.evaluate(one) for one in variants):
            requirement.marker = None
            wanted.append(requirement)
    return wanted
