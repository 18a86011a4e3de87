"""A package index as files: PEP 503 HTML and PEP 691 JSON, with PEP 658 metadata and PEP 700 fields.

Pure: wheels in, files out. All URLs are relative, so the same files hold by file:// and http://.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal
from urllib.parse import quote

from packaging.metadata import parse_email
from packaging.version import Version

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
    """What an index says of a wheel. `uploaded`: UTC, as PEP 700 writes it; `metadata`: METADATA's bytes."""

    name: str  # normalised
    version: str
    filename: str
    sha256: str
    size: int
    uploaded: str
    metadata: bytes


def render(wheels: Iterable[IndexedWheel], prefix: str = "") -> dict[str, bytes]:
    """A whole index, to be written beside nothing or the wheels: content by relative path.

    `prefix` leads from a project's page to the folder of the wheels: "" when each lies beside its
    page (index/<project>/), "../../" when all lie beside index/. The metadata files lie beside them.
    """
    projects: dict[str, list[IndexedWheel]] = {}
    for wheel in wheels:
        projects.setdefault(wheel.name, []).append(wheel)
    files = {f"index/{name}": data for name, data in root_pages(sorted(projects)).items()}
    for project, own in projects.items():
        for name, data in project_pages(project, own, prefix).items():
            files[posixpath.normpath(f"index/{project}/{name}")] = data
    return files


def root_pages(projects: Sequence[str]) -> dict[str, bytes]:
    """The list of projects, in both forms."""
    links = "".join(f'<a href="{escape(quote(name))}/">{escape(name)}</a><br>\n' for name in projects)
    listed = {"meta": {"api-version": VERSION}, "projects": [{"name": name} for name in projects]}
    return {HTML: _html("Simple index", links), JSON: _json(listed)}


def project_pages(project: str, wheels: Sequence[IndexedWheel], prefix: str = "") -> dict[str, bytes]:
    """The page of one project in both forms, and the metadata file of each of its wheels."""
    ordered = sorted(wheels, key=lambda wheel: (Version(wheel.version), wheel.filename))
    rows = [_row(wheel, prefix) for wheel in ordered]
    listed = {
        "meta": {"api-version": VERSION},
        "name": project,
        "versions": list(dict.fromkeys(wheel.version for wheel in ordered)),
        "files": rows,
    }
    pages = {HTML: _html(f"Links for {project}", "".join(map(_link, rows))), JSON: _json(listed)}
    return pages | {f"{prefix}{wheel.filename}{METADATA}": wheel.metadata for wheel in ordered}


def _row(wheel: IndexedWheel, prefix: str) -> dict[str, Any]:
    needed = parse_email(wheel.metadata)[0].get("requires_python")
    return {
        "filename": wheel.filename,
        "url": prefix + quote(wheel.filename),
        "hashes": {"sha256": wheel.sha256},
        **({"requires-python": needed} if needed else {}),
        "size": wheel.size,
        "upload-time": wheel.uploaded,
        "core-metadata": {"sha256": hashlib.sha256(wheel.metadata).hexdigest()},
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
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}</body></html>\n".encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def negotiate(accept: str) -> Form:
    """The form that an Accept header likes best; HTML where it names none of ours (PEP 691 allows that)."""
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
