"""Is every entry of the store as it was committed? And the same bytes from elsewhere where it is not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from spark_build.errors import StoreError
from spark_build.files import remove_tree, sha256_of
from spark_build.paths import Home
from spark_build.wheelhouse import judgements, storeindex
from spark_build.wheelhouse import store as stores
from spark_build.wheelhouse.prefix import tree_digest
from spark_build.wheelhouse.store import LOCK, PREFIX, RECORD, Entry, entry_of
from spark_build.wheelhouse.suspect import Suspect, leftovers, suspect
from spark_build.wheels.model import StoredWheel

KEY = re.compile("[0-9a-f]{64}")
Told = Callable[[int, int], None]  # bytes read, bytes to read


def of_store(home: Home, wheels: dict[str, StoredWheel], left: list[Path] | None) -> Iterator[Suspect]:
    """Names, records and sizes; fills `wheels` by key. left: unfinished, None while that may be in work."""
    if left:
        yield leftovers(left)
    for path in sorted(home.store.iterdir()):
        if path.name.startswith(".") or path.name in (LOCK, storeindex.INDEX):
            continue
        if re.fullmatch("[0-9a-f]{2}", path.name) and path.is_dir():
            with os.scandir(path) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    if KEY.fullmatch(entry.name) and entry.name[:2] == path.name:
                        yield from _of_entry(home, path / entry.name, wheels, busy=left is None)
                    else:
                        yield _foreign(Path(entry.path))
        else:
            yield _foreign(path)
    yield from judgements.check(home.store, busy=left is None)


def _foreign(path: Path) -> Suspect:
    return suspect("foreign", path, "nothing of ours", f"rm -r {quote(str(path))}")


def _again(folder: Path, recipe: str) -> str:
    command = f"spark-build build {recipe}" if recipe else "spark-build all"
    return f"rm -r {quote(str(folder))}, then: {command}"


def _of_entry(home: Home, folder: Path, wheels: dict[str, StoredWheel], *, busy: bool) -> Iterator[Suspect]:
    with os.scandir(folder) as entries:
        names = {entry.name: entry for entry in entries}
    try:
        record = stores.record_of(folder)
        entry = entry_of(folder, record)
    except FileNotFoundError:
        yield suspect("missing", folder / RECORD, "an entry without its record", _again(folder, ""))
        return
    except StoreError as error:
        yield suspect("damaged", folder / RECORD, error.message, _again(folder, ""))
        return
    if entry.wheel is not None:
        wheels[folder.name] = entry.wheel
        there = names.get(entry.wheel.filename)
        if there is None or there.is_symlink() or there.stat().st_size != entry.wheel.size:
            yield _bad_wheel(home, entry)
    own = {entry.wheel.filename} if entry.wheel else set()
    expected = {RECORD, *record.get("papers", names), *([PREFIX] if entry.prefix else ())} - own
    for name in expected - names.keys():
        told = "what others build against is gone" if name == PREFIX else "a paper of the entry is gone"
        yield suspect("missing", folder / name, told, _again(folder, entry.recipe))
    for name in names.keys() - expected - own:
        if name == PREFIX and not busy:  # being copied when somebody was killed
            told = "left by a process that was killed; the next build makes it again"
            yield suspect("unfinished", folder / PREFIX, told, mend=partial(_drop_prefix, home, folder))
        elif name != PREFIX:
            yield _foreign(folder / name)


def _drop_prefix(home: Home, folder: Path) -> bool:
    """Remove a prefix that its record does not know, unless somebody has finished it meanwhile."""
    with stores.alone(home.store, "checking") as holder:
        if holder or entry_of(folder, stores.record_of(folder)).prefix is not None:
            return False
        remove_tree(folder / PREFIX)
        return True


def _bad_wheel(home: Home, entry: Entry) -> Suspect:
    assert entry.wheel is not None
    path = entry.folder / entry.wheel.filename
    there = path.is_file() and not path.is_symlink()
    told = "is not what was committed: its bytes changed" if there else "is missing in the store"
    mend = partial(restore, home, path, entry.wheel)
    return suspect("damaged" if there else "missing", path, told, _again(entry.folder, entry.recipe), mend)


def restore(home: Home, path: Path, wheel: StoredWheel) -> bool:
    """Put the wheel's bytes back from any file here that has them; False when none has."""
    for root in (home.wheelhouse, home.sources, home.build):
        for folder, _, names in os.walk(root):
            for name in names:
                other = Path(folder, name)
                if other == path or other.is_symlink() or other.stat().st_size != wheel.size:
                    continue
                if sha256_of(other) == wheel.sha256:
                    # A copy, no link: one more bit that flips must not hit both.
                    with other.open("rb") as content:
                        stores.replace_file(home.store, path, content)
                    return True
    return False


def contents(home: Home, told: Told) -> Iterator[Suspect]:
    """The deep part: the bytes of every wheel, paper and prefix against what was recorded."""
    work: list[tuple[Entry, Path, str, int]] = []
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
                yield _bad_wheel(home, entry)
            else:
                yield suspect("damaged", path, "its bytes changed", _again(entry.folder, entry.recipe))


def _parts(entry: Entry, record: Mapping[str, Any]) -> Iterator[tuple[Path, str, int]]:
    """(path, recorded digest, size) of all of an entry that has one."""
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


def _digest(work: tuple[Entry, Path, str, int]) -> str:
    path = work[1]
    try:
        return tree_digest(path) if path.is_dir() else sha256_of(path)
    except OSError:
        return ""
