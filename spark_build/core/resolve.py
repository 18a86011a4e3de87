"""Which wheels of a set an installation needs, by their own metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.model.wheel import StoredWheel


def needed(
    names: Iterable[str], wheels: Sequence[StoredWheel], environment: Mapping[str, str]
) -> tuple[tuple[StoredWheel, ...], tuple[str, ...]]:
    """(wheels that `names` need, themselves included; requirements that no wheel meets).

    `environment` has the marker variables of the interpreter installed into. Of several versions of
    one name the highest that fits is taken, as an installer would.
    """
    missing: list[str] = []
    chosen: dict[str, StoredWheel] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(name) for name in names]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        extras = frozenset(requirement.extras)
        if requirement.marker is not None and not requirement.marker.evaluate(dict(environment)):
            continue
        fitting = [wheel for wheel in wheels if wheel.name == name and _fits(wheel, requirement)]
        if not fitting:
            missing.append(str(requirement))
            continue
        if (name, extras) in done:
            continue
        done.add((name, extras))
        wheel = max(fitting, key=_preference)
        chosen[name] = wheel
        pending.extend(_requirements_of(wheel, extras, environment))
    return tuple(chosen[name] for name in sorted(chosen)), tuple(sorted(set(missing)))


def _fits(wheel: StoredWheel, requirement: Requirement) -> bool:
    return requirement.specifier.contains(wheel.version, prereleases=True)


def _preference(wheel: StoredWheel) -> tuple[object, ...]:
    from packaging.utils import parse_wheel_filename

    _, version, build, _ = parse_wheel_filename(wheel.filename)
    return (version, build)


def _requirements_of(
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
