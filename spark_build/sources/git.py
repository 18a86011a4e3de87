"""Git sources: pinned commits, submodules and bare mirrors."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from spark_build.errors import AGAIN, Hint, HostError, SourceError, rm
from spark_build.files import locked, remove_tree, write_atomically
from spark_build.process import capture, run
from spark_build.recipes.model import Source
from spark_build.sources import git_remote
from spark_build.sources.archives import RefusedError, Tree, filled, untar
from spark_build.sources.download import first_good
from spark_build.sources.git_remote import (
    BadAddressError,
    GitAccess,
    GitRemote,
    GitUnavailableError,
    Submodule,
    display_url,
    scrubbed,
)

MAX_NESTING = 32  # repositories in repositories
LONGEST = 600  # seconds for reading a mirror's listings
REGULAR, EXECUTABLE, REPOSITORY = "100644", "100755", "160000"  # modes in a tree
EVERYTHING = ("+refs/heads/*:refs/remote/heads/*", "+refs/tags/*:refs/remote/tags/*")
# `git archive` heeds the .gitattributes of the tree; those of the mirror overrule them.
ATTRIBUTES = "* -export-ignore -export-subst -text -eol -filter -ident -working-tree-encoding\n"


def fetch_commit(
    source: Source,
    *,
    folder: Path,
    offline: bool,
    log: BinaryIO | None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch the pinned commit and those of its submodules into mirrors below `folder`/git.

    Reports objects done and in total, and why another address is asked. Raises SourceError.
    """
    access = GitAccess(offline=offline, log=log, pause=pause)

    def visit(wanted: Wanted) -> bool:
        ensure_commit(wanted, access)
        return True

    _each_commit(source, folder, visit)


def missing(source: Source, *, folder: Path) -> tuple[str, ...]:
    """Return the parts of the pinned commit that are not on this machine; changes nothing."""
    absent: list[str] = []

    def visit(wanted: Wanted) -> bool:
        here = wanted.is_here()
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
            inner = _submodules(wanted, wanted.entries())
            if inner and nesting == MAX_NESTING:
                raise SourceError(f"{display_url(source.url)} has submodules in submodules without end")
            pending += [(wanted.submodule(submodule), nesting + 1) for submodule in inner]


def export_commit(source: Source, *, folder: Path, destination: Path) -> None:
    """Write the pinned commit's tree with its submodules to `destination`, without .git.

    Contents are the commit's own (no conversion, no filter), times the commit's. What was fetched is
    enough: no network. Raises SourceError, HostError when `destination` is in use.
    """
    wanted = _wanted(source, folder)
    seconds = commit_time(source, folder)
    with filled(destination, f"use {wanted}", hint="check what the pin names") as tree:
        _write(tree, wanted, "", seconds, submodules=source.submodules)


def commit_time(source: Source, folder: Path) -> int:
    """Return the pinned commit's time in seconds since 1970."""
    wanted = _wanted(source, folder)
    return int(wanted.read("log", "-1", "--format=%ct", wanted.commit, "--"))


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


def _submodules(wanted: Wanted, entries: list[TreeEntry]) -> tuple[Submodule, ...]:
    """Return the repositories in a commit's tree, at the commits that it records."""
    links = {entry.path: entry.name for entry in entries if entry.mode == REPOSITORY}
    config: dict[str, str] = {}
    try:
        for entry in entries:
            if entry.path == ".gitmodules" and entry.mode in (REGULAR, EXECUTABLE):
                said = wanted.git("config", "--blob", entry.name, "-z", "--list")
                if said is None:
                    wanted.read("cat-file", "blob", entry.name)  # raises where the mirror is damaged
                    raise BadAddressError("git cannot read its .gitmodules")
                pairs = (pair.partition("\n") for pair in said.split("\0")[:-1])
                config = {key: value for key, _, value in pairs}
        if any("\ufffd" in path for path in links):
            raise BadAddressError("a submodule's path is no UTF-8")
        return git_remote.submodules(wanted.url, config, links)
    except BadAddressError as error:
        raise SourceError(f"cannot use {wanted}: {error}", hint="check what the pin names") from error


def _write(tree: Tree, wanted: Wanted, prefix: str, seconds: int, *, submodules: bool) -> None:
    """Write a commit's tree below `prefix`, then its submodules."""
    entries = wanted.entries()
    try:
        for entry in entries:
            git_remote.check_path(entry.path)
    except BadAddressError as error:
        raise RefusedError(str(error)) from error
    if sum(entry.size for entry in entries) > tree.left or len(entries) > tree.entries_left:
        raise RefusedError("it is too large")
    inner = _submodules(wanted, entries) if submodules else ()
    with tempfile.NamedTemporaryFile(prefix=f"{tree.root.name}.", dir=tree.root.parent) as archive:
        wanted.archive(prefix, Path(archive.name))
        untar(cast("BinaryIO", archive), tree, seconds)
    for submodule in inner:
        _write(tree, wanted.submodule(submodule), f"{prefix}{submodule.path}/", seconds, submodules=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """One line of a commit's tree; bytes of a name that are no UTF-8 are replaced."""

    mode: str
    name: str  # sha1
    size: int  # bytes; 0 for a repository
    path: str


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

    @property
    def mark(self) -> str:
        """Ref of the mirror that records that this commit is complete and this tag led to it."""
        return f"refs/pinned/{self.commit}/{hashlib.sha256(self.tag.encode()).hexdigest()[:16]}"

    def git(self, *arguments: str) -> str | None:
        """Return what git prints about the mirror, whatever the user's settings; None when it fails."""
        return capture(self._command(*arguments), env=scrubbed(), timeout=LONGEST)

    def _command(self, *arguments: str) -> list[str]:
        return ["git", f"--git-dir={self.mirror}", *arguments]

    def is_here(self) -> bool:
        """Return whether the commit is complete and its tag led to it. Raises HostError without git."""
        if not self.mirror.is_dir():
            return False
        asked = self._command("rev-parse", "--verify", "--quiet", f"{self.mark}^{{commit}}")
        found = capture(asked, env=scrubbed(), timeout=LONGEST, check=False)
        if found is None:
            raise HostError(f"cannot run git on {self.mirror}, or it hangs", hint="see: git --version; df")
        return found == f"{self.commit}\n"

    def read(self, *arguments: str) -> str:
        """Return what git prints about the commit. Raises SourceError when it is missing or damaged."""
        if not self.is_here():
            raise missing_error(self)
        found = self.git(*arguments)
        if found is None:
            raise self._damaged("git cannot read it")
        return found

    def entries(self) -> list[TreeEntry]:
        """Return the commit's whole tree."""
        entries = []
        for line in self.read("ls-tree", "-r", "-z", "-l", "--full-tree", self.commit).split("\0")[:-1]:
            about, _, path = line.partition("\t")
            mode, _, name, size = about.split()
            entries.append(TreeEntry(mode=mode, name=name, size=int(size) if size != "-" else 0, path=path))
        return entries

    def archive(self, prefix: str, file: Path) -> None:
        """Write the commit's tree as a tar, without conversion or filters, submodules as empty folders."""
        attributes = self.mirror / "info" / "attributes"
        # Others may export from this mirror meanwhile: what they read must always be whole.
        if not attributes.is_file() or attributes.read_text() != ATTRIBUTES:
            write_atomically(attributes, ATTRIBUTES)
        what = [f"--prefix={prefix}", f"--output={file}", f"{self.commit}^{{tree}}"]
        done = run(self._command("archive", "--format=tar", *what), env=scrubbed())
        if "No space left on device" in done.output:
            raise HostError(f"the disk is full ({file.parent})", hint=Hint("free some space, then ", AGAIN))
        if done.returncode != 0:
            said = done.output.rpartition("\n")[2]
            raise self._damaged(said or f"git archive ended with status {done.returncode}")

    def make(self) -> None:
        """Create the mirror; removes stale git locks, which is safe under our own lock."""
        self.mirror.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/??/tmp_*"):
            for path in self.mirror.glob(pattern):
                path.unlink(missing_ok=True)
        init = self._command("init", "--bare", "--quiet", "--template=", "--object-format=sha1")
        done = run(init, env=scrubbed())
        if done.returncode != 0:
            raise HostError(f"cannot create {self.mirror}: {done.output}", hint="see: git --version; df")

    def _damaged(self, said: str) -> SourceError:
        return SourceError(
            f"the mirror lacks parts of {self}: {said}",
            hint=Hint(rm(self.mirror), AGAIN, ": it is fetched again"),
        )


def _beside(places: Iterable[str], relative: str) -> Iterator[str]:
    """Yield the addresses of a submodule that is given relative to the repository's."""
    for place in places if relative else ():
        with contextlib.suppress(BadAddressError):
            found = git_remote.resolve_url(place, relative)
            git_remote.check_address(found)
            yield found


def missing_error(wanted: Wanted, why: str = "") -> SourceError:
    """Return the error for a commit that is required offline and missing."""
    return SourceError(
        f"{wanted} is not on this machine{why}",
        hint=f"run once with network, or bring {wanted.mirror} along from a machine that has it",
    )


def ensure_commit(wanted: Wanted, access: GitAccess) -> None:
    """Fetch one commit into its mirror, under the mirror's lock, unless it is there."""
    if wanted.is_here():
        return
    if access.offline:
        raise missing_error(wanted, ", and --offline was given")
    # Other threads fetch into the same folders: those stay, empty or not.
    lock = wanted.mirror.parent / ".locks" / wanted.mirror.name
    with locked(lock, purpose=f"fetching {display_url(wanted.url)}") as held:
        if not wanted.is_here():  # nobody fetched it while we waited
            _fetch(wanted, access, held)


def _fetch(wanted: Wanted, access: GitAccess, held: int) -> None:
    """Fetch into the mirror, making it if needed; a failure leaves an existing mirror unchanged."""
    fresh = not wanted.mirror.exists()
    try:
        wanted.make()
        first_good(
            (wanted.url, *wanted.others),
            lambda url: _fetch_from(wanted.at(url), access, held),
            what=f"commit {wanted.commit}",
            show=display_url,
        )
    except BaseException:
        if fresh:
            remove_tree(wanted.mirror)
        raise


def _fetch_from(wanted: Wanted, access: GitAccess, held: int) -> None:
    """Fetch from the address that `wanted` names."""
    remote = GitRemote(
        url=wanted.url, local=wanted.local, mirror=wanted.mirror, access=access, pass_fds=(held,)
    )
    if wanted.tag:
        _verify_tag(remote, wanted)
    _download(remote, wanted)


def _verify_tag(remote: GitRemote, wanted: Wanted) -> None:
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


def _download(remote: GitRemote, wanted: Wanted) -> None:
    """Fetch a shallow commit where the server allows it, else the full history."""
    options = ["--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules"]
    options.append("--progress")
    what = f"refs/tags/{wanted.tag}" if wanted.tag else wanted.commit
    unknown = SourceError(f"there is no {wanted}", hint="check the pin against the project's repository")
    try:
        remote.ask("fetch", *options, "--depth=1", what=[f"+{what}:{wanted.mark}"])
    except GitUnavailableError as refused:
        if "not our ref" in str(refused):
            raise unknown from refused
        try:
            remote.ask("fetch", *options, what=EVERYTHING)
        except GitUnavailableError as error:
            hint = f"if this happens again: rm -r {wanted.mirror}   # then everything is fetched again"
            raise SourceError(f"cannot fetch {wanted}: {error}", hint=hint) from error
        if wanted.git("update-ref", wanted.mark, f"{wanted.commit}^{{commit}}") is None:
            raise unknown from refused
    if not wanted.is_here():
        wanted.git("update-ref", "-d", wanted.mark)
        raise unknown
