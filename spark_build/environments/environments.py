"""What has to change in an environment: pure, from what was put in, what is there and what is wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_build.environments.model import Change, Installed, Replacement, State
from spark_build.wheels.model import StoredWheel


def difference(
    state: State,
    wanted: Sequence[StoredWheel],
    present: Mapping[str, tuple[str, str]],
    *,
    damaged: Collection[str] = (),
) -> Change:
    """The way from `state` to `wanted`.

    present: name -> (version, sha256 of RECORD) of everything installed; damaged: names whose files were
    found to differ. What an interrupted command was at is put in anew.
    """
    ours = {one.name: one for one in state.packages}
    names = {wheel.name for wheel in wanted}
    added, replaced, same = [], [], []
    for wheel in wanted:
        why = _why(wheel, state, ours.get(wheel.name), present, damaged)
        if not why:
            same.append(wheel.name)
        elif wheel.name in present:
            replaced.append(Replacement(before=present[wheel.name][0], wheel=wheel, why=why))
        else:
            added.append(wheel)
    gone = [one for one in state.packages if one.name not in names]
    left = [one for one in gone if one.name in state.doubtful or _is_ours(one, present)]
    return Change(
        added=tuple(added),
        replaced=tuple(replaced),
        removed=tuple(left),
        released=tuple(one for one in gone if one not in left and one.name in present),
        same=tuple(same),
        others=tuple(
            f"{name} {version}"
            for name, (version, _) in sorted(present.items())
            if name not in names and name not in state.bundled and name not in {one.name for one in left}
        ),
    )


def _why(
    wheel: StoredWheel,
    state: State,
    installed: Installed | None,
    present: Mapping[str, tuple[str, str]],
    damaged: Collection[str],
) -> str:
    """Why a wheel has to be installed; "" when it is there."""
    if wheel.name in state.doubtful:
        return "an interrupted command was at it"
    if wheel.name not in present:
        return "it is not there"
    if installed is None:
        return "another one was there"
    if not _is_ours(installed, present):
        return "it was replaced by hand"
    if installed.sha256 != wheel.sha256:
        return "other bytes" if installed.version == wheel.version else "another version"
    return "its files were changed" if wheel.name in damaged else ""


def _is_ours(installed: Installed, present: Mapping[str, tuple[str, str]]) -> bool:
    return installed.name in present and present[installed.name][1] == installed.record


def merged(asked: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """What is asked for when `more` comes on top: a later wish about a package replaces the earlier."""
    wishes = {canonicalize_name(Requirement(text).name): text for text in (*asked, *more)}
    return tuple(wishes.values())


def still_there(asked: Sequence[str], wheels: Sequence[StoredWheel]) -> tuple[str, ...]:
    """Those of the wishes for which there is any wheel."""
    have = {wheel.name for wheel in wheels}
    return tuple(text for text in asked if canonicalize_name(Requirement(text).name) in have)
