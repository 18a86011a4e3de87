"""Is a view as it was published? `current`, each generation's links, papers and manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shlex import quote

from spark_build.errors import StoreError
from spark_build.files import write_atomically
from spark_build.wheelhouse import generations, wheelhouse_generations
from spark_build.wheelhouse.generations import MANIFEST, VERDICT, Generation
from spark_build.wheelhouse.model import FaultKind
from spark_build.wheelhouse.store import entry_folder
from spark_build.wheelhouse.suspect import Suspect, leftovers, suspect
from spark_build.wheels.model import StoredWheel

OWN = frozenset({"current", "generations", "lock", "pages", wheelhouse_generations.PINS})
EXTRAS = frozenset({MANIFEST, VERDICT, "index"})
Find = Callable[[str], StoredWheel | None]  # the wheel of a store entry, by key


def of_view(view: Path, store: Path, find: Find) -> Iterator[Suspect]:
    """Everything wrong in a view; under its lock."""
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
            yield _foreign(path)


def _foreign(path: Path) -> Suspect:
    return suspect(
        "foreign", path, "nothing of ours, and installers may take it", f"rm -r {quote(str(path))}"
    )


def _of_current(view: Path, whole: list[int]) -> Iterator[Suspect]:
    """`current` must be a link to a generation that is there."""
    link = view / "current"
    fix = f"{generations.command(view)} wheelhouse rollback {whole[-1]}" if whole else _again(view)
    if link.is_symlink():
        number = wheelhouse_generations.current_number(view)
        if number not in generations.numbers(view):
            kind: FaultKind = "misplaced" if link.exists() else "dangling"
            yield suspect(kind, link, f"leads to {link.readlink()}, which is no generation", fix)
    elif link.exists():
        fix = f"rm -r {quote(str(link))}, then: {fix}"
        yield suspect("misplaced", link, "is no link to a generation: it would not follow a switch", fix)
    elif generations.numbers(view):
        yield suspect("unfinished", link, "there are generations, but none is current yet", fix)


def _of_generation(folder: Path, store: Path, find: Find) -> Iterator[Suspect]:
    try:
        found = generations.read(folder)
        if str(found.number) != folder.name:
            raise StoreError(f"its manifest is of generation {found.number}")
    except StoreError as error:
        mend = partial(_manifest_again, folder, find)
        yield suspect("damaged", folder / MANIFEST, error.message, _drop(folder), mend)
        return
    with os.scandir(folder) as entries:
        names = {entry.name: entry for entry in entries}
    to_store = generations.path_to(store, folder)
    for wheel in found.wheels:
        entry = names.pop(wheel.filename, None)
        yield from _of_wheel(folder, entry, wheel, find(wheel.key), to_store, store)
    for name, text in generations.papers(found.wheels).items():
        entry = names.pop(name, None)
        if entry is None or (folder / name).read_bytes() != text.encode():
            mend = partial(_write, folder / name, text)
            yield suspect("papers", folder / name, "is not what the manifest's wheels make of it", mend=mend)
    yield from _of_index(folder)
    # Hidden ones are leftovers, and told as such.
    yield from (_foreign(folder / name) for name in names if name not in EXTRAS and not name.startswith("."))


def _again(view: Path) -> str:
    return f"{generations.command(view)} all (publishes a new generation)"


def _drop(folder: Path) -> str:
    """How to do without a generation that cannot be mended."""
    return f"{_again(folder.parent.parent)}, then: rm -r {quote(str(folder))}"


def _of_wheel(
    folder: Path,
    entry: os.DirEntry[str] | None,
    wheel: StoredWheel,
    kept: StoredWheel | None,
    to_store: str,
    store: Path,
) -> Iterator[Suspect]:
    """A generation's wheel: the link, where it leads, and whether that is what was published."""
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
    """A link with another text may still lead to the file of the store."""
    if not link.exists():
        yield suspect("dangling", link, f"leads to {link.readlink()}, where nothing is", mend=mend)
    elif kept.exists() and not link.samefile(kept):
        yield suspect("misplaced", link, f"leads elsewhere: to {link.readlink()}", mend=mend)


def _of_index(folder: Path) -> Iterator[Suspect]:
    index = folder / "index"
    if index.is_dir():
        again = _again(folder.parent.parent)
        with os.scandir(index) as entries:
            for entry in entries:
                if entry.is_symlink() and not os.path.exists(entry.path):  # noqa: PTH110 - a string
                    yield suspect("dangling", Path(entry.path), "a page of the index is missing", again)


def _link(link: Path, target: str) -> bool:
    """Put a link where it belongs, by one rename."""
    temporary = link.with_name(f".{link.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def _write(path: Path, text: str) -> bool:
    write_atomically(path, text)
    return True


def _manifest_again(folder: Path, find: Find) -> bool:
    """A manifest from the links, if the installer's papers prove that they are all."""
    found = []
    for link in folder.glob("*.whl"):
        wheel = find(link.readlink().parent.name) if link.is_symlink() else None
        if wheel is None or wheel.filename != link.name:
            return False
        found.append(wheel)
    wheels = tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.filename)))
    for name, text in generations.papers(wheels).items():
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
