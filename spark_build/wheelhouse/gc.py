"""Garbage-collect generations and the store."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spark_build.errors import StoreError, ours
from spark_build.files import remove_any, remove_tree, sync_folder
from spark_build.journal import spent_runs
from spark_build.paths import Home
from spark_build.wheelhouse import generations
from spark_build.wheelhouse import store as wheelhouse_store
from spark_build.wheelhouse.generations import MANIFEST, ChangeKind, GenerationChange, KeptGeneration
from spark_build.wheelhouse.store import RECORD, entry_folder, exclusive, leftovers, shared_lock
from spark_build.wheels.model import StoredWheel

PATIENCE = 5.0  # seconds to wait for a commit or a publisher before the store is left alone


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedItem:
    """Something that gc removed, or would remove."""

    kind: Literal["generation", "pages", "entry", "leftover", "run"]
    name: str
    path: str
    size: int  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """Result of gc; `held`: why the store was left alone, "" when it was not."""

    taken: tuple[RemovedItem, ...]
    held: str

    @property
    def freed(self) -> int:
        """Bytes that were freed."""
        return sum(one.size for one in self.taken)


def collect(
    home: Home,
    *,
    keep: int,
    older_than: float,
    grace: float,
    dry_run: bool,
    keep_runs: int = sys.maxsize,
    runs_older_than: float = 0,
) -> Collected:
    """Collect from all views, the store and the runs; ages in seconds.

    Raises StoreError, before anything is removed, when a manifest cannot be read: nobody knows what that
    generation needs.
    """
    age = max(older_than, grace)
    found = sorted(path for path in home.views.glob("*") if (path / "generations").is_dir())
    for view in found:
        for number in generations.numbers(view):
            _referenced(view / "generations" / str(number))
    taken: list[RemovedItem] = []
    doomed: set[Path] = set()
    for view in found:
        with generations.held(view, "collecting"):
            going = expired(generations.states(view), keep=keep, older_than=age)
            folders = [view / "generations" / str(number) for number in going]
            doomed.update(folders)
            taken += [_taken("leftover", path) for path in generations.leftovers(view)]
            taken += [_taken("generation", path, f"{view.name} {path.name}") for path in folders]
            if not dry_run:
                generations.remove_leftovers(view)
                for folder in folders:
                    generations.discard(folder)
            taken += _pages(view, doomed, dry_run=dry_run)
    unneeded, holder = _store(home, age, doomed, dry_run=dry_run) if home.store.is_dir() else ([], "")
    runs = _runs(home.runs, keep_runs, max(runs_older_than, grace), dry_run=dry_run)
    return Collected(taken=(*taken, *unneeded, *runs), held=holder)


def _runs(runs: Path, keep: int, older_than: float, *, dry_run: bool) -> list[RemovedItem]:
    taken = []
    for path in spent_runs(runs, keep=keep, older_than=older_than):
        with contextlib.suppress(FileNotFoundError):  # another gc was faster
            taken.append(_taken("run", path))
            if not dry_run:
                remove_any(path)
    return taken


def _taken(kind: Any, path: Path, name: str = "") -> RemovedItem:
    return RemovedItem(kind=kind, name=name or path.name, path=str(path), size=_size(path))


def _size(path: Path) -> int:
    """Return the bytes of all files below a path, links excluded."""
    if path.is_symlink() or not path.is_dir():
        return 0 if path.is_symlink() else path.stat().st_size
    return sum(
        os.lstat(f"{folder}/{name}").st_size
        for folder, _, names in os.walk(path)
        for name in names
        if not os.path.islink(f"{folder}/{name}")  # noqa: PTH114 - tens of thousands in a prefix
    )


def _pages(view: Path, doomed: set[Path], *, dry_run: bool) -> list[RemovedItem]:
    """Return shared index pages that no remaining generation links to; under the view's lock."""
    used = {
        os.path.basename(os.readlink(link))  # noqa: PTH115, PTH119 - as many as there are wheels
        for number in generations.numbers(view)
        if (folder := view / "generations" / str(number)) not in doomed
        for link in _links(folder / "index")
    }
    pages = [path for path in view.glob("pages/*") if not path.name.startswith(".") and path.name not in used]
    found = [_taken("pages", path) for path in pages]
    if pages and not dry_run:
        # Whole or not at all: a publisher that comes after a kill or a power cut must not meet half a page.
        gone = [path.rename(path.with_name(f".tmp-{path.name}")) for path in pages]
        sync_folder(view / "pages")
        for path in gone:
            remove_any(path)
    return found


def _links(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        with os.scandir(folder) as found:
            yield from (one.path for one in found if one.is_symlink())


def _store(home: Home, age: float, doomed: set[Path], *, dry_run: bool) -> tuple[list[RemovedItem], str]:
    """Return what is removed from the store, and who prevented it."""
    store = home.store
    with exclusive(store, "collecting", PATIENCE) as holder:
        if holder:
            return [], holder
        needed = _needed(home, doomed)
        rows = [row for row in wheelhouse_store.index_rows(store) if row["key"] not in needed]
        old = [row for row in rows if time.time() - _time(store, row["key"]) >= age]
        taken = [_taken("leftover", path) for path in leftovers(store)]
        taken += [
            _taken("entry", entry_folder(store, row["key"]), f"{row['name']} {row['version']}") for row in old
        ]
        if not dry_run:
            wheelhouse_store.prune_judgements(store)  # of what other programs collected, too
        if dry_run or not taken:
            return taken, ""
        # Out of sight under the lock, which takes no time; deleted after it.
        trash = Path(tempfile.mkdtemp(prefix=".tmp-gone-", dir=store))
        for one in taken:
            Path(one.path).rename(trash / Path(one.path).name)
        sync_folder(trash)  # else a power cut may bring back an entry's name, and not all of it
        wheelhouse_store.prune_judgements(store)
    with shared_lock(store, "deleting what was collected"):
        remove_tree(trash)
    return taken, ""


def _time(store: Path, key: str) -> float:
    """Return the time when an entry was last committed or found identical."""
    return (entry_folder(store, key) / RECORD).stat().st_mtime


def _referenced(folder: Path) -> set[str]:
    """Return the keys that a generation names."""
    try:
        return {row["key"] for row in json.loads((folder / MANIFEST).read_bytes())["wheels"]}
    except FileNotFoundError:
        if not folder.exists():  # collected by somebody else just now
            return set()
        raise _unreadable(folder, "it is missing") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(folder, str(error)) from error


def _unreadable(folder: Path, why: str) -> StoreError:
    return StoreError(
        f"what generation {folder.name} of {folder.parent.parent.name} needs is not known: {why}",
        where=str(folder / MANIFEST),
        hint=ours("wheelhouse check --repair"),
    )


def _needed(home: Home, doomed: set[Path]) -> set[str]:
    """Return the keys of all entries that the remaining generations name, and that those were built from."""
    pending: set[str] = set()
    for folder in home.views.glob("*/generations/[0-9]*"):
        if folder not in doomed:
            pending |= _referenced(folder)
    by_recipe: dict[str, list[Mapping[str, Any]]] = {}
    built: set[str] = set()
    for row in wheelhouse_store.index_rows(home.store):
        if row["recipe"]:
            built.add(row["key"])
            by_recipe.setdefault(row["recipe"], []).append(row)
    needed: set[str] = set()
    while pending:
        key = pending.pop()
        needed.add(key)
        if key in built:
            pending |= set(_built_from(home.store, key, by_recipe)) - needed
    return needed


def _built_from(store: Path, key: str, by_recipe: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the entries that a build used as needs, by its key.json."""
    try:
        inputs = json.loads((entry_folder(store, key) / "key.json").read_bytes())["inputs"]
        needs = dict(inputs.get("needs", {}))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # a damaged one is for `check` to tell
    for name, identity in needs.items():
        same = [
            row
            for row in by_recipe.get(name, ())
            if identity in (row["content_digest"], f"store {row['version']}")
        ]
        if same:
            yield max(same, key=lambda row: str(row["committed"]))["key"]


def generation_changes(
    before: Sequence[StoredWheel], after: Sequence[StoredWheel]
) -> tuple[GenerationChange, ...]:
    """Return each name's change between two sets of wheels, ordered by name."""
    old, new = _by_name(before), _by_name(after)
    found: list[GenerationChange] = []
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
            found.append(GenerationChange(kind=kind, name=name, before=was.version, after=now.version))
        found += [
            GenerationChange(kind="removed", name=name, before=wheel.version, after="") for wheel in gone
        ]
        found += [GenerationChange(kind="added", name=name, before="", after=wheel.version) for wheel in come]
    return tuple(found)


def _file(wheel: StoredWheel) -> tuple[str, str]:
    return wheel.filename, wheel.sha256


def _by_name(wheels: Sequence[StoredWheel]) -> dict[str, list[StoredWheel]]:
    named: dict[str, list[StoredWheel]] = {}
    for wheel in wheels:
        named.setdefault(wheel.name, []).append(wheel)
    return named


def expired(generations: Sequence[KeptGeneration], *, keep: int, older_than: float) -> tuple[int, ...]:
    """Return the generations that may be removed.

    These are neither current nor pinned, not of the `keep` newest, and were not current within the last
    `older_than` seconds.
    """
    newest = sorted((one.number for one in generations), reverse=True)[:keep]
    return tuple(
        sorted(
            one.number
            for one in generations
            if not one.current and not one.pinned and one.number not in newest and one.idle >= older_than
        )
    )
