"""Package indexes by the Simple API (HTML or JSON), and torch's own index."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urldefrag, urlsplit

import requests
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from spark_build import venv
from spark_build.errors import HostError, SourceError
from spark_build.events import Emit, Note
from spark_build.files import sha256_of
from spark_build.paths import path_given
from spark_build.process import run
from spark_build.sources import http
from spark_build.sources.http import PipConfig

__all__ = ["Answer", "IndexFile", "Indexes", "configured", "files_of", "find", "search", "size_of"]

IDENTITY = {"Accept-Encoding": "identity"}  # the file's own bytes and size, not those of a transfer


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexes:
    """Places to search: `links` (folders, pages, files) first, then `urls`; paths or URLs."""

    urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    config: PipConfig = field(default_factory=PipConfig)

    def local(self) -> Indexes:
        """Places that need no network."""
        return replace(
            self,
            urls=tuple(url for url in self.urls if not http.is_remote(url)),
            links=tuple(link for link in self.links if not http.is_remote(link)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer of one place; `failure` is "" when it could be asked."""

    where: str
    files: tuple[IndexFile, ...] = ()
    failure: str = ""


def configured() -> Indexes:
    """Return the indexes that pip uses here. Raises HostError when pip does not report them."""
    config = http.pip_config(_pips_settings())
    urls: tuple[str, ...] = ()
    if not config.no_index:
        urls = (config.index_url or _default_index(), *config.extra_index_urls)
    return Indexes(urls=urls, links=config.find_links, config=config)


def files_of(project: str, indexes: Indexes) -> tuple[IndexFile, ...]:
    """Return all files of a project, place by place. Raises SourceError when there are none."""
    answers = list(_answers(project, indexes))
    files = tuple(file for answer in answers for file in answer.files)
    if not files:
        raise _nowhere(project, "", answers)
    return files


def find(project: str, filename: str, indexes: Indexes, *, sha256: str = "") -> IndexFile:
    """Return the file of that name; with `sha256`, the one that has it.

    Raises SourceError when nobody has it, or all announce another hash.
    """
    file, answers = search(project, filename, indexes, sha256=sha256)
    if file is None:
        raise _nowhere(project, filename, answers)
    return file


def search(
    project: str, filename: str, indexes: Indexes, *, sha256: str = ""
) -> tuple[IndexFile | None, Sequence[Answer]]:
    """Search like `find`; returns None and all answers when no place has the file.

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
    """Return the bytes to download; None when unknown."""
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
    return int(length) if answer.ok and length.isdecimal() and len(length) < 16 else None


def unreachable_hint(filename: str) -> str:
    """Return a hint for a network failure."""
    return (
        f"check the network and `{sys.executable} -m pip config list`, or put {filename} into a folder"
        " and set PIP_FIND_LINKS to it"
    )


def _pips_settings() -> dict[str, str]:
    """Return pip's settings by key ("global.index-url", ":env:.proxy"), each from the file that counts."""
    pips = importlib.import_module("pip._internal.configuration")
    settings = pips.Configuration(isolated=False)
    try:
        settings.load()
    except pips.ConfigurationFileCouldNotBeLoaded as error:
        raise HostError(
            f"pip cannot read its own configuration: {error}", hint=f"{sys.executable} -m pip config list"
        ) from error
    found = {}
    for section, option in product(http.SECTIONS, http.OPTIONS):
        with suppress(pips.ConfigurationError):  # it is not set
            found[f"{section}.{option}"] = str(settings.get_value(f"{section}.{option}"))
    return found


def _default_index() -> str:
    """Return pip's default index, which only pip knows."""
    try:
        return str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)
    except (ImportError, AttributeError):
        raise HostError(
            "cannot find out which index pip uses by default",
            hint=f"{sys.executable} -m pip config set global.index-url URL",
        ) from None


def _answers(project: str, indexes: Indexes) -> Iterator[Answer]:
    """Yield the answer of each place; a place is asked only when the caller continues."""
    places = [*((link, True) for link in indexes.links), *((url, False) for url in indexes.urls)]
    with http.Session(indexes.config) as session:
        for place, flat in places:
            where = http.host_of(place)
            try:
                if http.is_remote(place):
                    files = remote(project, place, session, flat=flat)
                else:
                    files = local(project, place, flat=flat)
                yield Answer(where=where, files=tuple(files))
            except IndexUnavailableError as error:
                yield Answer(where=where, failure=str(error))


def _announced(file: IndexFile) -> str:
    if http.is_remote(file.url) or file.sha256:
        return file.sha256
    path = Path(http.path_of(file.url))
    return sha256_of(path) if path.is_file() else ""


def _nowhere(project: str, filename: str, answers: Sequence[Answer]) -> SourceError:
    """Return the one-line error for a search without result: places asked, places unreachable."""
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


ENDINGS = (".whl", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".tar.zst", ".tar", ".zip")
JSON = "application/vnd.pypi.simple.v1+json"
HTML = ("application/vnd.pypi.simple.v1+html", "text/html", "application/xhtml+xml")

MAX_PAGE = 64 << 20  # bytes, unpacked; the largest of PyPI have 20 MiB
MAX_SIZE = 1 << 50  # bytes of a file, as an index says
_SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-f]{64})(?:&|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """A file on an index; `sha256` as announced, "" when unknown; size in bytes."""

    project: str
    filename: str
    url: str  # may hold credentials: show web.host_of(url)
    sha256: str = ""
    size: int | None = None


class IndexUnavailableError(Exception):
    """A place that could not be asked; the text gives a short reason."""


def remote(project: str, place: str, session: http.Session, *, flat: bool) -> Sequence[IndexFile]:
    """Return a project's files on an index, or (`flat`) on a page of links or behind one link.

    None there is an empty answer; raises UnavailableError when it cannot be asked.
    """
    from pypi_simple import ACCEPT_JSON_PREFERRED, UnsupportedRepoVersionError  # half of a plan's start

    if flat and http.name_in(place).endswith(ENDINGS):
        return _linked(project, [place])
    url = place if flat else f"{place.rstrip('/')}/{canonicalize_name(project)}/"
    try:
        with session.ask("GET", url, headers={"Accept": ACCEPT_JSON_PREFERRED}, stream=True) as answer:
            if answer.status_code in (404, 410):
                return ()
            if not answer.ok:
                raise IndexUnavailableError(f"HTTP {answer.status_code} {answer.reason}".strip())
            content = _content(answer)
    except http.NETWORK_ERRORS as error:
        raise IndexUnavailableError(http.network_reason(error)) from error
    try:
        read = _from_json if _kind(answer) == JSON else _from_html
        found = read(project, answer, content)
    except (UnsupportedRepoVersionError, ValueError, RecursionError) as error:
        raise IndexUnavailableError("its answer is no index page") from error
    # A page from the network has no business with this machine's files.
    return [replace(file, url=_with_login(file.url, url)) for file in found if http.is_remote(file.url)]


def local(project: str, place: str, *, flat: bool) -> Sequence[IndexFile]:
    """Return a project's files in a folder, page or file, given as path or file: URL."""
    path = path_given(http.path_of(place), "pip's settings")
    if not path.exists():
        raise IndexUnavailableError("there is no such folder")
    if not flat:
        path = path / canonicalize_name(project) / "index.html"
        return _page(project, path) if path.is_file() else ()
    try:
        paths = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
    except OSError as error:
        raise IndexUnavailableError(str(error.strerror)) from error
    found: list[IndexFile] = []
    for entry in paths:
        if entry.suffix in (".html", ".htm"):
            found += _page(project, entry)
        else:
            found += _linked(project, [entry.absolute().as_uri()])
    return found


def _page(project: str, path: Path) -> Sequence[IndexFile]:
    from pypi_simple import UnsupportedRepoVersionError

    try:
        return _on_page(project, path.read_bytes(), path.absolute().as_uri())
    except (UnsupportedRepoVersionError, ValueError, OSError) as error:
        raise IndexUnavailableError(f"{path} cannot be read") from error


def _on_page(project: str, content: bytes, url: str) -> Sequence[IndexFile]:
    from pypi_simple import RepositoryPage

    return _linked(project, [link.url for link in RepositoryPage.from_html(content, url).links])


def _kind(answer: requests.Response) -> str:
    return answer.headers.get("Content-Type", "text/html").partition(";")[0].strip().lower()


def _content(answer: requests.Response) -> bytes:
    """Return an unpacked page; IndexUnavailableError for one without end."""
    content = bytearray()
    for chunk in answer.iter_content(1 << 16):
        content += chunk
        if len(content) > MAX_PAGE:
            raise IndexUnavailableError(f"its answer has more than {MAX_PAGE >> 20} MiB")
    return bytes(content)


def _from_html(project: str, answer: requests.Response, content: bytes) -> Sequence[IndexFile]:
    if _kind(answer) not in HTML:
        raise ValueError(_kind(answer))
    return _on_page(project, content, answer.url)


def _from_json(project: str, answer: requests.Response, content: bytes) -> Sequence[IndexFile]:
    from pypi_simple import ProjectPage

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a newer minor version: compatible by definition
        page = ProjectPage.from_json_data(json.loads(content), answer.url)
    return [
        IndexFile(
            project=project,
            filename=package.filename,
            url=package.url,
            sha256=package.digests.get("sha256", "").lower(),
            size=package.size if package.size is None or 0 <= package.size < MAX_SIZE else None,
        )
        for package in page.packages
        if _belongs(package.filename, project)
    ]


def _linked(project: str, links: Sequence[str]) -> Sequence[IndexFile]:
    """Return the files behind links; as in pip, the URL names the file, not the link's text."""
    found = []
    for link in links:
        url, fragment = urldefrag(link)
        match = _SHA256.search(fragment.lower())
        if _belongs(http.name_in(url), project):
            announced = match[1] if match else ""
            found.append(IndexFile(project=project, filename=http.name_in(url), url=url, sha256=announced))
    return found


def _belongs(filename: str, project: str) -> bool:
    """Return whether a file name is a distribution of the project: "<name>-<version>...<ending>"."""
    ending = next((ending for ending in ENDINGS if filename.endswith(ending)), None)
    if ending is None or "/" in filename or not filename.isprintable():
        return False
    stem = filename.removesuffix(ending)
    wanted = canonicalize_name(project)
    for dash in (index for index, character in enumerate(stem) if character == "-"):
        if canonicalize_name(stem[:dash]) == wanted:
            rest = stem[dash + 1 :]
            try:
                Version(rest.partition("-")[0] if ending == ".whl" else rest)
            except InvalidVersion:
                continue
            return True
    return False


def _with_login(url: str, index: str) -> str:
    """Return a URL with the index's credentials when host and port are the same, as pip does."""
    parts, owner = urlsplit(url), urlsplit(index)
    login, _, host = owner.netloc.rpartition("@")
    if login and (parts.scheme, parts.netloc) == (owner.scheme, host):
        return parts._replace(netloc=owner.netloc).geturl()
    return url


def install(folder: Path, wanted: Sequence[str], backend: str, emit: Emit, log: BinaryIO) -> None:
    """Install torch==X (first of `wanted`) and others with uv, which knows the indexes of backends.

    Where that index does not answer, pip's own decides. Raises SourceError.
    """
    indexes = configured()
    if not indexes.config.no_index and (uv := venv.find_uv()):
        index_url = indexes.config.index_url
        options = ["--default-index", index_url] if index_url else []
        where = ["--python", str(venv.python_of(folder)), "--torch-backend", backend]
        emit(Note(message=f"installing {' '.join(wanted)}, public wheels, the {backend} build"))
        quick = {"UV_HTTP_TIMEOUT": os.environ.get("UV_HTTP_TIMEOUT", "10"), "UV_HTTP_RETRIES": "1"}
        command = [uv, "pip", "install", *where, *options, *wanted]
        if run(command, env=venv.clean_environment(quick), log=log).returncode == 0:
            return
        emit(Note(message=f"the index of {backend} builds does not answer; asking the one that pip uses"))
    done = venv.pip(folder, ["install", "--only-binary", ":all:", *wanted], log=log)
    if done.returncode != 0:
        raise SourceError(
            f"cannot install the public wheels {' '.join(wanted)}",
            hint="put the wheels into a folder and set PIP_FIND_LINKS to it",
            log=log.name,
        )


def best_file(files: Sequence[IndexFile], version: str) -> IndexFile | None:
    """Return the wheel that pip takes for ==version: newest (local versions win), then best tags."""
    from packaging.specifiers import SpecifierSet
    from packaging.tags import sys_tags

    wanted = SpecifierSet(f"=={version}", prereleases=True)
    order = {tag: place for place, tag in enumerate(sys_tags())}
    ranked = []
    for file in files:
        try:
            _, found, build, tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        places = [order[tag] for tag in tags if tag in order]
        if places and found in wanted:
            ranked.append(((found, -min(places), build), file))
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None
