"""Check the wheelhouse against its records: faults, what to type, repair.

The shallow check looks at names, links, sizes and papers; the deep one reads every byte. What can be
mended is: links, an installer's papers, manifests and leftovers. What somebody else put here is never
deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from spark_build.errors import Finding, Hint, HintStep, Place, StoreError, UnreadableError, ours, rm, shell
from spark_build.files import OWNER, remove_any, sha256_of, write_atomically
from spark_build.paths import Home
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.generations import MANIFEST, VERDICT, Generation
from spark_build.wheelhouse.store import (
    LOCK,
    PREFIX,
    RECORD,
    StoreEntry,
    entry_folder,
    entry_of,
    exclusive,
    read,
    shared_lock,
    tree_digest,
)
from spark_build.wheels.model import StoredWheel

FaultKind = Literal[
    "missing", "damaged", "foreign", "dangling", "misplaced", "papers", "unfinished", "incomplete"
]


KEY = re.compile("[0-9a-f]{64}")
Told = Callable[[int, int], None]  # bytes read, bytes to read


def of_store(home: Home, wheels: dict[str, StoredWheel], left: list[Path] | None) -> Iterator[Suspect]:
    """Check names, records and sizes; fills `wheels` by key. `left`: unfinished work, None if it may run."""
    if left:
        yield leftovers(left)
    for path in sorted(home.store.iterdir()):
        if path.name.startswith(".") or path.name in (LOCK, stores.INDEX):
            continue
        if re.fullmatch("[0-9a-f]{2}", path.name) and path.is_dir():
            with os.scandir(path) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    if KEY.fullmatch(entry.name) and entry.name[:2] == path.name:
                        yield from _of_entry(path / entry.name, wheels)
                    else:
                        yield _foreign(Path(entry.path))
        else:
            yield _foreign(path)
    yield from check_judgements(home.store, busy=left is None)


def _foreign(path: Path) -> Suspect:
    return suspect("foreign", path, "nothing of ours", rm(path))


def _again(folder: Path, recipe: str) -> Hint:
    return Hint(rm(folder), ours("build", recipe) if recipe else ours("all"))


def _of_entry(folder: Path, wheels: dict[str, StoredWheel]) -> Iterator[Suspect]:
    with os.scandir(folder) as entries:
        names = {entry.name: entry for entry in entries}
    try:
        record = stores.record_of(folder)
        entry = entry_of(folder, record)
    except FileNotFoundError:
        yield suspect("missing", folder / RECORD, "an entry without its record", _again(folder, ""))
        return
    except StoreError as error:
        fix = Hint(OWNER) if isinstance(error, UnreadableError) else _again(folder, "")
        yield suspect("damaged", folder / RECORD, error.message, fix)
        return
    if entry.wheel is not None:
        wheels[folder.name] = entry.wheel
        there = names.get(entry.wheel.filename)
        if there is None or there.is_symlink() or there.stat().st_size != entry.wheel.size:
            yield _bad_wheel(entry)
    own = {entry.wheel.filename} if entry.wheel else set()
    expected = {RECORD, *record.get("papers", names), *([PREFIX] if entry.prefix else ())} - own
    for name in expected - names.keys():
        told = "what others build against is gone" if name == PREFIX else "a paper of the entry is gone"
        yield suspect("missing", folder / name, told, _again(folder, entry.recipe))
    for name in names.keys() - expected - own:
        yield _foreign(folder / name)


def _bad_wheel(entry: StoreEntry) -> Suspect:
    assert entry.wheel is not None
    path = entry.folder / entry.wheel.filename
    there = path.is_file() and not path.is_symlink()
    told = "is not what was committed: its bytes changed" if there else "is missing in the store"
    return suspect("damaged" if there else "missing", path, told, _again(entry.folder, entry.recipe))


def contents(home: Home, told: Told) -> Iterator[Suspect]:
    """Yield deep faults: bytes of every wheel, attestation and prefix that differ from their record."""
    work: list[tuple[StoreEntry, Path, str, int]] = []
    for record in sorted(home.store.glob(f"[0-9a-f][0-9a-f]/*/{RECORD}")):
        try:
            raw = stores.record_of(record.parent)
            entry = entry_of(record.parent, raw)
        except (FileNotFoundError, StoreError):
            continue  # told by the shallow part
        work += [(entry, *one) for one in _parts(entry, raw) if one[0].exists()]
    total, done = sum(size for *_, size in work), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (entry, path, wanted, size), found in zip(work, pool.map(_digest, work), strict=True):
            done += size
            told(done, total)
            if found == wanted:
                continue
            if entry.wheel is not None and path.name == entry.wheel.filename:
                yield _bad_wheel(entry)
            else:
                yield suspect("damaged", path, "its bytes changed", _again(entry.folder, entry.recipe))


def _parts(entry: StoreEntry, record: Mapping[str, Any]) -> Iterator[tuple[Path, str, int]]:
    """Yield (path, recorded digest, size) of every part of an entry."""
    if entry.wheel is not None:
        path = entry.folder / entry.wheel.filename
        # Another size is told by the shallow part.
        if path.is_file() and path.stat().st_size == entry.wheel.size:
            yield path, entry.wheel.sha256, entry.wheel.size
    elif entry.prefix is not None:
        yield entry.prefix, entry.content_digest, 0
    for name, wanted in record.get("papers", {}).items():
        path = entry.folder / name
        yield path, wanted, path.stat().st_size if path.exists() else 0


def _digest(work: tuple[StoreEntry, Path, str, int]) -> str:
    path = work[1]
    try:
        return tree_digest(path) if path.is_dir() else sha256_of(path)
    except OSError:
        return ""


_LOCKS = (generations.LOCK, generations.VERIFY_LOCK)
OWN = frozenset({"current", "generations", "pages", *_LOCKS, generations.IMPORTS, generations.PINS})
EXTRAS = frozenset({MANIFEST, VERDICT, "index"})
Find = Callable[[str], StoredWheel | None]  # the wheel of a store entry, by key


def of_view(view: Path, store: Path, find: Find) -> Iterator[Suspect]:
    """Yield all faults of a view; under its lock."""
    left = generations.leftovers(view)
    if left:
        yield leftovers(left)
    whole: list[int] = []
    for number in generations.numbers(view):
        found = list(_of_generation(view / "generations" / str(number), store, find))
        yield from found
        if not found:
            whole.append(number)
    if not left:  # what was left unfinished may be the first switch
        yield from _of_current(view, whole)
    for path in [*view.glob("[!.]*"), *view.glob("generations/[!.]*")]:
        if path.name not in OWN and not (path.parent != view and path.name.isdecimal()):
            yield _foreign_in_view(path)


def _foreign_in_view(path: Path) -> Suspect:
    return suspect("foreign", path, "nothing of ours, and installers may take it", rm(path))


def _of_current(view: Path, whole: list[int]) -> Iterator[Suspect]:
    """Check that `current` is a link to an existing generation."""
    link = view / "current"
    back = ours("wheelhouse rollback", *whole[-1:], options=generations.options_of(view))
    fix: Hint | HintStep = back if whole else _publish_again(view)
    if link.is_symlink():
        number = generations.current_number(view)
        if number not in generations.numbers(view):
            kind: FaultKind = "misplaced" if link.exists() else "dangling"
            yield suspect(kind, link, f"leads to {link.readlink()}, which is no generation", fix)
    elif link.exists():
        fix = Hint(rm(link), fix)
        yield suspect("misplaced", link, "is no link to a generation: it would not follow a switch", fix)
    elif generations.numbers(view):
        yield suspect("unfinished", link, "there are generations, but none is current yet", fix)


def _of_generation(folder: Path, store: Path, find: Find) -> Iterator[Suspect]:
    try:
        found = generations.read(folder)
        if str(found.number) != folder.name:
            raise StoreError(f"its manifest is of generation {found.number}")
    except StoreError as error:
        if isinstance(error, UnreadableError):  # it may be sound
            yield suspect("damaged", folder / MANIFEST, error.message, Hint(OWNER))
            return
        mend = partial(_manifest_again, folder, find)
        yield suspect("damaged", folder / MANIFEST, error.message, _drop(folder), mend)
        return
    with os.scandir(folder) as entries:
        names = {entry.name: entry for entry in entries}
    to_store = generations.path_to(store, folder)
    for wheel in found.wheels:
        entry = names.pop(wheel.filename, None)
        yield from _of_wheel(folder, entry, wheel, find(wheel.key), to_store, store)
    for name, text in generations.artifacts(found.wheels).items():
        entry = names.pop(name, None)
        if entry is None or (folder / name).read_bytes() != text.encode():
            mend = partial(_write, folder / name, text)
            yield suspect("papers", folder / name, "is not what the manifest's wheels make of it", mend=mend)
    yield from _of_index(folder)
    # Hidden ones are leftovers, and told as such.
    yield from (
        _foreign_in_view(folder / name) for name in names if name not in EXTRAS and not name.startswith(".")
    )


def _publish_again(view: Path) -> Hint:
    return Hint(ours("all", options=generations.options_of(view)), " (publishes a new generation)")


def _drop(folder: Path) -> Hint:
    """Return the advice for a generation that cannot be repaired."""
    return Hint(_publish_again(folder.parent.parent), ", then: ", rm(folder))


def _of_wheel(
    folder: Path,
    entry: os.DirEntry[str] | None,
    wheel: StoredWheel,
    kept: StoredWheel | None,
    to_store: str,
    store: Path,
) -> Iterator[Suspect]:
    """Check a generation's wheel: its link, the link's target, its record."""
    if kept is None or kept.sha256 != wheel.sha256:
        if entry is not None and not entry.is_symlink() and entry.stat().st_size == wheel.size:
            return  # a copy of the wheelhouse with real files needs no store
        why = "the store does not have it" if kept is None else "the store has other bytes under its key"
        where = entry_folder(store, wheel.key)
        yield suspect("missing", folder / wheel.filename, f"{why} ({where})", _drop(folder))
        return
    target = generations.link_text(to_store, wheel)
    if entry is not None and entry.is_symlink() and os.readlink(entry.path) == target:  # noqa: PTH115 - a string
        return  # as published; whether the file is there is the store's business
    link = folder / wheel.filename
    mend = partial(_link, link, target)
    if entry is None:
        yield suspect("missing", link, "the manifest names it, and it is not there", mend=mend)
    elif entry.is_symlink():
        yield from _of_link(link, folder / target, mend)
    elif entry.stat().st_size != wheel.size:
        yield suspect("damaged", link, "a file that is not the wheel stands in the link's place", mend=mend)


def _of_link(link: Path, kept: Path, mend: Callable[[], bool]) -> Iterator[Suspect]:
    """Check a link; one with another text may still lead to the store's file."""
    if not link.exists():
        yield suspect("dangling", link, f"leads to {link.readlink()}, where nothing is", mend=mend)
    elif kept.exists() and not link.samefile(kept):
        yield suspect("misplaced", link, f"leads elsewhere: to {link.readlink()}", mend=mend)


def _of_index(folder: Path) -> Iterator[Suspect]:
    index = folder / "index"
    if index.is_dir():
        again = _publish_again(folder.parent.parent)
        with os.scandir(index) as entries:
            for entry in entries:
                if entry.is_symlink() and not os.path.exists(entry.path):  # noqa: PTH110 - a string
                    yield suspect("dangling", Path(entry.path), "a page of the index is missing", again)


def _link(link: Path, target: str) -> bool:
    """Create a link by one rename."""
    temporary = link.with_name(f".{link.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def _write(path: Path, text: str) -> bool:
    write_atomically(path, text)
    return True


def _manifest_again(folder: Path, find: Find) -> bool:
    """Return a manifest rebuilt from the links, if the requirements files prove it complete."""
    found = []
    for link in folder.glob("*.whl"):
        wheel = find(link.readlink().parent.name) if link.is_symlink() else None
        if wheel is None or wheel.filename != link.name:
            return False
        found.append(wheel)
    wheels = tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.filename)))
    for name, text in generations.artifacts(wheels).items():
        if not (folder / name).is_file() or (folder / name).read_text() != text:
            return False
    number = int(folder.name)
    # Without a closure key the next publication completes the set anew.
    when = datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat(timespec="seconds")
    lost = Generation(
        number=number, folder=folder, wheels=wheels, closure_key="", created=when, before=number - 1
    )
    write_atomically(folder / MANIFEST, generations.manifest_text(lost))
    return True


REPAIR = ours("wheelhouse check --repair")


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A deviation from what was recorded; `mend` returns whether it repaired it, None: it cannot be tried."""

    finding: Finding
    mend: Callable[[], bool] | None = None
    mended: bool = False

    def repaired(self) -> Suspect:
        """Return the suspect after an attempt to repair it."""
        return replace(self, mended=self.mend is not None and self.mend())


def suspect(
    kind: FaultKind,
    path: Path,
    message: str,
    fix: Hint | HintStep = REPAIR,
    mend: Callable[[], bool] | None = None,
) -> Suspect:
    """Return a suspected fault with its fix."""
    return Suspect(finding=Finding(kind, "error", message, Place(str(path)), fix), mend=mend)


def leftovers(paths: Sequence[Path]) -> Suspect:
    """Return what a killed process left; only valid while nothing else works on it."""

    def mend() -> bool:
        for path in paths:
            remove_any(path)
        return True

    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    told = f"left by a process that was killed{more}; nothing needs it, and the next one removes it"
    return suspect("unfinished", paths[0], told, mend=mend)


def check_judgements(store: Path, *, busy: bool) -> Iterator[Suspect]:
    """Yield the faults of the judgements beside the store, which can all be made again."""
    for path in sorted(store.parent.glob(f"{stores.JUDGEMENTS}/*/*/*")):
        if not (entry_folder(store, path.parent.name) / RECORD).exists():
            told = "a judgement of an entry that is gone; nothing needs it"
            yield suspect("unfinished", path, told, mend=partial(_removed, path))
        elif path.name.startswith("."):
            if not busy:
                told = "left by a process that was killed; nothing needs it"
                yield suspect("unfinished", path, told, mend=partial(_removed, path))
        elif not stores.is_sound_judgement(path):
            told = "cannot be read: the entry is audited again when it is next needed"
            yield suspect("damaged", path, told, shell("rm", path), mend=partial(_removed, path))


def _removed(path: Path) -> bool:
    remove_any(path)
    return True


def check(
    home: Home,
    *,
    deep: bool,
    repair: bool,
    told: Told,
) -> tuple[Suspect, ...]:
    """Return every fault in the store and in all views; `repair` fixes those it can."""
    wheels: dict[str, StoredWheel] = {}
    suspects = _found_in_store(home, wheels, deep, told) if home.store.is_dir() else []
    found = [suspect.repaired() if repair else suspect for suspect in suspects]

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
            suspects = list(of_view(view, home.store, find))
            found += [suspect.repaired() if repair else suspect for suspect in suspects]
    return tuple(found)


def is_empty(home: Home) -> bool:
    """Return whether there is neither an entry in the store nor a view to look at."""
    return not any(home.store.glob("[0-9a-f][0-9a-f]/*")) and not any(
        path.is_dir() for path in home.views.glob("*")
    )


def _found_in_store(home: Home, wheels: dict[str, StoredWheel], deep: bool, told: Told) -> list[Suspect]:
    left: list[Path] | None = None  # what is unfinished; None while others may be working on it
    if os.access(home.store, os.W_OK):
        with exclusive(home.store, "checking") as holder:
            left = None if holder else stores.leftovers(home.store)
    with shared_lock(home.store, "checking", looking=True):
        found = list(of_store(home, wheels, left))
        return [*found, *(contents(home, told) if deep else ())]


@contextlib.contextmanager
def _undisturbed(view: Path) -> Iterator[None]:
    """Keep others from publishing and collecting; does nothing in a wheelhouse that is read-only for us."""
    with contextlib.ExitStack() as stack:
        if os.access(view, os.W_OK):
            stack.enter_context(generations.held(view, "checking"))
        yield
