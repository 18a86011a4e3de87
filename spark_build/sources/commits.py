"""One commit of a repository in its bare mirror, fetched from the first address that gives it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from spark_build.errors import SourceError
from spark_build.files import locked, remove_tree
from spark_build.sources import giturl
from spark_build.sources.gitnet import Remote, UnavailableError
from spark_build.sources.giturl import BadAddressError, Submodule, shown
from spark_build.sources.mirror import Mirror, mark
from spark_build.sources.places import first_good

EVERYTHING = ("+refs/heads/*:refs/remote/heads/*", "+refs/tags/*:refs/remote/tags/*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A commit of a repository; `tag` must lead to it. `local`: the source is on this machine.

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
        return f"commit {self.commit}{tag} of {shown(self.url)}"

    def submodule(self, inner: Submodule) -> Wanted:
        """A repository inside this one's tree."""
        return Wanted(
            url=inner.url,
            others=tuple(_beside(self.others, inner.relative)),
            commit=inner.commit,
            tag="",
            mirror=self.mirror.with_name(giturl.mirror_name(inner.url)),
            local=self.local,
        )

    def at(self, url: str) -> Wanted:
        """The same at one of its addresses."""
        return replace(self, url=url, local=self.local if url == self.url else giturl.is_local(url))


def _beside(places: Iterable[str], relative: str) -> Iterator[str]:
    """Where a submodule lies that is named by its place beside the repository."""
    for place in places if relative else ():
        with contextlib.suppress(BadAddressError):
            found = giturl.resolve(place, relative)
            giturl.check_address(found)
            yield found


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How to fetch: what every repository of one source has in common."""

    offline: bool
    log: BinaryIO | None
    progress: Callable[[int, int], None] | None
    waiting: Callable[[str], None] | None
    tell: Callable[[str], None] | None
    pause: Callable[[float], None]


def missing_error(wanted: Wanted, why: str = "") -> SourceError:
    """A commit that has to be here and is not."""
    return SourceError(
        f"{wanted} is not on this machine{why}",
        hint=f"run once with network, or bring {wanted.mirror} along from a machine that has it",
    )


def ensure(wanted: Wanted, access: Access) -> None:
    """Have one commit in its mirror, fetched under the mirror's lock when it is not there."""
    mirror = Mirror(wanted.mirror)
    if mirror.has(wanted.commit, wanted.tag):
        return
    if access.offline:
        raise missing_error(wanted, ", and --offline was given")
    # Other threads fetch into the same folders: those stay, empty or not.
    lock = wanted.mirror.parent / ".locks" / wanted.mirror.name
    with locked(lock, purpose=f"fetching {shown(wanted.url)}", waiting=access.waiting) as held:
        if not mirror.has(wanted.commit, wanted.tag):  # nobody fetched it while we waited
            _fetch(mirror, wanted, access, held)


def _fetch(mirror: Mirror, wanted: Wanted, access: Access, held: int) -> None:
    """Fetch into the mirror, a new one if need be; what fails leaves an older mirror as it was."""
    fresh = not wanted.mirror.exists()
    try:
        mirror.make()
        first_good(
            (wanted.url, *wanted.others),
            lambda url: _fetch_from(mirror, wanted.at(url), access, held),
            what=f"commit {wanted.commit}",
            show=shown,
            tell=access.tell,
        )
    except BaseException:
        if fresh:
            remove_tree(wanted.mirror)
        raise


def _fetch_from(mirror: Mirror, wanted: Wanted, access: Access, held: int) -> None:
    """Fetch from the one address that `wanted` now names."""
    remote = Remote(
        url=wanted.url,
        local=wanted.local,
        mirror=wanted.mirror,
        keep=(held,),
        log=access.log,
        progress=access.progress,
        pause=access.pause,
    )
    if wanted.tag:
        _verify_tag(remote, wanted)
    _download(mirror, remote, wanted)


def _verify_tag(remote: Remote, wanted: Wanted) -> None:
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


def _download(mirror: Mirror, remote: Remote, wanted: Wanted) -> None:
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
