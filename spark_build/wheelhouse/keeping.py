"""Generations compared, the rule that says which may go, and who needs a wheel that is to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.wheelhouse.model import Change, ChangeKind, Kept
from spark_build.wheels.model import StoredWheel


def changes(before: Sequence[StoredWheel], after: Sequence[StoredWheel]) -> tuple[Change, ...]:
    """What became of each name from one set of wheels to another, in order of name."""
    old, new = _by_name(before), _by_name(after)
    found: list[Change] = []
    for name in sorted(old.keys() | new.keys()):
        # By file, not by key: the same wheel may come under a newer key.
        same = {_file(wheel) for wheel in old.get(name, ())} & {_file(wheel) for wheel in new.get(name, ())}
        gone = [wheel for wheel in old.get(name, ()) if _file(wheel) not in same]
        come = [wheel for wheel in new.get(name, ()) if _file(wheel) not in same]
        while gone and come:
            was = gone.pop(0)
            # Another build of the same version, where there is one, before another version.
            now = next((wheel for wheel in come if wheel.version == was.version), come[0])
            come.remove(now)
            kind: ChangeKind = "rebuilt" if was.version == now.version else "version"
            found.append(Change(kind=kind, name=name, before=was.version, after=now.version))
        found += [Change(kind="removed", name=name, before=wheel.version, after="") for wheel in gone]
        found += [Change(kind="added", name=name, before="", after=wheel.version) for wheel in come]
    return tuple(found)


def _file(wheel: StoredWheel) -> tuple[str, str]:
    return wheel.filename, wheel.sha256


def _by_name(wheels: Sequence[StoredWheel]) -> dict[str, list[StoredWheel]]:
    named: dict[str, list[StoredWheel]] = {}
    for wheel in wheels:
        named.setdefault(wheel.name, []).append(wheel)
    return named


def beyond(generations: Sequence[Kept], *, keep: int, older_than: float) -> tuple[int, ...]:
    """The generations that may go: neither current nor pinned, not of the `keep` newest, and not
    current within the last `older_than` seconds."""
    newest = sorted((one.number for one in generations), reverse=True)[:keep]
    return tuple(
        sorted(
            one.number
            for one in generations
            if not one.current and not one.pinned and one.number not in newest and one.idle >= older_than
        )
    )


def dependents(
    going: Sequence[StoredWheel], staying: Sequence[StoredWheel], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Who among what stays would lack a wheel that goes, as lines "name needs requirement".

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
