"""Check the wheelhouse against its records: faults, what to type, repair.

The shallow check looks at names, links, sizes and papers; the deep one reads every byte. What can be
mended is: links, an installer's papers, manifests, leftovers, and wheels of which the same bytes lie
somewhere else here. What somebody else put here is never deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from spark_build.environments import closure
from spark_build.errors import StoreError
from spark_build.paths import Home
from spark_build.recipes.model import Target
from spark_build.wheelhouse import fsck, generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.fsck import Suspect, WheelhouseFault
from spark_build.wheelhouse.store import exclusive, read, shared_lock
from spark_build.wheels.model import StoredWheel


def check(
    home: Home,
    *,
    deep: bool,
    repair: bool,
    told: fsck.Told,
) -> tuple[WheelhouseFault, ...]:
    """Return every fault in the store and in all views; `repair` fixes those it can."""
    wheels: dict[str, StoredWheel] = {}
    suspects = _of_store(home, wheels, deep, told) if home.store.is_dir() else []
    found = [suspect.mended() if repair else suspect.fault for suspect in suspects]

    def find(key: str) -> StoredWheel | None:
        if key not in wheels:  # committed since
            try:
                entry = read(home.store, key)
            except StoreError:  # told as the store's fault
                return None
            return entry.wheel if entry else None
        return wheels[key]

    for view in sorted(path for path in home.views.glob("*") if path.is_dir()):
        with _undisturbed(view):
            suspects = list(fsck.of_view(view, home.store, find))
            found += [suspect.mended() if repair else suspect.fault for suspect in suspects]
    return tuple(found)


def is_empty(home: Home) -> bool:
    """Return whether there is neither an entry in the store nor a view to look at."""
    return not any(home.store.glob("[0-9a-f][0-9a-f]/*")) and not any(
        path.is_dir() for path in home.views.glob("*")
    )


def unresolved(
    home: Home, targets: Iterable[Target], *, most: int | None, told: Callable[[str], None]
) -> tuple[WheelhouseFault, ...]:
    """Return what keeps the current generations from being installed, by a real resolver, offline.

    Views of more than `most` wheels are only told of: a resolver takes seconds for hundreds.
    """
    known = tuple(targets)
    found = []
    for view in sorted(path for path in home.views.glob("*") if path.is_dir()):
        target = _target_of(view.name, known)
        current = generations.current(view)
        if current is None:
            continue
        if target is None:
            told(f"{view.name}: no target of that name is known here; whether it installs was not tried")
        elif most is not None and len(current.wheels) > most:
            told(f"{view.name}: {len(current.wheels)} wheels; --resolve tries whether they install")
        else:
            for problem in closure.prove_installable(current, target):
                fix = f"{generations.command(view)} all (completes the set)"
                found.append(
                    WheelhouseFault(kind="incomplete", path=str(current.folder), message=problem, fix=fix)
                )
    return tuple(found)


def _target_of(view: str, targets: Iterable[Target]) -> Target | None:
    """Return the target of a view by its name; a target that means this machine gets its platform."""
    name, _, python = view.rpartition("-")
    for target in targets:
        if name.startswith(f"{target.name}-") and python.startswith("cp"):
            here = closure.HERE if target.platform == "host" else target.platform
            return replace(target, platform=here, python=python)
    return None


def _of_store(home: Home, wheels: dict[str, StoredWheel], deep: bool, told: fsck.Told) -> list[Suspect]:
    left: list[Path] | None = None  # what is unfinished; None while others may be working on it
    if os.access(home.store, os.W_OK):
        with exclusive(home.store, "checking") as holder:
            left = None if holder else stores.leftovers(home.store)
    with shared_lock(home.store, "checking", looking=True):
        found = list(fsck.of_store(home, wheels, left))
        return [*found, *(fsck.contents(home, told) if deep else ())]


@contextlib.contextmanager
def _undisturbed(view: Path) -> Iterator[None]:
    """Keep others from publishing and collecting; does nothing in a wheelhouse that is read-only for us."""
    with contextlib.ExitStack() as stack:
        if os.access(view, os.W_OK):
            stack.enter_context(generations.held(view, "checking"))
        yield
