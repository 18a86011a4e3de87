"""What a set of wheels lacks to be installed together, in plain words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from spark_build.wheelhouse.resolve import requirements_of
from spark_build.wheels.model import StoredWheel


def roots(wheels: Sequence[StoredWheel]) -> tuple[tuple[StoredWheel, ...], ...]:
    """Sets that should install: the newest build of everything made here, then each older version alone."""
    own = [wheel for wheel in wheels if wheel.origin != "public"]
    by_version: dict[str, dict[str, StoredWheel]] = defaultdict(dict)
    for wheel in sorted(own, key=_preference, reverse=True):
        by_version[wheel.name].setdefault(wheel.version, wheel)
    together = tuple(next(iter(by_version[name].values())) for name in sorted(by_version))
    older = [wheel for name in sorted(by_version) for wheel in list(by_version[name].values())[1:]]
    return tuple(group for group in (together, *((wheel,) for wheel in older)) if group)


def _preference(wheel: StoredWheel) -> tuple[object, ...]:
    _, version, build, _ = parse_wheel_filename(wheel.filename)
    return (version, build)


def gaps(
    chosen: Sequence[StoredWheel],
    wheels: Sequence[StoredWheel],
    markers: Mapping[str, str],
    tags: Collection[Tag],
) -> tuple[str, ...]:
    """Why `chosen` cannot be installed together from `wheels`; () when nothing is seen.

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
    """Every requirement that is met on the way from `chosen`, with the wheel that has it."""
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
