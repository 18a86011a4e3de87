"""Find a project's files on the indexes that pip is configured for, without running their code."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spark_build.errors import HostError, SourceError
from spark_build.files import sha256_of
from spark_build.process import capture
from spark_build.sources import http, pages, pipconfig
from spark_build.sources.pages import IndexFile
from spark_build.sources.pipconfig import PipConfig
from spark_build.venv import clean_environment

__all__ = ["Answer", "IndexFile", "Indexes", "configured", "files_of", "find", "search", "size_of"]

IDENTITY = {"Accept-Encoding": "identity"}  # the file's own bytes and size, not those of a transfer


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexes:
    """Where to look: `links` (folders, pages, files) first, then `urls`; paths or URLs."""

    urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    config: PipConfig = field(default_factory=PipConfig)

    def local(self) -> Indexes:
        """Only what needs no network."""
        return replace(
            self,
            urls=tuple(url for url in self.urls if not http.is_remote(url)),
            links=tuple(link for link in self.links if not http.is_remote(link)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one place said; `failure` is empty when it could be asked."""

    where: str
    files: tuple[IndexFile, ...] = ()
    failure: str = ""


def configured() -> Indexes:
    """The indexes that pip would use here. Raises HostError when pip cannot tell."""
    listing = _pip("list")
    decided = {key: _pip("get", key).removesuffix("\n") for key in pipconfig.repeated(listing)}
    config = pipconfig.parse(listing, decided)
    urls: tuple[str, ...] = ()
    if not config.no_index:
        urls = (config.index_url or _default_index(), *config.extra_index_urls)
    return Indexes(urls=urls, links=config.find_links, config=config)


def files_of(project: str, indexes: Indexes) -> tuple[IndexFile, ...]:
    """All files of a project, every place in order. Raises SourceError when there are none."""
    answers = list(_answers(project, indexes))
    files = tuple(file for answer in answers for file in answer.files)
    if not files:
        raise _nowhere(project, "", answers)
    return files


def find(project: str, filename: str, indexes: Indexes, *, sha256: str = "") -> IndexFile:
    """The file of that name; with `sha256`, the one that has it.

    Raises SourceError when nobody has it, or all announce another hash.
    """
    file, answers = search(project, filename, indexes, sha256=sha256)
    if file is None:
        raise _nowhere(project, filename, answers)
    return file


def search(
    project: str, filename: str, indexes: Indexes, *, sha256: str = ""
) -> tuple[IndexFile | None, Sequence[Answer]]:
    """As `find`, but None and what was answered when nobody has the file.

    Stops at the first place that announces the hash: a local copy spares the network.
    """
    answers: list[Answer] = []
    unknown: IndexFile | None = None
    other: IndexFile | None = None
    for answer in _answers(project, indexes):
        answers.append(answer)
        for file in (file for file in answer.files if file.filename == filename):
            announced = _announced(file) if sha256 else ""
            if announced == sha256:
                return file, answers
            if announced:
                other = other or replace(file, sha256=announced)
            else:
                unknown = unknown or file
    if unknown is None and other is not None:
        raise SourceError(
            f"{filename} on {http.host_of(other.url)} has sha256 {other.sha256}, but the pin says {sha256}",
            hint="check the pin against the project's release page: the index has other content",
        )
    return unknown, answers


def size_of(file: IndexFile, indexes: Indexes) -> int | None:
    """Bytes to download; None when it cannot be found out."""
    if file.size is not None:
        return file.size
    if not http.is_remote(file.url):
        path = Path(http.path_of(file.url))
        return path.stat().st_size if path.is_file() else None
    try:
        with http.Session(indexes.config) as session:
            answer = session.ask("HEAD", file.url, headers=IDENTITY)
    except http.NETWORK_ERRORS:
        return None
    length = answer.headers.get("Content-Length", "")
    return int(length) if answer.ok and length.isdecimal() else None


def unreachable_hint(filename: str) -> str:
    """What helps when the network does not."""
    return (
        f"check the network and `{sys.executable} -m pip config list`, or put {filename} into a folder"
        " and set PIP_FIND_LINKS to it"
    )


def _pip(*arguments: str) -> str:
    # The user's PIP_QUIET would silence the listing, PIP_ISOLATED hide the variables from it, and
    # PIP_PYTHON ask another environment's pip. -P: a pip.py in the working directory is not pip.
    environment = clean_environment({"PIP_QUIET": "0", "PIP_VERBOSE": "0", "PIP_ISOLATED": "0"})
    environment.pop("PIP_PYTHON", None)
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "config", *arguments]
    output = capture(command, env=environment)
    if output is None:
        raise HostError(
            "pip cannot read its own configuration", hint=f"{sys.executable} -m pip config {arguments[0]}"
        )
    return output


def _default_index() -> str:
    """The index that pip uses when nobody configured one; only pip knows it."""
    try:
        return str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)
    except (ImportError, AttributeError):
        raise HostError(
            "cannot find out which index pip uses by default",
            hint=f"{sys.executable} -m pip config set global.index-url URL",
        ) from None


def _answers(project: str, indexes: Indexes) -> Iterator[Answer]:
    """Ask one place after the other, each only when the caller goes on."""
    places = [*((link, True) for link in indexes.links), *((url, False) for url in indexes.urls)]
    with http.Session(indexes.config) as session:
        for place, flat in places:
            where = http.host_of(place)
            try:
                if http.is_remote(place):
                    files = pages.remote(project, place, session, flat=flat)
                else:
                    files = pages.local(project, place, flat=flat)
                yield Answer(where=where, files=tuple(files))
            except pages.UnavailableError as error:
                yield Answer(where=where, failure=str(error))


def _announced(file: IndexFile) -> str:
    if http.is_remote(file.url) or file.sha256:
        return file.sha256
    path = Path(http.path_of(file.url))
    return sha256_of(path) if path.is_file() else ""


def _nowhere(project: str, filename: str, answers: Sequence[Answer]) -> SourceError:
    """The one-line error for a search without result: who was asked, who could not be."""
    wanted = filename or f"files of {project}"
    failures = [f"{answer.where}: {answer.failure}" for answer in answers if answer.failure]
    asked = [answer.where for answer in answers if not answer.failure]
    if not answers:
        return SourceError(
            f"nowhere to look for {wanted}: pip is configured with no index and no find-links",
            hint="put it into a folder and set PIP_FIND_LINKS to it, or unset no-index (PIP_NO_INDEX)",
        )
    if failures and not asked:
        return SourceError(
            f"cannot reach any index to look for {wanted} ({'; '.join(failures)})",
            hint=unreachable_hint(filename or project),
        )
    others = sorted({file.filename for answer in answers for file in answer.files})
    if failures:
        message = f"{wanted} is not on {', '.join(asked)}; could not ask {'; '.join(failures)}"
        return SourceError(message, hint=unreachable_hint(filename or project))
    if others:
        shown = difflib.get_close_matches(filename, others, n=3, cutoff=0.0)
        hint = f"{len(others)} other files of {project} are there, such as {', '.join(shown)}"
    else:
        hint = f"check the spelling of {project!r}, or set PIP_EXTRA_INDEX_URL to an index that has it"
    return SourceError(f"{wanted} is not on {', '.join(asked)}", hint=hint)
