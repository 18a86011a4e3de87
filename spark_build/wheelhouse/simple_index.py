"""The static package index of a generation."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from packaging.version import Version

from spark_build.files import make_folder, remove_tree, sync_folder, sync_tree
from spark_build.wheelhouse.store import RECORD, entry_folder
from spark_build.wheels.model import StoredWheel

INDEX = "index"
PAGES = "pages"
FORMAT = 2  # another number makes every page anew
# A link of less than 60 characters lies in the inode: on ext4 10 000 take 0.1 s, longer ones up to 4 s.
DIGITS = 40
MANY = 100  # pages; for more one sync of all is quicker than one for each file


def write_index(generation: Path, view: Path, wheels: Sequence[StoredWheel], store: Path) -> None:
    """Write `generation`/index and its missing pages; under the view's lock.

    The caller syncs the generation's folder.
    """
    pages = view / PAGES
    make_folder(pages)
    projects: dict[str, list[StoredWheel]] = {}
    for wheel in wheels:
        projects.setdefault(wheel.name, []).append(wheel)
    digests = {project: _digest(own) for project, own in projects.items()}
    there = set(os.listdir(pages))  # noqa: PTH208 - names are enough
    _write_pages(
        pages, {digests[name]: projects[name] for name in projects if digests[name] not in there}, store
    )
    index = generation / INDEX
    index.mkdir()
    for project, digest in digests.items():
        # Plain strings: pathlib takes longer than the system call.
        os.symlink(f"../../../{PAGES}/{digest}", f"{index}/{project}")  # noqa: PTH211 - a string
    for name, data in root_pages(sorted(projects)).items():
        (index / name).write_bytes(data)


def _digest(wheels: Sequence[StoredWheel]) -> str:
    """Return a digest that names the pages of these wheels, from keys only: entries never change."""
    rows = sorted(f"{wheel.filename}\0{wheel.sha256}\0{wheel.key}" for wheel in wheels)
    return hashlib.sha256("\n".join([str(FORMAT), *rows]).encode()).hexdigest()[:DIGITS]


def _write_pages(pages: Path, missing: Mapping[str, Sequence[StoredWheel]], store: Path) -> None:
    """Write the pages of each digest; all are on disk before the first gets its name."""
    for killed in pages.glob(".tmp-*"):
        remove_tree(killed)
    if not missing:
        return
    staging = Path(tempfile.mkdtemp(prefix=".tmp-", dir=pages))
    try:
        # Resolved: the wheelhouse's views/ or store/ may itself be a link to another disk.
        to_store = Path(os.path.relpath(store.resolve(), pages.resolve() / "digest"))
        for digest, wheels in missing.items():
            folder = staging / digest
            folder.mkdir()
            for wheel in wheels:
                (folder / wheel.filename).symlink_to(entry_folder(to_store, wheel.key) / wheel.filename)
            for name, data in project_pages(wheels[0].name, [indexed(store, one) for one in wheels]).items():
                (folder / name).write_bytes(data)
        if len(missing) > MANY:
            os.sync()
        else:
            sync_tree(staging)
        for digest in missing:
            (staging / digest).rename(pages / digest)
        sync_folder(pages)
    finally:
        remove_tree(staging)


def indexed(store: Path, wheel: StoredWheel) -> IndexedWheel:
    """Return a stored wheel's index entry; reads its record and METADATA."""
    from spark_build.wheels.reader import dist_info, opened

    folder = entry_folder(store, wheel.key)
    with opened(folder / wheel.filename) as archive:
        metadata = archive.read(f"{dist_info(archive, wheel.filename)}/METADATA")
    committed = datetime.fromisoformat(json.loads((folder / RECORD).read_text())["committed"])
    return IndexedWheel(
        wheel=wheel,
        uploaded=committed.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        metadata=metadata,
    )


HTML, JSON = "index.html", "index.json"
VERSION = "1.1"  # of the Simple API: with what PEP 700 adds
METADATA = ".metadata"  # PEP 658: what follows a wheel's URL

Form = Literal["application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html", "text/html"]
JSON_FORM: Form = "application/vnd.pypi.simple.v1+json"
HTML_FORM: Form = "application/vnd.pypi.simple.v1+html"
PLAIN_FORM: Form = "text/html"
# What a client may write for each; of equals the first wins.
_FORMS: tuple[tuple[str, Form], ...] = (
    (JSON_FORM, JSON_FORM),
    ("application/vnd.pypi.simple.latest+json", JSON_FORM),
    (HTML_FORM, HTML_FORM),
    ("application/vnd.pypi.simple.latest+html", HTML_FORM),
    (PLAIN_FORM, PLAIN_FORM),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedWheel:
    """An index entry of a wheel; `uploaded`: UTC as in PEP 700; `metadata`: METADATA's bytes."""

    wheel: StoredWheel
    uploaded: str
    metadata: bytes


def root_pages(projects: Sequence[str]) -> dict[str, bytes]:
    """Return the list of projects in both forms."""
    links = "".join(f'<a href="{escape(quote(name))}/">{escape(name)}</a><br>\n' for name in projects)
    listed = {"meta": {"api-version": VERSION}, "projects": [{"name": name} for name in projects]}
    return {HTML: _html("Simple index", links), JSON: _json(listed)}


def project_pages(project: str, indexed: Sequence[IndexedWheel]) -> dict[str, bytes]:
    """Return one project's page in both forms, and its wheels' metadata files."""
    ordered = sorted(indexed, key=lambda one: (Version(one.wheel.version), one.wheel.filename))
    rows = [_row(one) for one in ordered]
    listed = {
        "meta": {"api-version": VERSION},
        "name": project,
        "versions": list(dict.fromkeys(one.wheel.version for one in ordered)),
        "files": rows,
    }
    pages = {HTML: _html(f"Links for {project}", "".join(map(_link, rows))), JSON: _json(listed)}
    return pages | {f"{one.wheel.filename}{METADATA}": one.metadata for one in ordered}


def _row(indexed: IndexedWheel) -> dict[str, Any]:
    from packaging.metadata import parse_email

    needed = parse_email(indexed.metadata)[0].get("requires_python")
    wheel = indexed.wheel
    return {
        "filename": wheel.filename,
        "url": quote(wheel.filename),
        "hashes": {"sha256": wheel.sha256},
        **({"requires-python": needed} if needed else {}),
        "size": wheel.size,
        "upload-time": indexed.uploaded,
        "core-metadata": {"sha256": hashlib.sha256(indexed.metadata).hexdigest()},
        "yanked": False,
    }


def _link(row: Mapping[str, Any]) -> str:
    python = row.get("requires-python")
    needed = f' data-requires-python="{escape(python)}"' if python else ""
    metadata = f' data-core-metadata="sha256={row["core-metadata"]["sha256"]}"'
    href = f"{row['url']}#sha256={row['hashes']['sha256']}"
    return f'<a href="{escape(href)}"{needed}{metadata}>{escape(row["filename"])}</a><br>\n'


def _html(title: str, body: str) -> bytes:
    meta = f'<meta charset="utf-8"><meta name="pypi:repository-version" content="{VERSION}">'
    head = f"{meta}<title>{escape(title)}</title>"
    main = f"<main>\n<h1>{escape(title)}</h1>\n{body}</main>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{main}</body></html>\n'.encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def negotiate(accept: str) -> Form:
    """Return the form that an Accept header prefers; HTML where it accepts none (PEP 691 allows it)."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        kind, _, parameters = part.partition(";")
        weights[kind.strip().lower()] = _weight(parameters)
    if not any(name in weights for name, _ in _FORMS):
        return PLAIN_FORM
    return max(_FORMS, key=lambda form: weights.get(form[0], 0.0))[1]


def _weight(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
