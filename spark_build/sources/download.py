"""Download pinned files, resume them, and try mirrors."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_build.errors import GOES_ON, Hint, SourceError
from spark_build.files import CHUNK, locked, sha256_of, sync_folder
from spark_build.paths import path_given
from spark_build.recipes.model import Source
from spark_build.reporting import reporter
from spark_build.sources import http
from spark_build.sources.simple_api import IDENTITY, Indexes, configured, find, search, unreachable_hint

RETRIES = 3
FURTHER = 1 << 20  # bytes that a connection must bring to count as one that did not fail
BACK_OFF = 0.5  # seconds before the first retry, doubled before each further one

_RANGE = re.compile(r"bytes (\d{1,15})-\d+/(?:\d+|\*)")


class _InterruptedError(Exception):
    """A download that broke off and may be resumed; the text gives the reason."""


def fetch_pinned(
    source: Source,
    *,
    folder: Path,
    offline: bool = False,
    indexes: Indexes | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Return the verified file folder/<sha256[:2]>/<sha256>/<filename>; downloads it when it is missing.

    Reports bytes done and in total, and why a mirror is asked. `indexes` default to pip's. Raises
    SourceError; only an interrupted download leaves something to resume.
    """
    pinned = pinned_in(source, folder)
    purpose = f"downloading {pinned.filename}"
    # Other threads fetch into the same folders: those stay, empty or not.
    with locked(folder / ".locks" / pinned.sha256, purpose=purpose):
        if not _kept(pinned):
            known = configured() if indexes is None else indexes
            searched = known.local() if offline else known
            urls = places_of(source, pinned, searched, offline=offline)
            first_good(
                urls,
                lambda url: _complete(url, pinned, known, pause),
                what=pinned.filename,
                show=http.host_of,
            )
    return pinned.final


def is_here(source: Source, *, folder: Path, indexes: Callable[[], Indexes]) -> bool:
    """Return whether `fetch_pinned` needs no network; changes nothing, may read local `indexes`."""
    pinned = pinned_in(source, folder)
    if pinned.is_at(pinned.final):
        return True
    try:
        urls = places_of(source, pinned, indexes().local(), offline=True)
    except SourceError:
        return False
    return any(pinned.is_at(Path(http.path_of(url))) for url in urls)


def _kept(pinned: Pinned) -> bool:
    """Return whether the file is there and undamaged; removes a damaged one."""
    if pinned.is_at(pinned.final):
        return True
    pinned.final.unlink(missing_ok=True)
    return False


def _complete(url: str, pinned: Pinned, indexes: Indexes, pause: Callable[[float], None]) -> None:
    """Fill the .part until it has the pinned content, then move it into place."""
    pinned.part.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    furthest = _size(pinned.part)
    while True:
        try:
            digest, resumed = _attempt(url, pinned, indexes)
        except _InterruptedError as error:
            # A slow line that breaks off often still gets there, as long as it gets further.
            failures = 0 if _size(pinned.part) >= furthest + FURTHER else failures + 1
            furthest = max(furthest, _size(pinned.part))
            if failures > RETRIES:
                raise SourceError(
                    f"cannot download {pinned.filename} from {http.host_of(url)}: {error}",
                    hint=Hint(GOES_ON, f"; else {unreachable_hint(pinned.filename)}"),
                ) from error
            pause(BACK_OFF * 2 ** max(failures - 1, 0))
            continue
        if digest == pinned.sha256:
            break
        pinned.part.unlink()
        # The beginning may have been another file's, or damaged on disk: once more from the start.
        if not resumed:
            raise SourceError(
                f"{pinned.filename} from {http.host_of(url)} has sha256 {digest}, "
                f"but the pin says {pinned.sha256}",
                hint="check the pin against the project's release page; nothing was kept",
            )
    pinned.final.parent.mkdir(parents=True, exist_ok=True)
    pinned.part.replace(pinned.final)
    sync_folder(pinned.final.parent)


def _attempt(url: str, pinned: Pinned, indexes: Indexes) -> tuple[str, bool]:
    """Download once; returns the content's sha256 and whether it resumed an earlier part."""
    if not http.is_remote(url):
        path = Path(http.path_of(url))
        try:
            with path.open("rb") as file:
                chunks = iter(lambda: file.read(CHUNK), b"")
                return _append(chunks, pinned.part, 0, path.stat().st_size), False
        except (FileNotFoundError, IsADirectoryError) as error:
            raise SourceError(f"there is no file {path}", hint="check the source's url") from error
    have = _size(pinned.part)
    if have and sha256_of(pinned.part) == pinned.sha256:
        return pinned.sha256, True
    headers = IDENTITY | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with (
            http.Session(indexes.config, retries=0) as session,
            session.ask("GET", url, headers=headers, stream=True) as answer,
        ):
            start = _start(answer, pinned, have, url)
            length = answer.headers.get("Content-Length", "")
            total = start + int(length) if length.isdecimal() and len(length) < 16 else 0
            # Undecoded: some servers call a .tar.gz gzip-encoded, and its own bytes are pinned.
            chunks = answer.raw.stream(CHUNK, decode_content=False)
            digest = _append(chunks, pinned.part, start, total)
    except http.NETWORK_ERRORS as error:
        raise _InterruptedError(http.network_reason(error)) from error
    if total and _size(pinned.part) < total:
        raise _InterruptedError("the connection broke off")
    return digest, start > 0


def _start(answer: http.Response, pinned: Pinned, have: int, url: str) -> int:
    """Return the offset in the file where the answer's bytes belong."""
    status = answer.status_code
    if status == 206:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if match and int(match[1]) == have:
            return have
    if status == 200:
        return 0
    if status in (206, 416):
        pinned.part.unlink(missing_ok=True)
        raise _InterruptedError("the server cannot go on where it stopped")
    if status in http.BUSY:
        raise _InterruptedError(f"HTTP {status} {answer.reason}".strip())
    raise SourceError(
        f"cannot download {pinned.filename} from {http.host_of(url)}: HTTP {status} {answer.reason}".strip(),
        hint="check the source's url" if status in (404, 410) else unreachable_hint(pinned.filename),
    )


def _append(chunks: Iterable[bytes], part: Path, start: int, total: int) -> str:
    """Write from `start` on and return the sha256 of the file; a broken download keeps what arrived."""
    digest = hashlib.sha256()
    with part.open("r+b" if start else "wb") as out:
        for kept in _beginning(out.fileno(), start):
            digest.update(kept)
        out.seek(start)
        out.truncate()
        done = start
        for chunk in chunks:
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            reporter().progress(done, total)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _beginning(descriptor: int, size: int) -> Iterator[bytes]:
    offset = 0
    while offset < size:
        block = os.pread(descriptor, min(CHUNK, size - offset), offset)
        if not block:
            return
        yield block
        offset += len(block)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """A pinned file: its content, its destination and its partial download."""

    filename: str
    sha256: str
    final: Path
    part: Path

    def is_at(self, path: Path) -> bool:
        """Return whether the file there has the pinned content."""
        return path.is_file() and sha256_of(path) == self.sha256


def pinned_in(source: Source, folder: Path) -> Pinned:
    """Return what a source of one file pins, below `folder`. Raises SourceError."""
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
    """Return the addresses to ask, in order, at least one. Raises SourceError."""
    return _LOCATE[source.kind](source, pinned, indexes, offline)


def first_good(
    places: Sequence[str],
    attempt: Callable[[str], None],
    *,
    what: str,
    show: Callable[[str], str],
) -> None:
    """Try the places in order until one has the pinned content; reports the reason for each next try."""
    failures: list[SourceError] = []
    for place in places:
        if failures:
            reporter().message(f"{failures[-1].message}; asking {show(place)}")
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
        path = path_given(http.path_of(link), "pip's settings") / pinned.filename
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
