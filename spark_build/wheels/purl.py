"""Package URLs: names of packages that tools all over the world agree on (ECMA-427)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote


def pypi(name: str, version: str, *, file_name: str = "") -> str:
    """A Python package; `file_name` tells one of its files from the others."""
    return _purl("pypi", name.lower().replace("_", "-"), version, {"file_name": file_name})


def generic(name: str, version: str) -> str:
    """Something that no package manager knows."""
    return _purl("generic", name, version, {})


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str]) -> str:
    known = "&".join(f"{key}={_quoted(value)}" for key, value in sorted(qualifiers.items()) if value)
    at = f"@{_quoted(version)}" if version else ""
    return f"pkg:{kind}/{_quoted(name)}{at}" + (f"?{known}" if known else "")


def _quoted(text: str) -> str:
    return quote(text, safe=":")  # what the specification leaves unencoded, besides letters, digits and .-_~
