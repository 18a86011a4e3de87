"""What indexes and repositories say about sources: hashes, commits, files of other versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from spark_build.errors import SourceError
from spark_build.files import CHUNK, sha256_of
from spark_build.sources import git_remote, http
from spark_build.sources.simple_api import IDENTITY, Indexes, IndexFile, configured, files_of, find
from spark_build.text import nearest


def sha256_of_file(file: IndexFile, indexes: Indexes) -> str:
    """A file's sha256: as announced, else of its content, which is read for it."""
    if file.sha256:
        return file.sha256
    return sha256_of_url(file.url, indexes)


def sha256_of_url(url: str, indexes: Indexes) -> str:
    """The sha256 of what is there now. Raises SourceError when it cannot be read."""
    if not http.is_remote(url):
        path = Path(http.path_of(url))
        if not path.is_file():
            raise SourceError(f"there is no file {path}")
        return sha256_of(path)
    digest = hashlib.sha256()
    try:
        with (
            http.Session(indexes.config) as session,
            session.ask("GET", url, headers=IDENTITY, stream=True) as answer,
        ):
            if not answer.ok:
                raise SourceError(f"{http.host_of(url)}: HTTP {answer.status_code} {answer.reason}".strip())
            for chunk in answer.raw.stream(CHUNK, decode_content=False):
                digest.update(chunk)
    except http.NETWORK_ERRORS as error:
        raise SourceError(f"{http.host_of(url)}: {http.reason(error)}") from error
    return digest.hexdigest()


class Asked:
    """Indexes and repositories, each asked once."""

    def __init__(self) -> None:
        self._indexes: Indexes | None = None
        self._tags: dict[str, dict[str, str] | SourceError] = {}

    @property
    def indexes(self) -> Indexes:
        """pip's, read when first wanted."""
        self._indexes = self._indexes or configured()
        return self._indexes

    def commit(self, url: str, tag: str) -> str:
        """The commit of a tag; a repository that did not answer is not asked again."""
        if url not in self._tags:
            try:
                self._tags[url] = git_remote.tags(url)
            except SourceError as error:
                self._tags[url] = error
        known = self._tags[url]
        if isinstance(known, SourceError):
            raise known
        if tag not in known:
            raise SourceError(f"{url} has no tag '{tag}'{nearest(tag, known)}")
        return known[tag]

    def identity(self, source: Mapping[str, Any]) -> str:
        """What pins a source: the commit of its tag, or the sha256 of its file."""
        if source.get("kind") in ("sdist", "wheel", "git"):
            return self.announced(source)
        return sha256_of_url(str(source.get("url", "")), self.indexes)

    def announced(self, source: Mapping[str, Any]) -> str:
        """As `identity`, but without downloading what a server only offers."""
        if source.get("kind") == "git":
            if not source.get("tag"):
                raise SourceError("it is pinned by a commit without a tag")
            return self.commit(str(source.get("url", "")), str(source["tag"]))
        if source.get("kind") in ("sdist", "wheel"):
            project, filename = str(source.get("project", "")), str(source.get("filename", ""))
            return sha256_of_file(find(project, filename, self.indexes), self.indexes)
        if http.is_remote(str(source.get("url", ""))):
            raise SourceError("nobody announces the hash of an archive")
        return sha256_of_url(str(source.get("url", "")), self.indexes)

    def moved(self, source: Mapping[str, Any], old: str, new: str, version: Version) -> dict[str, str]:
        """The keys that another version changes in a source, and their new values."""
        kind = source.get("kind")
        if kind in ("sdist", "wheel"):
            file = self._file(source, version)
            return {"filename": file.filename, "sha256": sha256_of_file(file, self.indexes)}
        key = "tag" if kind == "git" else "url"
        place = str(source.get(key, ""))
        if not old or old not in place:
            raise SourceError(f"cannot tell the {key} of {new} from {place or 'a commit alone'}")
        place = place.replace(old, new)
        if kind == "git":
            return {"tag": place, "commit": self.commit(str(source.get("url", "")), place)}
        return {"url": place, "sha256": sha256_of_url(place, self.indexes)}

    def _file(self, source: Mapping[str, Any], version: Version) -> IndexFile:
        project, filename = str(source.get("project", "")), str(source.get("filename", ""))
        files = files_of(project, self.indexes)
        wanted = facts_of(filename, project)
        there = [(facts_of(file.filename, project), file) for file in files]
        fitting = [file for facts, file in there if facts and wanted and facts == (version, wanted[1])]
        if not fitting:
            same = sorted({facts[0] for facts, _ in there if facts and wanted and facts[1] == wanted[1]})
            some = ", ".join(str(one) for one in reversed(same[-8:]))
            like = f"such as {filename}" if source.get("kind") == "wheel" else "as an sdist"
            raise SourceError(f"there is no {project} {version} {like}", hint=f"there are {some or 'none'}")
        return fitting[0]


def facts_of(filename: str, project: str) -> tuple[Version, frozenset[Tag]] | None:
    """Version and wheel tags (none: an sdist) of a project's file; None when it is no such file."""
    tags: frozenset[Tag] = frozenset()
    try:
        if filename.endswith(".whl"):
            name, version, _, tags = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):  # of a time before the rules
        return None
    # "cffi-1.0.2-2.tar.gz" would be version 2 of cffi-1-0-2.
    return (version, tags) if name == canonicalize_name(project) else None
