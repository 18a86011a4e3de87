"""Where a file that a recipe pins may be had: what it must be, and the addresses in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_build.errors import SourceError
from spark_build.files import sha256_of
from spark_build.recipes.model import Source
from spark_build.sources import http
from spark_build.sources.simple_api import Indexes, find, search


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """What is wanted, where it lands, and the unfinished download that belongs to it."""

    filename: str
    sha256: str
    final: Path
    part: Path

    def is_at(self, path: Path) -> bool:
        """Whether the file there has the pinned content."""
        return path.is_file() and sha256_of(path) == self.sha256


def pinned_in(source: Source, folder: Path) -> Pinned:
    """What a source of one file pins, kept below `folder`. Raises SourceError."""
    if source.kind not in _LOCATE:
        raise SourceError(f"{source.kind} sources are not supported yet ({source.url})")
    wanted = source.filename or http.name_in(source.url)
    pin = source.sha256.lower()
    if not re.fullmatch(r"[0-9a-f]{64}", pin):
        raise SourceError(
            f"{wanted or source.url} is not pinned by a sha256", hint="add its sha256 to the train"
        )
    if wanted != Path(wanted).name or wanted in ("", ".", "..") or "\0" in wanted:
        raise SourceError(f"{source.url or wanted!r} names no file", hint="give the source a filename")
    return Pinned(
        filename=wanted,
        sha256=pin,
        final=folder / pin[:2] / pin / wanted,
        part=folder / ".partial" / pin,
    )


def places_of(source: Source, pinned: Pinned, indexes: Indexes, *, offline: bool) -> tuple[str, ...]:
    """The addresses to ask, in order; there is at least one. Raises SourceError."""
    return _LOCATE[source.kind](source, pinned, indexes, offline)


def first_good(
    places: Sequence[str],
    attempt: Callable[[str], None],
    *,
    what: str,
    show: Callable[[str], str],
    tell: Callable[[str], None] | None,
) -> None:
    """Try one place after the other until one gives what is pinned; `tell` hears why the next is asked."""
    failures: list[SourceError] = []
    for place in places:
        if failures and tell is not None:
            tell(f"{failures[-1].message}; asking {show(place)}")
        try:
            attempt(place)
        except SourceError as error:
            failures.append(error)
        else:
            return
    if len(failures) == 1:
        raise failures[0]
    said = "; ".join(error.message for error in failures)
    raise SourceError(f"none of {len(places)} places gives {what}: {said}", hint=failures[0].hint)


def _on_index(source: Source, pinned: Pinned, indexes: Indexes, offline: bool) -> tuple[str, ...]:
    if not offline:
        return (find(source.project, pinned.filename, indexes, sha256=pinned.sha256).url,)
    file, _ = search(source.project, pinned.filename, indexes, sha256=pinned.sha256)
    if file is None or http.is_remote(file.url):
        raise _not_here(pinned, "--offline was given")
    return (file.url,)


def _archive(source: Source, pinned: Pinned, indexes: Indexes, offline: bool) -> tuple[str, ...]:
    places: tuple[str, ...] = (source.url, *source.mirrors)
    # A file brought along for a machine without network counts here as it does for an sdist.
    for link in indexes.local().links if http.is_remote(source.url) else ():
        path = Path(http.path_of(link)).expanduser() / pinned.filename
        if pinned.is_at(path):
            return (path.absolute().as_uri(),)
    if offline or indexes.config.no_index:
        places = tuple(place for place in places if not http.is_remote(place))
    if not places:
        raise _not_here(pinned, "--offline was given" if offline else "pip is configured with no-index")
    for place in places:
        if http.is_remote(place) and not place.startswith(("https://", "http://")):
            raise SourceError(f"{pinned.filename}: cannot download from {place.partition(':')[0]}: URLs")
    return places


_LOCATE: dict[str, Callable[[Source, Pinned, Indexes, bool], tuple[str, ...]]] = {
    "sdist": _on_index,
    "wheel": _on_index,
    "archive": _archive,
}


def _not_here(pinned: Pinned, why: str) -> SourceError:
    return SourceError(
        f"{pinned.filename} is not on this machine, and {why}",
        hint=f"bring it along as {pinned.final}, or in a folder that PIP_FIND_LINKS names",
    )
