"""Read one place that lists files: a Simple API page (HTML or JSON), a folder, a single link."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pypi_simple import ACCEPT_JSON_PREFERRED, ProjectPage, RepositoryPage, UnsupportedRepoVersionError

from spark_build.sources import http

ENDINGS = (".whl", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".tar.zst", ".tar", ".zip")
JSON = "application/vnd.pypi.simple.v1+json"
HTML = ("application/vnd.pypi.simple.v1+html", "text/html", "application/xhtml+xml")

_SHA256 = re.compile(r"(?:^|&)sha256=([0-9a-f]{64})(?:&|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """A file that an index offers. sha256: as announced, "" unknown; size in bytes."""

    project: str
    filename: str
    url: str  # may hold credentials: show web.host_of(url)
    sha256: str = ""
    size: int | None = None


class UnavailableError(Exception):
    """A place could not be asked; the text says why in a few words."""


def remote(project: str, place: str, session: http.Session, *, flat: bool) -> Sequence[IndexFile]:
    """A project's files on an index, or (`flat`) on a page of links or at one link itself.

    None there is an empty answer; raises UnavailableError when it cannot be asked.
    """
    if flat and http.name_in(place).endswith(ENDINGS):
        return _linked(project, [place])
    url = place if flat else f"{place.rstrip('/')}/{canonicalize_name(project)}/"
    try:
        answer = session.ask("GET", url, headers={"Accept": ACCEPT_JSON_PREFERRED})
    except http.NETWORK_ERRORS as error:
        raise UnavailableError(http.reason(error)) from error
    if answer.status_code in (404, 410):
        return ()
    if not answer.ok:
        raise UnavailableError(f"HTTP {answer.status_code} {answer.reason}".strip())
    try:
        found = _from_json(project, answer) if _kind(answer) == JSON else _from_html(project, answer)
    except (UnsupportedRepoVersionError, ValueError) as error:
        raise UnavailableError("its answer is no index page") from error
    # A page from the network has no business with this machine's files.
    return [replace(file, url=_with_login(file.url, url)) for file in found if http.is_remote(file.url)]


def local(project: str, place: str, *, flat: bool) -> Sequence[IndexFile]:
    """The same for a path or file: URL."""
    path = Path(http.path_of(place)).expanduser()
    if not path.exists():
        raise UnavailableError("there is no such folder")
    if not flat:
        path = path / canonicalize_name(project) / "index.html"
        return _page(project, path) if path.is_file() else ()
    try:
        paths = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
    except OSError as error:
        raise UnavailableError(str(error.strerror)) from error
    found: list[IndexFile] = []
    for entry in paths:
        if entry.suffix in (".html", ".htm"):
            found += _page(project, entry)
        else:
            found += _linked(project, [entry.absolute().as_uri()])
    return found


def _page(project: str, path: Path) -> Sequence[IndexFile]:
    try:
        page = RepositoryPage.from_html(path.read_bytes(), path.absolute().as_uri())
    except (UnsupportedRepoVersionError, ValueError, OSError) as error:
        raise UnavailableError(f"{path} cannot be read") from error
    return _linked(project, [link.url for link in page.links])


def _kind(answer: requests.Response) -> str:
    return answer.headers.get("Content-Type", "text/html").partition(";")[0].strip().lower()


def _from_html(project: str, answer: requests.Response) -> Sequence[IndexFile]:
    if _kind(answer) not in HTML:
        raise ValueError(_kind(answer))
    page = RepositoryPage.from_html(answer.content, answer.url)
    return _linked(project, [link.url for link in page.links])


def _from_json(project: str, answer: requests.Response) -> Sequence[IndexFile]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a newer minor version: compatible by definition
        page = ProjectPage.from_response(answer, project)
    return [
        IndexFile(
            project=project,
            filename=package.filename,
            url=package.url,
            sha256=package.digests.get("sha256", "").lower(),
            size=package.size,
        )
        for package in page.packages
        if _belongs(package.filename, project)
    ]


def _linked(project: str, links: Sequence[str]) -> Sequence[IndexFile]:
    """Files behind links; as in pip, the URL names the file and the link's text does not."""
    found = []
    for link in links:
        url, fragment = urldefrag(link)
        match = _SHA256.search(fragment.lower())
        if _belongs(http.name_in(url), project):
            announced = match[1] if match else ""
            found.append(IndexFile(project=project, filename=http.name_in(url), url=url, sha256=announced))
    return found


def _belongs(filename: str, project: str) -> bool:
    """Whether a file name is a distribution of the project: "<name>-<version>...<ending>"."""
    ending = next((ending for ending in ENDINGS if filename.endswith(ending)), None)
    if ending is None:
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
    """An index's credentials for files on the same host and port, as pip does it."""
    parts, owner = urlsplit(url), urlsplit(index)
    login, _, host = owner.netloc.rpartition("@")
    if login and (parts.scheme, parts.netloc) == (owner.scheme, host):
        return parts._replace(netloc=owner.netloc).geturl()
    return url
