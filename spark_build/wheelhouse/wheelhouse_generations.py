"""The generations of a view: go back to one, keep one, take a wheel out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spark_build.errors import StoreError, UsageError
from spark_build.files import sync_folder, write_atomically
from spark_build.wheelhouse import generations
from spark_build.wheelhouse.generations import Generation
from spark_build.wheelhouse.keeping import dependents
from spark_build.wheelhouse.model import Kept
from spark_build.wheels.model import StoredWheel

PINS = "pins"
Waiting = Callable[[str], None] | None


def folder_of(view: Path, number: int) -> Path:
    """Where a generation lies; UsageError when there is none of this number."""
    folder = view / "generations" / str(number)
    if not folder.is_dir():
        have = ", ".join(map(str, generations.numbers(view)))
        there = f"there are {have}" if have else "nothing is published yet"
        raise UsageError(f"{view.name} has no generation {number}; {there}")
    return folder


def current_number(view: Path) -> int:
    """The number of the current generation; 0 when there is none, or `current` leads elsewhere."""
    try:
        parts = (view / "current").readlink().parts
    except OSError:
        return 0
    return int(parts[1]) if len(parts) == 2 and parts[0] == "generations" and parts[1].isdecimal() else 0


def rollback(view: Path, number: int | None, waiting: Waiting = None) -> tuple[Generation | None, Generation]:
    """Make another generation current, by default the one that the current was made from.

    Returns what was current (None when nothing readable was) and what is. One with missing wheels
    is refused.
    """
    with generations.changing(view, "rolling back", waiting):
        was = _readable(view)
        wanted = _before(view, was) if number is None else number
        found = generations.read(folder_of(view, wanted))
        lost = [wheel.filename for wheel in found.wheels if not (found.folder / wheel.filename).is_file()]
        if lost:
            raise StoreError(
                f"generation {wanted} cannot be current again: {lost[0]} is missing"
                + (f", and {len(lost) - 1} more" if len(lost) > 1 else ""),
                where=str(found.folder),
                hint="spark-build wheelhouse check --repair",
            )
        if current_number(view) != wanted:
            generations.switch(view, wanted)
        return was, found


def _readable(view: Path) -> Generation | None:
    """The current generation; None where a rollback is what mends it."""
    if (view / "current").is_dir() and not (view / "current").is_symlink():
        raise StoreError(
            f"{view / 'current'} is a folder, and no link to a generation",
            hint=f"rm -r {view / 'current'}, then: {generations.command(view)} wheelhouse rollback {_newest(view)}",
        )
    try:
        return generations.current(view)
    except StoreError:
        return None


def _newest(view: Path) -> int:
    return max(generations.numbers(view), default=0)


def _before(view: Path, was: Generation | None) -> int:
    if was is None:
        raise UsageError(
            f"{view.name} has no readable current generation to go back from",
            hint=f"{generations.command(view)} wheelhouse rollback {_newest(view)}",
        )
    there = [number for number in generations.numbers(view) if number < was.number]
    if not there:
        raise UsageError(
            f"there is no generation before {was.number}", hint="spark-build wheelhouse generations"
        )
    return was.before if was.before in there else there[-1]


def pins(view: Path) -> frozenset[int]:
    """The generations that are kept whatever happens."""
    folder = view / PINS
    return frozenset(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def pin(view: Path, number: int, waiting: Waiting = None) -> bool:
    """Keep a generation from being collected; False when it was pinned before."""
    with generations.changing(view, f"pinning generation {number}", waiting):
        folder_of(view, number)
        if number in pins(view):
            return False
        write_atomically(view / PINS / str(number), "")
        return True


def unpin(view: Path, number: int, waiting: Waiting = None) -> bool:
    """Let a generation go again; False when it was not pinned."""
    with generations.changing(view, f"unpinning generation {number}", waiting):
        if number not in pins(view):
            folder_of(view, number)
            return False
        (view / PINS / str(number)).unlink()
        sync_folder(view / PINS)
        return True


def states(view: Path) -> tuple[Kept, ...]:
    """All generations of a view as the rule of `gc` sees them."""
    now, current, pinned = time.time(), current_number(view), pins(view)
    return tuple(
        Kept(
            number=number,
            current=number == current,
            pinned=number in pinned,
            idle=max(0.0, now - (view / "generations" / str(number)).stat().st_mtime),
        )
        for number in generations.numbers(view)
    )


def remove(
    view: Path,
    store: Path,
    names: Sequence[str],
    *,
    markers: Mapping[str, str],
    force: bool,
    waiting: Waiting = None,
) -> tuple[Generation, tuple[StoredWheel, ...], tuple[str, ...]]:
    """Publish a generation without these wheels: (it, what went, what now lacks something).

    Names are NAME or NAME==VERSION; markers are those of the view's interpreter. Refused when what stays
    needs one of them, unless `force`.
    """
    gone: list[StoredWheel] = []
    lacking: list[str] = []

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        if before is None:
            raise StoreError(f"nothing is published for {view.name} yet", hint="spark-build all")
        gone[:] = _named(before, names)
        staying = [wheel for wheel in before.wheels if wheel not in gone]
        lacking[:] = dependents(gone, staying, markers)
        if lacking and not force:
            raise UsageError(
                f"what stays would lack something: {'; '.join(lacking)}",
                hint="name what needs it, too, or go on with --force",
            )
        # Without a closure key the next `all` completes the set again.
        return staying, ""

    made, _ = generations.publish(view, store, choose, waiting)
    return made, tuple(gone), tuple(lacking)


def _named(generation: Generation, names: Sequence[str]) -> list[StoredWheel]:
    """The wheels of a generation that are meant; UsageError for names that mean none."""
    from packaging.utils import canonicalize_name, canonicalize_version

    found: list[StoredWheel] = []
    for text in names:
        name, _, version = text.partition("==")
        own = [wheel for wheel in generation.wheels if wheel.name == canonicalize_name(name.strip())]
        wanted = canonicalize_version(version.strip())
        meant = [wheel for wheel in own if not version or canonicalize_version(wheel.version) == wanted]
        if not meant:
            there = f"there is {', '.join(wheel.version for wheel in own)}" if own else "see: wheelhouse list"
            raise UsageError(f"generation {generation.number} has no {text}; {there}")
        found += [wheel for wheel in meant if wheel not in found]
    return found
