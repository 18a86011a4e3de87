"""Sources in git: the pinned commits in bare mirrors, verified, and trees written from them.

Objects are read through GitPython (`sources/mirror.py`); what talks to a server runs supervised
(`sources/gitnet.py`), so that nothing of it outlives us.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import HostError, SourceError
from spark_build.files import remove_tree
from spark_build.recipes.model import Source
from spark_build.sources import giturl
from spark_build.sources.archives import MAX_BYTES, MAX_ENTRIES
from spark_build.sources.commits import Access, Wanted, ensure, missing_error
from spark_build.sources.giturl import BadAddressError, Submodule, shown
from spark_build.sources.mirror import EXECUTABLE, LINK, REGULAR, REPOSITORY, DamagedError, Entry, Mirror
from spark_build.sources.tree import RefusedError, Tree

MAX_NESTING = 32  # repositories in repositories
MAX_LINK = 4096  # bytes of a symbolic link's target


def fetch_commit(
    source: Source,
    *,
    folder: Path,
    offline: bool,
    log: BinaryIO | None,
    progress: Callable[[int, int], None] | None = None,
    waiting: Callable[[str], None] | None = None,
    tell: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Have the pinned commit, and those of its submodules, in mirrors under `folder`/git.

    `progress` gets objects done and in total, `waiting` who holds a mirror's lock, `tell` why another
    address is asked. Raises SourceError.
    """
    access = Access(offline=offline, log=log, progress=progress, waiting=waiting, tell=tell, pause=pause)

    def visit(wanted: Wanted) -> bool:
        ensure(wanted, access)
        return True

    _each_commit(source, folder, visit)


def missing(source: Source, *, folder: Path) -> tuple[str, ...]:
    """What of the pinned commit and of its submodules is not on this machine; changes nothing."""
    absent: list[str] = []

    def visit(wanted: Wanted) -> bool:
        here = Mirror(wanted.mirror).has(wanted.commit, wanted.tag)
        absent.extend([] if here else [str(wanted)])
        return here

    _each_commit(source, folder, visit)
    return tuple(absent)


def _each_commit(source: Source, folder: Path, visit: Callable[[Wanted], bool]) -> None:
    """Visit the pinned commit and, where `visit` says that it is here, its submodules."""
    pending = [(_wanted(source, folder), 0)]
    seen = set()
    while pending:
        wanted, nesting = pending.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        if visit(wanted) and source.submodules:
            inner = _read_submodules(wanted)
            if inner and nesting == MAX_NESTING:
                raise SourceError(f"{shown(source.url)} has submodules in submodules without end")
            pending += [(wanted.submodule(one), nesting + 1) for one in inner]


def export_commit(source: Source, *, folder: Path, destination: Path) -> None:
    """Write the pinned commit's tree, submodules included, to `destination`; no .git is left in it.

    Contents are the commit's own (no conversion, no filter), times the commit's. What was fetched is
    enough: no network. Raises SourceError, HostError when `destination` is in use.
    """
    taken = destination.exists() and not (destination.is_dir() and not any(destination.iterdir()))
    if taken or destination.is_symlink():
        raise HostError(f"{destination} is in the way", hint=f"remove {destination}, then try again")
    wanted = _wanted(source, folder)
    seconds = commit_time(source, folder)
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        tree = Tree(temporary, MAX_BYTES, MAX_ENTRIES)
        _write(tree, wanted, "", seconds, submodules=source.submodules)
        tree.finish()
        temporary.chmod(0o755)
        os.utime(temporary, (seconds, seconds))
        temporary.rename(destination)
    except RefusedError as error:
        raise SourceError(f"cannot use {wanted}: {error}", hint="check what the pin names") from error
    finally:
        remove_tree(temporary)


def commit_time(source: Source, folder: Path) -> int:
    """When the pinned commit was made, in seconds since 1970."""
    wanted = _wanted(source, folder)
    with _opened(wanted) as mirror:
        try:
            return mirror.time(wanted.commit)
        except DamagedError as error:
            raise _damaged(wanted, error) from error


def _wanted(source: Source, folder: Path) -> Wanted:
    if not re.fullmatch(r"[0-9a-f]{40}", source.commit):
        raise SourceError(f"{shown(source.url)} is not pinned by a full commit", hint="add it to the train")
    try:
        for url in (source.url, *source.mirrors):
            giturl.check_address(url)
        giturl.check_tag(source.tag)
    except BadAddressError as error:
        raise SourceError(
            f"cannot fetch the source: {error}", hint="check the source's url and tag"
        ) from error
    return Wanted(
        url=source.url,
        others=source.mirrors,
        commit=source.commit,
        tag=source.tag,
        mirror=folder.absolute() / "git" / giturl.mirror_name(source.url),
        local=giturl.is_local(source.url),
    )


def _damaged(wanted: Wanted, error: DamagedError) -> SourceError:
    return SourceError(
        f"the mirror lacks parts of {wanted}: {error}",
        hint=f"rm -r {wanted.mirror}   # then try again: it is fetched anew",
    )


def _opened(wanted: Wanted) -> Mirror:
    """The mirror, with the commit in it; else SourceError."""
    mirror = Mirror(wanted.mirror)
    if not mirror.has(wanted.commit, wanted.tag):
        raise missing_error(wanted)
    return mirror


def _read_submodules(wanted: Wanted) -> tuple[Submodule, ...]:
    with _opened(wanted) as mirror:
        try:
            return _submodules(mirror, wanted, mirror.entries(wanted.commit))
        except DamagedError as error:
            raise _damaged(wanted, error) from error


def _submodules(mirror: Mirror, wanted: Wanted, entries: list[Entry]) -> tuple[Submodule, ...]:
    """The repositories that a commit's tree names, at the commits that it records."""
    links = {entry.path: entry.name for entry in entries if entry.mode == REPOSITORY}
    named = next((entry for entry in entries if entry.path == ".gitmodules"), None)
    readable = named is not None and named.mode in (REGULAR, EXECUTABLE)
    try:
        return giturl.submodules(wanted.url, mirror.config(named.name) if named and readable else {}, links)
    except BadAddressError as error:
        raise SourceError(f"cannot use {wanted}: {error}", hint="check what the pin names") from error


def _write(tree: Tree, wanted: Wanted, prefix: str, seconds: int, *, submodules: bool) -> None:
    """Write one commit's tree below `prefix`, then those of its submodules."""
    inner: tuple[Submodule, ...] = ()
    with _opened(wanted) as mirror:
        try:
            entries = mirror.entries(wanted.commit)
            if submodules:
                inner = _submodules(mirror, wanted, entries)
            for entry in entries:
                _write_entry(tree, mirror, entry, prefix, seconds)
        except DamagedError as error:
            raise _damaged(wanted, error) from error
    for one in inner:
        _write(tree, wanted.submodule(one), f"{prefix}{one.path}/", seconds, submodules=True)


def _write_entry(tree: Tree, mirror: Mirror, entry: Entry, prefix: str, seconds: int) -> None:
    try:
        giturl.check_path(entry.path)
    except BadAddressError as error:
        raise RefusedError(str(error)) from error
    place = prefix + entry.path
    if entry.mode == REPOSITORY:
        tree.folder(place, seconds)
    elif entry.mode != LINK:
        content = mirror.content(entry.name)
        tree.file(place, content, entry.size, seconds, executable=entry.mode == EXECUTABLE)
    elif entry.size > MAX_LINK:
        raise RefusedError(f"{place!r} is a link with an enormous target")
    else:
        tree.symlink(place, os.fsdecode(mirror.content(entry.name).read(MAX_LINK)), seconds)
