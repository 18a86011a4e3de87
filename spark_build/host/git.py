"""Sources in git: the pinned commits in bare mirrors, verified, and trees written from them.

Objects are read through GitPython (`host/mirror.py`); what talks to a server runs supervised
(`host/gitnet.py`), so that nothing of it outlives us.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spark_build.core import giturl
from spark_build.core.giturl import BadAddressError, Submodule, shown
from spark_build.errors import HostError, SourceError
from spark_build.host.files import locked, remove_empty, remove_tree
from spark_build.host.gitnet import Remote, UnavailableError
from spark_build.host.mirror import EXECUTABLE, LINK, REGULAR, REPOSITORY, DamagedError, Entry, Mirror, mark
from spark_build.host.tree import RefusedError, Tree
from spark_build.host.unpack import MAX_BYTES, MAX_ENTRIES
from spark_build.model.recipe import Source

MAX_NESTING = 32  # repositories in repositories
EVERYTHING = ("+refs/heads/*:refs/remote/heads/*", "+refs/tags/*:refs/remote/tags/*")
MAX_LINK = 4096  # bytes of a symbolic link's target


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """A commit of a repository; `tag` must lead to it. `local`: the source is on this machine."""

    url: str
    commit: str
    tag: str
    mirror: Path
    local: bool

    def __str__(self) -> str:
        tag = f" (tag {self.tag})" if self.tag else ""
        return f"commit {self.commit}{tag} of {shown(self.url)}"

    def submodule(self, inner: Submodule) -> _Wanted:
        """A repository inside this one's tree."""
        mirror = self.mirror.with_name(giturl.mirror_name(inner.url))
        return _Wanted(url=inner.url, commit=inner.commit, tag="", mirror=mirror, local=self.local)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Access:
    """How to fetch: what every repository of one source has in common."""

    offline: bool
    log: BinaryIO | None
    progress: Callable[[int, int], None] | None
    waiting: Callable[[str], None] | None
    pause: Callable[[float], None]


def fetch_commit(
    source: Source,
    *,
    folder: Path,
    offline: bool,
    log: BinaryIO | None,
    progress: Callable[[int, int], None] | None = None,
    waiting: Callable[[str], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Have the pinned commit, and those of its submodules, in mirrors under `folder`/git.

    `progress` gets objects done and in total, `waiting` who holds a mirror's lock. Raises SourceError.
    """
    access = _Access(offline=offline, log=log, progress=progress, waiting=waiting, pause=pause)
    pending = [(_wanted(source, folder), 0)]
    seen = set()
    while pending:
        wanted, nesting = pending.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        _ensure(wanted, access)
        if source.submodules:
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


def _wanted(source: Source, folder: Path) -> _Wanted:
    if not re.fullmatch(r"[0-9a-f]{40}", source.commit):
        raise SourceError(f"{shown(source.url)} is not pinned by a full commit", hint="add it to the train")
    try:
        giturl.check_address(source.url)
        giturl.check_tag(source.tag)
    except BadAddressError as error:
        raise SourceError(
            f"cannot fetch the source: {error}", hint="check the source's url and tag"
        ) from error
    return _Wanted(
        url=source.url,
        commit=source.commit,
        tag=source.tag,
        mirror=folder.absolute() / "git" / giturl.mirror_name(source.url),
        local=giturl.is_local(source.url),
    )


def _missing(wanted: _Wanted, why: str = "") -> SourceError:
    return SourceError(
        f"{wanted} is not on this machine{why}",
        hint=f"run once with network, or bring {wanted.mirror} along from a machine that has it",
    )


def _damaged(wanted: _Wanted, error: DamagedError) -> SourceError:
    return SourceError(
        f"the mirror lacks parts of {wanted}: {error}",
        hint=f"rm -r {wanted.mirror}   # then try again: it is fetched anew",
    )


def _opened(wanted: _Wanted) -> Mirror:
    """The mirror, with the commit in it; else SourceError."""
    mirror = Mirror(wanted.mirror)
    if not mirror.has(wanted.commit, wanted.tag):
        raise _missing(wanted)
    return mirror


def _ensure(wanted: _Wanted, access: _Access) -> None:
    """Have one commit in its mirror, fetched under the mirror's lock when it is not there."""
    mirror = Mirror(wanted.mirror)
    if mirror.has(wanted.commit, wanted.tag):
        return
    if access.offline:
        raise _missing(wanted, ", and --offline was given")
    folder = wanted.mirror.parent
    lock = folder / ".locks" / wanted.mirror.name
    try:
        with locked(lock, purpose=f"fetching {shown(wanted.url)}", waiting=access.waiting) as held:
            if not mirror.has(wanted.commit, wanted.tag):  # nobody fetched it while we waited
                _fetch(mirror, wanted, access, held)
    finally:
        remove_empty(folder / ".locks", folder, folder.parent)


def _fetch(mirror: Mirror, wanted: _Wanted, access: _Access, held: int) -> None:
    """Fetch into the mirror, a new one if need be; what fails leaves an older mirror as it was."""
    fresh = not wanted.mirror.exists()
    remote = Remote(
        url=wanted.url,
        local=wanted.local,
        mirror=wanted.mirror,
        keep=(held,),
        log=access.log,
        progress=access.progress,
        pause=access.pause,
    )
    try:
        mirror.make()
        if wanted.tag:
            _verify_tag(remote, wanted)
        _download(mirror, remote, wanted)
    except BaseException:
        if fresh:
            remove_tree(wanted.mirror)
        raise


def _verify_tag(remote: Remote, wanted: _Wanted) -> None:
    """The server's tag, peeled, must be the pinned commit."""
    ref = f"refs/tags/{wanted.tag}"
    try:
        lines = remote.ask("ls-remote", what=[ref, f"{ref}^{{}}"])
    except UnavailableError as error:
        raise SourceError(f"cannot read the tags of {shown(wanted.url)}: {error}") from error
    found = {name: digest for digest, _, name in (line.partition("\t") for line in lines)}
    commit = found.get(f"{ref}^{{}}") or found.get(ref)
    if commit != wanted.commit:
        said = f"leads to {commit}" if commit else "does not exist"
        raise SourceError(
            f"the tag {wanted.tag} of {shown(wanted.url)} {said}, but the pin says {wanted.commit}",
            hint="check the pin against the project's release page: a tag should never move",
        )


def _download(mirror: Mirror, remote: Remote, wanted: _Wanted) -> None:
    """Shallow where the server allows it, else with all history."""
    options = ["--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules"]
    options.append("--quiet" if remote.progress is None else "--progress")
    what = f"refs/tags/{wanted.tag}" if wanted.tag else wanted.commit
    unknown = SourceError(f"there is no {wanted}", hint="check the pin against the project's repository")
    try:
        remote.ask("fetch", *options, "--depth=1", what=[f"+{what}:{mark(wanted.commit, wanted.tag)}"])
    except UnavailableError as refused:
        if "not our ref" in str(refused):
            raise unknown from refused
        try:
            remote.ask("fetch", *options, what=EVERYTHING)
        except UnavailableError as error:
            hint = f"if it goes on: rm -r {wanted.mirror}   # then everything is fetched anew"
            raise SourceError(f"cannot fetch {wanted}: {error}", hint=hint) from error
        if not mirror.keep(wanted.commit, wanted.tag):
            raise unknown from refused
    if not mirror.has(wanted.commit, wanted.tag):
        mirror.forget(wanted.commit, wanted.tag)
        raise unknown


def _read_submodules(wanted: _Wanted) -> tuple[Submodule, ...]:
    with _opened(wanted) as mirror:
        try:
            return _submodules(mirror, wanted, mirror.entries(wanted.commit))
        except DamagedError as error:
            raise _damaged(wanted, error) from error


def _submodules(mirror: Mirror, wanted: _Wanted, entries: list[Entry]) -> tuple[Submodule, ...]:
    """The repositories that a commit's tree names, at the commits that it records."""
    links = {entry.path: entry.name for entry in entries if entry.mode == REPOSITORY}
    named = next((entry for entry in entries if entry.path == ".gitmodules"), None)
    readable = named is not None and named.mode in (REGULAR, EXECUTABLE)
    try:
        return giturl.submodules(wanted.url, mirror.config(named.name) if named and readable else {}, links)
    except BadAddressError as error:
        raise SourceError(f"cannot use {wanted}: {error}", hint="check what the pin names") from error


def _write(tree: Tree, wanted: _Wanted, prefix: str, seconds: int, *, submodules: bool) -> None:
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
