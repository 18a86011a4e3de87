"""Git sources: pinned commits, submodules and bare mirrors."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self, TypeVar

from spark_build.errors import HostError, SourceError
from spark_build.files import locked, remove_tree
from spark_build.recipes.model import Source
from spark_build.sources import git_remote
from spark_build.sources.archives import MAX_BYTES, MAX_ENTRIES, Readable, RefusedError, Tree
from spark_build.sources.download import first_good
from spark_build.sources.git_remote import (
    BadAddressError,
    GitUnavailableError,
    Remote,
    Submodule,
    display_url,
    scrubbed,
)

if TYPE_CHECKING:
    from git.cmd import Git

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
    """Fetch the pinned commit and those of its submodules into mirrors below `folder`/git.

    `progress` gets objects done and in total, `waiting` who holds a mirror's lock, `tell` why another
    address is asked. Raises SourceError.
    """
    access = GitAccess(offline=offline, log=log, progress=progress, waiting=waiting, tell=tell, pause=pause)

    def visit(wanted: Wanted) -> bool:
        ensure_commit(wanted, access)
        return True

    _each_commit(source, folder, visit)


def missing(source: Source, *, folder: Path) -> tuple[str, ...]:
    """Return the parts of the pinned commit that are not on this machine; changes nothing."""
    absent: list[str] = []

    def visit(wanted: Wanted) -> bool:
        here = Mirror(wanted.mirror).has(wanted.commit, wanted.tag)
        absent.extend([] if here else [str(wanted)])
        return here

    _each_commit(source, folder, visit)
    return tuple(absent)


def _each_commit(source: Source, folder: Path, visit: Callable[[Wanted], bool]) -> None:
    """Visit the pinned commit, and its submodules where `visit` returns that it is here."""
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
                raise SourceError(f"{display_url(source.url)} has submodules in submodules without end")
            pending += [(wanted.submodule(submodule), nesting + 1) for submodule in inner]


def export_commit(source: Source, *, folder: Path, destination: Path) -> None:
    """Write the pinned commit's tree with its submodules to `destination`, without .git.

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
    """Return the pinned commit's time in seconds since 1970."""
    wanted = _wanted(source, folder)
    with _opened(wanted) as mirror:
        try:
            return mirror.time(wanted.commit)
        except DamagedError as error:
            raise _damaged(wanted, error) from error


def _wanted(source: Source, folder: Path) -> Wanted:
    if not re.fullmatch(r"[0-9a-f]{40}", source.commit):
        raise SourceError(
            f"{display_url(source.url)} is not pinned by a full commit", hint="add it to the train"
        )
    try:
        for url in (source.url, *source.mirrors):
            git_remote.check_address(url)
        git_remote.check_tag(source.tag)
    except BadAddressError as error:
        raise SourceError(
            f"cannot fetch the source: {error}", hint="check the source's url and tag"
        ) from error
    return Wanted(
        url=source.url,
        others=source.mirrors,
        commit=source.commit,
        tag=source.tag,
        mirror=folder.absolute() / "git" / git_remote.mirror_name(source.url),
        local=git_remote.is_local(source.url),
    )


def _damaged(wanted: Wanted, error: DamagedError) -> SourceError:
    return SourceError(
        f"the mirror lacks parts of {wanted}: {error}",
        hint=f"rm -r {wanted.mirror}   # then try again: it is fetched again",
    )


def _opened(wanted: Wanted) -> Mirror:
    """Return the mirror that holds the commit. Raises SourceError without one."""
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


def _submodules(mirror: Mirror, wanted: Wanted, entries: list[TreeEntry]) -> tuple[Submodule, ...]:
    """Return the repositories in a commit's tree, at the commits that it records."""
    links = {entry.path: entry.name for entry in entries if entry.mode == REPOSITORY}
    named = next((entry for entry in entries if entry.path == ".gitmodules"), None)
    readable = named is not None and named.mode in (REGULAR, EXECUTABLE)
    try:
        return git_remote.submodules(
            wanted.url, mirror.config(named.name) if named and readable else {}, links
        )
    except BadAddressError as error:
        raise SourceError(f"cannot use {wanted}: {error}", hint="check what the pin names") from error


def _write(tree: Tree, wanted: Wanted, prefix: str, seconds: int, *, submodules: bool) -> None:
    """Write a commit's tree below `prefix`, then its submodules."""
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
    for submodule in inner:
        _write(tree, wanted.submodule(submodule), f"{prefix}{submodule.path}/", seconds, submodules=True)


def _write_entry(tree: Tree, mirror: Mirror, entry: TreeEntry, prefix: str, seconds: int) -> None:
    try:
        git_remote.check_path(entry.path)
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


EVERYTHING = ("+refs/heads/*:refs/remote/heads/*", "+refs/tags/*:refs/remote/tags/*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A commit of a repository; `tag` must lead to it; `local`: the source is on this machine.

    `url` names the repository, and the folder `mirror` that we keep it in; `others` serve the same.
    """

    url: str
    others: tuple[str, ...]
    commit: str
    tag: str
    mirror: Path
    local: bool

    def __str__(self) -> str:
        tag = f" (tag {self.tag})" if self.tag else ""
        return f"commit {self.commit}{tag} of {display_url(self.url)}"

    def submodule(self, inner: Submodule) -> Wanted:
        """Return a repository inside this one's tree."""
        return Wanted(
            url=inner.url,
            others=tuple(_beside(self.others, inner.relative)),
            commit=inner.commit,
            tag="",
            mirror=self.mirror.with_name(git_remote.mirror_name(inner.url)),
            local=self.local,
        )

    def at(self, url: str) -> Wanted:
        """Return the same commit at one of its addresses."""
        return replace(self, url=url, local=self.local if url == self.url else git_remote.is_local(url))


def _beside(places: Iterable[str], relative: str) -> Iterator[str]:
    """Yield the addresses of a submodule that is given relative to the repository's."""
    for place in places if relative else ():
        with contextlib.suppress(BadAddressError):
            found = git_remote.resolve_url(place, relative)
            git_remote.check_address(found)
            yield found


@dataclass(frozen=True, kw_only=True, slots=True)
class GitAccess:
    """Settings for fetching that all repositories of one source share."""

    offline: bool
    log: BinaryIO | None
    progress: Callable[[int, int], None] | None
    waiting: Callable[[str], None] | None
    tell: Callable[[str], None] | None
    pause: Callable[[float], None]


def missing_error(wanted: Wanted, why: str = "") -> SourceError:
    """Return the error for a commit that is required offline and missing."""
    return SourceError(
        f"{wanted} is not on this machine{why}",
        hint=f"run once with network, or bring {wanted.mirror} along from a machine that has it",
    )


def ensure_commit(wanted: Wanted, access: GitAccess) -> None:
    """Fetch one commit into its mirror, under the mirror's lock, unless it is there."""
    mirror = Mirror(wanted.mirror)
    if mirror.has(wanted.commit, wanted.tag):
        return
    if access.offline:
        raise missing_error(wanted, ", and --offline was given")
    # Other threads fetch into the same folders: those stay, empty or not.
    lock = wanted.mirror.parent / ".locks" / wanted.mirror.name
    with locked(lock, purpose=f"fetching {display_url(wanted.url)}", waiting=access.waiting) as held:
        if not mirror.has(wanted.commit, wanted.tag):  # nobody fetched it while we waited
            _fetch(mirror, wanted, access, held)


def _fetch(mirror: Mirror, wanted: Wanted, access: GitAccess, held: int) -> None:
    """Fetch into the mirror, making it if needed; a failure leaves an existing mirror unchanged."""
    fresh = not wanted.mirror.exists()
    try:
        mirror.make()
        first_good(
            (wanted.url, *wanted.others),
            lambda url: _fetch_from(mirror, wanted.at(url), access, held),
            what=f"commit {wanted.commit}",
            show=display_url,
            tell=access.tell,
        )
    except BaseException:
        if fresh:
            remove_tree(wanted.mirror)
        raise


def _fetch_from(mirror: Mirror, wanted: Wanted, access: GitAccess, held: int) -> None:
    """Fetch from the address that `wanted` names."""
    remote = Remote(
        url=wanted.url,
        local=wanted.local,
        mirror=wanted.mirror,
        pass_fds=(held,),
        log=access.log,
        progress=access.progress,
        pause=access.pause,
    )
    if wanted.tag:
        _verify_tag(remote, wanted)
    _download(mirror, remote, wanted)


def _verify_tag(remote: Remote, wanted: Wanted) -> None:
    """Raise SourceError unless the server's tag, peeled, is the pinned commit."""
    ref = f"refs/tags/{wanted.tag}"
    try:
        lines = remote.ask("ls-remote", what=[ref, f"{ref}^{{}}"])
    except GitUnavailableError as error:
        raise SourceError(f"cannot read the tags of {display_url(wanted.url)}: {error}") from error
    found = {name: digest for digest, _, name in (line.partition("\t") for line in lines)}
    commit = found.get(f"{ref}^{{}}") or found.get(ref)
    if commit != wanted.commit:
        said = f"leads to {commit}" if commit else "does not exist"
        raise SourceError(
            f"the tag {wanted.tag} of {display_url(wanted.url)} {said}, but the pin says {wanted.commit}",
            hint="check the pin against the project's release page: a tag should never move",
        )


def _download(mirror: Mirror, remote: Remote, wanted: Wanted) -> None:
    """Fetch a shallow commit where the server allows it, else the full history."""
    options = ["--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules"]
    options.append("--quiet" if remote.progress is None else "--progress")
    what = f"refs/tags/{wanted.tag}" if wanted.tag else wanted.commit
    unknown = SourceError(f"there is no {wanted}", hint="check the pin against the project's repository")
    try:
        remote.ask("fetch", *options, "--depth=1", what=[f"+{what}:{mark(wanted.commit, wanted.tag)}"])
    except GitUnavailableError as refused:
        if "not our ref" in str(refused):
            raise unknown from refused
        try:
            remote.ask("fetch", *options, what=EVERYTHING)
        except GitUnavailableError as error:
            hint = f"if this happens again: rm -r {wanted.mirror}   # then everything is fetched again"
            raise SourceError(f"cannot fetch {wanted}: {error}", hint=hint) from error
        if not mirror.keep(wanted.commit, wanted.tag):
            raise unknown from refused
    if not mirror.has(wanted.commit, wanted.tag):
        mirror.forget(wanted.commit, wanted.tag)
        raise unknown


T = TypeVar("T")
LINK, REGULAR, EXECUTABLE, REPOSITORY = "120000", "100644", "100755", "160000"  # modes in a tree

# What `git rev-parse --local-env-vars` prints, and what would change the objects that are seen.
_LOCAL = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT",
    "GIT_OBJECT_DIRECTORY", "GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE", "GIT_REPLACE_REF_BASE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_COMMON_DIR",
    "GIT_NAMESPACE", "GIT_DEFAULT_HASH", "GIT_TEMPLATE_DIR", "GIT_QUARANTINE_PATH",
    "GIT_INTERNAL_SUPER_PREFIX",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """One line of a commit's tree."""

    mode: str
    name: str  # sha1
    size: int  # bytes; 0 for a repository
    path: str


class DamagedError(Exception):
    """A mirror that lacks objects; the text is git's message."""


def mark(commit: str, tag: str) -> str:
    """Return the ref that records that this commit is complete and this tag led to it."""
    return f"refs/pinned/{commit}/{hashlib.sha256(tag.encode()).hexdigest()[:16]}"


class Mirror:
    """A bare repository, independent of the user's environment and git configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._git = _git(folder)
        self._content: _GitContent | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._content is not None:
            self._content.close()
        self._git.clear_cache()  # ends the process that objects are read through

    def make(self) -> None:
        """Create the repository; removes stale git locks, which is safe under our own lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/??/tmp_*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        self._git.init("--bare", "--quiet", "--template=", "--object-format=sha1")

    def has(self, commit: str, tag: str) -> bool:
        """Return whether a commit is complete and its tag led to it."""
        if not (self.folder / "HEAD").is_file():
            return False
        from git.exc import GitCommandError

        try:
            found = self._git.rev_parse("--verify", "--quiet", f"{mark(commit, tag)}^{{commit}}")
        except GitCommandError:
            return False
        return bool(found == commit)

    def keep(self, commit: str, tag: str) -> bool:
        """Mark a complete commit; returns False when it is not complete."""
        from git.exc import GitCommandError

        try:
            self._git.update_ref(mark(commit, tag), f"{commit}^{{commit}}")
        except GitCommandError:
            return False
        return True

    def forget(self, commit: str, tag: str) -> None:
        """Remove the mark of a commit."""
        self._git.update_ref("-d", mark(commit, tag))

    def time(self, commit: str) -> int:
        """Return a commit's time in seconds since 1970."""
        return int(_reading(lambda: self._git.log("-1", "--format=%ct", commit, "--")))

    def entries(self, commit: str) -> list[TreeEntry]:
        """Return a commit's whole tree."""
        listed: bytes = _reading(
            lambda: self._git.ls_tree("-r", "-z", "-l", "--full-tree", commit, stdout_as_string=False)
        )
        entries = []
        for line in listed.split(b"\0")[:-1]:
            about, _, path = line.partition(b"\t")
            mode, _, name, size = about.decode().split()
            count = int(size) if size.isdecimal() else 0
            entries.append(TreeEntry(mode=mode, name=name, size=count, path=os.fsdecode(path)))
        return entries

    def config(self, blob: str) -> dict[str, str]:
        """Return a file in git's configuration format (.gitmodules)."""
        listed: bytes = _reading(
            lambda: self._git.config("--blob", blob, "-z", "--list", stdout_as_string=False)
        )
        pairs = (os.fsdecode(pair).partition("\n") for pair in listed.split(b"\0")[:-1])
        return {key: value for key, _, value in pairs}

    def content(self, blob: str) -> Readable:
        """Return a file's raw content, without conversion or filters; valid until the next call."""
        _, _, size, stream = _reading(lambda: self._git.stream_object_data(blob))
        self._content = _GitContent(stream, size)
        return self._content


class _GitContent:
    """A file read from GitPython's git; a short read is reported as damage."""

    def __init__(self, stream: Git.CatFileContentStream, size: int) -> None:
        self._stream: Git.CatFileContentStream | None = stream
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        block = self._stream.read(size) if self._stream is not None else b""
        self._left -= len(block)
        if not block and size and self._left > 0:
            raise DamagedError("an object ends early")
        return block

    def close(self) -> None:
        """Close the stream before its pipe: GitPython drains the stream on close."""
        self._stream = None


def _git(folder: Path) -> Git:
    # GitPython hands the whole environment on, and nothing in this process wants these.
    for name in _LOCAL & os.environ.keys():
        del os.environ[name]
    try:
        from git.cmd import Git
    except ImportError as error:  # GitPython's way to say that there is no git
        raise HostError("git is not installed", hint="sudo apt-get install git") from error
    git = Git(folder)
    settings = {name: value for name, value in scrubbed().items() if name.startswith("GIT_")}
    git.update_environment(**settings, GIT_DIR=str(folder), GIT_NO_REPLACE_OBJECTS="1")
    return git


def _reading(read: Callable[[], T]) -> T:
    from git.exc import GitError

    try:
        return read()
    except (GitError, ValueError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise DamagedError(said[-1].strip() if said else "it is damaged") from error
