"""Reading raw TOML tables whose shape may be wrong, and the rules that several kinds of file share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_build.recipes.toml_positions import Path

Finding = tuple[Path, str]  # where, and what is wrong there

PLATFORMS = ("linux-x86_64", "linux-aarch64")


def table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The table at a key; an empty one when there is none."""
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def items(raw: Mapping[str, Any], key: str) -> list[Any]:
    """The array at a key; an empty one when there is none."""
    value = raw.get(key)
    return value if isinstance(value, list) else []


def tables(raw: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The tables of an array of tables, with their index."""
    for index, value in enumerate(items(raw, key)):
        if isinstance(value, dict):
            yield index, value


def one_of(value: object, options: tuple[str, ...], path: Path, what: str) -> Iterator[Finding]:
    """A string must be one of these."""
    if isinstance(value, str) and value not in options:
        yield path, f"{what} must be one of {', '.join(options)}, not '{value}'"


def platforms(raw: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Every entry of `platforms` must be a platform."""
    for index, platform in enumerate(items(raw, "platforms")):
        yield from one_of(platform, PLATFORMS, (*path, "platforms", index), "platform")


def name_rule(value: object, path: Path) -> Iterator[Finding]:
    """Names of recipes and packages have one spelling."""
    if isinstance(value, str) and not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", value):
        yield (
            path,
            f"the name '{value}' must be in lower case, words joined by '-': '{canonicalize_name(value)}'",
        )


def below(value: object, path: Path, what: str) -> Iterator[Finding]:
    """A relative path that stays inside."""
    if isinstance(value, str) and (not value or value.startswith("/") or ".." in value.split("/")):
        yield path, f"{what} '{value}' must be a relative path without '..'"


def version_of(text: str) -> Version | None:
    """A version, or None for what is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def allows(specifiers: str, version: Version) -> bool:
    """Whether ">=2.9,<2.15" takes a version, a pre-release too; a local label does not matter."""
    return SpecifierSet(specifiers).contains(version, prereleases=True)
