"""Generations of a view: publish, list, roll back, remove, pin."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from spark_build.errors import Hint, HintStep, HostError, StoreError, UsageError, ours, rm
from spark_build.files import (
    atomic_directory,
    locked,
    remove_any,
    remove_tree,
    sync_folder,
    unreadable,
    write_atomically,
)
from spark_build.wheelhouse.resolve import reverse_dependencies
from spark_build.wheelhouse.store import entry_folder, shared_lock
from spark_build.wheels.model import StoredWheel

ChangeKind = Literal["added", "removed", "version", "rebuilt"]


MANIFEST = "manifest.json"
VERDICT = "verdict.json"
IMPORTS = "imports.json"  # of a view: public key of a signer ("" for nobody) -> generation last taken in
SCHEMA = 1
# What a killed process leaves of something that it was about to rename.
UNFINISHED = ("generations/.tmp-*", "pages/.tmp-*", "pins/.*", ".current-*")


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationChange:
    """Change of one name; rebuilt: another build of the same version; before, after: versions."""

    kind: ChangeKind
    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptGeneration:
    """A generation for gc's rule."""

    number: int
    current: bool
    pinned: bool
    idle: float  # seconds since it was last current


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One published state of a view. `closure_key` is empty without a closure.

    before: the number of the generation that this one was made from, 0 for the first.
    """

    number: int
    folder: Path
    wheels: tuple[StoredWheel, ...]
    closure_key: str
    created: str = ""
    before: int = 0

    def built(self) -> tuple[StoredWheel, ...]:
        """Return the wheels of recipes, built here or imported, without the public ones of the closure."""
        return tuple(wheel for wheel in self.wheels if wheel.origin in ("built", "imported"))

    def own(self) -> tuple[StoredWheel, ...]:
        """Return the wheels wanted for themselves, built or foreign; public ones only complete the set."""
        return tuple(wheel for wheel in self.wheels if wheel.origin != "public")


def options_of(view: Path) -> tuple[str, ...]:
    """Return the options that a line for this view needs, whatever view is in use."""
    parts = view.name.rsplit("-", 2)  # targets may have a dash in their names
    if len(parts) < 3:
        return ()
    # Found out on this machine, it has no file and cannot be named.
    target = "auto" if parts[0].startswith("cuda-sm") else parts[0]
    return ("--target", target, "--train", parts[1])


def current(view: Path) -> Generation | None:
    """Return the current generation of a view; None before the first."""
    try:
        folder = view / (view / "current").readlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise StoreError(f"{view / 'current'} is no symbolic link", hint=rm(view / "current")) from error
    return read(folder)


def read(folder: Path) -> Generation:
    """Return a generation from its manifest."""
    try:
        raw: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        wheels = tuple(StoredWheel(**{**row, "requires": tuple(row["requires"])}) for row in raw["wheels"])
        return Generation(
            number=raw["generation"],
            folder=folder,
            wheels=wheels,
            closure_key=raw["closure_key"],
            created=raw["created"],
            before=raw["before"],
        )
    except PermissionError as error:
        raise unreadable(error) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the manifest of this generation cannot be read: {getattr(error, 'strerror', None) or error}",
            where=str(folder / MANIFEST),
            hint=Hint(
                ours("all", options=options_of(folder.parent.parent)),
                "  (publishes a new generation from the store)",
            ),
        ) from error


def publish(
    view: Path,
    store: Path,
    choose: Callable[[Generation | None], tuple[Iterable[StoredWheel], str]],
) -> tuple[Generation, bool]:
    """Publish the wheels that `choose` returns for the current generation; returns it and whether it is new.

    `choose` runs under the view's lock, so two publishers never lose each other's wheels. The same
    wheels again give no new generation.
    """
    with (
        changing(view, "publishing a generation"),
        shared_lock(store, f"publishing a generation of {view.name}"),
    ):
        before = current(view)
        chosen, closure_key = choose(before)
        wheels = tuple(sorted(set(chosen), key=lambda wheel: (wheel.name, wheel.filename)))
        _refuse_collisions(wheels)
        if before is not None and (before.wheels, before.closure_key) == (wheels, closure_key):
            return before, False
        number = 1 + max(numbers(view), default=0)
        folder = view / "generations" / str(number)
        made = Generation(
            number=number,
            folder=folder,
            wheels=wheels,
            closure_key=closure_key,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            before=before.number if before else 0,
        )
        _write_generation(made, store)
        try:
            switch(view, number)
        except OSError:  # a full disk: nobody has seen the new one yet
            discard(folder)
            raise
        return made, True


def _refuse_collisions(wheels: Sequence[StoredWheel]) -> None:
    for one, other in pairwise(wheels):
        if one.filename == other.filename:
            raise StoreError(
                f"two wheels are called {one.filename}, with other bytes",
                where=f"{one.key[:12]}, {other.key[:12]}",
                hint=Hint(ours("wheelhouse remove NAME==VERSION"), ", then publish again"),
            )


VIEW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,254}")  # what an import takes and `serve` shows
LOCK, VERIFY_LOCK = "lock", "verify.lock"  # of a view: for what changes it, for what verifies a generation


def verifying(generation: Generation) -> AbstractContextManager[int]:
    """Return the lock under which one at a time verifies the generations of a view."""
    view = generation.folder.parent.parent
    return locked(view / VERIFY_LOCK, purpose=f"verifying generation {generation.number}")


def held(view: Path, purpose: str) -> AbstractContextManager[int]:
    """Return the lock of a view, for everything that changes it."""
    return locked(view / LOCK, purpose=purpose)


@contextlib.contextmanager
def changing(view: Path, purpose: str) -> Iterator[None]:
    """Hold the lock of a view, after removing what killed processes left."""
    with held(view, purpose):
        remove_leftovers(view)
        yield


def leftovers(view: Path) -> list[Path]:
    """Return what killed processes left unfinished; only valid under the view's lock."""
    found = [path for pattern in UNFINISHED for path in view.glob(pattern)]
    for number in numbers(view):
        folder = view / "generations" / str(number)
        found += [folder / name for name in os.listdir(folder) if name.startswith(".")]  # noqa: PTH208 - names are enough
    return found


def remove_leftovers(view: Path) -> None:
    """Remove what killed processes left; under the view's lock."""
    for killed in leftovers(view):
        remove_any(killed)


def discard(folder: Path) -> None:
    """Remove a generation, for readers by one rename; under the view's lock."""
    gone = folder.with_name(f".tmp-gone-{folder.name}")
    remove_tree(gone)
    folder.rename(gone)
    sync_folder(folder.parent)  # else a power cut may bring the name back, and not what was in it
    remove_tree(gone)


def numbers(view: Path) -> list[int]:
    """Return the numbers of a view's generations, in order."""
    generations = view / "generations"
    if not generations.is_dir():
        return []
    return sorted(int(path.name) for path in generations.iterdir() if path.name.isdecimal())


def _write_generation(made: Generation, store: Path) -> None:
    from spark_build.wheelhouse.simple_index import write_index

    folder, wheels = made.folder, made.wheels
    with atomic_directory(folder) as temporary:
        to_store = path_to(store, temporary)
        for wheel in wheels:
            # Plain strings: with ten thousand wheels pathlib takes longer than the system calls.
            link = f"{temporary}/{wheel.filename}"
            with contextlib.suppress(PermissionError):  # sshfs makes the link and refuses to tell of it
                os.symlink(link_text(to_store, wheel), link)  # noqa: PTH211 - a string
            if not os.path.isfile(link):  # noqa: PTH113 - a string
                kept = entry_folder(store, wheel.key) / wheel.filename
                if kept.is_file():
                    raise _without_links(folder)
                raise StoreError(f"{wheel.filename} is not in the store", where=str(kept))
        write_index(temporary, folder.parent.parent, wheels, store)
        for name, text in artifacts(wheels).items():
            (temporary / name).write_text(text)
        (temporary / MANIFEST).write_text(manifest_text(made))


def _without_links(folder: Path) -> HostError:
    return HostError(
        "this file system follows no links to the store beside it",
        where=str(folder),
        hint="sshfs: mount it with -o no_contain_symlinks; else choose another place with --root DIR",
    )


def manifest_text(generation: Generation) -> str:
    """Return JSON with a line for each wheel."""
    head = {
        "schema": SCHEMA,
        "generation": generation.number,
        "view": generation.folder.parent.parent.name,
        "created": generation.created,
        "before": generation.before,
        "closure_key": generation.closure_key,
    }
    rows = ",\n".join(json.dumps(wheel.as_row()) for wheel in generation.wheels)
    return f'{json.dumps(head)[:-1]},\n"wheels": [\n{rows}\n]}}\n'


def path_to(store: Path, folder: Path) -> str:
    """Return the relative path from a folder of links to the store, so that the wheelhouse can move."""
    plain = os.path.relpath(store, folder)
    if (folder / plain).exists():
        return plain
    # views/ is itself a link to another place: .. leads elsewhere
    return os.path.relpath(store.resolve(), folder.resolve())


def link_text(to_store: str, wheel: StoredWheel) -> str:
    """Return the text of the link to a wheel of the store."""
    return f"{to_store}/{wheel.key[:2]}/{wheel.key}/{wheel.filename}"


def artifacts(wheels: Sequence[StoredWheel]) -> dict[str, str]:
    """Return constraints.txt and requirements.txt (with hashes) for a set of wheels.

    Of several versions of one name, installers take the highest: that is the one they are held to.
    """
    held_to: dict[str, str] = {}
    for wheel in wheels:
        other = held_to.setdefault(wheel.name, wheel.version)
        if other != wheel.version and Version(wheel.version) > Version(other):
            held_to[wheel.name] = wheel.version
    preferred = [wheel for wheel in wheels if wheel.version == held_to[wheel.name]]
    return {
        "constraints.txt": "".join(f"{name}=={version}\n" for name, version in held_to.items()),
        "requirements.txt": requirements(preferred),
    }


def requirements(wheels: Sequence[StoredWheel]) -> str:
    """Return lines for pip's --require-hashes; builds of one version share a line."""
    lines: dict[str, str] = {}
    for wheel in wheels:
        pin = f"{wheel.name}=={wheel.version}"
        lines[pin] = f"{lines.get(pin, pin)} --hash=sha256:{wheel.sha256}"
    return "".join(f"{line}\n" for line in lines.values())


def switch(view: Path, number: int) -> None:
    """Point `current` at a generation by one rename; under the view's lock."""
    with contextlib.suppress(OSError):  # none yet, or it dangles
        os.utime(view / "current")
    temporary = view / f".current-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("generations", str(number)))
    temporary.replace(view / "current")
    sync_folder(view)


def verdict_of(generation: Generation) -> dict[str, Any] | None:
    """Return the result of a generation's verification; None before it."""
    try:
        verdict: dict[str, Any] = json.loads((generation.folder / VERDICT).read_text())
    except (OSError, ValueError):
        return None
    return verdict


def checks_of(generation: Generation) -> list[dict[str, Any]] | None:
    """Return the rows of the checks of a generation's verification; None before it."""
    known = verdict_of(generation)
    return None if known is None else list(known["checks"])


def write_verdict(generation: Generation, verdict: dict[str, Any]) -> None:
    """Write the result of a verification beside the wheels; none of a generation that was collected."""
    with changing(generation.folder.parent.parent, "keeping a verdict"):
        if (generation.folder / MANIFEST).is_file():
            write_atomically(generation.folder / VERDICT, json.dumps(verdict, indent=1) + "\n")


PINS = "pins"


def folder_of(view: Path, number: int) -> Path:
    """Return a generation's folder. Raises UsageError when the number does not exist."""
    folder = view / "generations" / str(number)
    if not folder.is_dir():
        have = ", ".join(map(str, numbers(view)))
        if not have:
            raise nothing_published(view)
        raise UsageError(f"{view.name} has no generation {number}; there are {have}")
    return folder


def nothing_published(view: Path) -> StoreError:
    """Return the error for a view without generations."""
    hint = ours("all", options=options_of(view))
    return StoreError(f"nothing is published for {view.name} yet", hint=hint)


def current_number(view: Path) -> int:
    """Return the current generation's number; 0 when there is none, or `current` is broken."""
    try:
        parts = (view / "current").readlink().parts
    except OSError:
        return 0
    return int(parts[1]) if len(parts) == 2 and parts[0] == "generations" and parts[1].isdecimal() else 0


def rollback(view: Path, number: int | None) -> tuple[Generation | None, Generation]:
    """Make another generation current, by default the one that the current was made from.

    Returns what was current (None when nothing readable was) and what is. One with missing wheels
    is refused.
    """
    with changing(view, "rolling back"):
        was = _readable(view)
        wanted = _before(view, was) if number is None else number
        found = read(folder_of(view, wanted))
        lost = [wheel.filename for wheel in found.wheels if not (found.folder / wheel.filename).is_file()]
        if lost:
            raise StoreError(
                f"generation {wanted} cannot be current again: {lost[0]} is missing"
                + (f", and {len(lost) - 1} more" if len(lost) > 1 else ""),
                where=str(found.folder),
                hint=ours("wheelhouse check --repair"),
            )
        if current_number(view) != wanted:
            switch(view, wanted)
        return was, found


def _readable(view: Path) -> Generation | None:
    """Return the current generation; None where only a rollback helps."""
    if (view / "current").is_dir() and not (view / "current").is_symlink():
        raise StoreError(
            f"{view / 'current'} is a folder, and no link to a generation",
            hint=Hint(rm(view / "current"), _to_newest(view) if numbers(view) else ours("all")),
        )
    try:
        return current(view)
    except StoreError:
        return None


def _to_newest(view: Path) -> HintStep:
    return ours("wheelhouse rollback", max(numbers(view)), options=options_of(view))


def _before(view: Path, was: Generation | None) -> int:
    if was is None:
        if not numbers(view):
            raise nothing_published(view)
        raise UsageError(
            f"{view.name} has no readable current generation to go back from",
            hint=_to_newest(view),
        )
    there = [number for number in numbers(view) if number < was.number]
    if not there:
        raise UsageError(f"there is no generation before {was.number}", hint=ours("wheelhouse generations"))
    return was.before if was.before in there else there[-1]


def pins(view: Path) -> frozenset[int]:
    """Return the generations that gc always keeps."""
    folder = view / PINS
    return frozenset(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def pin(view: Path, number: int) -> bool:
    """Keep a generation from gc; returns False when it was pinned before."""
    with changing(view, f"pinning generation {number}"):
        folder_of(view, number)
        if number in pins(view):
            return False
        write_atomically(view / PINS / str(number), "")
        return True


def unpin(view: Path, number: int) -> bool:
    """Release a pinned generation; returns False when it was not pinned."""
    with changing(view, f"unpinning generation {number}"):
        if number not in pins(view):
            folder_of(view, number)
            return False
        (view / PINS / str(number)).unlink()
        sync_folder(view / PINS)
        return True


def states(view: Path) -> tuple[KeptGeneration, ...]:
    """Return all generations of a view for gc's rule."""
    now, current, pinned = time.time(), current_number(view), pins(view)
    return tuple(
        KeptGeneration(
            number=number,
            current=number == current,
            pinned=number in pinned,
            idle=max(0.0, now - (view / "generations" / str(number)).stat().st_mtime),
        )
        for number in numbers(view)
    )


def remove(
    view: Path,
    store: Path,
    names: Sequence[str],
    *,
    markers: Mapping[str, str],
    force: bool,
) -> tuple[Generation, tuple[StoredWheel, ...], tuple[str, ...]]:
    """Publish a generation without these wheels; returns it, what was removed, what now lacks something.

    Names are NAME or NAME==VERSION; markers are those of the view's interpreter. Refused when what stays
    needs one of them, unless `force`.
    """
    gone: list[StoredWheel] = []
    lacking: list[str] = []

    def choose(before: Generation | None) -> tuple[list[StoredWheel], str]:
        if before is None:
            raise nothing_published(view)
        gone[:] = _named(before, names)
        staying = [wheel for wheel in before.wheels if wheel not in gone]
        lacking[:] = reverse_dependencies(gone, staying, markers)
        if lacking and not force:
            raise UsageError(
                f"what stays would lack something: {'; '.join(lacking)}",
                hint="name what needs it, too, or go on with --force",
            )
        # Without a closure key the next `all` completes the set again.
        return staying, ""

    made, _ = publish(view, store, choose)
    return made, tuple(gone), tuple(lacking)


def _named(generation: Generation, names: Sequence[str]) -> list[StoredWheel]:
    """Return the wheels of a generation with these names. Raises UsageError for unknown ones."""
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
